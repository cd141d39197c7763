"""Attacks: one file each, found by file name; `_kit` holds the functions that they share."""
