"""Judging stored completions: what a judge reads, what is never scored, what is done once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from adversariallm.core.budget import Meter
from adversariallm.models.fakes import ScriptedModel
from adversariallm.runs.judging import StepJudge, judge_rows, judge_run
from adversariallm.runs.spec import PluginSpec
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop, run_one

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, spec  # noqa: E402


class Recording:
    """A judge that remembers what it read and scores by length."""

    class info:  # noqa: N801  -- stands for an attribute
        name = "recording"
        score_key = "p_harmful"
        semantics = "harm"
        threshold = 0.5

    read: ClassVar[list[Any]] = []

    def fingerprint(self) -> dict[str, str]:
        return {"name": "recording"}

    def fingerprint_id(self) -> str:
        return "0" * 16

    def __call__(self, conversations: Any, contexts: Any) -> dict[str, list[Any]]:
        self.read.extend(zip(conversations, contexts, strict=True))
        scores = [min(1.0, len(c[-1]["content"]) / 10) for c in conversations]
        return {"p_harmful": scores, "error": [None] * len(scores)}


@pytest.fixture
def judge() -> Recording:
    Recording.read.clear()
    return Recording()


def step(**changes: Any) -> dict[str, Any]:
    base = {
        "model_input": [{"role": "user", "content": "asked differently"}],
        "model_completions": ["one", "four"],
        "completions": [{"sample": 0}, {"sample": 1}],
    }
    return {**base, **changes}


BEHAVIOR = behaviors()[0].to_dict()


def test_the_clean_view_reads_the_original_prompt_and_the_completion(judge: Recording) -> None:
    columns = judge_rows(judge, [(BEHAVIOR, step(), 0), (BEHAVIOR, step(), 1)], "clean")
    assert columns["p_harmful"] == [0.3, 0.4]
    talk, facts = judge.read[0]
    assert talk == [*BEHAVIOR["conversation"], {"role": "assistant", "content": "one"}]
    assert facts == {"goal": BEHAVIOR["goal"], "target": BEHAVIOR["target"]}


def test_the_attacked_view_reads_what_was_sent(judge: Recording) -> None:
    judge_rows(judge, [(BEHAVIOR, step(), 0)], "attacked")
    assert judge.read[0][0][0]["content"] == "asked differently"


def test_the_target_is_never_put_before_an_answer(judge: Recording) -> None:
    judge_rows(judge, [(BEHAVIOR, step(), 0)], "clean")
    assert BEHAVIOR["target"] not in str(judge.read[0][0])


@pytest.mark.parametrize(("judged", "answer"), [(True, "Sure, one"), (False, "one")])
def test_a_prefill_is_read_only_where_the_attack_says_so(
    judge: Recording, judged: bool, answer: str
) -> None:
    sent = [*step()["model_input"], {"role": "assistant", "content": "Sure, "}]
    row = step(prefill="Sure, ", prefill_judged=judged, model_input=sent)
    for view in ("clean", "attacked"):
        judge.read.clear()
        judge_rows(judge, [(BEHAVIOR, row, 0)], view)
        assert [m["content"] for m in judge.read[0][0] if m["role"] == "assistant"] == [answer]


def test_a_failed_completion_is_unscored_and_never_read(judge: Recording) -> None:
    row = step(completions=[{"sample": 0, "error": "provider_error"}, {"sample": 1}])
    columns = judge_rows(judge, [(BEHAVIOR, row, 0), (BEHAVIOR, row, 1)], "clean")
    assert columns["p_harmful"] == [None, 0.4]
    assert columns["error"] == ["completion:provider_error", None]
    assert len(judge.read) == 1


def stored_run(tmp_path: Path) -> tuple[Store, str]:
    model = ScriptedModel(["an answer"])
    task = spec("direct", model, [behaviors()[0]], samples=3)
    from adversariallm.core.config import stable_hash

    held = {stable_hash(dict(model.identity())): model}
    store = Store(tmp_path, durable=False)
    assert run_one(store, task, Workshop(models=held)).ending == "done"
    return store, task.spec.run_id


def test_scores_stand_beside_the_run_and_are_made_once(tmp_path: Path, judge: Recording) -> None:
    store, run_id = stored_run(tmp_path)
    before = store.text(run_id)
    first = judge_run(store, run_id, lambda meter: judge)
    assert (first.status, first.num_scored, first.num_unscored) == ("judged", 3, 0)
    assert store.text(run_id) == before
    table = store.read(run_id)["runs"][0]["steps"][0]["scores"]["recording"]
    assert table["p_harmful"] == [0.9] * 3
    assert judge_run(store, run_id, lambda meter: judge).status == "already judged"
    assert len(judge.read) == 3


def test_later_completions_are_scored_alone(tmp_path: Path, judge: Recording) -> None:
    store, run_id = stored_run(tmp_path)
    judge_run(store, run_id, lambda meter: judge)
    row = {"model_completions": ["more"], "completions": [{"sample": 3}]}
    assert store.top_up(run_id, [{"run": 0, "step": 0, "append": row}], {"ledgers": {}})
    again = judge_run(store, run_id, lambda meter: judge)
    assert (again.status, again.num_scored) == ("judged", 1)
    table = store.read(run_id)["runs"][0]["steps"][0]["scores"]["recording"]
    assert table["p_harmful"] == [0.9, 0.9, 0.9, 0.4]


def test_both_views_are_kept_apart(tmp_path: Path, judge: Recording) -> None:
    store, run_id = stored_run(tmp_path)
    judge_run(store, run_id, lambda meter: judge)
    judge_run(store, run_id, lambda meter: judge, view="attacked")
    scores = store.read(run_id)["runs"][0]["steps"][0]["scores"]
    assert set(scores) == {"recording", "recording@attacked"}


def test_undefended_answers_are_scored_apart_and_unknown_ones_are_no_score(
    tmp_path: Path, judge: Recording
) -> None:
    step = {
        "model_completions": ["an answer", "withheld", "withheld"],
        "completions": [
            {"undefended": "more"},
            {"undefended": None},
            {"undefended": "more", "error": "defense:guard:unparsable"},
        ],
    }
    rows = [(BEHAVIOR, step, k) for k in range(3)]
    found = judge_rows(judge, rows, "undefended")
    assert found["p_harmful"] == [0.4, None, 0.4]
    assert found["error"] == [None, "completion:undefended_unknown", None]
    found = judge_rows(judge, rows, "clean")
    assert found["error"][2] == "completion:defense:guard:unparsable"


def test_a_defended_run_is_judged_with_and_without_its_defense(
    tmp_path: Path, judge: Recording
) -> None:
    from adversariallm.core.config import stable_hash

    model = ScriptedModel(["more"])
    plugin = PluginSpec(name="system_prompt", version=1)
    task = spec("direct", model, [behaviors()[0]], samples=2, defense=(plugin,))
    store = Store(tmp_path, durable=False)
    workshop = Workshop(models={stable_hash(dict(model.identity())): model})
    assert run_one(store, task, workshop).ending == "done"
    found = judge_run(store, task.spec.run_id, lambda meter: judge)
    assert (found.status, found.num_scored) == ("judged", 4)
    scores = store.read(task.spec.run_id)["runs"][0]["steps"][0]["scores"]
    assert scores["recording"]["p_harmful"] == scores["recording@undefended"]["p_harmful"]
    assert judge_run(store, task.spec.run_id, lambda meter: judge).status == "already judged"


def test_a_stopping_judge_scores_the_completions_of_a_step(judge: Recording) -> None:
    from adversariallm.core.records import CompletionRecord, StepRecord

    record = StepRecord(
        step=1,
        model_completions=["one", "gone"],
        completions=[CompletionRecord(sample=0), CompletionRecord(sample=1, error="deadline")],
    )
    found = StepJudge(lambda meter: judge).verdicts(behaviors()[0], record, Meter())
    assert list(found) == [0.3, None]
