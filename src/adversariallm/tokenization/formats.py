"""Our own chat templates, written from the formats that model makers document, and how a template is chosen.

A template holds format only: role markers, separators, special tokens. Default system prompts are assets.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from adversariallm.core.errors import TemplateError, UnknownNameError
from adversariallm.tokenization.template import ChatTemplate

FOLDER = Path(__file__).parent / "templates"


def list_templates() -> list[str]:
    """Names of our templates."""
    return sorted(p.stem for p in FOLDER.glob("*.jinja"))


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
            raise TemplateError(
                "the tokenizer has no chat template; set models.<name>.template to Jinja text or to one of"
                f" {', '.join(list_templates())}"
            )
        return ChatTemplate(source, "tokenizer", clock=clock)
    if "{" in template:
        return ChatTemplate(template, "user", clock=clock)
    path = FOLDER / f"{template}.jinja"
    if template not in list_templates():
        raise UnknownNameError("chat template", template, list_templates())
    return ChatTemplate(path.read_text(encoding="utf-8"), f"ours:{template}", clock=clock)
