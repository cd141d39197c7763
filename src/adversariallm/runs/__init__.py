"""Runs: plan, execute, store, resume, launch."""
