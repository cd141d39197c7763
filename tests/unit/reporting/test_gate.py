"""Gates: what passes, what fails and why, and the files they are read from and written to."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.fakes import fake_document
from adversariallm.reporting.gate import Rule, check_gate, junit, read_gate

DOCUMENTS = [fake_document([[float(i < 2)]], behavior=f"b{i}") for i in range(20)]


def _rule(**facts: object) -> Rule:
    return Rule(name="r", measure="attack_success", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "passed", "said"),
    [
        (_rule(max=0.2), True, "10.0 %"),
        (_rule(max=0.05), False, "value 10.0 % is above 5.0 %"),
        (_rule(max=0.2, use="high"), False, "high 30.1 % is above 20.0 %"),
        (_rule(min=0.5), False, "is below 50.0 %"),
        (_rule(max=0.2, min_behaviors=30), False, "20 behaviors, expected 30"),
        (_rule(max=0.2, judge="other"), False, "no stored run measures attack success"),
        (_rule(max=0.2, where={"attack": "bon"}), False, "no stored run measures"),
    ],
)
def test_rules(rule: Rule, passed: bool, said: str) -> None:
    (verdict,) = check_gate(DOCUMENTS, [rule])
    assert verdict.passed is passed
    assert said in verdict.detail


def test_unscored_answers_fail_the_gate_rather_than_help_it() -> None:
    documents = [fake_document([[None]], behavior="x"), *DOCUMENTS[10:]]
    (verdict,) = check_gate(documents, [_rule(max=0.2)])
    assert not verdict.passed and "9.1 % unscored is above 5.0 %" in verdict.detail
    (nothing,) = check_gate([fake_document([[None]])], [_rule(max=1.0, max_unscored=1.0)])
    assert not nothing.passed and "nothing was scored" in nothing.detail


def test_gate_file_and_junit(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(
        "- {name: robust <x>, measure: attack_success, max: 0.2}\n"
        "- {name: useful, measure: accuracy, min: 0.5}\n"
    )
    text = junit(check_gate(DOCUMENTS, read_gate(path)))
    suite = ElementTree.fromstring(text)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    cases = {c.get("classname"): c.find("failure") for c in suite}
    assert cases["robust <x>"] is None and cases["useful"] is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: a, measure: attack_success}", "neither max nor min"),
        ("- {name: a, measure: asr, max: 1}", "measure"),
        ("- {name: a, measure: accuracy, max: 3}", "max"),
        ("- {name: a, measure: accuracy, max: 1, typo: 2}", "typo"),
        ("{", "not YAML"),
        ("x: 1", "no list of gate rules"),
        ("[]", "has no rule"),
    ],
)
def test_wrong_gates_are_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_gate(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_gate(tmp_path / "missing.yaml")
