"""Our own chat templates, written from documented formats, and how one is chosen.

A template holds format only: markers, separators, special tokens. Default system prompts are
assets.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import TemplateError, UnknownNameError
from adversariallm.core.types import Conversation
from adversariallm.tokenization.template import ChatTemplate

FOLDER = Path(__file__).parent / "templates"


class TemplateInfo(FrozenConfig):
    """What is known about one of our templates."""

    name: str
    summary: str
    documented: str = Field(description="where the format is documented")
    checked: Literal["run", "rendered", "documents"]
    compared_with: str | None = Field(
        None, description="tokenizer folders or libraries that it equals"
    )
    differences: tuple[str, ...] = Field((), description="intended differences from the original")


def list_templates() -> tuple[TemplateInfo, ...]:
    """Our templates, by name."""
    import yaml

    rows = yaml.safe_load((FOLDER / "index.yaml").read_text(encoding="utf-8"))
    return tuple(TemplateInfo(name=name, **row) for name, row in sorted(rows.items()))


def template_source(name: str) -> str:
    """Jinja text of one of our templates."""
    names = [t.name for t in list_templates()]
    if name not in names:
        raise UnknownNameError("chat template", name, names)
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def find_template(template: str | None, tokenizer: Any, clock: datetime) -> ChatTemplate:
    """The template that a setting stands for.

    Args:
        template: name of one of ours, Jinja text, or None for the tokenizer's own.
        tokenizer: a transformers tokenizer.
        clock: the time the template is told.
    """
    if template is None:
        source = getattr(tokenizer, "chat_template", None)
        if isinstance(source, dict):
            source = source.get("default")
        if not source:
            names = ", ".join(t.name for t in list_templates())
            raise TemplateError(
                "the tokenizer has no chat template; set `template` to Jinja text or to one of"
                f" ours: {names}"
            )
        return ChatTemplate(source, "tokenizer", clock=clock)
    if "{" in template:
        return ChatTemplate(template, "user", clock=clock)
    return ChatTemplate(template_source(template), f"ours:{template}", clock=clock)


def diff_renderings(
    first: ChatTemplate, second: ChatTemplate, conversations: Iterable[Conversation]
) -> list[str]:
    """A unified diff for each conversation that two templates render differently."""
    out: list[str] = []
    for n, conversation in enumerate(conversations):
        texts = []
        for template in (first, second):
            try:
                texts.append(template.text(conversation.messages, True))
            except TemplateError as e:
                texts.append(f"refused: {e}")
        if texts[0] != texts[1]:
            one, other = ([repr(line) for line in t.splitlines(keepends=True)] for t in texts)
            first_name, second_name = (f"{t.origin} (conversation {n})" for t in (first, second))
            diff = difflib.unified_diff(one, other, first_name, second_name, lineterm="")
            out.append("\n".join(diff))
    return out
