"""Things that answer: cards, loading, probing, local, remote and metered models, fakes."""
