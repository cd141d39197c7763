"""The probe of an endpoint, and `doctor` on it, see what a server ignores or refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.models.probe import probe
from adversariallm.models.remote import RemoteModel
from judgezoo.backends import Capabilities, EndpointBackend, EndpointConfig

sys.path.insert(0, str(Path(__file__).parent))
from stub import Messages, Stub, serving  # noqa: E402  -- beside this file

KEY = "sk-notarealkey-0123456789"


def seeded(messages: Messages, seed: int) -> str:
    return f"word{seed}"


def rows(rule: Any, name: str = "m", honors: frozenset[str] = frozenset(), **able: Any) -> Any:
    with serving(Stub({"m": rule}, honors=honors)) as stub:
        config = EndpointConfig(
            model=name, base_url=stub.address, capabilities=Capabilities(**able), max_attempts=1
        )
        found = probe(RemoteModel(EndpointBackend(config), name="m"))
    return {row.ability: row for row in found}


def test_what_a_server_ignores_is_seen() -> None:
    found = rows(lambda messages, seed: "always the same long prose answer")
    wrong = {name for name, row in found.items() if not row.agrees}
    assert wrong == {"max_new_tokens", "temperature", "stop", "schema", "n", "logprobs"}
    assert found["seed"].seen is None  # equal answers show nothing about seeds
    assert found["system_role"].seen is True and found["usage"].seen is True
    assert "max_tokens: 6 tokens for 2" in found["max_new_tokens"].detail
    assert found["token_ids"].seen is None and "not tried" in found["token_ids"].detail


def test_what_a_server_honors_is_seen() -> None:
    every = frozenset({"n", "logprobs", "token_ids"})
    found = rows(seeded, honors=every, schema_mode="none", token_ids="completions")
    assert all(row.agrees for row in found.values())
    for ability in ("temperature", "seed", "n", "logprobs", "token_ids"):
        assert found[ability].seen is True


def test_seeds_are_seen_where_answers_vary() -> None:
    found = rows(seeded, schema_mode="none", stop=False, seed=False)
    assert not found["temperature"].agrees  # no seed was sent, so all were equal
    assert found["seed"].detail == "not claimed, not tried"


def test_ids_that_a_server_reads_as_text_are_seen() -> None:
    found = rows(seeded, schema_mode="none", token_ids="completions")
    assert not found["token_ids"].agrees


def test_a_server_that_does_not_answer_is_one_row_with_the_reason() -> None:
    found = rows(lambda messages, seed: "a", name="other")
    assert list(found) == ["answers"] and not found["answers"].agrees
    assert "no model other" in found["answers"].detail


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the checks of models."""
    monkeypatch.setattr("adversariallm.cli.doctor.CHECKS", ())
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["doctor", "--json", *words])
    captured = capsys.readouterr()
    assert KEY not in captured.out + captured.err
    said = json.loads(captured.out) if captured.out else []
    return code, {row["check"].split(" of ")[0]: row for row in said}, captured.err


@pytest.mark.usefixtures("quick")
def test_doctor_prints_what_an_endpoint_honors(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Stub({"m": seeded}, honors=frozenset({"n"}))) as stub:
        name = f"openai:m@{stub.address}"
        code, found, _ = doctor(capsys, f"model={name}")
        assert code == 1
        assert found["answers"]["detail"].startswith("m-2026, in 0.")
        assert found["n"]["state"] == "ok" and found["logprobs"]["state"] == "problem"
        remedy = found["options"]["remedy"]
        assert remedy == "models.NAME.capabilities={logprobs: false, schema_mode: none}"
        told = remedy.partition("=")[2]
        code, found, _ = doctor(capsys, f"model={name}", f"models.{name}.capabilities={told}")
    assert code == 0
    assert {row["state"] for row in found.values()} == {"ok"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("openai:m@http://127.0.0.1:9/v1", "check that a server listens there"),
        ("openai:other@STUB", "check the model's name and the address"),
    ],
)
def test_a_wrong_address_or_model_is_bad_configuration(
    model: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Stub({"m": seeded})) as stub:
        code, found, _ = doctor(capsys, f"model={model.replace('STUB', stub.address)}")
    assert code == 2
    assert message in found["answers"]["remedy"]


@pytest.mark.usefixtures("quick")
def test_a_missing_key_and_a_typing_error_are_bad_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    code, found, _ = doctor(capsys, "model=openai:m")
    assert code == 2 and "OPENAI_API_KEY" in found["key"]["detail"]
    code, found, error = doctor(capsys, "model=openai:m@ftp://here/v1")
    assert code == 2 and not found and "http://" in error
    code, found, error = doctor(capsys, "model=smollm2-135")
    assert code == 2 and not found and "Did you mean 'smollm2-135m'" in error


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_broken_is_a_problem_not_bad_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(Stub({"m": seeded}, lambda text, attempt: "500")) as stub:
        code, found, _ = doctor(capsys, f"model=openai:m@{stub.address}")
    assert code == 1 and "HTTP 500" in found["answers"]["detail"]
