"""Measures how robust a language model is against published attack algorithms.

Importing the package is cheap: nothing here imports torch or transformers.
"""

from __future__ import annotations

__version__ = "1.0.0.dev0"
