"""Real attacks on the small model in a real cluster where jobs, nodes and the controller die.

Every scenario has a store of its own and all go on at once; what is asserted stands in the stores:
each run is there once and equal to an undisturbed one, and no finished step was computed again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.runs import passes
from adversariallm.runs.campaign import Finished, run
from adversariallm.runs.document import strip_volatile
from adversariallm.runs.journal import complete_lines
from adversariallm.runs.store import Store

from .conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]

SWEEP = (
    "model=smollm2-135m",
    "dataset=starter_harmful",
    "datasets.starter_harmful.idx=0",
    "attack=random_search",
    "attacks.random_search.num_steps=5",
    "attacks.random_search.num_candidates=2",
    "completions=last",
    "generation_config.max_new_tokens=4",
    "store.ttl_s=10",
)
NUM_STEPS = 6  # with step 0
PATIENCE_S = float(os.environ.get("SLURM_TEST_PATIENCE_S", "240"))
Disturb = Callable[["Scenario"], None]


class Scenario:
    """The sweep in a store of its own, submitted to the cluster."""

    def __init__(
        self, cluster: Cluster, root: Path, seeds: object = "0", **launcher: object
    ) -> None:
        self.cluster = cluster
        self.root = root
        self.num_runs = str(seeds).count(",") + 1
        self.sweep = (*SWEEP, f"seed={seeds}", f"out='{root}'")
        self.store = Store(root, ttl_s=10)
        given = {"kind": "slurm", "workers": 1, "timeout_min": 5, "signal_delay_s": 20, **launcher}
        self.launcher = [f"launcher.{key}={value}" for key, value in given.items()]

    def submit(self) -> Finished:
        return run(*self.sweep, *self.launcher)

    @property
    def job_name(self) -> str:
        folder = next((self.root / "plans").iterdir())
        return f"adversariallm-{folder.name}"

    def jobs(self, form: str = "%i") -> list[str]:
        return self.cluster.ask("squeue", "-h", "-r", "-n", self.job_name, "-o", form).split()

    def job(self) -> str:
        """The id of the newest job."""
        pickles = (self.root / "plans").glob("*/slurm/*_submitted.pkl")
        return sorted(p.name.removesuffix("_submitted.pkl") for p in pickles)[-1]

    def node(self) -> str:
        return self.cluster.ask("squeue", "-h", "-j", self.job(), "-o", "%N")

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.root.name}: waited in vain for {what}\n{self.logs()}")
            time.sleep(0.2)

    def until_steps(self, number: int = 2) -> None:
        self.until(f"{number} steps", lambda: self.num_steps() >= number)

    def num_steps(self) -> int:
        """Steps in journals and in published runs."""
        logs = (self.root / "work").glob("*/*/journal.*")
        journaled = sum(
            line.count(b'"kind":"step"') for log in logs for line in complete_lines(log)
        )
        return journaled + NUM_STEPS * len(list(self.store.runs()))

    def until_done(self) -> None:
        self.until("judged runs", lambda: len(self.judged()) == self.num_runs)

    def judged(self) -> list[Path]:
        return list((self.root / "runs").glob("*/*/scores.refusal_prefix-*.jsonl"))

    def logs(self) -> str:
        folder = (self.root / "plans").glob("*/slurm/*.out")
        return "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in folder)

    def steps_logged(self) -> Counter[str]:
        """How often each step of each run was finished, by the pilots' own words."""
        return Counter(re.findall(r"INFO (random_search on .*: step \d+) ", self.logs()))

    def generations(self) -> list[int]:
        return [self.store.header(r)["execution"]["generation"] for r in self.store.runs()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> dict[str, Any]:
    """The sweep, undisturbed in this process."""
    root = tmp_path_factory.mktemp("reference")
    finished = run(*SWEEP, "seed=0,1", f"out='{root}'")
    assert not finished.failed
    return {r: essence(finished.store, r) for r in finished.run_ids}


def essence(store: Store, run_id: str) -> dict[str, Any]:
    """The document without times, and without the launcher's options as typed."""
    document: dict[str, Any] = strip_volatile(store.read(run_id))
    document["resolved"].pop("overrides")
    return document


def nothing(scenario: Scenario) -> None:
    """Leave an array of pilots alone."""


def kill_controller(scenario: Scenario) -> None:
    """Pilots do not notice; what waits for this scenario may go on afterwards."""
    scenario.until_steps()
    try:
        os.kill(scenario.cluster.pid("slurmctld"), signal.SIGKILL)
        time.sleep(2)
        scenario.cluster.configure(preempt_signal=False)
    finally:
        scenario.cluster.calm.set()


def told(scenario: Scenario, number: signal.Signals, *command: str) -> None:
    """Run a command that has the pilot told by a signal in the middle of a step."""
    scenario.until_steps()
    with frozen(scenario) as pid:
        scenario.cluster.calm.wait(PATIENCE_S)
        with subprocess.Popen(command) as running:
            scenario.until(f"{number.name}", lambda: was_told(pid, number))
            wake(pid)
            assert running.wait(PATIENCE_S) == 0


def scancel(scenario: Scenario) -> None:
    """Cancel the only pilot, then give the same command again."""
    told(scenario, signal.SIGTERM, "scancel", scenario.job())
    scenario.until("the job to be gone", lambda: scenario.job() not in scenario.jobs())
    assert scenario.submit().exit_code == 0


def requeue(scenario: Scenario) -> None:
    told(scenario, signal.SIGTERM, "scontrol", "requeue", scenario.job())


def preempt(scenario: Scenario, number: signal.Signals = signal.SIGTERM) -> None:
    """Push the pilot, which has a node to itself, out with a job of higher priority."""
    scenario.until_steps()
    where = ("-p", "high", "-w", scenario.node(), "-n1", "--mem=3990")
    told(scenario, number, "srun", *where, "-t1", "sleep", "3")


def reach_time_limit(scenario: Scenario) -> None:
    """Hold the pilot still in the middle of its run until it is warned of its time limit."""
    told(scenario, signal.SIGUSR2, "true")


def kill_node(scenario: Scenario) -> None:
    """Lose a node: its processes fall silent, a second pilot starts, then the first wakes up."""
    scenario.until_steps()
    with frozen(scenario):
        scenario.cluster.calm.wait(PATIENCE_S)
        os.kill(scenario.cluster.pid(f"slurmd.{scenario.node()}"), signal.SIGKILL)
        heir = "lease.000002"
        scenario.until("a second pilot", lambda: list(scenario.root.glob(f"work/*/*/{heir}")))


@contextmanager
def frozen(scenario: Scenario) -> Iterator[int]:
    """Stop the process that holds a lease of the store."""
    (lease,) = (scenario.root / "work").glob("*/*/lease.*")
    pid = int(json.loads(lease.read_bytes())["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        scenario.until("a standstill", lambda: is_stopped(pid))
        yield pid
    finally:
        wake(pid)


def wake(pid: int) -> None:
    with suppress(ProcessLookupError):  # a node that comes back ends what it should not run
        os.kill(pid, signal.SIGCONT)


def was_told(pid: int, number: signal.Signals) -> bool:
    """Whether a stopped process has the signal pending, or was woken up to get it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return True
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)$", status, re.MULTILINE)
    pending = any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return pending or not is_stopped(pid)


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b") ", 1)[1].startswith(b"T")
    except FileNotFoundError:
        return False


ALONE: dict[str, object] = {"mem_gb": 3.9}  # a node to itself

# name: what happens, and what the launcher is told
SCENARIOS: dict[str, tuple[Disturb, dict[str, object]]] = {
    "array": (nothing, {"workers": 2, "seeds": "0,1"}),
    "scancel": (scancel, {}),
    "requeue": (requeue, {}),
    "preemption": (preempt, {"partition": "low", **ALONE}),
    "time-limit": (reach_time_limit, {"timeout_min": 2, **ALONE}),
    "node": (kill_node, {}),
    "controller": (kill_controller, {}),
}


@pytest.fixture(scope="module")
def scenarios(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    reference: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Scenario, Future[None]]]]:
    """The scenarios of the selected tests, going on at once."""
    items: list[Any] = request.session.items
    selected = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    started = {}
    if "controller" not in selected:
        cluster.calm.set()
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        for name, (disturb, launcher) in SCENARIOS.items():
            if name not in selected:
                continue
            scenario = Scenario(cluster, tmp_path_factory.mktemp(name), **launcher)
            assert scenario.submit().exit_code == 0
            started[name] = (scenario, pool.submit(carry_through, scenario, disturb))
        yield started


def carry_through(scenario: Scenario, disturb: Disturb) -> None:
    disturb(scenario)
    scenario.until_done()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_run_is_stored_once_and_equals_an_undisturbed_one(
    scenarios: dict[str, tuple[Scenario, Future[None]]], reference: dict[str, Any], name: str
) -> None:
    scenario, future = scenarios[name]
    future.result()
    check(scenario, reference)
    if name in ("scancel", "requeue", "preemption", "time-limit", "node"):
        assert max(scenario.generations()) >= 2
    if name == "time-limit":
        assert "stopped='SIGUSR2'" in scenario.logs()
    if name != "node":  # there, two processes work on one run until the older one notices
        assert max(scenario.steps_logged().values()) == 1


def check(scenario: Scenario, reference: dict[str, Any]) -> None:
    stored = {r: essence(scenario.store, r) for r in scenario.store.runs()}
    assert len(stored) == len(scenario.judged()) == scenario.num_runs
    assert stored == {run_id: reference[run_id] for run_id in stored}
    assert scenario.store.damaged() == {}
    assert set(scenario.store.survey().values()) == {"done"}


def test_a_preempted_pilot_that_is_told_by_signal_has_itself_requeued(
    cluster: Cluster,
    scenarios: dict[str, tuple[Scenario, Future[None]]],
    reference: dict[str, Any],
    tmp_path: Path,
) -> None:
    for _, future in scenarios.values():
        future.exception()  # wait: the cluster's configuration is about to change
    cluster.configure(preempt_signal=True)
    scenario = Scenario(cluster, tmp_path, partition="low", **ALONE)
    scenario.submit()
    preempt(scenario, signal.SIGUSR2)
    scenario.until_done()
    check(scenario, reference)
    assert max(scenario.generations()) >= 2
    assert "stopped='SIGUSR2'" in scenario.logs()
    assert max(scenario.steps_logged().values()) == 1


def test_a_finished_sweep_submits_nothing(
    scenarios: dict[str, tuple[Scenario, Future[None]]],
) -> None:
    scenario, future = scenarios["array"]
    future.result()
    before = len(list((scenario.root / "plans").glob("*/slurm/*_submitted.pkl")))
    finished = scenario.submit()
    assert finished.exit_code == 0
    assert len(finished.plan.done) == 2
    assert len(list((scenario.root / "plans").glob("*/slurm/*_submitted.pkl"))) == before


def test_later_passes_go_through_slurm_and_equal_those_of_one_process(
    scenarios: dict[str, tuple[Scenario, Future[None]]], tmp_path: Path
) -> None:
    scenario, future = scenarios["array"]
    future.result()
    shutil.copytree(scenario.root, tmp_path / "copy")
    more = ("generation_config.num_return_sequences=2", "store.ttl_s=10")
    sent = (
        "model=smollm2-135m",
        "models.smollm2-135m.system_prompt='You are a careful helper.'",
        "store.ttl_s=10",
    )
    for store, launcher in ((scenario.store, scenario.launcher), (Store(tmp_path / "copy"), [])):
        out = f"out='{store.root}'"
        assert passes.sample(out, *more, *launcher).exit_code == 0
        assert passes.transfer(out, *sent, *launcher).exit_code == 0
    copy = Store(tmp_path / "copy")
    names = set(copy.runs())
    assert len(names) == 4
    scenario.until("the later passes", lambda: is_scored(scenario.store, names))
    for run_id in names:
        assert essence(scenario.store, run_id) == essence(copy, run_id)
    assert sum(len(scenario.store.top_ups(run_id)) for run_id in names) == 2
    assert set(scenario.store.survey().values()) == {"done"}
    assert scenario.store.damaged() == {}


def is_scored(store: Store, names: set[str]) -> bool:
    """Whether exactly these runs are stored and every completion of theirs has a score."""
    if set(store.runs()) != names or "held" in store.survey().values():
        return False
    last = [store.read(run_id)["runs"][0]["steps"][-1] for run_id in names]
    counts = [(len(s["model_completions"]), s["scores"].get("refusal_prefix", {})) for s in last]
    return sorted(n for n, _ in counts) == [1, 1, 2, 2] and all(
        len([x for x in scores.get("p_harmful", []) if x is not None]) == n for n, scores in counts
    )


def test_a_partition_that_does_not_exist_is_refused_with_those_that_do(
    cluster: Cluster, smollm2_path: Path, tmp_path: Path
) -> None:
    scenario = Scenario(cluster, tmp_path, partition="nowhere")
    with pytest.raises(ConfigError, match=r"partition=nowhere.*main, low, high"):
        scenario.submit()
