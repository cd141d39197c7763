"""Write stored runs as files of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from adversariallm.cli._passes import Where


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    to: Annotated[
        str,
        typer.Option(
            help="inspect, inspect-json, jailbreakbench, harmbench, table6, csv, parquet, bundle"
        ),
    ] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; STORE/export-FORMAT by default.")
    ] = None,
    where: Where = None,
    judge: Annotated[
        str | None, typer.Option(help="Judge whose verdicts count, where the format has one.")
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(help="Hide harmful text: answers, or all (also the attacks' inputs)."),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="inspect: one epoch per step instead of per sample.")
    ] = False,
    when: Annotated[
        str | None,
        typer.Option(help="harmbench, jailbreakbench: the step, last (default), best_loss or any."),
    ] = None,
    threat: Annotated[
        str | None,
        typer.Option(help="jailbreakbench: white_box, black_box, transfer or manual."),
    ] = None,
) -> None:
    """Export runs for inspect, JailbreakBench, HarmBench, the paper's tools, or as tables."""
    from adversariallm.cli._console import say
    from adversariallm.cli._stores import existing_store, writing
    from adversariallm.core.errors import ConfigError
    from adversariallm.reporting.formats import writer
    from adversariallm.reporting.load import nothing_fits, read_documents
    from adversariallm.reporting.redact import redacted

    folder = output or store / f"export-{to}"
    options = {"steps": steps or None, "when": when, "threat": threat}
    given = {name: value for name, value in options.items() if value is not None}
    if to == "bundle":
        from adversariallm.reporting.bundle import write_bundle

        _refuse_for_bundle({**given, "judge": judge, "redact": redact})
        with writing(folder):
            say(f"bundle: {write_bundle(existing_store(store), folder, where=where)}")
        return
    _check(to, given)
    write = writer(to)
    if redact not in (None, "answers", "all"):
        raise ConfigError(f"--redact {redact!r}: expected answers or all")
    existing_store(store)
    documents = read_documents(store, where)
    if not documents:
        raise nothing_fits(store, where)
    if redact is not None:
        documents = redacted(documents, redact)  # type: ignore[arg-type]
    with writing(folder):
        paths = write(documents, folder, form=to, judge=judge, **given)
    for path in paths:
        say(str(path))


_FORMS = {
    "steps": ("inspect", "inspect-json"),
    "when": ("harmbench", "jailbreakbench"),
    "threat": ("jailbreakbench",),
}


def _check(to: str, given: Mapping[str, object]) -> None:
    """Refuse an unknown format, an option that it does not have, and a step that nobody knows."""
    from adversariallm.core.errors import ConfigError, UnknownNameError
    from adversariallm.reporting.formats import EXPORTS

    if to not in EXPORTS:
        raise UnknownNameError("export format", to, [*EXPORTS, "bundle"])
    for name in given:
        if to not in _FORMS[name]:
            raise ConfigError(f"--{name} with --to {to}: it is for {' and '.join(_FORMS[name])}")
    if given.get("when", "last") not in ("any", "last", "best_loss"):
        raise ConfigError(f"--when {given['when']!r}: expected last, best_loss or any")


def _refuse_for_bundle(given: Mapping[str, object]) -> None:
    """A bundle is for `replay`, which compares every answer and score: nothing may be left out."""
    from adversariallm.core.errors import ConfigError

    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"--{name} with --to bundle: a bundle holds runs, answers and scores as they are, "
                "because `replay` compares them; choose runs with --where, or publish "
                "`export --to table6 --redact all` instead"
            )
