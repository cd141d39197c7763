"""`protocol=` fills in what is published, leaves what was typed, and says where that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.core.errors import UnknownNameError
from adversariallm.core.protocols import Needs
from adversariallm.datasets import load_dataset
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.protocols import PROTOCOLS
from adversariallm.reporting.imports import publish
from adversariallm.runs.lookups import asset_store
from adversariallm.runs.origins import origins
from adversariallm.runs.plan import ModelFacts, Plan, Sources, plan
from adversariallm.runs.settings import read
from adversariallm.runs.store import Store

SYSTEM = "the published system prompt"


def _plan(*arguments: str, model: str = "m") -> Plan:
    sources = Sources(
        model=lambda name, options: ModelFacts({"weights": name, **options}, Needs.white_box()),
        dataset=lambda name, options: load_dataset("starter_harmful", idx=0),
        judge=lambda name, options: name,
        asset=lambda name: "0" * 64,
        text=lambda asset: f"{SYSTEM} ({asset})",
    )
    base = [f"model={model}", "dataset=starter_harmful", "attack=direct"]
    given = {a.partition("=")[0] for a in arguments}
    return plan(read([*(b for b in base if b.partition("=")[0] not in given), *arguments]), sources)


def _only(found: Plan) -> Any:
    (run,) = found.todo
    return run.task.spec


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_run_under_a_protocol_is_the_run_typed_by_hand(name: str) -> None:
    protocol = PROTOCOLS[name]
    by_name = _only(_plan(f"protocol={name}"))
    by_hand = _only(_plan(*protocol.overrides()))
    assert by_name.run_id == by_hand.run_id
    assert by_name.generation == by_hand.generation
    assert by_name.amounts.judges == by_hand.amounts.judges == (protocol.judge,)
    assert (by_name.protocol, by_hand.protocol) == (name, None)


def test_what_is_typed_wins_and_every_deviation_is_a_note() -> None:
    found = _plan(
        "protocol=jailbreakbench", "generation_config.max_new_tokens=32", "judge=refusal_prefix"
    )
    spec = _only(found)
    assert (spec.generation.max_new_tokens, spec.generation.temperature) == (32, 0.0)
    assert spec.amounts.judges == ("refusal_prefix",)
    told = [n for n in found.notes if n.startswith("deviates from protocol=jailbreakbench")]
    assert [n.split(": ", 1)[1] for n in told] == [
        "data set starter_harmful, published on jbb_behaviors",
        "max_new_tokens 32, published 150",
        "judge refusal_prefix, published jailbreakbench",
    ]
    assert any(n.startswith("protocol=jailbreakbench: temperature=0, max") for n in found.notes)


def test_a_model_gets_the_system_prompt_that_the_protocol_publishes_for_it() -> None:
    spec = _only(_plan("protocol=jailbreakbench", model="vicuna-13b"))
    assert spec.models[0].identity["system_prompt"].startswith(SYSTEM)
    own = _plan(
        "protocol=jailbreakbench", "models.vicuna-13b.system_prompt=mine", model="vicuna-13b"
    )
    assert _only(own).models[0].identity["system_prompt"] == "mine"
    assert any("system prompt of vicuna-13b is yours" in n for n in own.notes)
    other = _plan("protocol=jailbreakbench")
    assert "system_prompt" not in _only(other).models[0].identity
    assert any("publishes no system prompt for m" in n for n in other.notes)


def test_decoding_that_an_attack_prescribes_gives_way_with_a_note() -> None:
    found = _plan("protocol=harmbench", "attack=bon")
    assert _only(found).generation.temperature == 0.0
    assert any("attack bon prescribes temperature=1.0" in n for n in found.notes)


def test_protocols_can_be_swept_and_a_wrong_name_shows_the_right_ones() -> None:
    found = _plan("protocol=harmbench,jailbreakbench")
    assert [r.task.spec.protocol for r in found.todo] == ["harmbench", "jailbreakbench"]
    with pytest.raises(UnknownNameError, match="harmbench"):
        _plan("protocol=harmbnch")


def test_explain_names_the_protocol_as_the_origin_of_what_it_fixes() -> None:
    request = read(["model=m", "dataset=starter_harmful", "attack=bon", "protocol=harmbench"])
    (temperature,) = origins(request, "generation_config.temperature")
    assert (temperature.value, temperature.source) == (0.0, "protocol 'harmbench'")
    (judge,) = origins(request, "judge")
    assert (judge.value, judge.source) == (("harmbench",), "protocol 'harmbench'")


def test_the_system_prompts_are_assets_with_the_hashes_that_runs_are_compared_with() -> None:
    rows = {status.row.id: status.row for status in asset_store().list()}
    for protocol in PROTOCOLS.values():
        for system in protocol.system_prompts.values():
            assert rows[system.asset].sha256 == system.sha256


def test_the_plan_command_prints_what_is_fixed_and_what_deviates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["model=smollm2-135m", "dataset=starter_harmful", "attack=direct"]
    assert main(["plan", *command, "protocol=strongreject", "judge=refusal_prefix"]) == 0
    said = capsys.readouterr().out
    assert "note: protocol=strongreject: judge=strong_reject; mean of the continuous" in said
    assert "note: deviates from protocol=strongreject: judge refusal_prefix" in said
    assert main(["plan", *command, "protocol=strongreect"]) == 2
    assert "strongreject" in capsys.readouterr().err


def test_a_report_reads_a_run_under_the_protocol_in_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _only(_plan("protocol=bon")).model_dump()["protocol"] == "bon"
    documents = [fake_document([[1.0], [0.0]], behavior=b) for b in ("a", "b")]
    documents.append(fake_document([[1.0]], behavior="c", judge=None, attack="direct"))
    for document in documents:
        document["resolved"]["protocol"] = "bon"
    documents.append(fake_document([[1.0]], behavior="d", attack="pair"))
    publish(Store(tmp_path / "out", durable=False), documents)
    assert main(["report", str(tmp_path / "out"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "bon: gcg on toy, starter_harmful, refusal_prefix: 100.0 % [34.2, 100.0]" in said
    assert "  deviates: data set starter_harmful, published on harmbench" in said
    assert "bon: direct on toy, starter_harmful: not judged: adversariallm judge" in said
    assert "pair on toy" not in said
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.count("Published protocols") == 2
