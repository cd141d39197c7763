"""Functions that attacks share: slots, proposals, objectives, buffers, mutations.

Functions and small frozen data only; no attack inherits from anything here. This package may use
`inference` for pure losses, attack files may not.
"""
