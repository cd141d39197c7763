"""The one loop: drive a search, check what it yields, sample the scored completions, keep records.

It decides neither what to run (`runs.plan`) nor where bytes go (`runs.store`), and it judges only
where a stopping rule needs the verdict; every other judge runs afterwards (`runs.judging`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from adversariallm.core.budget import Ledgers, Meter, Usage
from adversariallm.core.errors import BudgetExceededError, NeedsError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import AttackInfo, ChatModel, Context, Needs, RewardJudge
from adversariallm.core.records import BehaviorRun, CompletionRecord, RunDocument, StepRecord
from adversariallm.core.rng import Rng
from adversariallm.core.types import (
    Behavior,
    Candidate,
    ModelInput,
    Reply,
    State,
    Task,
    digest,
)
from adversariallm.models.metered import MeteredModel
from adversariallm.runs.journal import Entry
from adversariallm.runs.runlog import RunLog
from adversariallm.runs.schedule import scheduled
from adversariallm.runs.stored import stored_input

if TYPE_CHECKING:
    import torch

    from adversariallm.runs.spec import RunSpec, RunTask

COMPLETION_BATCH = 64  # rows between two looks at the lease


class StopJudge(Protocol):
    """A judge that ends a search."""

    def verdicts(
        self, behavior: Behavior, step: StepRecord, meter: Meter
    ) -> Sequence[float | None]:
        """One score per completion of the step; what it costs is charged to `meter`."""


Search = Callable[[Task, Context], Generator[Candidate]]
"""What yields candidates: an attack's own search, or the inputs of a stored run."""


@dataclass(frozen=True)
class Event:
    """Something worth showing while a run goes on.

    Attributes:
        kind: `resumed`, `step`, `completions` or `done`.
        step: number of the last finished step.
        values: scalars, e.g. the loss.
    """

    kind: str
    step: int
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """Loaded things that a run uses; many runs share them.

    Attributes:
        models: the models that are evaluated, defended where the run asks for it.
        attacked: what the search sees, where that differs (an unaware attacker).
        bare: the models without their defenses, for what they would have said; empty without any.
        helpers: further models by role.
        judge: rewards inside the loop; makes a judge that charges the meter it is given.
        stop: the judge of the stopping rule.
        assets: texts by others, by id.
        provenance: versions, device, determinism switches, asset hashes; stored with the run.
        search: takes the place of the attack's own, where stored inputs are sent again.
    """

    models: tuple[ChatModel, ...]
    attacked: tuple[ChatModel, ...] = ()
    bare: tuple[ChatModel, ...] = ()
    helpers: Mapping[str, ChatModel] = field(default_factory=dict)
    judge: Callable[[Meter], RewardJudge] | None = None
    stop: StopJudge | None = None
    assets: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None


def execute(
    task: RunTask,
    resources: Resources,
    log: RunLog,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
) -> tuple[RunDocument, dict[str, torch.Tensor]]:
    """Carry out one run, continuing after what the log already holds.

    Args:
        task: what to run.
        resources: loaded models, helpers and judges.
        log: receives every finished step and completion.
        on_event: called for progress.

    Returns:
        The document to publish and its tensors (embeddings of continuous attacks).

    Raises:
        NeedsError: the attack cannot run on this model or behavior.
        LostLeaseError: another worker took the run over.
    """
    return _Run(task, resources, log, on_event).run()


def regenerate(
    task: RunTask,
    resources: Resources,
    log: RunLog,
    wanted: Sequence[tuple[int, int, int]],
) -> list[list[StepRecord]]:
    """Make chosen completions of finished steps, as they were, or would have been, made at first.

    Args:
        task: the run.
        resources: loaded models.
        log: holds the finished steps.
        wanted: step, lane and sample of each completion.

    Returns:
        The records of all steps, by step and lane, with these completions added.
    """
    run = _Run(task, resources, log, lambda event: None)
    return run.with_completions(wanted)


class _Run:
    """One run in progress: what is finished, and the meter that all of it is charged to."""

    def __init__(
        self,
        task: RunTask,
        resources: Resources,
        log: RunLog,
        on_event: Callable[[Event], None],
    ) -> None:
        self.spec: RunSpec = task.spec
        self.resources = resources
        self.log = log
        self.on_event = on_event
        module = ATTACKS.load(self.spec.attack.name)
        config = module.Config(**self.spec.attack.options)
        self.info: AttackInfo = module.INFO.with_options(config)
        if resources.search is None:
            self.search = module.Attack(config).search
        else:
            self.search, self.info = resources.search, _only_sending(self.info)
        fit, evaluated = task.behaviors()
        self.task = Task(fit, evaluated)
        attacked = resources.attacked or resources.models
        check_needs(self.info, attacked, resources.helpers, fit)
        self.meter = Meter(self.spec.budget)
        self.rng = Rng.root(self.spec.seed).child(
            self.spec.attack.name, digest([b.conversation.key for b in fit])
        )
        self.models = [MeteredModel(m, self.meter, role="model") for m in resources.models]
        self.attacked = [MeteredModel(m, self.meter, role="model") for m in attacked]
        self.bare = [MeteredModel(m, self.meter, role="model") for m in resources.bare]
        self.unaware = bool(resources.bare) and self.spec.knowledge == "unaware"
        # one lane per model and evaluated behavior, in the order of Candidate.inputs
        self.lanes = [(m, b) for m in self.models for b in self.task.evaluated]
        # those of the fit set decide about the search; held-out behaviors never guide it
        fit_keys = {behavior.key for behavior in fit}
        fitted = [i for i, (_, b) in enumerate(self.lanes) if b.key in fit_keys]
        self.guiding = fitted or list(range(len(self.lanes)))
        self.steps: list[list[StepRecord]] = []
        self.inputs: list[list[ModelInput]] = []
        self.verdicts: dict[tuple[int, int], list[float | None]] = {}
        self.setup = Ledgers()
        self.remainder = Ledgers()
        self.status = ""
        self.state: State | None = None
        self._decided = False
        self._noted: dict[str, Any] = {}

    def run(self) -> tuple[RunDocument, dict[str, torch.Tensor]]:
        self._resume()
        if not self.status:
            self._search()
        numbers = scheduled(self.spec.amounts.completions, self._losses())
        self._drop_inherited(numbers)
        self._complete(numbers)
        self.on_event(Event("done", len(self.steps) - 1))
        return self._document(), self._tensors()

    def with_completions(self, wanted: Sequence[tuple[int, int, int]]) -> list[list[StepRecord]]:
        """The steps of the log with these completions, and nothing else."""
        self._resume()
        self._sample(wanted)
        return self.steps

    # Continuing

    def _resume(self) -> None:
        """Replay the journal: finished steps, completions and verdicts are never made again."""
        entries = self.log.resume().entries
        replay = {
            "step": self._replay_step,
            "completion": self._replay_completion,
            "verdict": self._replay_verdict,
            "end": self._replay_end,
        }
        done = Ledgers()
        for entry in entries:
            done = done + replay[entry.kind](entry)
        self.meter.restore(done, {k for e in entries for k in e.record.get("once", ())})
        if entries:
            self.on_event(Event("resumed", len(self.steps) - 1))

    def _replay_step(self, entry: Entry) -> Ledgers:
        tensors = entry.tensors()
        lanes = [StepRecord.model_validate(r) for r in entry.record["lanes"]]
        self.steps.append(lanes)
        self.inputs.append(
            [stored_input(r, tensors.get(f"input.{i}")) for i, r in enumerate(lanes)]
        )
        held = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
        self.state = State(entry.record["state"], held, step=len(self.steps) - 1)
        self._decided = entry.record.get("decided", False)
        ledgers = Ledgers.from_dict(entry.record["setup"])
        self.setup = self.setup + ledgers
        for lane in lanes:
            ledgers = ledgers + Ledgers.from_dict(lane.ledgers)
        return replace(ledgers, seconds=entry.record["seconds"])

    def _replay_completion(self, entry: Entry) -> Ledgers:
        row = entry.record
        record = self.steps[row["step"]][row["lane"]]
        completion = CompletionRecord.model_validate(row["completion"])
        ledgers = Ledgers.from_dict(row["ledgers"])
        timed = {"seconds": {"sampling": row["seconds"]}, "executed": {"sampling": row["executed"]}}
        record.model_completions.append(row["text"])
        record.completions.append(completion)
        _add_ledgers(record, replace(ledgers, **timed))
        if self.info.cost == "sampling" and completion.sample == 0:
            self.meter.count("model", ledgers.total("sampling", role="model"))
        return ledgers

    def _replay_verdict(self, entry: Entry) -> Ledgers:
        row = entry.record
        ledgers = Ledgers.from_dict(row["ledgers"])
        _add_ledgers(self.steps[row["step"]][row["lane"]], ledgers)
        self.verdicts[row["step"], row["lane"]] = row["scores"]
        return ledgers

    def _replay_end(self, entry: Entry) -> Ledgers:
        self.status = entry.record["status"]
        self.remainder = Ledgers.from_dict(entry.record["remainder"])
        return self.remainder

    # Searching

    def _search(self) -> None:
        helpers = {
            role: MeteredModel(model, self.meter, role=role)
            for role, model in self.resources.helpers.items()
            if role in self.info.helpers
        }
        for model in self.models:
            model.charge_preparation()
        ctx = Context(
            models=cast("Any", tuple(self.attacked)),
            rng=self.rng.child("search"),
            meter=self.meter,
            generation=self.spec.generation,
            log=self._note,
            helpers=helpers,
            judge=None if self.resources.judge is None else self.resources.judge(self.meter),
            assets=self.resources.assets,
            state=self.state,
        )
        search = self.search(self.task, ctx)
        try:
            if self.steps and not self._decided:
                # a killed process may have left the rules of its last step undecided
                self.status = self._stop_reason()
            while not self.status:
                self.log.heartbeat()
                self.status = self._advance(search)
        finally:
            search.close()
        self.log.append("end", {"status": self.status, "remainder": self.remainder.to_dict()})

    def _note(self, **values: float | int | str) -> None:
        self._noted.update(values)

    def _advance(self, search: Generator[Candidate]) -> str:
        """Make one step; return why the search ended, or nothing."""
        self.meter.start_clock()
        self._noted = {}
        try:
            with self.meter.phase("optimization"):
                candidate = next(search)
                if self.info.cost == "sampling":
                    self.meter.check("model", queries=1)  # its first completion counts
            self._record(candidate)
            return self._stop_reason()
        except StopIteration as end:
            self.remainder = self.meter.take()
            return "done" if end.value is None else f"ended: {end.value}"
        except BudgetExceededError as reached:
            self.remainder = self.meter.take()
            return f"stopped: {reached}"

    def _record(self, candidate: Candidate) -> None:
        number = len(self.steps)
        if len(candidate.inputs) != len(self.lanes):
            raise ValueError(
                f"attack {self.info.name!r} yielded {len(candidate.inputs)} inputs at step "
                f"{number}; expected {len(self.lanes)}, one per model and evaluated behavior"
            )
        reply = None if self.unaware else self._in_loop(number, candidate)
        ledgers = self.meter.take()
        setup, rest = _split_setup(ledgers)
        lanes = [self._lane(number, i, candidate) for i in range(len(self.lanes))]
        # the search's cost belongs to the whole step: it is booked on the first lane
        _add_ledgers(lanes[0], rest)
        lanes[0].time_taken = ledgers.seconds.get("optimization", 0.0)
        if reply is not None:
            # its cost was booked as optimization when the loop obtained it
            lanes[0].model_completions.append(reply.text)
            lanes[0].completions.append(_completion(0, reply, in_loop=True))
        self.setup = self.setup + setup
        self.steps.append(lanes)
        self.inputs.append(list(candidate.inputs))
        self._journal_step(number, candidate, setup, ledgers.seconds)
        self.state = replace(candidate.state, step=number)
        self.on_event(Event("step", number, {"loss": candidate.losses[0], **self._noted}))

    def _journal_step(
        self, number: int, candidate: Candidate, setup: Ledgers, seconds: Mapping[str, float]
    ) -> None:
        tensors = {f"state.{k}": t for k, t in candidate.state.tensors.items()}
        for i, given in enumerate(candidate.inputs):
            if given.embeddings is not None:
                tensors[f"input.{i}"] = given.embeddings
        record = {
            "lanes": [r.model_dump(exclude_defaults=True) for r in self.steps[number]],
            "state": dict(candidate.state.values),
            "once": sorted(self.meter.once_keys),
            "setup": setup.to_dict(),
            "seconds": dict(seconds),
        }
        self.log.append("step", record, tensors or None)

    def _lane(self, number: int, i: int, candidate: Candidate) -> StepRecord:
        """The record of what is sent to one lane; ids that its text does not give are flagged."""
        model = self._seen(i)
        given = candidate.inputs[i]
        flags = list(candidate.flags)
        ids = given.ids
        if given.conversation is not None and Needs.TOKENS in model.gives:
            encoded = tuple(model.chat.encode(given.conversation, prefill=given.prefill))
            if ids is not None and tuple(ids) != encoded:
                flags.append("unreachable")
            ids = encoded if ids is None else tuple(ids)
        where = f"tensors.safetensors#step.{number}.{i}"
        sent = given.conversation
        if sent is not None and given.prefill:
            sent = sent.append("assistant", given.prefill)
        return StepRecord(
            step=number,
            loss=candidate.losses[i],
            model_input=None if sent is None else sent.to_dicts(),
            model_input_tokens=None if ids is None else list(ids),
            model_input_embeddings=None if given.embeddings is None else where,
            prefill=given.prefill,
            prefill_judged=self.info.judged_with_prefill,
            flags=flags,
            note={**candidate.note, **({"log": self._noted} if self._noted and i == 0 else {})},
        )

    def _seen(self, lane: int) -> MeteredModel:
        """The model as the attacker of a lane sees it: its tokenizer made the ids."""
        return self.attacked[lane // len(self.task.evaluated)]

    def _stop_reason(self) -> str:
        """Apply the stopping rules to the last step, sampling it first where a rule reads that."""
        number = len(self.steps) - 1
        rule = self.spec.stopping
        block = self.spec.amounts.completion_block
        if self.resources.stop or (self.info.cost == "sampling" and self.spec.budget.limited):
            self._sample_step(number)
        elif block and (number + 1) % block == 0 and self.spec.amounts.completions == "all":
            self._complete(range(number + 1))
        losses = [self.steps[number][lane].loss for lane in self.guiding]
        if rule.loss is not None and all(x is not None and x <= rule.loss for x in losses):
            return f"stopped: loss at or below {rule.loss:g}"
        if self.resources.stop and self._judge_stops(self.resources.stop, number):
            return f"stopped: judge {rule.judge} at or above {rule.threshold:g}"
        return ""

    def _judge_stops(self, judge: StopJudge, number: int) -> bool:
        """Whether every lane of the fit set has a completion at or above the threshold."""
        for lane in self.guiding:
            if (number, lane) in self.verdicts:
                continue
            behavior, record = self.lanes[lane][1], self.steps[number][lane]
            with self.meter.phase("judging"):
                scores = list(judge.verdicts(behavior, record, self.meter))
            ledgers = self.meter.take()
            entry = {"step": number, "lane": lane, "scores": scores, "ledgers": ledgers.to_dict()}
            self.log.append("verdict", entry)
            _add_ledgers(record, ledgers)
            self.verdicts[number, lane] = scores
        threshold = self.spec.stopping.threshold
        return all(
            any(s is not None and s >= threshold for s in self.verdicts[number, lane])
            for lane in self.guiding
        )

    # Completions

    def _sample_step(self, number: int) -> None:
        """Make the completions of one step now; limits see the first of a sampling attack."""
        wanted = self._missing([number])
        first = [w for w in wanted if w[2] == 0]
        self._sample(first, counted=self.info.cost == "sampling")
        self._sample([w for w in wanted if w[2] > 0])

    def _complete(self, numbers: Sequence[int]) -> None:
        """Make the missing completions of some steps, in batches that are journaled."""
        wanted = self._missing(numbers)
        for start in range(0, len(wanted), COMPLETION_BATCH):
            self.log.heartbeat()
            self._sample(wanted[start : start + COMPLETION_BATCH])
            left = max(0, len(wanted) - start - COMPLETION_BATCH)
            self.on_event(Event("completions", len(self.steps) - 1, {"left": left}))

    def _drop_inherited(self, numbers: Sequence[int]) -> None:
        """Leave out what the shorter run sampled at steps that the schedule of this one skips.

        So an extended run has the answers, and the sampling costs, of one that was longer from
        the start. What a stopping rule reads is sampled at every step, and is in both.
        """
        parent = self.spec.parent
        if parent is None or parent.kind != "extend" or self.resources.stop:
            return
        skipped = (r for n, lanes in enumerate(self.steps) if n not in numbers for r in lanes)
        for record in skipped:
            kept = [k for k, c in enumerate(record.completions) if c.in_loop]
            record.model_completions = [record.model_completions[k] for k in kept]
            record.completions = [record.completions[k] for k in kept]
            record.ledgers.pop("sampling", None)
            record.execution.get("seconds", {}).pop("sampling", None)

    def _losses(self) -> list[float | None]:
        """Loss of each step: the mean over the fit set's lanes, None where any is missing."""
        out: list[float | None] = []
        for lanes in self.steps:
            rows = [lanes[lane] for lane in self.guiding]
            known = [x for r in rows if (x := steering_loss(r.loss, r.note)) is not None]
            out.append(sum(known) / len(known) if len(known) == len(rows) else None)
        return out

    def _missing(self, numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """(step, lane, sample) of every wanted completion that is not there yet."""
        count = self.spec.amounts.num_return_sequences
        out = []
        for number in numbers:
            for lane, record in enumerate(self.steps[number]):
                have = {c.sample for c in record.completions}
                out += [(number, lane, k) for k in range(count) if k not in have]
        return out

    def _sample(self, wanted: Sequence[tuple[int, int, int]], *, counted: bool = False) -> None:
        """Generate and keep completions, all lanes of one model in one call."""
        for model in self.models:
            rows = [w for w in wanted if self.lanes[w[1]][0] is model]
            if not rows:
                continue
            self.meter.start_clock()
            inputs = [self._input(step, lane) for step, lane, _ in rows]
            with self.meter.phase("sampling"):
                replies = model.generate(
                    inputs, self.spec.generation, [self._completion_rng(*row) for row in rows]
                )
            replies, raw = self._undefended(rows, inputs, replies)
            seconds = self.meter.take().seconds.get("sampling", 0.0) / len(rows)
            for row, reply, usage in zip(rows, replies, raw, strict=True):
                self._keep(*row, reply, seconds, usage)
                if counted:
                    self.meter.count("model", reply.usage)

    def _in_loop(self, number: int, candidate: Candidate) -> Reply | None:
        """The answer that the loop obtained; an unaware attacker's is none of the defended model's.

        What the bare model says to the same input is asked beside it.
        """
        reply = candidate.reply
        if reply is None or not self._lacks_undefended(candidate.inputs[0], reply):
            return reply
        return self._undefended([(number, 0, 0)], [candidate.inputs[0]], [reply])[0][0]

    def _undefended(
        self,
        rows: Sequence[tuple[int, int, int]],
        inputs: Sequence[ModelInput],
        replies: Sequence[Reply],
    ) -> tuple[list[Reply], list[Usage]]:
        """The replies with what the bare model says to the same input, and what asking it cost.

        It is asked where the defense did not learn it on its way, in the stream of the completion,
        so that its answer is that of an undefended run. Nobody's budget pays for it.
        """
        out, spent = list(replies), [Usage()] * len(replies)
        asked = [k for k, r in enumerate(replies) if self._lacks_undefended(inputs[k], r)]
        if asked:
            bare = self.bare[rows[0][1] // len(self.task.evaluated)]
            with self.meter.phase("diagnosis"):
                found = bare.generate(
                    [self._bare_input(inputs[k]) for k in asked],
                    self.spec.generation,
                    [self._completion_rng(*rows[k]) for k in asked],
                )
            for k, reply in zip(asked, found, strict=True):
                out[k] = replace(out[k], undefended=reply.text if reply.error is None else None)
                spent[k] = reply.usage
        return out, spent

    def _lacks_undefended(self, given: ModelInput, reply: Reply) -> bool:
        """Embeddings found through a defense hold what it adds: no bare model can be asked them."""
        usable = self.unaware or given.embeddings is None
        return bool(self.bare) and reply.undefended is None and usable

    def _bare_input(self, given: ModelInput) -> ModelInput:
        """The input without its ids where a defense shaped them."""
        return given if self.unaware or given.ids is None else replace(given, ids=None)

    def _input(self, step: int, lane: int) -> ModelInput:
        """What is sent: the recorded ids, so that completions belong to exactly the record."""
        given = self.inputs[step][lane]
        ids = self.steps[step][lane].model_input_tokens
        return given if ids is None else replace(given, ids=tuple(ids))

    def _completion_rng(self, step: int, lane: int, sample: int) -> Rng:
        """The stream of one completion: equal whether 1 or 50 are asked for."""
        _, behavior = self.lanes[lane]
        model_index = lane // len(self.task.evaluated)
        key = behavior.conversation.key
        return self.rng.child("model", "completion", step, key, model_index, sample)

    def _keep(
        self, step: int, lane: int, sample: int, reply: Reply, seconds: float, raw: Usage
    ) -> None:
        completion = _completion(sample, reply)
        ledgers = _reply_ledgers(reply, seconds)
        if raw != Usage():
            ledgers = ledgers + Ledgers({"diagnosis": {"model": raw}})
        entry = {
            "step": step,
            "lane": lane,
            "text": reply.text,
            "completion": completion.model_dump(exclude_defaults=True),
            "ledgers": ledgers.to_dict(),
            "seconds": seconds,
            "executed": reply.executed,
        }
        self.log.append("completion", entry)
        record = self.steps[step][lane]
        record.model_completions.append(reply.text)
        record.completions.append(completion)
        _add_ledgers(record, ledgers)

    # Publishing

    def _document(self) -> RunDocument:
        total = self.setup + self.remainder
        runs = []
        for lane, (model, behavior) in enumerate(self.lanes):
            steps = [lanes[lane] for lanes in self.steps]
            for record in steps:
                _sort_completions(record)
                ledgers = Ledgers.from_dict(record.ledgers)
                record.flops = ledgers.total("optimization").flops
                total = total + ledgers
            seconds = [s for r in steps for s in r.execution.get("seconds", {}).values()]
            runs.append(
                BehaviorRun(
                    behavior=behavior.to_dict(),
                    model=model.name,
                    original_prompt=behavior.conversation.to_dicts(),
                    steps=steps,
                    total_time=sum(seconds),
                )
            )
        return RunDocument(
            run_id=self.spec.run_id,
            config=self.spec.semantic(),
            resolved=self.spec.model_dump(mode="json"),
            provenance=dict(self.resources.provenance),
            status=self.status,
            ledgers=total.to_dict(),
            remainder=self.remainder.to_dict(),
            runs=runs,
            total_time=sum(r.total_time for r in runs),
        )

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"step.{number}.{i}": given.embeddings
            for number, inputs in enumerate(self.inputs)
            for i, given in enumerate(inputs)
            if given.embeddings is not None
        }


def steering_loss(loss: float | None, note: Mapping[str, Any]) -> float | None:
    """The loss that schedules go by: of inputs that are sent again, the one they were made with."""
    made_with: float | None = note.get("source", {}).get("loss")
    return made_with if loss is None else loss


def _only_sending(info: AttackInfo) -> AttackInfo:
    """The attack's row where its stored inputs are sent and nothing is searched."""
    return replace(
        info, needs=Needs.TEXT, helpers={}, helper_needs={}, target="unused", judge=False
    )


def check_needs(
    info: AttackInfo,
    models: Sequence[ChatModel],
    helpers: Mapping[str, ChatModel],
    behaviors: Sequence[Behavior],
) -> None:
    """Refuse an attack that the models, helpers or behaviors at hand cannot serve.

    Raises:
        NeedsError: with the reason and the remedy.
    """
    for model in models:
        missing = [need.name or "" for need in info.needs & ~model.gives]
        if missing:
            raise NeedsError(
                f"attack {info.name!r} needs {', '.join(missing).lower()} of the model, which "
                f"{model.name!r} does not give; use a local model without a defense that hides "
                "it, or an attack that needs only text"
            )
    absent = [role for role in info.helpers if role not in helpers]
    if absent:
        raise NeedsError(
            f"attack {info.name!r} needs a helper model for {', '.join(absent)} "
            f"({'; '.join(info.helpers[r] for r in absent)}); give helpers.{absent[0]}=MODEL"
        )
    for role, need in info.helper_needs.items():
        if need & ~helpers[role].gives:
            names = ", ".join(n.name or "" for n in need).lower()
            raise NeedsError(
                f"attack {info.name!r} needs {names} of its {role}, which "
                f"{helpers[role].name!r} does not give; use a local model for helpers.{role}"
            )
    without = [b.id for b in behaviors if not b.target]
    if info.target == "required" and without:
        raise NeedsError(
            f"attack {info.name!r} needs a target for every behavior; {', '.join(without[:3])} "
            "has none. Use a dataset with targets, or set datasets.<name>.targets"
        )


def _completion(sample: int, reply: Reply, *, in_loop: bool = False) -> CompletionRecord:
    return CompletionRecord(
        sample=sample,
        ids=None if reply.ids is None else list(reply.ids),
        finish_reason=reply.finish_reason,
        reasoning=reply.reasoning,
        log_probs=None if reply.log_probs is None else list(reply.log_probs),
        in_loop=in_loop,
        error=reply.error,
        undefended=reply.undefended,
        raw=dict(reply.raw),
    )


def _reply_ledgers(reply: Reply, seconds: float) -> Ledgers:
    rows = {"model": reply.usage}
    if reply.defense_usage != Usage():
        rows["defense"] = reply.defense_usage
    return Ledgers({"sampling": rows}, {"sampling": seconds}, {"sampling": reply.executed})


def _sort_completions(record: StepRecord) -> None:
    order = sorted(range(len(record.completions)), key=lambda k: record.completions[k].sample)
    record.completions = [record.completions[k] for k in order]
    record.model_completions = [record.model_completions[k] for k in order]


def _split_setup(ledgers: Ledgers) -> tuple[Ledgers, Ledgers]:
    setup = {p: r for p, r in ledgers.usage.items() if p == "setup"}
    rest = {p: r for p, r in ledgers.usage.items() if p != "setup"}
    return Ledgers(setup), replace(ledgers, usage=rest)


def _add_ledgers(record: StepRecord, ledgers: Ledgers) -> None:
    """Book usage on a step; seconds and executed work go where equal runs may differ."""
    record.ledgers = (Ledgers.from_dict(record.ledgers) + ledgers).to_dict()
    seconds = record.execution.setdefault("seconds", {})
    for phase, value in ledgers.seconds.items():
        seconds[phase] = seconds.get(phase, 0.0) + value
    executed = record.execution.get("executed_flops", 0) + sum(ledgers.executed.values())
    record.execution["executed_flops"] = executed
