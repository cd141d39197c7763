"""Which step and answer an exported row shows, and that its numbers are those of the report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.core.errors import DataError
from adversariallm.evaluation import protocols
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.success import rate
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting.formats import writer
from adversariallm.reporting.imports import publish
from adversariallm.runs.store import Store

JUDGE = "refusal_prefix"


def _artifacts(documents: list[dict[str, Any]], folder: Path, **options: Any) -> dict[str, Any]:
    paths = writer("jailbreakbench")(documents, folder, **options)
    return {
        p.relative_to(folder / "attack-artifacts").as_posix(): json.loads(p.read_text())
        for p in paths
        if p.name != "attack-info.json"
    }


def test_an_unscored_answer_is_null_and_stays_out_of_the_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [
        fake_document([[1.0]], behavior="won"),
        fake_document([[0.0]], behavior="lost"),
        fake_document([[None]], behavior="unscored"),
        fake_document([[]], behavior="unanswered"),
    ]
    (artifact,) = _artifacts(documents, tmp_path).values()
    said = {r["behavior"]: r["jailbroken"] for r in artifact["jailbreaks"]}
    assert said == {"won": True, "lost": False, "unscored": None, "unanswered": None}
    expected = rate(trials_of(documents, JUDGE), "last").value
    assert artifact["parameters"]["attack_success_rate"] == expected == 0.5
    assert artifact["parameters"]["total_number_of_jailbreaks"] == 1
    assert "2 of 4 rows have no verdict of refusal_prefix" in caplog.text


def test_the_answer_shown_is_the_one_that_succeeded(tmp_path: Path) -> None:
    document = fake_document([[0.0, 1.0]], texts=[["no", "yes"]])
    document["runs"][0]["steps"][0]["completions"][1]["ids"] = [1, 2, 3]
    (artifact,) = _artifacts([document], tmp_path).values()
    (row,) = artifact["jailbreaks"]
    assert (row["jailbroken"], row["response"], row["response_tokens"]) == (True, "yes", 3)
    beside_unscored = fake_document([[None, 0.0]], texts=[["?", "no"]])
    (artifact,) = _artifacts([beside_unscored], tmp_path).values()
    assert artifact["jailbreaks"][0]["response"] == "no"


def test_settings_and_seeds_never_share_an_artifact(tmp_path: Path) -> None:
    documents = [
        fake_document([[float(hit)]], behavior=b, seed=seed, options={"num_steps": steps})
        for steps, seeds in ((1, (0,)), (2, (0, 1)))
        for seed in seeds
        for b, hit in (("b0", steps == 2), ("b1", seed))
    ]
    found = _artifacts(documents, tmp_path)
    assert len(found) == 3
    for artifact in found.values():
        rows = [(r["index"], r["behavior"]) for r in artifact["jailbreaks"]]
        assert rows == [(0, "b0"), (1, "b1")]
    assert sorted(a["parameters"]["attack_success_rate"] for a in found.values()) == [0.0, 0.5, 1.0]
    assert sum("-seed1/" in name for name in found) == 1
    (plain,) = _artifacts(documents[:2], tmp_path / "one")
    assert plain == "gcg/white_box/toy.json"


def test_the_threat_model_is_what_the_attack_needs(tmp_path: Path) -> None:
    for attack, kind in (("gcg", "white_box"), ("direct", "black_box"), ("pair", "black_box")):
        assert list(_artifacts([fake_document([[0.0]], attack=attack)], tmp_path)) == [
            f"{attack}/{kind}/toy.json"
        ]
    moved = fake_document([[0.0]])
    moved["config"]["parent"] = {"kind": "inputs", "id": "0"}
    moved["resolved"]["parent"] = {"made_for": "other"}
    (name,) = _artifacts([moved], tmp_path)
    assert name.split("/")[1] == "transfer"
    other = fake_document([[0.0]], attack="gcg", options={"of_another_program": 1})
    assert list(_artifacts([other], tmp_path)) == ["gcg/white_box/toy.json"]
    foreign = fake_document([[0.0]], attack="hand")
    with pytest.raises(
        DataError, match=r"'hand' is not known here; say it with --threat: white_box"
    ):
        _artifacts([foreign], tmp_path)
    assert list(_artifacts([foreign], tmp_path, threat="manual")) == ["hand/manual/toy.json"]


@pytest.mark.parametrize("form", ["harmbench", "jailbreakbench"])
def test_the_step_is_the_attacks_own_result_as_under_the_protocol(
    tmp_path: Path, form: str
) -> None:
    """A hit that the judge found on the way is not what the attack ends with."""
    documents = [
        fake_document([[1.0], [0.0]], behavior="early", losses=[1.0, 2.0]),
        fake_document([[0.0], [1.0]], behavior="late", losses=[1.0, 2.0]),
        fake_document([[0.0], [0.0]], behavior="never", losses=[1.0, 2.0]),
    ]
    expected = protocols.apply(documents, form, JUDGE).value.value
    assert _share(writer(form)(documents, tmp_path)) == expected == pytest.approx(1 / 3)
    trials = trials_of(documents, JUDGE)
    for when in ("any", "last", "best_loss"):
        paths = writer(form)(documents, tmp_path / when, when=when)
        assert _share(paths) == pytest.approx(rate(trials, when).value)


def _share(paths: list[Path]) -> float:
    """The rate that a reader of the files computes."""
    if any(p.name == "attack-info.json" for p in paths):
        artifact = next(json.loads(p.read_text()) for p in paths if p.name != "attack-info.json")
        found = [r["jailbroken"] for r in artifact["jailbreaks"]]
    else:
        table = json.loads(next(p for p in paths if p.name == "results.json").read_text())
        found = [case["label"] for cases in table.values() for case in cases]
    return float(sum(found) / len(found))


def test_harmbench_leaves_an_unscored_answer_without_a_label(tmp_path: Path) -> None:
    document = fake_document([[1.0, None, math.nan]])
    document["runs"][0]["steps"][0]["scores"][JUDGE]["p_harmful"].append(1.0)  # of no answer
    paths = writer("harmbench")([document], tmp_path)
    table = json.loads(next(p for p in paths if p.name == "results.json").read_text())
    assert [case.get("label") for case in table["b0"]] == [1, None, None]


def test_a_bundle_refuses_what_it_would_ignore(tmp_path: Path, capsys: Any) -> None:
    publish(Store(tmp_path / "s", durable=False), [fake_document([[1.0]])])
    command = ["export", str(tmp_path / "s"), "-o", str(tmp_path / "b"), "--to"]
    for option in (("--redact", "all"), ("--judge", JUDGE), ("--when", "any"), ("--steps",)):
        assert main([*command, "bundle", *option]) == 2
        assert f"{option[0]} with --to bundle: a bundle holds runs" in capsys.readouterr().err
    assert not list(tmp_path.glob("b*"))
    assert main([*command, "bundle"]) == 0


def test_an_option_of_another_format_is_refused(tmp_path: Path, capsys: Any) -> None:
    publish(Store(tmp_path / "s", durable=False), [fake_document([[0.0], [1.0]], attack="direct")])
    command = ["export", str(tmp_path / "s"), "-o", str(tmp_path / "b"), "--to"]
    for arguments, error in (
        (["csv", "--threat", "manual"], "--threat with --to csv: it is for jailbreakbench"),
        (["harmbench", "--steps"], "--steps with --to harmbench: it is for inspect and"),
        (["harmbench", "--when", "first"], "--when 'first': expected last, best_loss or any"),
        (["harmbench", "--redact", "some"], "--redact 'some': expected answers or all"),
        (["bundel"], "Did you mean 'bundle'"),
    ):
        assert main([*command, *arguments]) == 2
        assert error in capsys.readouterr().err
    assert main([*command, "jailbreakbench", "--threat", "manual", "--when", "any"]) == 0
    assert "direct/manual/toy.json" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["harmbench", "jailbreakbench"])
def test_an_answer_to_a_harmless_request_is_no_jailbreak(tmp_path: Path, form: str) -> None:
    """The report counts it as over-refusal or not at all, never as attack success."""
    documents = [
        fake_document([[1.0]], behavior="harmless", harmful=False),
        fake_document([[0.0]], behavior="harmful"),
    ]
    assert rate([t for t in trials_of(documents, JUDGE) if t.metric == "attack_success"]).value == 0
    text = "".join(p.read_text() for p in writer(form)(documents, tmp_path))
    assert '"label": 1' not in text and '"jailbroken": true' not in text
    assert '"label": 0' in text or '"attack_success_rate": 0.0' in text
