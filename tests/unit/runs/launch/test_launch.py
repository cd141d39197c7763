"""Launchers with made-up runs: batches, pilots, the local pool, what is asked of Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError, StoreError
from adversariallm.core.generation import GenerationConfig
from adversariallm.runs.claim import Claim
from adversariallm.runs.launch import pilot as pilots
from adversariallm.runs.launch import slurm
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.launch.options import Launcher
from adversariallm.runs.launch.pilot import Stopper, fly
from adversariallm.runs.launch.pool import Pool, environments, visible_gpus
from adversariallm.runs.launch.progress import Follower, overview
from adversariallm.runs.spec import BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Outcome

SCRIPT = Path(__file__).with_name("scripted_pilot.py")
COMMAND = (sys.executable, str(SCRIPT))


def task(seed: int) -> RunTask:
    spec = RunSpec(
        attack=PluginSpec(name="direct", version=1),
        models=(ModelSpec(name="made-up", identity={"weights": "none"}),),
        fit=BehaviorSet(dataset="d", content_hash="0", ids=("b",), keys=("k",)),
        generation=GenerationConfig(),
        seed=seed,
    )
    return RunTask(spec=spec, fit=({"id": "b"},))


def batch(root: Path, num: int = 4, **options: Any) -> Batch:
    return Batch("name", root / "store", tuple(task(i) for i in range(num)), **options)


def stored_pids(store: Store) -> list[set[int]]:
    documents = [store.read(run_id) for run_id in store.runs()]
    return [{s["execution"]["pid"] for s in d["runs"][0]["steps"]} for d in documents]


# Options


def test_a_profile_fills_in_what_is_not_typed(tmp_path: Path) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text("partition: gpu\nworkers: 8\nsetup: [module load cuda]\n", encoding="utf-8")
    launcher = Launcher(kind="slurm", workers=2, profile=str(profile)).resolved()
    assert (launcher.partition, launcher.workers) == ("gpu", 2)
    assert launcher.setup == ("module load cuda",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin: gpu", "partitoin: Extra inputs"),
        ("workers: many", "workers: Input should be"),
        ("just text", "expected lines"),
        (None, "No such file"),
    ],
)
def test_a_wrong_profile_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    profile = tmp_path / "site.yaml"
    if text is not None:
        profile.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        Launcher(profile=str(profile)).resolved()
    assert "site.yaml" in str(caught.value)


# Batches


def test_a_batch_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = batch(tmp_path, judges={"j": {"threshold": 0.5}}, compression="zstd", ttl_s=7.0)
    read = Batch.load(written.save())
    assert read == written
    assert read.ids == written.ids
    assert written.save() == written.save()


def test_a_command_and_its_repetition_share_a_name() -> None:
    first = ["attack=gcg", "seed=0", "out=a", "launcher.workers=2"]
    again = ["attack=gcg", "seed=0", "retry=true", "out=/x/a"]
    assert Batch.name_of(first, Path("a")) == Batch.name_of(again, Path("a").absolute())
    assert Batch.name_of(first, Path("a")) != Batch.name_of(first, Path("b"))
    assert Batch.name_of(first, Path("a")) != Batch.name_of(["attack=gcg", "seed=1"], Path("a"))


def test_a_missing_plan_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="repeat the command"):
        Batch.load(tmp_path / "tasks.jsonl")


def test_plans_of_other_releases_are_read_or_refused(tmp_path: Path) -> None:
    path = batch(tmp_path).save()
    head, _, rest = path.read_bytes().partition(b"\n")
    older = {k: v for k, v in json.loads(head).items() if k not in ("pairs", "view", "tracking")}
    path.write_bytes(json.dumps(older).encode() + b"\n" + rest)
    assert Batch.load(path) == batch(tmp_path)
    path.write_bytes(json.dumps({**older, "later": 1}).encode() + b"\n" + rest)
    with pytest.raises(StoreError, match="written by another release .it has 'later'"):
        Batch.load(path)


# Pilots


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("scripted_pilot", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(pilots, "work", module.work)
    return module


def test_a_pilot_does_all_runs_and_skips_what_others_hold_or_what_failed(
    tmp_path: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = batch(tmp_path)
    store = given.store()
    held = store.claim(given.ids[0], {})
    failed = store.claim(given.ids[1], {})
    assert isinstance(held, Claim)
    assert isinstance(failed, Claim)
    failed.fail("before")
    monkeypatch.setenv("FAIL", given.ids[2])
    flight = fly(given)
    assert (flight.done, flight.stopped) == (1, "")
    assert flight.failed == {given.ids[2]: "this run is meant to fail"}
    assert list(store.runs()) == [given.ids[3]]
    held.release()
    assert fly(given).done == 1


def test_a_pilot_takes_up_what_a_neighbor_dropped_meanwhile(tmp_path: Path, scripted: Any) -> None:
    given = batch(tmp_path)
    dropped = given.store().claim(given.ids[0], {})
    assert isinstance(dropped, Claim)
    real = scripted.one

    def release_then(store: Store, which: RunTask) -> Any:
        dropped.release() if store.status(given.ids[0]) == "held" else None
        return real(store, which)

    scripted.one = release_then
    assert fly(given).done == 4


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_pilots_begin_at_different_places(tmp_path: Path, scripted: Any, slot: int) -> None:
    order: list[str] = []
    real = scripted.one

    def noted(store: Store, which: RunTask) -> Any:
        order.append(which.spec.run_id)
        return real(store, which)

    scripted.one = noted
    given = batch(tmp_path, 6)
    fly(given, slot=slot, slots=3)
    assert order == [*given.ids[2 * slot :], *given.ids[: 2 * slot]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_ends_a_pilot_between_two_steps_and_nothing_is_lost(
    tmp_path: Path, number: signal.Signals
) -> None:
    given = batch(tmp_path, 1)
    store = given.store()
    log = tmp_path / "log"
    with log.open("wb") as output:
        gate = tmp_path / "gate"
        env = {**os.environ, "GATE": str(gate)}
        pilot = subprocess.Popen([*COMMAND, str(given.save())], env=env, stderr=output)
    while not stored_steps(given.root):
        time.sleep(0.02)
    pilot.send_signal(number)
    time.sleep(0.5)
    gate.touch()
    assert pilot.wait() == 3
    assert f"stopped='{number.name}'" in log.read_text(encoding="utf-8")
    assert store.status(given.ids[0]) == "released"
    claim = store.claim(given.ids[0], {})
    assert isinstance(claim, Claim)
    with claim:
        assert [s["step"] for s in claim.resume().steps] == [0, 1]  # the step begun was finished


def test_a_pilot_leaves_when_its_launcher_is_gone() -> None:
    stopper = Stopper(parent=os.getppid())
    assert not stopper.now()
    assert Stopper(parent=1 if os.getppid() != 1 else 2).now()


def test_nothing_is_claimed_that_would_not_fit_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stopper = Stopper(end_s=1500.0)
    for seconds in (100.0, 120.0, 140.0):
        assert not stopper.before_claim()
        now[0] += seconds
        stopper.finished_run()
    assert now[0] == 1360.0  # 140 s left, less 20 s to leave: exactly the median
    assert not stopper.before_claim()
    now[0] += 1
    assert stopper.before_claim()
    assert stopper.enough.startswith("time limit: a run takes 120 s")
    assert not stopper.now()  # a run in another thread may still finish
    now[0] = 1481.0
    assert stopper.now()


def test_time_that_is_too_short_ends_the_flight_as_stopped(tmp_path: Path, scripted: Any) -> None:
    flight = fly(batch(tmp_path), stopper=Stopper(end_s=time.time() + 5))
    assert flight.stopped == "time limit"
    assert flight.done == 0


# The local pool


def run_pool(given: Batch, launcher: Launcher) -> list[Outcome]:
    told: list[Outcome] = []
    outcomes = Pool(given, launcher, command=COMMAND, on_outcome=told.append).run()
    assert told == outcomes
    return outcomes


def test_the_pool_shares_runs_and_cores_among_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACE_S", "0.1")
    given = batch(tmp_path, 6)
    outcomes = run_pool(given, Launcher(kind="local", workers=2))
    assert {o.ending for o in outcomes} == {"done"}
    assert sorted(o.run_id for o in outcomes) == sorted(given.ids)
    pids = stored_pids(given.store())
    assert len(set.union(*pids)) == 2
    assert all(len(p) == 1 for p in pids)


def test_a_worker_that_crashes_is_started_again_and_no_step_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASH_AT", f"{tmp_path}:2")
    given = batch(tmp_path, 1)
    outcomes = run_pool(given, Launcher(kind="local", workers=1))
    assert [o.ending for o in outcomes] == ["done"]
    document = given.store().read(given.ids[0])
    first, second, third, fourth = (s["execution"]["pid"] for s in document["runs"][0]["steps"])
    assert first == second != third == fourth
    assert document["execution"]["generation"] == 2


def test_a_worker_that_always_crashes_is_given_up_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASH_AT", f"{tmp_path}:0")
    monkeypatch.setenv("ALWAYS", "1")
    given = batch(tmp_path, 1)
    (outcome,) = run_pool(given, Launcher(kind="local", workers=1, max_restarts=1))
    assert outcome.ending == "lost"
    assert "not finished (expired)" in outcome.detail
    (outcome,) = run_pool(given, Launcher(kind="local", workers=1, max_restarts=3))
    assert outcome.ending == "failed"
    assert "died 3 times" in outcome.detail


def test_a_failed_run_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = batch(tmp_path, 2)
    monkeypatch.setenv("FAIL", given.ids[1])
    outcomes = {o.run_id: o for o in run_pool(given, Launcher(kind="local", workers=1))}
    assert outcomes[given.ids[0]].ending == "done"
    assert outcomes[given.ids[1]].detail == "this run is meant to fail"


def test_an_interrupted_pool_stops_its_workers_and_keeps_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a shell that starts the tests in the background has them ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gate = tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))
    given = batch(tmp_path, 2)
    pool = Pool(given, Launcher(kind="local", workers=2), command=COMMAND)

    def interrupt() -> None:
        while len(stored_steps(given.root)) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        gate.touch()  # the steps that both are in the middle of come to an end

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pool.run()
    thread.join()
    signal.signal(signal.SIGINT, before)
    store = given.store()
    assert set(store.survey().values()) == {"released"}
    assert stored_steps(given.root) == [2, 2]


def stored_steps(root: Path) -> list[int]:
    """Number of journaled steps of each run that has any."""
    counts = [path.read_bytes().count(b"\n") - 1 for path in root.glob("work/*/*/journal.*")]
    return [count for count in counts if count > 0]


def test_cores_and_gpus_are_shared_out() -> None:
    outer = {"CUDA_VISIBLE_DEVICES": "3,1,GPU-x,7", "HOME": "/h"}
    found = environments(2, 2, outer)
    assert [e["CUDA_VISIBLE_DEVICES"] for e in found] == ["3,1", "GPU-x,7"]
    assert found[0]["HOME"] == "/h"
    assert int(found[0]["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert "CUDA_VISIBLE_DEVICES" not in environments(2, 0, {})[0]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_more_gpus_than_there_are_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs 6 GPUs, there are 1"):
        environments(3, 2, {"CUDA_VISIBLE_DEVICES": "0"})


def test_a_follower_reports_each_run_once(tmp_path: Path, scripted: Any) -> None:
    given = batch(tmp_path, 3)
    scripted.one(given.store(), given.tasks[0])
    told: list[Outcome] = []
    follower = Follower(given, told.append)
    follower.look()
    assert told == []
    scripted.one(given.store(), given.tasks[1])
    follower.look()
    follower.look()
    assert [o.ending for o in told] == ["done"]
    assert not follower.done
    assert [o.ending for o in follower.finish()] == ["done", "lost"]


def test_a_store_tells_how_far_its_batches_are(tmp_path: Path, scripted: Any) -> None:
    given = batch(tmp_path, 3)
    given.save()
    store = given.store()
    scripted.one(store, given.tasks[0])
    claim = store.claim(given.ids[1], {})
    (found,) = overview(store)
    assert (found.name, dict(found.states)) == ("name", {"done": 1, "held": 1, "new": 1})
    assert isinstance(claim, Claim)
    claim.release()
    assert overview(Store(tmp_path / "empty")) == []


# Slurm, without a cluster; tests/slurm has the real one


class FakeExecutor:
    """Notes what submitit would be given."""

    def __init__(self) -> None:
        self.arrays: list[list[int]] = []

    def map_array(self, function: Callable[[int], str], slots: Sequence[int]) -> list[Any]:
        self.arrays.append(list(slots))
        number = len(self.arrays)
        return [type("Job", (), {"job_id": f"{number}_{i}"})() for i in range(len(slots))]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeExecutor, dict[str, str | None]]:
    executor = FakeExecutor()
    answers: dict[str, str | None] = {
        "squeue": "",
        "scontrol": "MaxArraySize = 4\n",
        "sinfo": "a\nb",
    }
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(slurm, "_executor", lambda *_: executor)
    monkeypatch.setattr(slurm, "_ask", lambda command: answers[command[0]])
    return executor, answers


def test_arrays_are_split_at_the_limit_of_the_site(tmp_path: Path, cluster: Any) -> None:
    executor, _ = cluster
    submission = slurm.submit(batch(tmp_path, 9), Launcher(kind="slurm", workers=8), 9)
    assert executor.arrays == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert len(submission.jobs) == 8


@pytest.mark.parametrize(
    ("alive", "num_open", "expected"),
    [("", 9, 5), ("RUNNING\nPENDING\n", 9, 3), ("R\n" * 9, 9, 0), ("", 2, 2), (None, 9, 5)],
)
def test_only_missing_pilots_are_submitted(
    tmp_path: Path, cluster: Any, alive: str | None, num_open: int, expected: int
) -> None:
    executor, answers = cluster
    answers["squeue"] = alive
    launcher = Launcher(kind="slurm", workers=5, array_limit=100)
    assert len(slurm.submit(batch(tmp_path, 9), launcher, num_open).jobs) == expected
    assert sum(map(len, executor.arrays)) == expected


def test_a_machine_without_slurm_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="no sbatch on this machine; use launcher.kind=local"):
        slurm.submit(batch(tmp_path), Launcher(kind="slurm"), 4)


def test_all_options_reach_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    kept: dict[str, Any] = {}
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    monkeypatch.setattr(
        submitit.SlurmExecutor, "update_parameters", lambda self, **options: kept.update(options)
    )
    launcher = Launcher(
        kind="slurm", partition="p", account="a", qos="q", constraint="c", cpus_per_task=3,
        gpus_per_node=2, mem_gb=1.5, setup=("module load x",), container="image", timeout_min=7,
    )  # fmt: skip
    slurm._executor(batch(tmp_path), launcher, tmp_path / "jobs")
    expected = {
        "partition": "p", "account": "a", "qos": "q", "constraint": "c", "cpus_per_task": 3,
        "gpus_per_node": 2, "mem": "1536MB", "setup": ["module load x"], "time": 7,
        "srun_args": ["--container-image=image"], "job_name": "adversariallm-name",
    }  # fmt: skip
    assert {key: kept[key] for key in expected} == expected
    assert kept["additional_parameters"] == {"requeue": True}
