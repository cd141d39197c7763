"""Finds the commands, runs one, and turns errors into a message and an exit code.

What a command does stands in its own file; nothing here knows any of them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from adversariallm.core.errors import AdversariaLLMError, ConfigError

HELP = "Measure how robust a language model is: attacks, judged answers, counted costs."
INTERRUPTED = 130
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
OVERRIDES = {"ignore_unknown_options": True, "allow_interspersed_args": True}


def command_names() -> list[str]:
    """Names of all commands, sorted."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(m.name for m in found if not m.name.startswith("_"))


def build() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="adversariallm",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name in command_names():
        module = importlib.import_module(f"{__package__}.{name}")
        shown = name.replace("_", "-")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=shown, help=_first_line(module.__doc__))
        else:
            settings = getattr(module, "CONTEXT", None)
            app.command(shown, context_settings=settings)(module.command)
    return app


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]


def _version(wanted: bool) -> None:
    if wanted:
        from adversariallm import __version__

        print(f"adversariallm {__version__}")
        raise typer.Exit()


def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the entry point of the console script.

    Returns:
        0 done, 1 some runs failed (the others are kept), 2 bad configuration, 130 interrupted.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        build()(list(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as done:
        if done.code == INTERRUPTED:  # typer's word for Ctrl-C
            return _fail("interrupted; repeat the same command to go on", INTERRUPTED)
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return _fail("interrupted; repeat the same command to go on", INTERRUPTED)
    except AdversariaLLMError as error:
        return _fail(str(error), 2 if isinstance(error, ConfigError) else 1)
    except Exception as error:
        from judgezoo.errors import JudgezooError

        if isinstance(error, JudgezooError):
            return _fail(str(error), 2)
        raise
    return 0


def _fail(message: str, code: int) -> int:
    from adversariallm.cli._console import clean

    print(f"error: {clean(message)}", file=sys.stderr)
    return code
