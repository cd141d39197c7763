"""A worker loads before it claims, and tops up what a batch lacks without a run of its own."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.errors import ModelError
from adversariallm.runs import execute, passes, topup, worker
from adversariallm.runs.claim import StopRequested
from adversariallm.runs.execute import Event
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.launch.pilot import fly
from adversariallm.runs.launch.progress import Follower
from adversariallm.runs.plan import Plan
from adversariallm.runs.replay import replay
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Outcome, Workshop, run_one


@pytest.fixture
def sampled(small_store: Store) -> Plan:
    """What more samples of the stored runs amount to."""
    words = (f"out={small_store.root}", "generation_config.num_return_sequences=2")
    return passes.preview("sample", *words)


@pytest.fixture
def lukewarm(small_store: Store) -> Plan:
    """Runs that nobody did yet: the stored inputs with other decoding."""
    return passes.preview("sample", f"out={small_store.root}", "generation_config.temperature=1")


class Watching(Workshop):
    """Looks at the store whenever something is loaded."""

    def __init__(self, inner: Workshop, store: Store, fails: bool = False) -> None:
        super().__init__()
        self.inner, self.store, self.fails = inner, store, fails
        self.seen: list[str] = []

    def resources(self, task: Any) -> Any:
        self.seen.append(self.store.status(task.spec.run_id))
        if self.fails:
            raise ModelError("model 'm' needs about 900.0 GiB for its weights")
        return self.inner.resources(task)


def test_models_are_loaded_before_the_run_is_claimed(
    small_store: Store, lukewarm: Plan, workshop: Workshop
) -> None:
    watching = Watching(workshop, small_store)
    outcome = run_one(small_store, lukewarm.todo[0].task, watching)
    assert (outcome.ending, watching.seen) == ("done", ["new"])


def test_nothing_is_loaded_for_a_run_that_somebody_else_holds(
    small_store: Store, lukewarm: Plan, workshop: Workshop
) -> None:
    watching = Watching(workshop, small_store)
    task = lukewarm.todo[0].task
    held = small_store.claim(task.spec.run_id, {})
    assert not isinstance(held, str)
    assert run_one(small_store, task, watching).ending == "held elsewhere"
    held.fail("before")
    assert run_one(small_store, task, watching).ending == "failed before"
    assert watching.seen == []
    assert run_one(small_store, task, watching, retry=True).ending == "done"


def test_a_model_that_does_not_fit_fails_its_runs_alone_and_is_retried_on_request(
    small_store: Store, lukewarm: Plan, workshop: Workshop
) -> None:
    tasks = [planned.task for planned in lukewarm.todo]
    outcomes = worker.work(small_store, tasks, Watching(workshop, small_store, fails=True))
    assert [o.ending for o in outcomes] == ["failed", "failed"]
    assert {f.error for f in small_store.failed()} == {
        "model 'm' needs about 900.0 GiB for its weights"
    }
    assert all("ModelError" in f.traceback for f in small_store.failed())
    again = worker.work(small_store, tasks, workshop)
    assert [o.ending for o in again] == ["failed before", "failed before"]
    retried = worker.work(small_store, tasks, workshop, retry=True)
    assert [o.ending for o in retried] == ["done", "done"]


def batch(store: Store, plan: Plan) -> Batch:
    tasks = tuple(run.task for run in (*plan.todo, *plan.done))
    return Batch("name", store.root, tasks)


def test_a_pilot_adds_the_completions_that_stored_runs_lack(
    small_store: Store, sampled: Plan, workshop: Workshop
) -> None:
    given = batch(small_store, sampled)
    told: list[Outcome] = []
    follower = Follower(given, told.append)
    assert not follower.done
    flight = fly(given, workshop=workshop)
    assert (flight.failed, flight.problems, flight.progressed) == ({}, {}, True)
    follower.look()
    assert follower.done
    assert [o.detail for o in told] == ["completions added"] * 2
    for run_id in small_store.runs():
        for step in small_store.read(run_id)["runs"][0]["steps"]:
            assert len(step["model_completions"]) == 2
            assert len(step["scores"]["refusal_prefix"]["p_harmful"]) == 2
        assert replay(small_store, run_id, workshop=workshop).passed
    assert not fly(given, workshop=workshop).progressed


def test_completions_that_cannot_be_added_are_a_failure_that_is_tried_again_on_request(
    small_store: Store, sampled: Plan, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError("no more memory")

    given = batch(small_store, sampled)
    told: list[Outcome] = []
    follower = Follower(given, told.append)
    monkeypatch.setattr(topup, "execute", broken)
    flight = fly(given, workshop=workshop)
    assert len(flight.failed) == 2
    follower.look()
    assert {(o.ending, o.detail) for o in told} == {
        ("failed", "adding completions: no more memory")
    }
    monkeypatch.undo()
    assert not fly(given, workshop=workshop).progressed
    words = (f"out={small_store.root}", "generation_config.num_return_sequences=2")
    finished = passes.sample(*words, "retry=true", workshop=workshop)
    assert [o.detail for o in finished.outcomes] == ["3 completions added"] * 2
    assert small_store.damaged() == {}


def test_a_pass_that_is_stopped_goes_on_where_it_was(
    small_store: Store, sampled: Plan, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "COMPLETION_BATCH", 1)
    task = sampled.done[0].task
    made: list[int] = []
    stopping = Store(small_store.root, stop=lambda: len(made) == 2)

    def count(event: Event) -> None:
        if event.kind == "completions":
            made.append(event.values["left"])

    with pytest.raises(StopRequested):
        run_one(stopping, task, workshop, on_event=count)
    assert made == [2, 1]
    assert small_store.status(task.spec.run_id, "topup") == "released"
    assert small_store.top_ups(task.spec.run_id) == []
    outcome = run_one(small_store, task, workshop, on_event=count)
    assert outcome.detail == "3 completions added"
    assert made == [2, 1, 0]
    (part,) = small_store.top_ups(task.spec.run_id)
    assert [len(row["append"]["model_completions"]) for row in part.rows] == [1, 1, 1]
    assert replay(small_store, task.spec.run_id, workshop=workshop).passed


def test_a_batch_of_judgings_alone(small_store: Store, workshop: Workshop) -> None:
    pairs = tuple((run_id, "target_prefix") for run_id in small_store.runs())
    given = Batch("name", small_store.root, (), pairs=pairs, view="attacked")
    assert Batch.load(given.save()) == given
    fly(given, workshop=workshop)
    for run_id in small_store.runs():
        names = [part.header["judge"] for part in small_store.scores(run_id)]
        assert "target_prefix@attacked" in names
    assert not fly(given, workshop=workshop).progressed
