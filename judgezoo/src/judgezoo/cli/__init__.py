"""The command line: score, compare, list, selftest, assets.

One small file per command; model libraries are imported inside commands only.
"""

from __future__ import annotations

import sys

import typer

from judgezoo.cli.assets import assets_app
from judgezoo.cli.compare import compare
from judgezoo.cli.listing import list_command
from judgezoo.cli.score import score
from judgezoo.cli.selftest import selftest
from judgezoo.errors import JudgezooError

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Judge conversations with the judges of the language-model safety literature.",
)
app.command("score")(score)
app.command("compare")(compare)
app.command("list")(list_command)
app.command("selftest")(selftest)
app.add_typer(assets_app, name="assets")


def main() -> None:
    """Run the command line; a mistake of the user ends with exit code 2 and one line."""
    try:
        app()
    except (JudgezooError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
