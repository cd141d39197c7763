"""From stored scores to numbers with intervals: rates, curves, comparisons, flags.

Works on joined run documents and plain arrays; it runs no model and writes no file.
"""
