"""Each foreign format: what is written is what its tools expect, and a round trip loses nothing."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from adversariallm.core.errors import ConfigError, DataError, UnknownNameError
from adversariallm.evaluation.budgets import largest_common_budget
from adversariallm.evaluation.facts import distinct_labels, group_by_setting
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.success import rate
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting.formats import EXPORTS, IMPORTS, reader, writer
from adversariallm.reporting.imports import publish
from adversariallm.reporting.load import read_documents
from adversariallm.reporting.redact import redacted
from adversariallm.reporting.summary import cost_of, summarize
from adversariallm.reporting.tidy import run_rows, step_rows
from adversariallm.runs.store import Store

JUDGE = "refusal_prefix"


def _documents() -> list[dict[str, Any]]:
    return [
        fake_document([[0.0, 0.0], [1.0, None]], behavior="b/0 x", losses=[2.0, 1.0]),
        fake_document([[0.0, 0.0], [0.0, 0.0]], behavior="b1", losses=[2.0, 1.5]),
        fake_document([[1.0, 1.0]], behavior="b1", seed=1),
    ]


def _through_store(tmp_path: Path, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    store = Store(tmp_path / "store", durable=False)
    assert publish(store, documents)[0]
    assert publish(store, documents)[0] == []
    return read_documents(tmp_path / "store")


def test_unknown_formats_are_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="harmbench"):
        writer("harmbnch")
    assert all(callable(writer(n)) for n in EXPORTS)
    assert all(callable(reader(n)) for n in IMPORTS)


def test_inspect_log_has_the_members_and_counts_that_its_reader_wants(tmp_path: Path) -> None:
    (path,) = writer("inspect")(_documents(), tmp_path)
    assert "_gcg-on" not in path.name and path.name.count("_") == 2
    with zipfile.ZipFile(path) as archive:
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_DEFLATED}
        header = json.loads(archive.read("header.json"))
        names = [n for n in archive.namelist() if n.startswith("samples/")]
        samples = [json.loads(archive.read(n)) for n in names]
    assert {(s["id"], s["epoch"]) for s in samples} == {
        ("b/0 x", 1),
        ("b/0 x", 2),
        ("b1", 1),
        ("b1", 2),
        ("b1#seed1", 1),
        ("b1#seed1", 2),
    }
    assert all(n.count("/") == 1 and " " not in n for n in names)
    first = next(s for s in samples if s["id"] == "b/0 x" and s["epoch"] == 1)
    assert (first["metadata"]["step"], first["scores"][JUDGE]["value"]) == (1, 1.0)
    unscored = next(s for s in samples if s["id"] == "b/0 x" and s["epoch"] == 2)
    assert math.isnan(unscored["scores"][JUDGE]["value"])
    (score,) = header["results"]["scores"]
    assert (score["scored_samples"], score["unscored_samples"]) == (5, 1)
    expected = rate(trials_of(_documents(), JUDGE)).value
    assert score["metrics"]["attack_success"]["value"] == expected


def test_inspect_steps_form_has_one_epoch_per_step_and_equal_inputs_equal_bytes(
    tmp_path: Path,
) -> None:
    (path,) = writer("inspect-json")(_documents(), tmp_path, form="inspect-json", steps=True)
    log = json.loads(path.read_text("utf-8"))
    assert log["eval"]["config"]["epochs"] == 2
    assert [s["metadata"]["step"] for s in log["samples"] if s["id"] == "b1"] == [0, 1]
    assert (log["eval"]["created"][:10], log["eval"]["metadata"]["dates"][:10]) == (
        "1970-01-01",
    ) * 2
    (a,), (b,) = (writer("inspect")(_documents(), tmp_path / n) for n in "ab")
    assert a.read_bytes() == b.read_bytes()


JBB = {
    "parameters": {
        "method": "PAIR",
        "model": "vicuna-13b-v1.5",
        "attack_type": "black_box",
        "defense": None,
        "attack_success_rate": 0.5,
        "total_number_of_jailbreaks": 1,
        "number_of_submitted_prompts": 2,
        "total_number_of_queries": 90,
        "evaluation_date": "2024-03-01",
        "evaluation_llm_provider": "litellm",
        "method_parameters": {"n_streams": 30},
    },
    "jailbreaks": [
        {
            "index": 0,
            "goal": "g0",
            "behavior": "Behavior zero",
            "category": "c",
            "prompt": "p0",
            "response": "r0",
            "number_of_queries": 30,
            "queries_to_jailbreak": 7,
            "prompt_tokens": 5,
            "response_tokens": 9,
            "jailbroken": True,
            "jailbroken_llama_guard1": False,
        },
        {
            "index": "1",
            "goal": "g1",
            "behavior": "Behavior one",
            "category": "c",
            "prompt": "p1",
            "response": "r1",
            "number_of_queries": 60,
            "queries_to_jailbreak": None,
            "prompt_tokens": 4,
            "response_tokens": 2,
            "jailbroken": False,
        },
        {
            "index": 2,
            "goal": "g2",
            "behavior": "Behavior two",
            "category": "d",
            "prompt": None,
            "response": None,
            "number_of_queries": 0,
            "queries_to_jailbreak": None,
            "prompt_tokens": 0,
            "response_tokens": 0,
            "jailbroken": False,
        },
    ],
}


def test_jailbreakbench_round_trip_through_a_store_is_equal(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text(json.dumps(JBB))
    documents = _through_store(tmp_path, reader("jailbreakbench")(source))
    paths = writer("jailbreakbench")(documents, tmp_path / "out")
    assert [p.relative_to(tmp_path / "out").as_posix() for p in paths] == [
        "attack-artifacts/PAIR/black_box/vicuna-13b-v1.5.json",
        "attack-artifacts/PAIR/attack-info.json",
    ]
    assert json.loads(paths[0].read_text()) == JBB
    cost = cost_of(documents)
    assert (cost["queries"], cost["flops"]) == (90, None)
    info = json.loads(paths[1].read_text())
    assert info == {"models": {"vicuna-13b-v1.5": ["black_box"]}}


def test_rejudged_jailbreakbench_artifact_changes_verdicts_and_totals_only(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text(json.dumps(JBB))
    (document,) = reader("jailbreakbench")(source)
    document["runs"][1]["steps"][0]["scores"]["second"] = {"p_harmful": [0.9]}
    with pytest.raises(DataError, match="several judges"):
        writer("jailbreakbench")([document], tmp_path)
    path, _ = writer("jailbreakbench")([document], tmp_path, judge="second")
    got = json.loads(path.read_text())
    assert [r["jailbroken"] for r in got["jailbreaks"]] == [None, True, False]
    assert got["parameters"]["total_number_of_jailbreaks"] == 1
    assert got["parameters"]["attack_success_rate"] == pytest.approx(1 / 2)
    assert got["jailbreaks"][0]["queries_to_jailbreak"] == 7


def test_jailbreakbench_export_of_our_runs_counts_queries(tmp_path: Path) -> None:
    path, _ = writer("jailbreakbench")(_documents()[:2], tmp_path)
    got = json.loads(path.read_text())
    won, lost = sorted(got["jailbreaks"], key=lambda r: not r["jailbroken"])
    assert (won["number_of_queries"], won["queries_to_jailbreak"]) == (24, 24)
    assert (lost["queries_to_jailbreak"], lost["response"]) == (None, "answer 0 at step 1")
    with pytest.raises(DataError, match="judge these runs first"):
        writer("jailbreakbench")([fake_document([[1.0]], judge=None)], tmp_path)


HARMBENCH = {
    "first_behavior": [
        {"test_case": "t0", "generation": "g0", "label": 1, "advbench_label": 1},
        {"test_case": "t1", "generation": "g1", "label": 0, "advbench_label": 1},
    ],
    "second_behavior": [{"test_case": ["image.png", "t2"], "generation": "g2", "label": 0}],
    "no_cases": [],
}


def test_harmbench_round_trip_through_a_store_is_equal(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text(json.dumps(HARMBENCH))
    documents = _through_store(tmp_path, reader("harmbench")(source, model="m", attack="GCG"))
    written = {p.name: p for p in reversed(writer("harmbench")(documents, tmp_path / "out"))}
    cases, completions, results = (
        written[f"{n}.json"] for n in ("test_cases", "completions", "results")
    )
    assert json.loads(results.read_text()) == HARMBENCH
    assert json.loads(cases.read_text())["first_behavior"] == ["t0", "t1"]
    assert json.loads(completions.read_text())["second_behavior"] == [
        {"test_case": ["image.png", "t2"], "generation": "g2"}
    ]


def test_harmbench_has_a_folder_for_each_behavior_and_is_read_back_from_its_folder(
    tmp_path: Path,
) -> None:
    documents = [
        fake_document([[0.0], [1.0]], behavior=b, losses=[2.0, 1.0], options={"num_steps": 2})
        for b in ("one", "../two")
    ]
    paths = writer("harmbench")(documents, tmp_path / "out")
    assert all((tmp_path / "out").resolve() in p.resolve().parents for p in paths)
    base = next(p for p in paths if p.name == "results.json").parent
    alone = base / "test_cases_individual_behaviors" / "one"
    merged = json.loads((base / "test_cases.json").read_text())
    assert json.loads((alone / "test_cases.json").read_text()) == {"one": merged["one"]}
    assert json.loads((alone / "method_config.json").read_text()) == {"num_steps": 2}
    logs = json.loads((base / "logs.json").read_text())
    assert logs["../two"] == [{"step": [0, 1], "loss": [2.0, 1.0]}]
    (back,) = reader("harmbench")(base)
    assert rate(trials_of([back], "harmbench_labels")).value == 1.0
    (base / "results.json").unlink()
    (back,) = reader("harmbench")(base)
    assert back["runs"][0]["steps"][0]["model_completions"] == ["answer 0 at step 1"]


def test_harmbench_rate_is_the_mean_over_behaviors_of_the_mean_over_cases(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text(json.dumps(HARMBENCH))
    documents = reader("harmbench")(source)
    assert rate(trials_of(documents, "harmbench_labels")).value == pytest.approx((0.5 + 0.0) / 2)


def test_harmbench_behaviors_file_supplies_goals_and_contexts(tmp_path: Path) -> None:
    source, table = tmp_path / "cases.json", tmp_path / "behaviors.csv"
    source.write_text(json.dumps({"b": ["t0"]}))
    table.write_text(
        "Behavior,SemanticCategory,ContextString,BehaviorID\nDo it,cat,some context,b\n"
    )
    (document,) = reader("harmbench")(source, behaviors=table)
    behavior = document["runs"][0]["behavior"]
    assert (behavior["goal"], behavior["context"], behavior["category"]) == (
        "Do it",
        "some context",
        "cat",
    )
    assert document["runs"][0]["steps"][0]["model_completions"] == []


TABLE6 = {
    "config": {
        "model": "org/model-7b",
        "dataset": "adv_behaviors",
        "attack": "gcg",
        "attack_params": {"num_steps": 2},
    },
    "runs": [
        {
            "original_prompt": [
                {"role": "user", "content": "ask"},
                {"role": "assistant", "content": "Sure"},
            ],
            "steps": [
                {
                    "step": i,
                    "model_completions": [f"a{i}", f"b{i}"],
                    "time_taken": 0.5,
                    "loss": 2.0 - i,
                    "flops": 100,
                    "scores": {"strong_reject": {"p_harmful": [0.1 * i, 0.9]}},
                    "model_input": [{"role": "user", "content": f"ask !{i}"}],
                    "model_input_tokens": [1, 2, i],
                    "model_input_embeddings": None,
                    "extra_field": i,
                }
                for i in range(2)
            ],
            "total_time": 1.0,
        }
    ],
    "total_time": 1.0,
}


def test_table6_round_trip_through_a_store_is_equal(tmp_path: Path) -> None:
    source = tmp_path / "run.json"
    source.write_text(json.dumps(TABLE6))
    documents = _through_store(tmp_path, reader("table6")(source))
    (path,) = writer("table6")(documents, tmp_path / "out")
    assert json.loads(path.read_text()) == TABLE6
    trial = trials_of(documents, "strong_reject")[0]
    assert trial.search["flops"].tolist() == [100, 200]
    assert np.isnan(trial.search["queries"]).all()
    documents[0]["ledgers"]["judging"] = {"judge": {"queries": 4}}
    cost = cost_of(documents)
    assert (cost["flops_search"], cost["queries"]) == (200, None)
    (row,) = run_rows(documents)
    assert (row["optimization_flops"], row["optimization_queries"]) == (200, None)
    assert (row["sampling_flops"], row["judging_queries"]) == (None, 4)
    with pytest.raises(ConfigError, match="queries are unknown, as the file it was imported from"):
        largest_common_budget([trials_of(documents, "strong_reject")] * 2, "queries", "search")


def test_table6_export_of_our_runs_has_exactly_the_fields_of_the_paper(tmp_path: Path) -> None:
    (path,) = writer("table6")(_documents()[:1], tmp_path)
    data = json.loads(path.read_text())
    assert data["config"]["model"] == "toy" and data["config"]["attack"] == "gcg"
    step = data["runs"][0]["steps"][1]
    assert set(step) == {
        "step",
        "model_completions",
        "scores",
        "time_taken",
        "flops",
        "loss",
        "model_input",
        "model_input_tokens",
        "model_input_embeddings",
    }
    assert step["scores"] == {JUDGE: {"p_harmful": [1.0, None]}}
    back = reader("table6")(path)[0]
    assert rate(trials_of([back], JUDGE)).value == rate(trials_of(_documents()[:1], JUDGE)).value


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_old_answers_are_read_with_named_columns_and_can_be_judged(
    tmp_path: Path, form: str
) -> None:
    rows = [
        {"q": "how", "text": 'quoted "x", and\na line', "who": "m1", "harmful": "false"},
        {"q": "why", "text": "because", "who": "m2", "harmful": "true"},
    ]
    path = tmp_path / f"old.{form}"
    if form == "csv":
        with path.open("w", newline="") as file:
            writer_ = csv.DictWriter(file, rows[0])
            writer_.writeheader()
            writer_.writerows(rows)
    else:
        path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    documents = reader(form)(path, columns={"prompt": "q", "response": "text", "model": "who"})
    assert len(documents) == 2
    step = documents[0]["runs"][0]["steps"][0]
    assert step["model_completions"] == [rows[0]["text"]]
    assert documents[0]["runs"][0]["behavior"]["harmful"] is False
    assert documents[1]["runs"][0]["behavior"]["goal"] == "why"


def test_costs_that_a_file_does_not_tell_are_unknown_and_not_zero(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text(json.dumps(HARMBENCH))
    answers = tmp_path / "old.jsonl"
    answers.write_text(json.dumps({"prompt": "p", "response": "r"}))
    for documents in (reader("harmbench")(source), reader("jsonl")(answers)):
        cost = cost_of(documents)
        assert [cost[k] for k in ("queries", "flops", "flops_search")] == [None] * 3
        assert next(iter(step_rows(documents)))["optimization_queries"] is None
    table = summarize(reader("harmbench")(source))
    assert any("an imported file does not tell" in note for note in table.notes)


def test_unusable_answer_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="no column 'response'"):
        reader("csv")(path)
    path.write_text("prompt,response,harmful\np,r,perhaps\n")
    with pytest.raises(DataError, match="row 1: harmful='perhaps'"):
        reader("csv")(path)
    with pytest.raises(DataError, match="unknown field"):
        reader("csv")(path, columns={"answer": "response"})
    for name in ("table6", "harmbench", "jailbreakbench"):
        bad = tmp_path / "bad.json"
        bad.write_text("[1]")
        with pytest.raises(DataError):
            reader(name)(bad)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tidy_files_have_a_row_per_completion_and_judge(tmp_path: Path, form: str) -> None:
    document = fake_document([[0.25, None]], texts=[['a "quoted", text\nwith \u202e lines', ""]])
    document["runs"][0]["steps"][0]["scores"]["second"] = {"p_harmful": [1.0, 0.0]}
    paths = writer(form)([document], tmp_path, form=form)
    assert [p.name for p in paths] == [f"{n}.{form}" for n in ("runs", "steps", "completions")]
    read = "read_csv" if form == "csv" else "read_parquet"
    with duckdb.connect() as connection:
        rows = connection.sql(
            f"SELECT judge, score, completion FROM {read}('{paths[2]}') ORDER BY judge, sample"
        ).fetchall()
    assert [(r[0], r[1]) for r in rows] == [
        (JUDGE, 0.25),
        (JUDGE, None),
        ("second", 1.0),
        ("second", 0.0),
    ]
    assert rows[0][2] == 'a "quoted", text\nwith \u202e lines'


def test_redaction_keeps_every_number_and_no_harmful_answer() -> None:
    documents = [
        fake_document([[1.0]], texts=[["a secret answer"]], behavior="h"),
        fake_document([[1.0]], texts=[["a recipe for bread"]], behavior="ok", harmful=False),
    ]
    out = redacted(documents, "all")
    text = json.dumps(out)
    assert "a secret answer" not in text and "a recipe for bread" in text
    assert "input at step 0" not in json.dumps(out[0])
    for a, b in zip(trials_of(documents, JUDGE), trials_of(out, JUDGE), strict=True):
        assert a.scores.tolist() == b.scores.tolist()
    assert "15 characters" in text


@pytest.mark.parametrize("what", ["answers", "all"])
def test_redaction_finds_answers_that_an_attack_sent_again_or_quoted(what: Any) -> None:
    document = fake_document([[1.0]], texts=[["a last answer"]])
    (step,) = document["runs"][0]["steps"]
    step["model_input"] = [
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": "an earlier answer"},
        {"role": "user", "content": "second question"},
    ]
    step["model_input_tokens"] = [1, 2, 3]
    step["note"] = {
        "summary": "quotes an earlier answer",
        "plan": {"actors": ["says a last answer", {"name": "actor-1"}]},
        "text": "0" * 64,
        "turn": 2,
    }
    (out,) = redacted([document], what)
    text = json.dumps(out)
    assert "answer" not in text.replace("b0", "").replace("answers", "")
    assert out["runs"][0]["steps"][0]["model_input_tokens"] is None
    assert out["runs"][0]["steps"][0]["note"]["turn"] == 2
    assert ("second question" in text, "actor-1" in text, "0" * 64 in text) == (
        (True,) * 3 if what == "answers" else (False,) * 3
    )
    document["runs"][0]["steps"][0]["model_input"].pop(1)
    kept = redacted([document], what)[0]["runs"][0]["steps"][0]["model_input_tokens"]
    assert kept == ([1, 2, 3] if what == "answers" else None)


def test_redacted_imports_keep_test_cases_and_verdicts(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    cases = {"b": [{"test_case": "a long case", "generation": "said", "label": 1, "other": "a b"}]}
    source.write_text(json.dumps(cases))
    paths = writer("harmbench")(redacted(reader("harmbench")(source)), tmp_path / "out")
    (entry,) = json.loads(next(p for p in paths if p.name == "results.json").read_text())["b"]
    assert (entry["test_case"], entry["label"]) == ("a long case", 1)
    assert entry["generation"].startswith("[redacted") and entry["other"].startswith("[redacted")
    source.write_text(json.dumps(JBB))
    hidden = redacted(reader("jailbreakbench")(source), "all")
    path, _ = writer("jailbreakbench")(hidden, tmp_path / "jbb")
    assert [r["jailbroken"] for r in json.loads(path.read_text())["jailbreaks"]] == [
        True,
        False,
        False,
    ]


def test_table6_files_of_one_setting_stay_together_with_ids_and_seeds(tmp_path: Path) -> None:
    documents = [
        fake_document([[float(hit)]], behavior=b, seed=seed, attack=attack, defense="smooth_llm")
        for attack, hits in (("direct", (0, 0)), ("gcg", (0, 1)))
        for seed in (0, 1)
        for b, hit in zip(("b0", "b1"), hits, strict=True)
    ]
    writer("table6")(documents, tmp_path / "out")
    back = _through_store(tmp_path, reader("table6")(tmp_path / "out"))
    groups = {setting.attack: (setting, group) for setting, group in group_by_setting(back)}
    assert set(groups) == {"direct", "gcg"}
    for attack, (setting, group) in groups.items():
        ours = [d for d in documents if d["config"]["attack"]["name"] == attack]
        facts = [(d["runs"][0]["behavior"]["id"], d["config"]["seed"]) for d in group]
        assert sorted(facts) == [("b0", 0), ("b0", 1), ("b1", 0), ("b1", 1)]
        assert setting.defense == "smooth_llm"
        assert rate(trials_of(group, JUDGE)).interval == rate(trials_of(ours, JUDGE)).interval
    assert len(distinct_labels([s for s, _ in groups.values()])) == 2
    again = writer("table6")(back, tmp_path / "again")
    texts = [
        sorted(p.read_text() for p in (tmp_path / n).rglob("run.json")) for n in ("out", "again")
    ]
    assert len(again) == 8 and texts[0] == texts[1]


def test_table6_files_of_the_papers_tool_name_equal_prompts_alike(tmp_path: Path) -> None:
    for number, prompt in enumerate(("ask", "ask", "other")):
        data = json.loads(json.dumps(TABLE6))
        data["config"]["attack_params"]["seed"] = number
        data["runs"][0]["original_prompt"][0]["content"] = prompt
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "run.json").write_text(json.dumps(data))
    documents = reader("table6")(tmp_path)
    ids = [d["runs"][0]["behavior"]["id"] for d in documents]
    assert ids[0] == ids[1] != ids[2]
    assert [d["config"]["seed"] for d in documents] == [0, 1, 2]
    assert len(group_by_setting(documents)) == 1
    data["config"]["attack_params"]["num_steps"] = 9
    (tmp_path / "2" / "run.json").write_text(json.dumps(data))
    assert len(group_by_setting(reader("table6")(tmp_path))) == 2


@pytest.mark.parametrize("form", ["harmbench", "jailbreakbench"])
def test_the_folder_of_an_export_is_read_back_whole(tmp_path: Path, form: str) -> None:
    documents = [
        fake_document([[score]], attack=attack) for attack, score in (("gcg", 1.0), ("direct", 0.0))
    ]
    writer(form)(documents, tmp_path / "out")
    back = reader(form)(tmp_path / "out")
    rates = {
        setting.attack.split("-")[0]: rate(trials_of(group, f"{form}_labels")).value
        for setting, group in group_by_setting(back)
    }
    assert rates == {"gcg": 1.0, "direct": 0.0}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        reader(form)(tmp_path / "empty")
