"""The refusal direction of a model: found from harmful and harmless instructions, then ablated.

Source: Arditi et al. 2024, arXiv 2406.11717, sections 2.3 to 2.4 and appendix C. It only measures;
what is done with the direction is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite
from typing import Any

import torch

from adversariallm.core.budget import Usage
from adversariallm.core.directions import Account, Thresholds
from adversariallm.core.errors import ModelError
from adversariallm.core.protocols import Work
from adversariallm.inference import Engine, without_direction
from adversariallm.inference.hidden import decoder_layers
from adversariallm.inference.prefill import common_length

Ids = Sequence[int]


@dataclass(frozen=True)
class RefusalDirection:
    """A direction in the residual stream, with what ablating and adding it does.

    Attributes:
        vector: `[d]` float32, the difference of means.
        layer: block whose input it was read at.
        position: template position it was read at, counted from the end (-1 is the last).
        refusal: mean refusal score of harmful validation prompts with the direction ablated.
        divergence: mean KL on harmless validation prompts, ablated.
        induced: mean refusal score of harmless validation prompts with the direction added.
        baseline: mean refusal score of harmful validation prompts as they are.
        passes: what finding it cost, pass by pass.
    """

    vector: torch.Tensor
    layer: int
    position: int
    refusal: float
    divergence: float
    induced: float
    baseline: float
    passes: tuple[Work, ...] = ()

    @property
    def work(self) -> Work:
        """What finding it cost."""
        usage = sum((done.usage for done in self.passes), Usage())
        return Work(usage, executed=sum(done.executed for done in self.passes))


@dataclass(frozen=True)
class Prompts:
    """Encoded instructions: to take means over, and to choose with."""

    harmful: Sequence[Ids]
    harmless: Sequence[Ids]
    harmful_validation: Sequence[Ids]
    harmless_validation: Sequence[Ids]


def find_refusal_direction(
    engine: Engine,
    prompts: Prompts,
    refusal_ids: Ids,
    thresholds: Thresholds | None = None,
    account: Account | None = None,
) -> RefusalDirection:
    """The difference of means that lowers refusal most when ablated, among those that do no harm.

    Args:
        engine: the model.
        prompts: encoded up to where the assistant starts to speak.
        refusal_ids: first tokens of refusals.
        thresholds: what is admissible.
        account: who pays; None asks nobody.

    Raises:
        ModelError: no example shows the expected behavior, or no direction is admissible.
    """
    return _Search(engine, prompts, refusal_ids, thresholds or Thresholds(), account).run()


def refusal_scores(logits_WV: torch.Tensor, refusal_ids: Ids) -> torch.Tensor:
    """`[W]` log-odds of the refusal tokens, in float64."""
    log_probs = torch.log_softmax(logits_WV.double(), dim=-1)
    p = log_probs[:, list(refusal_ids)].exp().sum(-1).clamp(1e-12, 1 - 1e-12)
    return p.log() - (1 - p).log()


def divergence(before_WV: torch.Tensor, after_WV: torch.Tensor) -> float:
    """Mean over rows of KL(before || after), in float64."""
    before, after = (torch.log_softmax(x.double(), dim=-1) for x in (before_WV, after_WV))
    return float((before.exp() * (before - after)).sum(-1).mean())


class _Search:
    """One search, keeping what each of its passes cost."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        refusal_ids: Ids,
        thresholds: Thresholds,
        account: Account | None,
    ) -> None:
        if not len(refusal_ids):
            raise ModelError("no refusal token is given; expected the first token of refusals")
        self.engine = engine
        self.prompts = prompts
        self.refusal_ids = refusal_ids
        self.thresholds = thresholds
        self.account = account
        self.passes: list[Work] = []

    def run(self) -> RefusalDirection:
        given = self.prompts
        harmful = self._showing(given.harmful, refuses=True)
        harmless = self._showing(given.harmless, refuses=False)
        held_harmful = self._showing(given.harmful_validation, refuses=True)
        held_harmless = self._showing(given.harmless_validation, refuses=False)
        tail = common_suffix([*harmful, *harmless])
        positions = list(range(-tail, 0))
        directions = self._means(harmful, positions) - self._means(harmless, positions)
        plain = self._logits(held_harmless)
        baseline = float(refusal_scores(self._logits(held_harmful), self.refusal_ids).mean())
        layers = int(directions.shape[0] * (1 - self.thresholds.last_layers))
        measured = [
            candidate
            for layer in range(max(1, layers))
            for i, position in enumerate(positions)
            if (
                candidate := self._measure(
                    directions[layer, i].float(),
                    (layer, position),
                    (held_harmful, held_harmless),
                    plain,
                    baseline,
                )
            )
        ]
        t = self.thresholds
        found = [
            d for d in measured if d.divergence <= t.max_divergence and d.induced >= t.min_induced
        ]
        if not found:
            raise ModelError(_none_is_admissible(measured, t))
        best = min(found, key=lambda d: (d.refusal, d.layer, d.position))
        return replace(best, passes=tuple(self.passes))

    def _measure(
        self,
        vector: torch.Tensor,
        place: tuple[int, int],
        held: tuple[Sequence[Ids], Sequence[Ids]],
        plain: torch.Tensor,
        baseline: float,
    ) -> RefusalDirection | None:
        """The candidate with its three measures, None where one of them is no number."""
        if not bool(torch.isfinite(vector).all()) or float(vector.norm()) == 0:
            return None
        with self.engine.editing(without_direction(vector)):
            ablated = self._logits(held[1])
            refusal = refusal_scores(self._logits(held[0]), self.refusal_ids).mean()
        with adding(self.engine, place[0], vector):
            induced = refusal_scores(self._logits(held[1]), self.refusal_ids).mean()
        values = (float(refusal), divergence(plain, ablated), float(induced))
        if not all(isfinite(v) for v in values):
            return None
        return RefusalDirection(vector, *place, *values, baseline)

    def _showing(self, rows: Sequence[Ids], *, refuses: bool) -> Sequence[Ids]:
        """The rows on which the model behaves as their kind should."""
        scores = refusal_scores(self._logits(rows), self.refusal_ids) if len(rows) else ()
        kept = [r for r, s in zip(rows, scores, strict=True) if (float(s) > 0) == refuses]
        if not kept:
            kind = "harmful instructions is refused" if refuses else "harmless ones is answered"
            raise ModelError(
                f"none of the {len(rows)} {kind} by this model, so it shows no refusal to find a "
                "direction of; check the refusal tokens and the template"
            )
        return kept

    def _means(self, rows: Sequence[Ids], positions: Sequence[int]) -> torch.Tensor:
        """`[L, n, d]` mean of the blocks' inputs at the positions, added up in float64."""
        total: Any = 0.0
        for row in rows:
            self._ask(1)
            states = self.engine.hidden_states([row], positions)[0, :-1]
            total = total + states.double()
            usage = self.engine.arch.usage(len(row), 0, 1)
            self._book(usage, usage.flops or 0)
        return torch.as_tensor(total / len(rows))

    def _logits(self, rows: Sequence[Ids]) -> torch.Tensor:
        self._ask(len(rows))
        shared = common_prefix(rows)  # what the template writes before an instruction
        prefix = self.engine.prefix(rows[0][:shared])
        found = self.engine.next_logits(prefix, [row[shared:] for row in rows])
        self._book(prefix.usage + found.work.usage, prefix.executed + found.work.executed)
        return found.logits

    def _ask(self, queries: int) -> None:
        if self.account is not None:
            self.account.ask(queries)

    def _book(self, usage: Usage, executed: int) -> None:
        self.passes.append(Work(usage, executed=executed))
        if self.account is not None:
            self.account.book(self.passes[-1])


def _none_is_admissible(measured: Sequence[RefusalDirection], t: Thresholds) -> str:
    """What to widen, each limit alone, and what the direction that it lets in does."""
    ways = []
    if strong := [d for d in measured if d.induced >= t.min_induced]:
        best = min(strong, key=lambda d: d.divergence)
        ways.append(f"max_divergence={ceil(1000 * best.divergence) / 1000:g} admits {_of(best)}")
    if mild := [d for d in measured if d.divergence <= t.max_divergence]:
        best = max(mild, key=lambda d: d.induced)
        ways.append(f"min_induced={floor(1000 * best.induced) / 1000:g} admits {_of(best)}")
    if measured and not ways:
        ways.append(f"closest in divergence is {_of(min(measured, key=lambda d: d.divergence))}")
    return (
        f"none of {len(measured)} directions is admissible with max_divergence="
        f"{t.max_divergence:g} and min_induced={t.min_induced:g}: give more instructions "
        "(num_train, num_validation), other refusal_tokens, or a wider limit"
        + "".join(f"; {way}" for way in ways)
    )


def _of(d: RefusalDirection) -> str:
    return (
        f"layer {d.layer} position {d.position} (divergence {d.divergence:.3g}, induced "
        f"{d.induced:.3g}, refusal {d.baseline:.3g} before and {d.refusal:.3g} after ablation)"
    )


@contextmanager
def adding(engine: Engine, layer: int, vector: torch.Tensor) -> Iterator[None]:
    """Add a vector to the residual stream before one block, everywhere, in the calls inside."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (args[0] + vector.to(args[0]), *args[1:]), kwargs
        stream = kwargs["hidden_states"]
        return args, {**kwargs, "hidden_states": stream + vector.to(stream)}

    with engine.forward.lock:
        block = decoder_layers(engine.forward.model, len(engine.arch.layers))[layer]
        handle = block.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def common_prefix(rows: Sequence[Ids]) -> int:
    """How many ids all rows begin with alike, at least one id short of the shortest."""
    return min(common_length(rows), min(map(len, rows)) - 1)


def common_suffix(rows: Sequence[Ids]) -> int:
    """How many ids all rows end with alike: what the template writes after an instruction."""
    shortest = min(len(row) for row in rows)
    for n in range(shortest):
        if len({row[len(row) - 1 - n] for row in rows}) > 1:
            return max(1, n)
    return max(1, shortest)
