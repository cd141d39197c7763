"""A worker: loads each model once, claims runs from the store, carries them out and publishes them.

Every launcher ends here. One bad run never ends a worker: it is marked failed with its traceback
and the next one is claimed.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.budget import Meter
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import AdversariaLLMError, LostLeaseError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import ChatModel
from adversariallm.runs.execute import Event, Resources, execute
from adversariallm.runs.judge_model import chosen_backend
from adversariallm.runs.judging import JudgeFactory, StepJudge
from adversariallm.runs.provenance import provenance
from adversariallm.runs.rewards import Rewards
from adversariallm.runs.shields import DefenseJudge, defended
from adversariallm.runs.spec import ModelSpec
from adversariallm.runs.stored import (
    STATE,
    Continued,
    StoredInputs,
    no_search,
    raisable,
    resumable,
)
from adversariallm.runs.topup import top_up

if TYPE_CHECKING:
    from adversariallm.runs.claim import Claim
    from adversariallm.runs.journal import Entry
    from adversariallm.runs.spec import RunSpec, RunTask
    from adversariallm.runs.store import Store
    from judgezoo.assets import AssetStore

CONCURRENCY = 40  # runs of one worker at a time, where they only ask for text

_OPEN = ("new", "expired", "released")

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
        self._defended: dict[str, ChatModel] = {}
        self._judges = dict(judges or {})
        self._assets = assets
        self._lock = threading.RLock()

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
        shielded = tuple(
            self._defend(model, spec, known, helpers)
            for model, known in zip(models, spec.models, strict=True)
        )
        rewards = None
        if spec.judge is not None:
            make = self.judge_factory(spec.judge.name)
            rewards = lambda meter: Rewards(make(meter))  # noqa: E731
        return Resources(
            models=shielded,
            attacked=models if spec.knowledge == "unaware" else shielded,
            bare=models if spec.defense else (),
            helpers=helpers,
            judge=rewards,
            stop=StepJudge(self.judge_factory(spec.stopping.judge))
            if spec.stopping.judge
            else None,
            assets=self.texts(spec.assets),
            provenance=provenance(models),
        )

    def _defend(
        self, model: ChatModel, spec: RunSpec, identity: ModelSpec, helpers: Mapping[str, ChatModel]
    ) -> ChatModel:
        """The model behind the run's defenses, made once for runs that are defended alike."""
        if not spec.defense:
            return model
        parts = [identity.identity, [d.semantic() for d in spec.defense]]
        key = stable_hash([*parts, {r: m.identity for r, m in spec.helpers.items()}])
        with self._lock:
            if key not in self._defended:
                self._defended[key] = defended(
                    model,
                    spec.defense,
                    helpers=helpers,
                    judge=lambda name: DefenseJudge(self.judge_factory(name)),
                    texts=self.texts,
                )
            return self._defended[key]

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
    if task.spec.parent is not None and task.spec.parent.kind == "inputs":
        return 1 if task.spec.amounts.timing == "exclusive" else limit
    return 1 if info.runs_alone or task.spec.amounts.timing == "exclusive" else limit


def run_one(
    store: Store,
    task: RunTask,
    workshop: Workshop,
    *,
    retry: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Claim, carry out and publish one run; a failure is recorded and returned, not raised.

    Models are loaded and checked before the run is claimed: that may take minutes, in which
    somebody else can do it.
    """
    run_id, label = task.spec.run_id, task.spec.label
    state, loaded = store.status(run_id), None
    if state in _OPEN or (retry and state == "failed"):
        loaded = _loaded(store, task, workshop)
    claim = store.claim(run_id, task.model_dump(mode="json"), retry=retry)
    if claim == "done":
        return _top_up(store, task, workshop, on_event, retry)
    if isinstance(claim, str):
        refused: dict[str, Ending] = {"held": "held elsewhere", "failed": "failed before"}
        return Outcome(run_id, label, refused[claim])
    with claim:
        try:
            _carry_out(store, task, loaded or _loaded(store, task, workshop), claim, on_event)
        except LostLeaseError as error:
            return Outcome(run_id, label, "lost", str(error))
        except Exception as error:  # noqa: BLE001  -- one bad run must not end the worker
            reason = str(error) if isinstance(error, AdversariaLLMError) else repr(error)
            claim.fail(reason, traceback.format_exc())
            return Outcome(run_id, label, "failed", reason)
        return Outcome(run_id, label, "done", store.header(run_id)["status"])


def _loaded(store: Store, task: RunTask, workshop: Workshop) -> Callable[[], Resources]:
    """Load what a run needs; what goes wrong is raised when it is asked for, inside the claim."""
    try:
        found = resources_of(store, task, workshop)
    except Exception as error:  # noqa: BLE001  -- it becomes the run's failure
        problem = error

        def fail() -> Resources:
            raise problem

        return fail
    return lambda: found


def resources_of(store: Store, task: RunTask, workshop: Workshop) -> Resources:
    """Loaded models and, for a run that sends stored inputs again, those inputs."""
    parent = task.spec.parent
    if parent is None or parent.kind != "inputs":
        return workshop.resources(task)
    inputs = stored_inputs(store, task)
    return replace(workshop.resources(task), search=inputs)


def stored_inputs(store: Store, task: RunTask) -> StoredInputs:
    """The inputs of the parent.

    Its exact ids count where tokenizer and template are the same, and where the user says that a
    server continues ids of its own tokenizer.
    """
    assert task.spec.parent is not None
    document = store.read(task.spec.parent.run_id)
    made_with = [m["identity"].get("chat") for m in document["resolved"]["models"]]
    exact = all(_reads_ids(m.identity, made_with[0]) for m in task.spec.models)
    return StoredInputs(document, store.tensor_file(task.spec.parent.run_id), exact)


def _reads_ids(identity: Mapping[str, Any], made_with: Any) -> bool:
    endpoint = identity.get("endpoint")
    if endpoint is not None:
        return "token_ids" in endpoint["capabilities"]
    chat = identity.get("chat")
    return chat is not None and chat == made_with


def _carry_out(
    store: Store,
    task: RunTask,
    loaded: Callable[[], Resources],
    claim: Claim,
    on_event: Callable[[Event], None],
) -> None:
    parent = task.spec.parent
    before: list[Entry] = []
    if parent is not None and parent.kind == "extend":
        before = resumable(store, parent.run_id)
    log = Continued(claim, before)
    document, tensors = execute(task, loaded(), log, on_event=on_event)
    files = {}
    if raisable(task.spec.attack.name) is not None:
        state = log.state_file()
        files = {} if state is None else {STATE: state}
    claim.publish(document.model_dump(mode="json"), tensors or None, files)


def _top_up(
    store: Store,
    task: RunTask,
    workshop: Workshop,
    on_event: Callable[[Event], None],
    retry: bool,
) -> Outcome:
    """Add the completions that a published run lacks; a failure costs the run nothing."""
    run_id, label = task.spec.run_id, task.spec.label

    def loaded(asked: RunTask) -> Resources:
        resources = workshop.resources(asked)
        sends = asked.spec.parent is not None and asked.spec.parent.kind == "inputs"
        return replace(resources, search=no_search) if sends else resources

    try:
        added = top_up(store, task, loaded, on_event=on_event, retry=retry)
    except LostLeaseError as error:
        return Outcome(run_id, label, "lost", str(error))
    except Exception as error:  # noqa: BLE001  -- one bad run must not end the worker
        return Outcome(run_id, label, "failed", f"adding completions: {error}")
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
