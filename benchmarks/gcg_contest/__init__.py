"""Parts of `gcg_vs_nanogcg.py`: the arms, both searches, the way back through text, the tables."""
