"""Collects where generation ends from generation config, tokenizer and template.

It does not stop anything itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import TemplateError

if TYPE_CHECKING:
    from adversariallm.tokenization.chat import ChatTokenizer


@dataclass(frozen=True)
class Stops:
    """Ids and strings that end an answer, each with the place that names it.

    Attributes:
        ids: stop token ids, sorted.
        strings: stop strings, where a template ends turns with plain text.
        sources: place to the ids it names.
    """

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    sources: dict[str, tuple[int, ...]]


def find_stops(chat: ChatTokenizer, generation_config: Any = None) -> Stops:
    """Union of the three places.

    Args:
        chat: tokenizer and template.
        generation_config: transformers generation config or anything with `eos_token_id`; None
            without one.
    """
    sources: dict[str, tuple[int, ...]] = {}
    named = getattr(generation_config, "eos_token_id", None)
    if named is not None:
        sources["generation_config"] = (
            tuple(named) if isinstance(named, (list, tuple)) else (named,)
        )
    eos = chat.tokenizer.eos_token_id
    if eos is not None:
        sources["tokenizer"] = (eos,)
    try:
        tail = chat.template.end_of_turn()
    except TemplateError:
        tail = ""
    strings: tuple[str, ...] = ()
    first = chat.codec.encode(tail.lstrip())[:1] if tail.strip() else []
    if first and first[0] in chat.codec.added:
        sources["template"] = (first[0],)
    elif tail.strip():
        strings = (tail.strip(),)
    ids = sorted({i for found in sources.values() for i in found})
    return Stops(tuple(ids), strings, sources)
