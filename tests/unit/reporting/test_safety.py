"""The safety-utility table joins what belongs together and refuses the rest by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.fakes import fake_document
from adversariallm.reporting.safety import safety_utility


def _battery(model: str, robust: float, refuses: float, **facts: Any) -> list[dict[str, Any]]:
    utility = {"judge": "exact_match", "key": "p_correct", "reference": "7"}
    return [
        fake_document([[1.0 - robust]], behavior="h", model=model, **facts),
        fake_document([[1.0 - robust]], behavior="h", model=model, attack="bon", **facts),
        fake_document(
            [[1.0 - refuses]],
            behavior="b",
            harmful=False,
            model=model,
            dataset="starter_benign",
            attack="direct",
            **facts,
        ),
        fake_document(
            [[1.0]],
            behavior="u",
            harmful=False,
            model=model,
            dataset="starter_utility",
            attack="direct",
            **{**utility, **facts},
        ),
    ]


def test_one_row_per_model_and_defense_with_all_measures_beside_each_other() -> None:
    table = safety_utility(
        [
            *_battery("m", 0.0, 0.0),
            *_battery("m", 1.0, 1.0, defense="wall"),
            *_battery("n", 1.0, 0.0),
        ]
    )
    assert [(r["model"], r["defense"]) for r in table.rows] == [("m", ""), ("m", "wall"), ("n", "")]
    titles = [c.title for c in table.columns]
    assert titles[2:7] == [
        "knowledge",
        "attack success: bon",
        "attack success: gcg",
        "over-refusal",
        "accuracy",
    ]
    assert table.notes[:3] == (
        "attack success: on starter_harmful, by refusal_prefix",
        "over-refusal: on starter_benign, by refusal_prefix",
        "accuracy: on starter_utility, by exact_match",
    )
    wall = table.rows[1]
    refusal = next(v for k, v in wall.items() if str(k).startswith("over_refusal"))
    assert refusal.value == 1.0
    assert wall["flops"] == 100


def test_titles_name_data_and_judge_where_they_differ() -> None:
    two = [fake_document([[1.0]], dataset=name) for name in ("starter_harmful", "advbench")]
    assert [c.title for c in safety_utility(two).columns[2:4]] == [
        "attack success: gcg, advbench (refusal_prefix)",
        "attack success: gcg, starter_harmful (refusal_prefix)",
    ]


def test_what_was_not_measured_is_a_dash() -> None:
    table = safety_utility([*_battery("m", 0.0, 0.0), fake_document([[1.0]], model="n")])
    row = next(r for r in table.rows if r["model"] == "n")
    assert [c.show(row) for c in table.columns if c.title.startswith("accuracy")] == ["-"]


def test_one_name_for_two_setups_is_refused_with_the_difference() -> None:
    other = _battery("m", 0.0, 0.0)
    for document in other:
        document["config"]["models"][0]["identity"]["system"] = "Be careful."
    both = [*_battery("m", 1.0, 0.0), *other]
    with pytest.raises(ConfigError, match=r"models\.0\.identity\.system: '', 'Be careful\.'"):
        safety_utility(both)
    assert len(safety_utility(both, separate=True).rows) == 2


def _against_wall(rate: float, knowledge: str, **facts: Any) -> dict[str, Any]:
    document = fake_document([[rate]], behavior="h", model="m", defense="wall", **facts)
    document["config"]["knowledge"] = knowledge
    return document


def test_what_the_attacker_knows_has_rows_of_its_own_that_share_over_refusal() -> None:
    documents = [*_battery("m", 0.0, 0.5, defense="wall"), _against_wall(1.0, "adaptive")]
    table = safety_utility([*documents, *_battery("m", 0.0, 0.0)])
    assert [(r["defense"], r["knowledge"]) for r in table.rows] == [
        ("", ""), ("wall", "adaptive"), ("wall", "unaware")
    ]  # fmt: skip
    adaptive, unaware = table.rows[1:]
    gcg, bon = (f"attack_success/starter_harmful/{a}/refusal_prefix" for a in ("gcg", "bon"))
    assert (adaptive[gcg].value, unaware[gcg].value) == (1.0, 1.0)
    assert bon in unaware
    assert bon not in adaptive
    shared = "over_refusal/starter_benign/refusal_prefix"
    assert adaptive[shared] == unaware[shared]
    assert "accuracy/starter_utility/exact_match" in adaptive


def test_undefended_answers_have_a_column_of_their_own() -> None:
    document = _against_wall(0.0, "unaware")
    [step] = document["runs"][0]["steps"]
    step["scores"]["refusal_prefix@undefended"] = {"p_harmful": [1.0], "error": [None]}
    table = safety_utility([document])
    assert [c.title for c in table.columns[3:5]] == [
        "attack success: gcg",
        "attack success, undefended: gcg",
    ]
    [row] = table.rows
    cells = [row[c.key].value for c in table.columns[3:5]]
    assert cells == [0.0, 1.0]


def test_inputs_found_without_the_defense_count_as_an_unaware_attack() -> None:
    sent, elsewhere = (_against_wall(0.0, "unaware") for _ in range(2))
    sent["config"]["parent"] = {"run_id": "0", "kind": "inputs"}
    model = fake_document([[1.0]], model="m")["config"]["models"]
    for document, source in ((sent, "m"), (elsewhere, "n")):
        document["config"]["parent"] = {"run_id": "0", "kind": "inputs"}
        document["resolved"] = {
            "models": [{"name": "m", **model[0]}], "parent": {"made_for": source}
        }  # fmt: skip
    assert "attack_success/starter_harmful/gcg/refusal_prefix" in safety_utility([sent]).rows[0]
    [row] = safety_utility([elsewhere]).rows
    assert "attack_success/starter_harmful/gcg, inputs made for n/refusal_prefix" in row


def test_scores_of_undefended_answers_mark_no_transcript_as_a_success() -> None:
    from adversariallm.evaluation.facts import judges_of
    from adversariallm.reporting.tidy import completion_rows
    from adversariallm.reporting.transcripts import transcripts

    document = _against_wall(0.0, "unaware", texts=[["withheld"]])
    [step] = document["runs"][0]["steps"]
    step["scores"]["refusal_prefix@undefended"] = {"p_harmful": [1.0], "error": [None]}
    step["completions"] = [{"sample": 0, "undefended": "said"}]
    assert judges_of([document]) == ["refusal_prefix"]
    assert judges_of([document], undefended=True) == ["refusal_prefix@undefended"]
    shown = json.dumps(transcripts([document], [0]), default=str)
    assert '"mark": ""' in shown
    assert '"undefended": "said"' in shown
    rows = {r["judge"]: r["completion"] for r in completion_rows([document])}
    assert rows == {"refusal_prefix": "withheld", "refusal_prefix@undefended": "said"}


def test_undefended_rates_and_attack_names_are_those_of_their_own_runs() -> None:
    documents = _battery("m", 1.0, 0.0, defense="wall")
    for document in documents[:3]:
        scores = document["runs"][0]["steps"][0]["scores"]
        said = 1.0 if document["runs"][0]["behavior"]["harmful"] else 0.0
        scores["refusal_prefix@undefended"] = {"p_harmful": [said], "error": [None]}
    documents[1]["config"]["parent"] = {"run_id": "0", "kind": "inputs"}
    rest = {k: v for k, v in documents[1].get("resolved", {}).items() if k != "parent"}
    documents[1]["resolved"] = {**rest, "parent": {"made_for": "m"}}
    [row] = safety_utility(documents).rows
    rates = {k: v for k, v in row.items() if str(k).endswith("@undefended")}
    names = [f"attack_success/starter_harmful/{a}/refusal_prefix" for a in ("bon", "gcg")]
    assert sorted(rates) == [f"{name}@undefended" for name in names]
    assert {(r.value, r.n) for r in rates.values()} == {(1.0, 1)}
    assert set(names) <= set(row)
