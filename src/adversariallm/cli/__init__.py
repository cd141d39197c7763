"""The command line: `adversariallm COMMAND`, one file of this folder per command.

A file without a leading underscore is a command of its name; it has a function `command`, or a
`typer.Typer` named `app` for a group. Heavy imports stand inside functions.
"""

from __future__ import annotations

from adversariallm.cli._app import main

__all__ = ["main"]
