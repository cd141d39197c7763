"""Kill and freeze processes that use a store, then compare what is stored with what must be there.

Run as `python -m adversariallm.runs.stress SETTINGS.json REPORT.json`, for the store's own tests
and for `adversariallm selftest --store DIR`.  It works on made-up runs only and never touches a
store that holds others.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adversariallm.core.config import stable_hash
from adversariallm.core.errors import LostLeaseError
from adversariallm.core.rng import Rng
from adversariallm.runs.claim import Claim
from adversariallm.runs.lease import default_host
from adversariallm.runs.store import Store

PHASES = ("claim", "step", "publish", "score")
_JUDGE = "stress-judge"
_SIZES = (32, 160, 640, 1920, 19200, 57600)
_ACK_MARGIN_NS = 200_000_000


@dataclass(frozen=True)
class Settings:
    """How hard to stress.

    Attributes:
        roots: The directory, or several mounts of one directory; workers take turns.
        kills: SIGKILLs, spread evenly over the phases.
        stops: SIGSTOPs for longer than the TTL.
        num_runs: Made-up runs.
        num_steps: Steps of each.
        num_workers: Processes at a time.
        ttl_s: Time to live of leases.
        limit_s: Give up after so many seconds.
    """

    roots: tuple[str, ...]
    kills: int = 12
    stops: int = 3
    num_runs: int = 12
    num_steps: int = 20
    num_workers: int = 4
    ttl_s: float = 1.0
    limit_s: float = 300.0


@dataclass
class Report:
    """What happened and what was found; without `problems` the store kept its promises."""

    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    stops: int = 0
    claims: int = 0
    highest_generation: int = 0
    lost_leases_noticed: int = 0
    late_publishers_refused: int = 0
    acknowledged_steps: int = 0
    steps_done_twice: int = 0
    problems: list[str] = field(default_factory=list)


def stress(settings: Settings) -> Report:
    """Run the stress in a fresh process, which can fork safely."""
    with tempfile.TemporaryDirectory() as scratch:
        given, report = Path(scratch, "settings.json"), Path(scratch, "report.json")
        given.write_text(json.dumps(asdict(settings)), encoding="utf-8")
        command = [sys.executable, "-m", __name__, str(given), str(report)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return Report(problems=[f"the stress itself failed: {done.stderr[-2000:]}"])
        return Report(**json.loads(report.read_text(encoding="utf-8")))


def _configs(settings: Settings) -> dict[str, dict[str, Any]]:
    configs = [{"stress": True, "index": i} for i in range(settings.num_runs)]
    return {stable_hash(config): config for config in configs}


def _step(run_id: str, index: int) -> dict[str, Any]:
    """Return the content that step must have: 100 bytes to 60 kB, so that lines span pages."""
    rng = Rng.root(0).child("stress", run_id, index).python()
    return {"step": index, "loss": rng.random(), "text": rng.choice("abc\n") * rng.choice(_SIZES)}


def _scores(num_steps: int) -> Iterator[dict[str, Any]]:
    for index in range(num_steps):
        yield {"run": 0, "step": index, "scores": {"p_harmful": [index / 7]}}


class _Worker:
    """One forked process; what it did stands in its evidence file, line by line."""

    def __init__(
        self, settings: Settings, slot: int, seed: int, evidence: Path, shared: mmap.mmap
    ) -> None:
        self.settings = settings
        self.slot = slot
        self.shared = shared
        self.rng = Rng.root(seed).child("stress", slot).python()
        # half of the workers pretend to be other hosts: there only the TTL tells that they died
        host = default_host() if slot % 2 else f"host{slot}-{seed}"
        root = settings.roots[slot % len(settings.roots)]
        self.store = Store(root, ttl_s=settings.ttl_s, host=host)
        path = evidence / f"{slot}-{seed}.log"
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(self, what: str, claim: Claim, number: int) -> None:
        line = f"{time.monotonic_ns()} {what} {claim.run_id} {claim.generation} {number}\n"
        os.write(self.fd, line.encode())

    def phase(self, name: str) -> None:
        self.shared[self.slot] = PHASES.index(name)

    def work(self) -> None:
        todo = list(_configs(self.settings).items())
        while todo:
            self.rng.shuffle(todo)
            todo = [item for item in todo if not self.attempt(*item)]
            time.sleep(0.02)

    def attempt(self, run_id: str, config: dict[str, Any]) -> bool:
        """Do what can be done now; True when the run is published and scored."""
        self.phase("claim")
        claim = self.store.claim(run_id, config, retry=True)
        if claim == "done":
            return self.score(run_id)
        if isinstance(claim, Claim):
            with claim:
                self.execute(claim)
        return False

    def execute(self, claim: Claim) -> None:
        steps = claim.resume().steps
        self.log("claim", claim, len(steps))
        try:
            self.phase("step")
            for index in range(len(steps), self.settings.num_steps):
                steps.append(_step(claim.run_id, index))
                claim.append("step", steps[-1])
                self.log("ack", claim, index)
                time.sleep(self.rng.random() * 0.01)
            self.phase("publish")
            won = claim.publish({"config": {}, "runs": [{"steps": steps}]})
            self.log("publish", claim, int(won))
        except LostLeaseError:
            self.log("lost", claim, 0)

    def score(self, run_id: str) -> bool:
        self.phase("score")
        if self.store.scores(run_id, _JUDGE):
            return True
        claim = self.store.claim(run_id, {}, task=f"judge.{_JUDGE}", retry=True)
        if isinstance(claim, Claim):
            with claim:
                if not self.store.scores(run_id, _JUDGE):
                    rows = _scores(self.settings.num_steps)
                    self.store.write_scores(run_id, _JUDGE, rows, {"judge": "stress"})
                claim.finish()
        return False


class _Driver:
    """Keeps the workers running while it kills and freezes them."""

    def __init__(self, settings: Settings, evidence: Path) -> None:
        self.settings = settings
        self.evidence = evidence
        self.rng = Rng.root(0).child("stress", "driver").python()
        self.shared = mmap.mmap(-1, settings.num_workers)
        self.report = Report(kills=dict.fromkeys(PHASES, 0))
        self.pids: dict[int, int] = {}
        self.frozen: dict[int, float] = {}
        self.num_spawned = 0

    def spawn(self, slot: int) -> None:
        self.num_spawned += 1
        pid = os.fork()
        if pid:
            self.pids[slot] = pid
            return
        code = 3
        try:
            _Worker(self.settings, slot, self.num_spawned, self.evidence, self.shared).work()
            code = 0
        finally:
            if code:
                path = self.evidence / f"crash-{slot}-{self.num_spawned}.txt"
                path.write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(code)

    def drive(self) -> None:
        for slot in range(self.settings.num_workers):
            self.spawn(slot)
        started = time.monotonic()
        while self.pids:
            if time.monotonic() - started > self.settings.limit_s:
                self.report.problems.append(f"not done after {self.settings.limit_s:g} s")
                for pid in self.pids.values():
                    os.kill(pid, signal.SIGKILL)
                return
            self.reap()
            self.thaw()
            self.strike()
            time.sleep(self.rng.uniform(0.02, 0.12))

    def reap(self) -> None:
        for slot, pid in list(self.pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.pids[slot]
                if any(self.evidence.glob(f"crash-{slot}-*.txt")):
                    text = next(self.evidence.glob(f"crash-{slot}-*.txt")).read_text("utf-8")
                    self.report.problems.append(f"a worker crashed: {text[-600:]}")

    def thaw(self) -> None:
        for slot, until in list(self.frozen.items()):
            if time.monotonic() > until:
                os.kill(self.pids[slot], signal.SIGCONT)
                del self.frozen[slot]

    def strike(self) -> None:
        awake = [slot for slot in self.pids if slot not in self.frozen]
        if len(awake) < 2:
            return
        if self.report.stops < self.settings.stops and self.rng.random() < 0.25:
            slot = self.rng.choice(awake)
            os.kill(self.pids[slot], signal.SIGSTOP)
            self.frozen[slot] = time.monotonic() + self.settings.ttl_s * 2.5
            self.report.stops += 1
        elif sum(self.report.kills.values()) < self.settings.kills:
            self.kill(awake)

    def kill(self, awake: list[int]) -> None:
        """Kill a worker in the phase that was hit least so far, if one comes by soon."""
        wanted = PHASES.index(min(PHASES, key=lambda phase: self.report.kills[phase]))
        patience = time.monotonic() + 0.2
        slot = self.rng.choice(awake)
        while time.monotonic() < patience:
            hit = [s for s in awake if self.shared[s] == wanted]
            if hit:
                slot = self.rng.choice(hit)
                break
        time.sleep(self.rng.random() * 0.002)
        phase = PHASES[self.shared[slot]]
        if os.waitpid(self.pids[slot], os.WNOHANG)[0]:
            del self.pids[slot]
            return
        os.kill(self.pids[slot], signal.SIGKILL)
        os.waitpid(self.pids[slot], 0)
        self.report.kills[phase] += 1
        self.spawn(slot)


def _events(evidence: Path) -> Iterator[tuple[int, str, str, int, int]]:
    for path in evidence.glob("*.log"):
        for line in path.read_text(encoding="ascii").splitlines():
            at, what, run_id, generation, number = line.split()
            yield int(at), what, run_id, int(generation), int(number)


def _judge_evidence(report: Report, settings: Settings, evidence: Path) -> None:
    """Compare what workers were told with what later generations found."""
    claims: dict[tuple[str, int], tuple[int, int]] = {}
    acks: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    wins: Counter[str] = Counter()
    for at, what, run_id, generation, number in _events(evidence):
        if what == "claim":
            claims[run_id, generation] = (at, number)
        elif what == "ack":
            acks[run_id, generation].append((at, number))
        elif what == "publish":
            wins[run_id] += number
            report.late_publishers_refused += 1 - number
        else:
            report.lost_leases_noticed += 1
    report.claims = len(claims)
    report.highest_generation = max((generation for _, generation in claims), default=0)
    report.acknowledged_steps = sum(map(len, acks.values()))
    report.steps_done_twice = report.acknowledged_steps - len(
        {(run_id, n) for (run_id, _), rows in acks.items() for _, n in rows}
    )
    for (run_id, generation), rows in acks.items():
        heirs = [g for r, g in claims if r == run_id and g > generation]
        if heirs:
            at, resumed = claims[run_id, min(heirs)]
            kept = [n for t, n in rows if t < at - _ACK_MARGIN_NS]
            if kept and max(kept) >= resumed:
                report.problems.append(f"{run_id}: generation {min(heirs)} lost acknowledged steps")
    report.problems += [f"{r}: published {n} times" for r, n in wins.items() if n > 1]


def _judge_store(report: Report, settings: Settings) -> None:
    """Compare every published run with the content it must have."""
    store = Store(settings.roots[0], ttl_s=settings.ttl_s)
    report.problems += [f"damaged: {problem}" for problem in store.damaged().values()]
    published = set(store.runs())
    for run_id in _configs(settings):
        if run_id not in published:
            report.problems.append(f"{run_id}: not published")
            continue
        steps = store.read(run_id)["runs"][0]["steps"]
        scores = [step.pop("scores", None) for step in steps]
        if steps != [_step(run_id, i) for i in range(settings.num_steps)]:
            report.problems.append(f"{run_id}: its steps are not what was computed")
        wanted = [{"stress": row["scores"]} for row in _scores(settings.num_steps)]
        if scores != wanted or len(store.scores(run_id)) != 1:
            report.problems.append(f"{run_id}: its scores are not what was computed")


def _main(given: str, report_path: str) -> None:
    values = json.loads(Path(given).read_text(encoding="utf-8"))
    settings = Settings(**{**values, "roots": tuple(values["roots"])})
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        driver = _Driver(settings, Path(scratch))
        driver.drive()
        report = driver.report
        _judge_evidence(report, settings, Path(scratch))
    _judge_store(report, settings)
    report.seconds = round(time.monotonic() - started, 1)
    Path(report_path).write_text(json.dumps(asdict(report)), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
