"""Write the HTML report of a store and print the summary table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from adversariallm.cli._passes import Where


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="HTML file; STORE/report.html by default, a page of its own with --where.",
        ),
    ] = None,
    where: Where = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the summary as CSV.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Score that counts as success, for all judges.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write it as Markdown.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write it as a LaTeX table.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show inputs token by token; reads the tokenizers.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Also write figures for papers, PDF and SVG, here.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Read all runs under this protocol, not only those made under one."),
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="YAML rules for CI; exit 1 when one is missed.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the gate's verdicts here.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path.")] = False,
) -> None:
    """Summarize stored runs: a table here, and an HTML file with curves and transcripts."""
    from adversariallm.cli._console import console, say
    from adversariallm.cli._stores import writing
    from adversariallm.evaluation.flags import raise_flags
    from adversariallm.reporting import read_documents, summarize, write_csv, write_report
    from adversariallm.reporting.load import nothing_fits
    from adversariallm.reporting.protocols import protocol_lines

    documents = read_documents(store, where)
    if not documents:
        raise nothing_fits(store, where)
    table = summarize(documents, threshold=threshold)
    chats = None
    if tokens:
        from adversariallm.reporting.token_view import chats_of

        chats = chats_of(documents)
    path = output or store / _page(where)
    with writing(path):
        write_report(documents, path, threshold=threshold, chats=chats)
    if csv is not None:
        with writing(csv):
            write_csv(table, csv)
    for target, text in ((markdown, table.to_markdown()), (latex, table.to_latex())):
        if target is not None:
            with writing(target):
                target.write_text(text, encoding="utf-8")
    if figures is not None:
        from adversariallm.reporting.figures import write_figures

        with writing(figures):
            write_figures(documents, figures, threshold=threshold)
    if not quiet:
        console().print(table.to_rich())
        if any(d["config"].get("defense") for d in documents):
            from adversariallm.reporting.safety import safety_utility

            console().print(safety_utility(documents, separate=True).to_rich())
        for flag in raise_flags(documents):
            say(f"flag {flag.name}: {flag.where}: {flag.seen}")
    for line in protocol_lines(documents, protocol):
        say(line)
    say(f"report: {path}")
    if gate is not None:
        _gate(documents, gate, junit, threshold)


def _page(where: list[str] | None) -> str:
    """A selection gets a page of its own, so that it does not replace that of the whole store."""
    if not where:
        return "report.html"
    words = re.sub(r"[^\w=.+-]+", "_", "+".join(where)).strip("_.")
    return f"report-{words[:100]}.html"


def _gate(documents: list[Any], path: Path, output: Path | None, threshold: float | None) -> None:
    from adversariallm.cli._console import say
    from adversariallm.cli._stores import writing
    from adversariallm.reporting.gate import check_gate, junit, read_gate

    verdicts = check_gate(documents, read_gate(path), threshold=threshold)
    if output is not None:
        with writing(output):
            output.write_text(junit(verdicts), encoding="utf-8")
    for v in verdicts:
        say(f"{'passed' if v.passed else 'MISSED'}: {v.rule}: {v.row}: {v.detail}")
    raise typer.Exit(int(not all(v.passed for v in verdicts)))
