"""What `doctor` says about a model behind an address: does it answer, and what does it honor.

It sends about a dozen short requests, which cost what the provider takes for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from adversariallm.cli.doctor import Finding

if TYPE_CHECKING:
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.options import ModelOptions
    from adversariallm.models.probe import Observed

ATTEMPTS = 2
REMEDIES = {
    r"HTTP 40[13]": "put the right key into the environment variable {key}",
    r"HTTP 404": "check the model's name and the address: openai:MODEL@http://HOST:PORT/v1",
    r"HTTP 4(?!08|09|29)": "the server refused the question; its words say why",
    r"no response": "check that a server listens there: openai:MODEL@http://HOST:PORT/v1",
}
"""What to do, by how the error begins; all of them are matters of configuration."""


def check_endpoint(card: EndpointCard, options: ModelOptions) -> Iterator[Finding]:
    """Everything about one endpoint; a row for every ability."""
    from adversariallm.models.probe import probe
    from adversariallm.models.remote import RemoteModel, endpoint_config
    from judgezoo.backends import EndpointBackend
    from judgezoo.errors import JudgezooError

    config = endpoint_config(card, options)
    try:
        quick = config.model_copy(update={"max_attempts": ATTEMPTS, "max_backoff_s": 1.0})
        backend = EndpointBackend(quick)
    except JudgezooError as error:
        yield Finding(f"key of {card.name}", "problem", str(error), configuration=True)
        return
    yield Finding(f"address of {card.name}", "ok", config.address())
    rows = probe(RemoteModel(backend, name=card.name))
    for row in rows:
        yield _finding(card, row, config.key_variable())
    wrong: dict[str, Any] = {}
    for row in rows:
        wrong |= {} if row.agrees else row.setting
    if wrong:
        told = {**(options.capabilities or {}), **wrong}
        text = ", ".join(f"{name}: {_word(value)}" for name, value in told.items())
        yield Finding(
            f"options of {card.name}",
            "note",
            "what the server honors differs from what is claimed",
            f"models.NAME.capabilities={{{text}}}",
            {"capabilities": told},
        )


def _finding(card: EndpointCard, row: Observed, key: str) -> Finding:
    check = f"{row.ability} of {card.name}"
    facts = {"claimed": row.claimed, "seen": row.seen}
    if row.agrees:
        return Finding(check, "ok", row.detail, facts=facts)
    if row.ability != "answers":
        return Finding(check, "problem", f"claimed, but not seen: {row.detail}", facts=facts)
    remedies = (text for start, text in REMEDIES.items() if re.match(start, row.detail))
    remedy = next(remedies, "").format(key=key)
    return Finding(check, "problem", row.detail, remedy, facts, configuration=bool(remedy))


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
