"""The probe of an endpoint sees what a server ignores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from adversariallm.models.probe import probe
from adversariallm.models.remote import RemoteModel
from judgezoo.backends import Capabilities, EndpointBackend, EndpointConfig

sys.path.insert(0, str(Path(__file__).parent))
from stub import Messages, Stub, serving  # noqa: E402  -- beside this file


def rows(rule: Any, name: str = "m", **able: Any) -> dict[str, Any]:
    with serving(Stub({"m": rule})) as stub:
        config = EndpointConfig(
            model=name, base_url=stub.address, capabilities=Capabilities(**able), max_attempts=1
        )
        found = probe(RemoteModel(EndpointBackend(config), name="m"))
    return {row.ability: row for row in found}


def test_what_a_server_ignores_is_seen() -> None:
    found = rows(lambda messages, seed: "always the same long prose answer")
    wrong = {name for name, row in found.items() if not row.agrees}
    assert wrong == {"max_new_tokens", "temperature", "stop", "schema"}
    assert "seed" not in found  # equal answers show nothing about seeds


def test_seeds_are_seen_where_answers_vary() -> None:
    def seeded(messages: Messages, seed: int) -> str:
        return f"word{seed}"

    found = rows(seeded, schema_mode="none", stop=False)
    assert found["temperature"].agrees and found["seed"].seen is True
    assert not rows(seeded, schema_mode="none", stop=False, seed=False)["temperature"].agrees


def test_a_server_that_does_not_answer_is_one_row_with_the_reason() -> None:
    found = rows(lambda messages, seed: "a", name="other")
    assert list(found) == ["answers"] and not found["answers"].agrees
    assert "no model other" in found["answers"].detail
