"""The tokens of what was sent, with those of the attack marked and those that straddle its edge.

It needs the model's tokenizer, which is read from this machine; without it the report shows text
only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import AdversariaLLMError
from adversariallm.core.types import Conversation
from adversariallm.evaluation.facts import Document
from adversariallm.reporting.text import visible_line

if TYPE_CHECKING:
    from adversariallm.tokenization import ChatTokenizer, Slot

KINDS = ("template", "prompt", "slot", "post", "merge")
_log = logging.getLogger(__name__)


def chats_of(documents: Iterable[Document]) -> dict[str, ChatTokenizer]:
    """Tokenizers of the models by name; what this machine lacks is left out with a warning."""
    from adversariallm.models.card import ModelCard
    from adversariallm.models.loading import load_chat
    from adversariallm.models.options import ModelOptions, resolve

    specs = {m["name"]: m for d in documents for m in d.get("resolved", {}).get("models", ())}
    found = {}
    for name, spec in specs.items():
        try:
            options = ModelOptions(**spec.get("options", {}))
            card = resolve(name, options)
            if isinstance(card, ModelCard):
                found[name] = load_chat(card, options)
        except (AdversariaLLMError, ValueError) as error:
            _log.warning("no token view for %s: %s", name, error)
    return found


def token_view(
    chat: ChatTokenizer, step: Mapping[str, Any], original: Sequence[Mapping[str, str]]
) -> dict[str, Any] | None:
    """Tokens of a step's input as `[text, kind]`, kinds as indices into `KINDS`.

    Args:
        chat: the model's tokenizer and template.
        step: a stored step.
        original: the request as it stands in the data set.

    Returns:
        `pieces` and `exact`: whether the text gives back the stored ids; None without ids.
    """
    ids, sent = step.get("model_input_tokens"), step.get("model_input")
    if not ids or not sent:
        return None
    kinds = [KINDS.index("prompt")] * len(ids)
    exact = False
    try:
        base, slot = _slot(original, sent)
        segments = chat.segments(
            Conversation.from_dicts(base), slot, prefill=step.get("prefill", "")
        )
        exact = list(segments.input_ids) == list(ids)
        if exact:
            for span in segments.spans:
                kind = KINDS.index(span.name) if span.name in KINDS else KINDS.index("template")
                kinds[span.start : span.end] = [kind] * (min(span.end, len(ids)) - span.start)
            for merge in segments.merges:
                if merge.position < len(ids):
                    kinds[merge.position] = KINDS.index("merge")
    except (AdversariaLLMError, ValueError, TypeError) as error:
        _log.debug("no spans: %s", error)
    pieces = [[visible_line(chat.decode([i])), k] for i, k in zip(ids, kinds, strict=True)]
    return {"pieces": pieces, "exact": exact}


def _slot(
    original: Sequence[Mapping[str, str]], sent: Sequence[Mapping[str, str]]
) -> tuple[Sequence[Mapping[str, str]], Slot | None]:
    """The conversation without the attack's text, and the slot that holds it."""
    from adversariallm.tokenization import Slot

    if [m["role"] for m in original] != [m["role"] for m in sent]:
        return sent, None
    changed = [
        i
        for i, (a, b) in enumerate(zip(original, sent, strict=True))
        if a["content"] != b["content"]
    ]
    if len(changed) != 1 or sent[changed[0]]["role"] != "user":
        return sent, None
    turn = changed[0]
    asked, said = original[turn]["content"], sent[turn]["content"]
    before, found, after = said.partition(asked)
    if not found:
        return original, Slot("turn", text=said, turn=turn)
    if not before:
        return original, Slot("suffix", text=after, turn=turn)
    if not after:
        return original, Slot("prefix", text=before, turn=turn)
    return original, Slot("both", text=after, prefix=before, turn=turn)
