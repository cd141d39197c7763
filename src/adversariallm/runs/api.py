"""The entry for people with their own model object: `load_attack(...).run(...)`.

It is the code path of the command line with the model and the data given instead of looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from adversariallm.core.budget import Budget
from adversariallm.core.config import FrozenConfig, stable_hash
from adversariallm.core.errors import AdversariaLLMError, ConfigError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import AttackInfo, ChatModel
from adversariallm.core.records import BehaviorRun
from adversariallm.core.types import Behavior, Conversation
from adversariallm.runs.execute import Resources, check_needs, execute
from adversariallm.runs.judging import judge_rows
from adversariallm.runs.lookups import asset_hash
from adversariallm.runs.plan import hashes_of
from adversariallm.runs.provenance import provenance
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.settings import configure
from adversariallm.runs.spec import Amounts, BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop, run_one

C = TypeVar("C", bound=FrozenConfig)
Data = Sequence[Behavior | Conversation | Mapping[str, Any] | str]


@dataclass(frozen=True)
class AttackResult:
    """What a call of `AttackRunner.run` gives back.

    Attributes:
        documents: one stored document per run, the paper's Table 6, extended.
    """

    documents: tuple[dict[str, Any], ...]

    @property
    def runs(self) -> list[BehaviorRun]:
        """All evaluated behaviors with their steps, in the order of the data."""
        return [BehaviorRun.model_validate(r) for d in self.documents for r in d["runs"]]

    def __iter__(self) -> Iterator[BehaviorRun]:
        """Iterate over the evaluated behaviors."""
        return iter(self.runs)

    def __len__(self) -> int:
        """Number of evaluated behaviors."""
        return sum(len(d["runs"]) for d in self.documents)


class AttackRunner:
    """An attack with its options; calling `run` never changes it."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Validate the options; nothing is loaded.

        Raises:
            UnknownNameError: no such attack or option, with the nearest names.
            ConfigError: an option has a wrong value.
        """
        self.name = ATTACKS.resolve(name)
        self.config: FrozenConfig = configure("attacks", self.name, options)
        self.info: AttackInfo = ATTACKS.load(self.name).INFO.with_options(self.config)

    def run(
        self,
        model: Any,
        tokenizer: Any = None,
        dataset: Data = (),
        *,
        seed: int = 0,
        generation: GenerationConfig | Mapping[str, Any] | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        amounts: Amounts | Mapping[str, Any] | None = None,
        helpers: Mapping[str, ChatModel] | None = None,
        judge: Any = None,
        reward: Any = None,
        out: str | Path | None = None,
    ) -> AttackResult:
        """Attack every item of the data.

        Args:
            model: a transformers causal language model, or any `ChatModel`. It is left as it was
                found: same mode, same `requires_grad` flags, same weights.
            tokenizer: its tokenizer, with a chat template; None for a `ChatModel`.
            dataset: behaviors, conversations, or plain request texts.
            seed: of the search and of the samples.
            generation: decoding of the scored completions; the attack's own default otherwise.
            budget: limits.
            amounts: completions per step and schedule.
            helpers: further models by role.
            judge: a judgezoo judge that scores the completions afterwards.
            reward: a judgezoo judge for attacks that need rewards in the loop.
            out: a store to keep (and resume) the runs in; in memory otherwise.

        Raises:
            NeedsError: the attack needs what model, helpers or data cannot give.
        """
        behaviors = [as_behavior(item, i) for i, item in enumerate(dataset)]
        if not behaviors:
            raise ConfigError("the dataset is empty: give at least one behavior")
        _require_targets(self.info, behaviors)
        with borrowed(model, tokenizer) as chat_model:
            check_needs(self.info, [chat_model], helpers or {}, behaviors)
            tasks = [
                self._task(chat_model, group, seed, generation, budget, amounts, helpers or {})
                for group in ([behaviors] if self.info.fits == "many" else [[b] for b in behaviors])
            ]
            documents = [self._one(task, chat_model, helpers or {}, reward, out) for task in tasks]
        if judge is not None:
            for document in documents:
                score_document(document, judge)
        return AttackResult(tuple(documents))

    def _task(
        self,
        model: ChatModel,
        behaviors: Sequence[Behavior],
        seed: int,
        generation: GenerationConfig | Mapping[str, Any] | None,
        budget: Budget | Mapping[str, Any] | None,
        amounts: Amounts | Mapping[str, Any] | None,
        helpers: Mapping[str, ChatModel],
    ) -> RunTask:
        decoding = validated(GenerationConfig, generation, "generation", self.info.generation)
        rows = tuple(b.to_dict() for b in behaviors)
        spec = RunSpec(
            attack=PluginSpec(
                name=self.name, version=self.info.version, options=self.config.semantic()
            ),
            models=(_spec_of(model),),
            fit=BehaviorSet(
                dataset="given",
                content_hash=stable_hash(list(rows)),
                ids=tuple(b.id for b in behaviors),
                keys=tuple(b.key for b in behaviors),
            ),
            generation=decoding,
            seed=seed,
            budget=validated(Budget, budget, "budget"),
            helpers={role: _spec_of(m) for role, m in helpers.items()},
            assets=hashes_of(self.info.assets_of(self.config), asset_hash),
            amounts=validated(
                Amounts, amounts, "amounts", {"num_return_sequences": decoding.num_return_sequences}
            ),
        )
        return RunTask(spec=spec, fit=rows)

    def _one(
        self,
        task: RunTask,
        model: ChatModel,
        helpers: Mapping[str, ChatModel],
        reward: Any,
        out: str | Path | None,
    ) -> dict[str, Any]:
        """Carry out one run, through the store where there is one."""
        from adversariallm.runs.rewards import Rewards

        if out is None:
            resources = Resources(
                models=(model,),
                helpers=helpers,
                judge=None if reward is None else lambda meter: Rewards(reward),
                assets=Workshop().texts(task.spec.assets),
                provenance=provenance([model]),
            )
            document, _ = execute(task, resources, MemoryLog())
            return document.model_dump(mode="json")
        held = {stable_hash(_spec_of(m).identity): m for m in (model, *helpers.values())}
        store = Store(out)
        outcome = run_one(store, task, Workshop(models=held))
        if outcome.ending not in ("done", "already done"):
            raise AdversariaLLMError(f"{outcome.label}: {outcome.ending}: {outcome.detail}")
        return store.read(task.spec.run_id)


def load_attack(name: str, **options: Any) -> AttackRunner:
    """An attack ready to run, by name.

    Raises:
        UnknownNameError: no such attack or option, with the nearest names.
        ConfigError: an option has a wrong value.
    """
    return AttackRunner(name, options)


def score_document(document: dict[str, Any], judge: Any) -> None:
    """Score all completions of a document with one judge, in place."""
    for run in document["runs"]:
        for step in run["steps"]:
            rows = [(run["behavior"], step, k) for k in range(len(step["model_completions"]))]
            if rows:
                step["scores"][judge.info.name] = judge_rows(judge, rows, "clean")


def as_behavior(item: Behavior | Conversation | Mapping[str, Any] | str, index: int) -> Behavior:
    """A behavior from whatever names one; texts and conversations count as harmful requests."""
    if isinstance(item, Behavior):
        return item
    if isinstance(item, Mapping):
        return Behavior.from_dict(item)
    talk = Conversation.user(item) if isinstance(item, str) else item
    if not isinstance(talk, Conversation):
        raise ConfigError(
            f"item {index} of the dataset is {type(item).__name__}: expected a Behavior, a "
            "Conversation, a mapping or a text"
        )
    return Behavior(f"item-{index}", talk, talk[talk.last_user].content, harmful=True)


def _require_targets(info: AttackInfo, behaviors: Sequence[Behavior]) -> None:
    """Say how a target is given from Python where an attack needs one; a text alone has none."""
    without = [str(i) for i, behavior in enumerate(behaviors) if not behavior.target]
    if info.target == "required" and without:
        raise NeedsError(
            f"attack {info.name!r} needs a target for every behavior; item "
            f"{', '.join(without[:3])} of the dataset has none. Give Behavior(id, "
            'Conversation.user(TEXT), goal=TEXT, harmful=True, target="how a compliant answer '
            'begins") from adversariallm.core.types in place of a text'
        )


@contextmanager
def borrowed(model: Any, tokenizer: Any) -> Iterator[ChatModel]:
    """A `ChatModel` around a transformers model, which is handed back as it was found."""
    if tokenizer is None:
        if not isinstance(model, ChatModel):
            raise ConfigError("give the tokenizer beside the model, or a ChatModel alone")
        yield model
        return
    from adversariallm.models.local import LocalModel

    training = model.training
    flags = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield LocalModel.from_parts(model.eval().requires_grad_(False), tokenizer)
    finally:
        model.train(training)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _spec_of(model: ChatModel) -> ModelSpec:
    return ModelSpec(name=model.name, identity=dict(model.identity()))


def validated(
    kind: type[C],
    given: C | Mapping[str, Any] | None,
    name: str,
    defaults: Mapping[str, Any] | None = None,
) -> C:
    """A configuration object from an object, a mapping or nothing."""
    if isinstance(given, FrozenConfig):
        return given
    try:
        return kind(**{**(defaults or {}), **(given or {})})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name, *map(str, first["loc"])])
        raise ConfigError(f"{where}={first['input']!r}: {first['msg']}") from None
