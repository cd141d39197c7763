"""Replies as a defense leaves them: passed on, chosen among copies, or withheld, with their cost.

The work behind the reply that is handed on stays its `usage`; all other work is the defense's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from adversariallm.core.budget import Usage
from adversariallm.core.types import Reply

WITHHELD = "I'm sorry, but I can't help with that."
"""The answer of ours in place of one that is withheld."""
BLOCKED = Usage(queries=1)
"""What a question costs that never reached the model: it was asked all the same."""


def total(reply: Reply) -> Usage:
    """All work behind a reply, that of defenses inside included."""
    return reply.usage + reply.defense_usage


def charged(reply: Reply, spent: Iterable[Usage] = (), *, executed: int = 0) -> Reply:
    """The reply with further work booked on the defense."""
    usage = sum(spent, reply.defense_usage)
    return replace(reply, defense_usage=usage, executed=reply.executed + executed)


def chosen(reply: Reply, others: Iterable[Reply]) -> Reply:
    """One of several replies of the model, the work of the others booked on the defense."""
    rest = list(others)
    executed = sum(other.executed for other in rest)
    return charged(reply, map(total, rest), executed=executed)


def marked(reply: Reply, name: str, **facts: Any) -> Reply:
    """The reply with what the defense `name` found; JSON facts, kept with the completion."""
    marks = [*reply.raw.get("defense", ()), {"name": name, **facts}]
    return replace(reply, raw={**reply.raw, "defense": marks})


def withheld(
    name: str, text: str, reason: str, *, reply: Reply | None = None, error: str | None = None,
    **facts: Any,
) -> Reply:  # fmt: skip
    """The answer `text` in place of the model's.

    Args:
        name: the defense that withholds.
        text: what is said instead.
        reason: a few words for the record.
        reply: the model's answer that is withheld; None where the model was not asked.
        error: why the defense could not decide. The answer is withheld all the same, and it counts
            as unscored: a defense that fails is neither weak nor strong.
        facts: further JSON facts for the record.
    """
    said = reply if reply is not None else Reply("", usage=BLOCKED)
    code = None if error is None else f"defense:{name}:{error}"
    instead = Reply(
        text,
        finish_reason="content_filter" if error is None else "error",
        error=code,
        raw=said.raw,
        usage=said.usage,
        defense_usage=said.defense_usage,
        executed=said.executed,
        undefended=said.undefended,
    )
    return marked(instead, name, withheld=reason, **facts)
