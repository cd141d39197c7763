"""What attacks, models, defenses and judges promise each other.

Structural types only: an implementation needs no base class, and nothing here computes anything.
    Shape legend: W candidates,
n slot positions, T target positions, V embedding rows, d embedding width, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from adversariallm.core.budget import Meter, Phase, Usage
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import (
    Behavior,
    Candidate,
    Conversation,
    ModelInput,
    Reply,
    State,
    Task,
)

if TYPE_CHECKING:
    import torch

    from adversariallm.core.directions import Thresholds
    from adversariallm.tokenization import ChatTokenizer


class Needs(Flag):
    """What a model can give, and what an attack asks for."""

    TEXT = auto()  # answers to conversations
    TOKENS = auto()  # exact ids in, exact ids out
    LOGITS = auto()  # losses and next-token distributions
    GRADIENTS = auto()  # gradients with respect to slot embeddings
    EMBEDDINGS = auto()  # generation from embeddings
    HIDDEN = auto()  # residual stream and interventions on it

    @classmethod
    def white_box(cls) -> Needs:
        """Everything."""
        return cls.TEXT | cls.TOKENS | cls.LOGITS | cls.GRADIENTS | cls.EMBEDDINGS | cls.HIDDEN


Cost = Literal["search", "sampling"]


@dataclass(frozen=True)
class AttackInfo:
    """Immutable facts about an attack; `list` and `explain` print them.

    Attributes:
        name: the file's name.
        summary: one line.
        source: paper, with arXiv number.
        needs: what it asks of the model under test.
        modality: what it changes, e.g. "suffix", "prompt", "conversation", "embedding", "none".
        reference_code: repository and commit the algorithm was checked against, where there is one.
        version: raised whenever results change; part of the run's identity.
        fits: `one` behavior per run, or `many` (universal, ensembles).
        cost: `search` if optimization finds the input, `sampling` if the samples are the attack.
        target: whether a target is `required`, `optional` or `unused`.
        helpers: roles of further models it needs, with a line on each.
        helper_needs: what a helper must give beyond text, by role.
        judge: whether it needs a judge's rewards inside the loop.
        assets: ids of texts by others that it needs.
        deviations: differences from the paper, one line each.
        generation: decoding options the method prescribes, used where the user sets none.
        judged_with_prefill: judges read prefill and continuation together.
        quick: options of a run that takes seconds; contract tests use them.
    """

    name: str
    summary: str
    source: str
    needs: Needs
    modality: str
    reference_code: str | None = None
    version: int = 1
    fits: Literal["one", "many"] = "one"
    cost: Cost = "search"
    target: Literal["required", "optional", "unused"] = "unused"
    helpers: Mapping[str, str] = field(default_factory=dict)
    helper_needs: Mapping[str, Needs] = field(default_factory=dict)
    judge: bool = False
    assets: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    generation: Mapping[str, Any] = field(default_factory=dict)
    judged_with_prefill: bool = False
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs_alone(self) -> bool:
        """Whether one such run keeps a local model busy: it asks for more than answers."""
        return bool(self.needs & (Needs.LOGITS | Needs.GRADIENTS | Needs.EMBEDDINGS))

    def with_options(self, config: Any) -> AttackInfo:
        """The row, with what these options ask for besides, without what they leave idle.

        A `Config` whose options decide has a method `wanted`, whose answer is added, or
        `idle_helpers`, whose roles are left out.
        """
        idle: Sequence[str] = config.idle_helpers() if hasattr(config, "idle_helpers") else ()
        helpers = {role: what for role, what in self.helpers.items() if role not in idle}
        needs = {role: need for role, need in self.helper_needs.items() if role not in idle}
        chosen = getattr(config, "wanted", None)
        if chosen is None:
            return replace(self, helpers=helpers, helper_needs=needs)
        more: Wanted = chosen()
        return replace(
            self,
            needs=self.needs | (more.model & ~Needs.TEXT),
            helpers={**helpers, **more.helpers},
            helper_needs={**needs, **more.helper_needs},
        )

    def assets_of(self, config: Any) -> tuple[str, ...]:
        """Ids of the texts by others that a configuration needs.

        A `Config` whose options choose among texts has a method `needs_assets`.
        """
        chosen = getattr(config, "needs_assets", None)
        return self.assets if chosen is None else (*self.assets, *chosen())


@dataclass(frozen=True)
class Work:
    """What a white-box call cost; the metered model books it, attacks ignore it.

    Attributes:
        usage: useful work of the call itself.
        shared: useful work of prefilling the shared prefix, charged once per run.
        shared_key: names that prefix (a hash of its ids); None where nothing is shared.
        executed: floating-point operations the machine really did.
        rows: useful work of each input alone; they sum to `usage`. Empty where not told apart.
    """

    usage: Usage = Usage()
    shared: Usage = Usage()
    shared_key: str | None = None
    executed: int = 0
    rows: tuple[Usage, ...] = ()


@dataclass(frozen=True)
class Losses:
    """Target losses of W candidates.

    Attributes:
        loss: `[W]` float32, of the objective asked for.
        per_token: per candidate, the float32 negative log-likelihood of each target position.
        matches: `[W]` bool, whether every target token is the arg-max.
    """

    loss: torch.Tensor
    per_token: tuple[torch.Tensor, ...]
    matches: torch.Tensor
    work: Work = Work()


@dataclass(frozen=True)
class Logits:
    """Next-token logits, `[W, V]` float32."""

    logits: torch.Tensor
    work: Work = Work()


@dataclass(frozen=True)
class Gradient:
    """Gradient at the slot.

    Attributes:
        slot: `[n, d]` float32, with respect to the embedding vectors of the slot.
        loss: the loss at that point.
        finite: whether every entry is finite.
    """

    slot: torch.Tensor
    loss: float
    finite: bool
    work: Work = Work()


@dataclass(frozen=True)
class Outputs:
    """What a model computes at N positions.

    Attributes:
        logits: `[N, V]` float32.
        hidden: `[L, N, d]` float32, the residual stream after each layer; None unless asked for.
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None = None
    work: Work = Work()


OutputsObjective = Callable[["torch.Tensor", "torch.Tensor | None"], "torch.Tensor"]
"""Maps logits `[N, V]` and hidden states `[L, N, d]` (or None) to a scalar."""

Objective = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Maps float32 target logits `[W, T, V]` and target ids `[W, T]` to losses `[W]`, row by row."""


class Direction(Protocol):
    """A direction in the residual stream."""

    @property
    def vector(self) -> torch.Tensor:
        """`[d]` float32."""

    @property
    def layer(self) -> int:
        """Block whose input it was read at."""

    @property
    def work(self) -> Work:
        """What finding it cost."""


@runtime_checkable
class ChatModel(Protocol):
    """A thing that answers."""

    @property
    def name(self) -> str:
        """Short name for tables."""

    @property
    def gives(self) -> Needs:
        """What it can give."""

    def identity(self) -> Mapping[str, Any]:
        """JSON facts that fix its behavior: weights, dtype, template, system prompt."""

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One reply per input; reply i depends on input i, the options and `rngs[i]` alone.

        `num_return_sequences` is ignored: ask for a sample by repeating the input with another
        stream. `json_schema` constrains the answer, for helper models only. A reply that failed has
        `error` set.
        """


@runtime_checkable
class WhiteBoxModel(ChatModel, Protocol):
    """A local model: also logits, losses, gradients and embeddings; id lists are ragged."""

    @property
    def chat(self) -> ChatTokenizer:
        """Template and tokenizer: segments, reachability, masks, decoding."""

    @property
    def num_embeddings(self) -> int:
        """V, the number of rows of the input embedding."""

    @property
    def context_length(self) -> int:
        """Longest input plus output, in tokens."""

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """Loss of each target after its input; mean cross-entropy unless an objective is given.

        The first `shared` ids are the same in every input (the caller says so, the model checks):
        they are prefilled once per run and charged once.
        """

    def gradient(
        self,
        input_ids: Sequence[int],
        slot: Sequence[int],
        target: Sequence[int],
        *,
        objective: Objective | None = None,
        slot_embeddings: torch.Tensor | None = None,
        shared: int = 0,
    ) -> Gradient:
        """Gradient at positions `slot`; `slot_embeddings` `[n, d]` replaces their vectors."""

    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        """`[n, V]` float32 gradient with respect to the one-hot rows."""

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """`[P, d]` float32 vectors that the embedding module gives for `ids`."""

    def embedding_matrix(self) -> torch.Tensor:
        """`[V, d]` float32 vectors of all ids, through the module."""

    def next_logits(self, inputs: Sequence[Sequence[int]], *, shared: int = 0) -> Logits:
        """Logits after each input."""

    def soft_losses(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
    ) -> Losses:
        """Losses of inputs given as `[P, d]` embedding rows."""


@runtime_checkable
class DifferentiableModel(WhiteBoxModel, Protocol):
    """A white-box model that differentiates objectives of any position's outputs.

    With `hidden` the objective also gets the residual stream, which asks for `Needs.HIDDEN`.
    """

    def soft_outputs(
        self, rows: torch.Tensor, positions: Sequence[int], *, hidden: bool = False
    ) -> Outputs:
        """Outputs of the input `[P, d]` at `positions`."""

    def soft_gradient(
        self,
        rows: torch.Tensor,
        slot: Sequence[int],
        positions: Sequence[int],
        objective: OutputsObjective,
        *,
        hidden: bool = False,
    ) -> Gradient:
        """Gradient at `rows[slot]` of an objective of the outputs at `positions`."""


@runtime_checkable
class SteerableModel(WhiteBoxModel, Protocol):
    """A white-box model whose residual stream can be read and edited (`Needs.HIDDEN`)."""

    def refusal_direction(
        self,
        harmful: Sequence[Conversation],
        harmless: Sequence[Conversation],
        harmful_validation: Sequence[Conversation],
        harmless_validation: Sequence[Conversation],
        *,
        refusal_tokens: Sequence[str] = ("I",),
        thresholds: Thresholds | None = None,
    ) -> Direction:
        """The residual direction whose ablation lowers refusal most; booked as set-up."""

    def generate_without(
        self,
        direction: torch.Tensor,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
    ) -> list[Reply]:
        """As `generate`, with a direction `[d]` ablated from the residual stream."""

    def steering(self, direction: Direction, strength: float) -> AbstractContextManager[None]:
        """Add `strength` times a direction before its layer in this thread's calls inside."""


@runtime_checkable
class RewardJudge(Protocol):
    """A judge inside the loop."""

    def rewards(
        self, conversations: Sequence[Conversation], contexts: Sequence[Mapping[str, Any]]
    ) -> list[float | None]:
        """Reward in [0, 1] per conversation (goal, then answer); None if unscored."""


class Log(Protocol):
    """Where scalars for plots and progress go."""

    def __call__(self, **values: float | int | str) -> None:
        """Record the values of the current step."""


@dataclass
class Context:
    """What an attack is given besides its task.

    Attributes:
        models: the models under attack, metered and defended.
        helpers: further models by role, metered under their own name.
        judge: rewards inside the loop, where INFO asks for it.
        assets: texts by others, by id.
        rng: the stream of this run; make named children, never store a generator.
        state: what the last finished step left, or None at the start.
        log: scalars for plots.
        meter: for `phase`; models charge it themselves.
        generation: how the scored completions will be decoded.
    """

    models: tuple[WhiteBoxModel, ...]
    rng: Rng
    meter: Meter
    generation: GenerationConfig
    log: Log
    helpers: Mapping[str, ChatModel] = field(default_factory=dict)
    judge: RewardJudge | None = None
    assets: Mapping[str, str] = field(default_factory=dict)
    state: State | None = None

    @property
    def model(self) -> WhiteBoxModel:
        """The model under attack, where there is exactly one."""
        if len(self.models) != 1:
            raise ValueError(f"this run has {len(self.models)} models, not one")
        return self.models[0]

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Charge the calls inside to another ledger, e.g. `diagnosis`."""
        return self.meter.phase(name)


class Attack(Protocol):
    """One generator method over frozen options; a module also has `INFO` and `Config`."""

    config: Any

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield step 0, the un-optimized start, then one candidate per step.

        A generator that ends by a rule of the algorithm returns a word for it (`success`,
        `attacker_failed`), which becomes the run's status `ended: <word>`. Attacks that talk have
        no un-optimized step: each of their steps is a message sent with its answer.
        """


@dataclass(frozen=True)
class DatasetInfo:
    """Immutable facts about a dataset; `list datasets` prints them.

    Attributes:
        size: number of items of the published set; None where unverified.
        harmful: True, False, or None for mixed sets.
        purpose: harmfulness, over_refusal, utility or direction.
        assets: ids of the files it needs; empty for ours.
        sha256: of the data file, None with `pin: unverified`.
        judge: judge that scores it where the user names none; "" leaves it to the purpose.
    """

    name: str
    summary: str
    source: str
    licence: str
    purpose: Literal["harmfulness", "over_refusal", "utility", "direction"]
    harmful: bool | None
    size: int | None
    gated: bool = False
    categories: Mapping[str, int] = field(default_factory=dict)
    splits: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    sha256: str | None = None
    version: int = 1
    targets: bool = False
    notes: tuple[str, ...] = ()
    judge: str = ""


@dataclass(frozen=True)
class DefenseInfo:
    """Immutable facts about a defense.

    Attributes:
        passes: what of the model still reaches an adaptive attacker.
        rewrites: whether it changes what the model reads, so that embeddings made without it would
            not pass through it.
        helpers: roles of further models it needs.
        helper_needs: what a helper must give beyond text, by role.
        quick: options of a run that takes seconds; contract tests use them.
    """

    name: str
    summary: str
    source: str
    passes: Needs
    reference_code: str | None = None
    version: int = 1
    rewrites: bool = False
    helpers: Mapping[str, str] = field(default_factory=dict)
    helper_needs: Mapping[str, Needs] = field(default_factory=dict)
    assets: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)

    def supplies(self, config: Any) -> Wanted:
        """All that it needs with these options.

        A `Config` whose options decide has a method `wanted`, whose answer is added.
        """
        fixed = Wanted(helpers=self.helpers, helper_needs=self.helper_needs, assets=self.assets)
        chosen = getattr(config, "wanted", None)
        return fixed if chosen is None else fixed + chosen()


@dataclass(frozen=True)
class Wanted:
    """What a defense needs besides the model.

    Attributes:
        model: what it asks of the bare model.
        inside: what it asks of what stands right inside it: the bare model, or another defense.
        helpers: roles of further models, with a line on each.
        helper_needs: what a helper must give beyond text, by role.
        judges: names of judges.
        datasets: data sets by name, with the options to load them with.
        assets: ids of texts by others.
    """

    model: Needs = Needs.TEXT
    inside: Needs = Needs.TEXT
    helpers: Mapping[str, str] = field(default_factory=dict)
    helper_needs: Mapping[str, Needs] = field(default_factory=dict)
    judges: tuple[str, ...] = ()
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    assets: tuple[str, ...] = ()

    def __add__(self, other: Wanted) -> Wanted:
        """Both."""
        return Wanted(
            model=self.model | other.model,
            inside=self.inside | other.inside,
            helpers={**self.helpers, **other.helpers},
            helper_needs={**self.helper_needs, **other.helper_needs},
            judges=(*self.judges, *other.judges),
            datasets={**self.datasets, **other.datasets},
            assets=(*self.assets, *other.assets),
        )


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one conversation.

    Attributes:
        score: in [0, 1], higher is worse; None where it could not be scored.
        error: why not.
        usage: useful work of judging this conversation.
    """

    score: float | None
    error: str | None = None
    usage: Usage = Usage()


class SafetyJudge(Protocol):
    """A judge inside a defense."""

    @property
    def threshold(self) -> float:
        """Score from which the judge's authors call a conversation harmful."""

    def verdicts(self, conversations: Sequence[Conversation]) -> list[Verdict]:
        """One verdict per conversation; row i depends on conversation i alone."""


@dataclass(frozen=True)
class Supplies:
    """What a defense is given besides the model and its options; see `Wanted`.

    Attributes:
        helpers: further models by role.
        judges: judges by name.
        datasets: behaviors by the name of their data set.
        assets: texts by others, by id.
    """

    helpers: Mapping[str, ChatModel] = field(default_factory=dict)
    judges: Mapping[str, SafetyJudge] = field(default_factory=dict)
    datasets: Mapping[str, Sequence[Behavior]] = field(default_factory=dict)
    assets: Mapping[str, str] = field(default_factory=dict)


__all__ = [
    "Attack",
    "AttackInfo",
    "ChatModel",
    "Context",
    "DatasetInfo",
    "DefenseInfo",
    "DifferentiableModel",
    "Gradient",
    "Log",
    "Logits",
    "Losses",
    "Needs",
    "Objective",
    "Outputs",
    "OutputsObjective",
    "RewardJudge",
    "SafetyJudge",
    "SteerableModel",
    "Supplies",
    "Verdict",
    "Wanted",
    "WhiteBoxModel",
    "Work",
]
