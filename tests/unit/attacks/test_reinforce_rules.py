"""REINFORCE-GCG's rules of choosing and remembering, against tables worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from adversariallm.attacks import gcg, gcg_reinforce
from adversariallm.core.protocols import Losses

HERE = [1]  # the suffix at which answers are compared
SAID, OLD, SEED, DRAWN = [2] * 4, [3] * 4, [4] * 4, [5] * 4


class Told:
    """A model whose negative log-likelihoods are a table, by suffix and answer."""

    def __init__(self, table: dict[tuple[int, int], Sequence[float]]) -> None:
        self.table = table
        self.queries = 0

    def losses(self, inputs: Any, targets: Any, *, objective: Any = None, shared: int = 0) -> Any:
        self.queries += len(inputs)
        rows, losses = [], []
        for given, target in zip(inputs, targets, strict=True):
            nll = torch.tensor(self.table[given[0], target[0]])[: len(target)]
            logits = torch.full((len(nll), 8), -torch.inf)
            logits[:, 0] = (1 - (-nll).exp()).log()  # so that the answer's id has exactly `nll`
            logits[:, target[0]] = -nll
            rows.append(nll)
            losses.append(objective(logits[None], torch.tensor([target])) if objective else nll[:1])
        return Losses(torch.cat(losses), tuple(rows), torch.zeros(len(rows), dtype=torch.bool))


def problem(table: dict[tuple[int, int], Sequence[float]], target: Sequence[int] = (4,)) -> Any:
    """A problem of which only the losses matter."""
    segments = SimpleNamespace(input_with=tuple, before=())
    return SimpleNamespace(segments=segments, model=Told(table), target=tuple(target))


def sample(name: str, ids: Sequence[int], reward: float, **rest: Any) -> Any:
    return gcg_reinforce._Sample(name, list(ids), "x", {len(ids): reward}, **rest)


def attack(**options: Any) -> gcg_reinforce.Attack:
    return gcg_reinforce.Attack(gcg_reinforce.Config(**options))


@pytest.mark.parametrize(
    ("old", "said", "likelier", "remembered"),
    [
        (None, 0.19, True, None),  # below 0.2 nothing is remembered
        (None, 0.2, True, "said"),
        (0.5, 0.49, True, "old"),
        (0.5, 0.5, False, "said"),  # not secured: the reward alone decides
        (0.75, 0.8, False, "said"),
        (0.76, 0.99, False, "old"),  # secured: only a likelier one
        (0.99, 0.76, True, "said"),
        (0.99, 0.75, True, "old"),  # which must itself be secured
    ],
)
def test_what_is_remembered(
    old: float | None, said: float, likelier: bool, remembered: str | None
) -> None:
    told = problem({(1, 2): [1.0, 1.0, 1.0, 1.0 if likelier else 1.2], (1, 3): [1.0] * 3 + [1.1]})
    at = gcg_reinforce._At(HERE, [sample("greedy", SAID, said), sample("seed", SEED, 1.0)])
    if old is not None:
        at.memory = sample("random0", OLD, old)
    attack()._remember(told, at)
    ids = {None: None, "said": SAID, "old": OLD}[remembered]
    assert (None if at.memory is None else at.memory.ids) == ids
    both_secured = old is not None and old > 0.75 and said > 0.75
    assert told.model.queries == (2 if both_secured else 0)


def test_the_best_rewarded_answer_is_remembered_and_the_same_one_is_not_compared_with_itself() -> (
    None
):
    told = problem({})
    drawn = sample("random0", DRAWN, 0.9)
    at = gcg_reinforce._At(HERE, [sample("greedy", SAID, 0.8), drawn])
    attack()._remember(told, at)
    attack()._remember(told, at)
    assert at.memory is drawn and not told.model.queries


@pytest.mark.parametrize(("reward", "secured"), [(0.8, False), (0.81, True)])
def test_a_greedy_reward_beyond_the_threshold_secures_and_stays_so(
    reward: float, secured: bool
) -> None:
    at = gcg_reinforce._At(HERE, [sample("greedy", SAID, reward)])
    attack()._remember(problem({}), at)
    assert at.secured is secured
    at.samples = [sample("greedy", SAID, 0.0)]
    attack()._remember(problem({}), at)
    assert at.secured is secured


def compared(nll: dict[tuple[int, int], Sequence[float]]) -> tuple[Any, Any, Any]:
    """Samples with greedy reward 0.6, one weight of one on each one's first token."""
    names = (("greedy", SAID), ("random0", DRAWN), ("seed", SEED), ("memory", OLD))
    samples = [sample(name, ids, 0.6 if name == "greedy" else 0.1) for name, ids in names]
    weighted = [(s, torch.tensor([1.0, 0.0, 0.0, 0.0])) for s in samples]
    return problem(nll), gcg_reinforce._At(HERE, samples), weighted


def table(slot: int, greedy: float, seed: float, memory: float, drawn: float) -> Any:
    values = {2: greedy, 4: seed, 3: memory, 5: drawn}
    return {(slot, ids): [value, 9.0, 9.0, 9.0] for ids, value in values.items()}


def test_candidates_are_compared_with_the_greedy_answer_counted_double_as_it_is_rewarded() -> None:
    # shares with R = 0.6: greedy 0.6/2 + 0.4/3 = 0.4333, seed and memory 0.6/4 + 0.4/3 = 0.2833
    # first:  0.4333*1 + 0.2833*(2 + 2)   = 1.5667, by equal shares 1.6667
    # second: 0.4333*2 + 0.2833*(1 + 1.7) = 1.6317, by equal shares 1.5667
    nll = table(6, 1, 2, 2, drawn=5.0) | table(7, 2, 1, 1.7, drawn=0.1)
    told, at, weighted = compared(nll)
    metric = attack()._metric(told, at, weighted, [[6], [7]])
    assert metric.tolist() == pytest.approx([1.5667 + 4, 1.6317 + 4], abs=1e-4)
    assert told.model.queries == 2 * 3  # random samples do not compare candidates
    chosen, flags = attack()._select(told, at, weighted, torch.tensor([[7], [6]]))
    assert chosen == [6] and not flags


def test_a_candidate_whose_loss_is_no_number_is_never_chosen() -> None:
    nan = float("nan")
    told, at, weighted = compared(table(6, nan, 2, 2, 5.0) | table(7, 2, 1, 1.7, 0.1))
    chosen, flags = attack()._select(told, at, weighted, torch.tensor([[6], [7]]))
    assert chosen == [7] and flags == ("loss_not_a_number",)
    chosen, flags = attack()._select(told, at, weighted, torch.tensor([[6]]))
    assert chosen is None and flags == ("loss_not_a_number",)


def test_only_the_compared_beginning_of_a_sample_counts() -> None:
    told = problem({(6, 2): [1.0, 2.0, 4.0, 8.0]})
    told_sample = sample("greedy", SAID, 0.0)
    at = gcg_reinforce._At(HERE, [told_sample])
    weighted = [(told_sample, torch.tensor([0.1, 0.2, 0.3, 0.4]))]
    metric = attack(judged_lengths=(1, 3), generation_length=4)._metric(told, at, weighted, [[6]])
    assert metric.tolist() == pytest.approx([0.1 * 1 + 0.2 * 2 + 0.3 * 4 + 10])


@pytest.mark.parametrize(
    ("lengths", "target", "judged"),
    [
        ((20, 40, 80), 9, [9, 40, 80]),
        ((20, 40, 80), 33, [20, 33, 80]),
        ((20, 40, 80), 90, [20, 40, 90]),
        ((20, 40, 80), 30, [30, 40, 80]),
        ((20, 40, 80), 40, [20, 40, 80]),
        ((60, 70), 9, [9, 70]),
        ((), 9, []),
    ],
)
def test_the_targets_length_is_judged_in_place_of_the_nearest(
    lengths: tuple[int, ...], target: int, judged: list[int]
) -> None:
    assert attack(judged_lengths=lengths)._lengths(target) == judged


def test_every_beginning_is_judged_and_the_seed_counts_half_inside_the_target() -> None:
    """Answers of 6 tokens, judged at 2 and at the target's 4 (for 5), the reward 0.1 per token."""
    told = problem({}, target=[4] * 4)
    told.model.chat = SimpleNamespace(decode_reply=lambda given, ids: "a" * len(ids))
    told.segments.input_ids = ()
    samples = [gcg_reinforce._Sample(n, [i] * 6, "a" * 6) for n, i in (("greedy", 2), ("seed", 4))]

    def rewards(talks: Any, contexts: Any) -> list[float | None]:
        return [len(talk[1].content) / 10 for talk in talks]

    behavior = SimpleNamespace(goal="g", context="")
    ctx = SimpleNamespace(judge=SimpleNamespace(rewards=rewards))
    attack(judged_lengths=(2, 5))._judge(told, behavior, samples, ctx)  # type: ignore[arg-type]
    assert samples[0].rewards == {2: 0.2, 4: 0.4, 6: 0.6}
    assert samples[1].rewards == {2: 0.5, 4: 0.5, 6: 0.6}


def test_the_end_of_an_answer_counts_and_that_of_the_seed_does_not() -> None:
    rewards = {"greedy": 0.8, "random0": 0.2, "seed": 0.4}
    ids = {"greedy": SAID, "random0": DRAWN, "seed": SEED}
    samples = [sample(n, ids[n], r, finished=True) for n, r in rewards.items()]
    at = gcg_reinforce._At(HERE, samples)
    weighted, flags = attack(generation_length=4)._weighted(problem({}), at)
    assert not flags
    by_name = {s.name: weights for s, weights in weighted}
    assert bool((by_name["greedy"] != 0).all()) and bool((by_name["random0"] != 0).all())
    assert (by_name["seed"] != 0).tolist() == [True, True, True, False]
    # n = 4, sum + b = 1.5: (3.2, 0.8, 1.6) - 1.5 = 1.7, -0.7, 0.1, scaled to 2.5
    share = {"greedy": 0.68, "random0": -0.28, "seed": 0.04}
    falling = torch.tensor([5, 11 / 3, 7 / 3, 1])
    for name, weights in by_name.items():
        own = falling.clone()
        own[3:] *= name != "seed"
        assert torch.allclose(weights, share[name] * own / own.sum(), atol=1e-4)


def test_scores_come_to_where_the_mask_is() -> None:
    """The gradient stays on the model's device, what is proposed from it is on the CPU."""
    from adversariallm.attacks._kit.slots import SlotProblem

    with FakeTensorMode():
        there = torch.zeros(3, 5, device="cuda", dtype=torch.bfloat16)

        def gradient(*given: Any, **options: Any) -> Any:
            return SimpleNamespace(slot=there, finite=True)

        def token_scores(slot: Tensor) -> Tensor:
            return slot

        model: Any = SimpleNamespace(gradient=gradient, token_scores=token_scores)
        segments: Any = SimpleNamespace(input_with=tuple, slot_positions=(0,), before=())
        found = SlotProblem(model, segments, torch.ones(5, dtype=torch.bool))
        weighted = [(sample("greedy", SAID, 0.5), torch.ones(4))] * 2
        scores = attack()._token_scores(found, [1, 1, 1], weighted)
    assert scores is not None
    assert scores.device.type == "cpu" and scores.dtype == torch.float32


@pytest.mark.parametrize("lengths", [(0, 3), (-3,), (8, 4), (4, 4)])
def test_lengths_that_no_answer_has_or_in_no_order_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"judged_lengths=.*from 1 on in ascending order"):
        gcg_reinforce.Config(judged_lengths=lengths)


@pytest.mark.parametrize("name", ["position_sampling", "join", "search_width", "topk", "initial"])
def test_candidates_are_made_as_in_gcg(name: str) -> None:
    fields = gcg_reinforce.Config.model_fields[name], gcg.Config.model_fields[name]
    assert fields[0].default == fields[1].default
    assert fields[0].annotation == fields[1].annotation
