"""Defenses: one file each, found by file name; a chat model in, a chat model out."""
