"""Tell which attack strings, of any tool, survive tokenization inside the whole conversation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from adversariallm.core.types import Merge


def command(
    file: Annotated[
        Path, typer.Argument(help="suffixes line by line, JSON lines, or JSON (JailbreakBench)")
    ],
    tokenizer: Annotated[str, typer.Option(help="folder or hub name of the tokenizer")],
    template: Annotated[
        str | None, typer.Option(help="name of one of our chat templates, or a Jinja file")
    ] = None,
    system: Annotated[str | None, typer.Option(help="system prompt")] = None,
    prompt: Annotated[
        str, typer.Option(help="user message for strings that come without one")
    ] = "Tell me a story about the sea.",
    join: Annotated[
        Literal["none", "space"], typer.Option(help="what stands between message and suffix")
    ] = "space",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which attack strings survive in the full conversation; 1 where one does not."""
    from adversariallm.cli._console import columns, say, say_json
    from adversariallm.core.errors import ConfigError
    from adversariallm.tokenization import ChatTokenizer, load_tokenizer
    from adversariallm.tokenization.audit import audit, read_items

    if not file.is_file():
        raise ConfigError(f"{file} is not a file")
    if template is not None and Path(template).is_file():
        template = Path(template).read_text(encoding="utf-8")
    chat = ChatTokenizer(load_tokenizer(tokenizer), template, system=system)
    results, stats = audit(chat, read_items(file, prompt, join))
    if as_json:
        rows = [
            {
                "item": r.item.label,
                "verdict": r.verdict,
                "text": r.item.slot.text,
                "merges": [asdict(m) for m in r.merges],
                "detail": r.detail,
            }
            for r in results
        ]
        say_json({"tokenizer": chat.identity(), "statistics": asdict(stats), "items": rows})
    else:
        columns(
            [
                (
                    r.item.label,
                    r.verdict,
                    " ".join(map(_pair, r.merges)),
                    repr(r.item.slot.text[-60:]),
                )
                for r in results
            ],
            titles=("item", "verdict", "merged", "text"),
        )
        say(
            f"{stats.kept} of {stats.sampled} reachable; {stats.rejected_isolated} fail the"
            f" isolated check, {stats.rejected_conversation} more only inside the conversation"
        )
        for r in results:
            if r.verdict == "error":
                say(f"{r.item.label}: {r.detail}")
    raise typer.Exit(int(any(r.verdict != "reachable" for r in results)))


def _pair(merge: Merge) -> str:
    """The two strings of a merge."""
    return f"{merge.left_text!r}+{merge.right_text!r}"
