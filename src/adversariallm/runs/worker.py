"""A worker: loads each model once, claims runs from the store, carries them out and publishes them.

Every launcher ends here. One bad run never ends a worker: it is marked failed with its traceback
and the next one is claimed.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.budget import Meter
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import AdversariaLLMError, LostLeaseError
from adversariallm.core.plugins import ATTACKS, DEFENSES
from adversariallm.core.protocols import ChatModel
from adversariallm.runs.execute import Event, Resources, execute
from adversariallm.runs.judge_model import chosen_backend
from adversariallm.runs.judging import JudgeFactory, StepJudge
from adversariallm.runs.provenance import provenance
from adversariallm.runs.rewards import Rewards
from adversariallm.runs.spec import ModelSpec
from adversariallm.runs.topup import top_up

if TYPE_CHECKING:
    from adversariallm.runs.spec import PluginSpec, RunTask
    from adversariallm.runs.store import Store
    from judgezoo.assets import AssetStore

CONCURRENCY = 40  # runs of one worker at a time, where they only ask for text

Ending = Literal["done", "already done", "held elsewhere", "failed", "failed before", "lost"]


@dataclass(frozen=True)
class Outcome:
    """How one run ended, as far as this worker saw it."""

    run_id: str
    label: str
    ending: Ending
    detail: str = ""


class Workshop:
    """Loaded models, judges and assets, shared by the runs of one process.

    `models` maps a model's identity to an object, so that what a caller already holds is not
    loaded again.
    """

    def __init__(
        self,
        *,
        models: Mapping[str, ChatModel] | None = None,
        judges: Mapping[str, Mapping[str, Any]] | None = None,
        assets: AssetStore | None = None,
    ) -> None:
        """Start empty; nothing is loaded before a run needs it."""
        self._models: dict[str, ChatModel] = dict(models or {})
        self._judges = dict(judges or {})
        self._assets = assets
        self._lock = threading.Lock()

    def model(self, spec: ModelSpec) -> ChatModel:
        """The model of that identity, loaded the first time it is asked for."""
        key = stable_hash(spec.identity)
        with self._lock:
            if key not in self._models:
                from adversariallm.models.loading import load_model

                self._models[key] = load_model(spec.name, **spec.options)
            return self._models[key]

    def judge_factory(self, name: str) -> JudgeFactory:
        """How to make a judge, with the options of `judges.<name>.*`.

        A backend `model:NAME` is a model of ours, loaded once and charged to the meter at hand.
        """
        from judgezoo import Judge

        options = self._judges.get(name, {})

        def make(meter: Meter) -> Judge:
            return Judge.from_name(name, **chosen_backend(options, self._judge_model, meter))

        return make

    def _judge_model(self, name: str) -> ChatModel:
        """A model of ours that judges, shared with runs that attack the same one."""
        from adversariallm.models.identity import identity
        from adversariallm.models.options import resolve

        return self.model(ModelSpec(name=name, identity=identity(resolve(name))))

    def judge_id(self, name: str) -> str:
        """What the scores of a judge with these options are stored under."""
        judge = self.judge_factory(name)(Meter())
        return f"{judge.info.name}-{judge.fingerprint_id()}"

    def resources(self, task: RunTask) -> Resources:
        """All that one run needs."""
        spec = task.spec
        models = tuple(self.model(m) for m in spec.models)
        helpers = {role: self.model(m) for role, m in spec.helpers.items()}
        defended = tuple(self._defend(m, spec.defense, helpers) for m in models)
        rewards = None
        if spec.judge is not None:
            make = self.judge_factory(spec.judge.name)
            rewards = lambda meter: Rewards(make(meter))  # noqa: E731
        return Resources(
            models=defended,
            attacked=models if spec.knowledge == "unaware" else defended,
            helpers=helpers,
            judge=rewards,
            stop=StepJudge(self.judge_factory(spec.stopping.judge))
            if spec.stopping.judge
            else None,
            assets=self.texts(spec.assets),
            provenance=provenance(models),
        )

    @staticmethod
    def _defend(
        model: ChatModel, defenses: Sequence[PluginSpec], helpers: Mapping[str, ChatModel]
    ) -> ChatModel:
        for defense in defenses:
            module = DEFENSES.load(defense.name)
            model = module.wrap(model, module.Config(**defense.options), helpers)
        return model

    def texts(self, names: Iterable[str]) -> dict[str, str]:
        """Texts by others, by asset id; a missing one names the command that supplies it."""
        if self._assets is None:
            from adversariallm.runs.lookups import asset_store

            self._assets = asset_store()
        return {name: self._assets.text(name) for name in names}


def concurrency_of(task: RunTask, limit: int = CONCURRENCY) -> int:
    """How many such runs may go on at once in one process.

    Runs that compute losses or gradients keep a local model busy alone; runs that only ask for
    text share batches. `timing=exclusive` means one.
    """
    info = ATTACKS.load(task.spec.attack.name).INFO
    return 1 if info.runs_alone or task.spec.amounts.timing == "exclusive" else limit


def run_one(
    store: Store,
    task: RunTask,
    workshop: Workshop,
    *,
    retry: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Claim, carry out and publish one run; a failure is recorded and returned, not raised."""
    run_id, label = task.spec.run_id, task.spec.label
    claim = store.claim(run_id, task.model_dump(mode="json"), retry=retry)
    if isinstance(claim, str):
        refused: dict[str, Ending] = {
            "done": "already done", "held": "held elsewhere", "failed": "failed before"
        }  # fmt: skip
        if claim == "done":
            return _top_up(store, task, workshop, on_event)
        return Outcome(run_id, label, refused[claim])
    with claim:
        try:
            document, tensors = execute(task, workshop.resources(task), claim, on_event=on_event)
            claim.publish(document.model_dump(mode="json"), tensors or None)
        except LostLeaseError as error:
            return Outcome(run_id, label, "lost", str(error))
        except Exception as error:  # noqa: BLE001  -- one bad run must not end the worker
            reason = str(error) if isinstance(error, AdversariaLLMError) else repr(error)
            claim.fail(reason, traceback.format_exc())
            return Outcome(run_id, label, "failed", reason)
        return Outcome(run_id, label, "done", document.status)


def _top_up(
    store: Store, task: RunTask, workshop: Workshop, on_event: Callable[[Event], None]
) -> Outcome:
    """Add the completions that a published run lacks; a failure costs the run nothing."""
    run_id, label = task.spec.run_id, task.spec.label
    try:
        added = top_up(store, task, workshop.resources, on_event=on_event)
    except Exception as error:  # noqa: BLE001  -- one bad run must not end the worker
        return Outcome(run_id, label, "failed", f"adding completions: {error!r}")
    return Outcome(run_id, label, "already done", f"{added} completions added" if added else "")


def work(
    store: Store,
    tasks: Sequence[RunTask],
    workshop: Workshop,
    *,
    retry: bool = False,
    concurrency: int | None = None,
    on_event: Callable[[RunTask, Event], None] = lambda task, event: None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Carry out many runs, several at once where that is useful.

    Args:
        store: where results go.
        tasks: what to do, in order.
        workshop: loaded models.
        retry: take runs that failed before.
        concurrency: runs at once; by default `concurrency_of` decides.
        on_event: progress inside runs; called from worker threads.
        on_outcome: called once per run.
        stop: asked before each claim; True ends the work early.
    """

    def one(task: RunTask) -> Outcome | None:
        if stop():
            return None
        outcome = run_one(
            store, task, workshop, retry=retry, on_event=lambda event: on_event(task, event)
        )
        on_outcome(outcome)
        return outcome

    outcomes: list[Outcome | None] = []
    for group in _stretches(tasks, concurrency):
        size = min(len(group), concurrency or concurrency_of(group[0]))
        if size == 1:
            outcomes += [one(task) for task in group]
        else:
            with ThreadPoolExecutor(size, thread_name_prefix="run") as pool:
                outcomes += list(pool.map(one, group))
    return [o for o in outcomes if o is not None]


def _stretches(tasks: Sequence[RunTask], concurrency: int | None) -> list[list[RunTask]]:
    """Neighboring tasks that may share a pool: same models and same allowed concurrency."""
    out: list[list[RunTask]] = []
    last = None
    for task in tasks:
        key = ([m.identity for m in task.spec.models], concurrency or concurrency_of(task))
        if key != last:
            out.append([])
        out[-1].append(task)
        last = key
    return out
