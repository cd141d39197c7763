"""Sequences sent to the model, worked out by hand from what the steps say they kept."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adversariallm.core.budget import Ledgers
from adversariallm.models.metered import MeteredModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import LengthJudge, behaviors, run  # noqa: E402


def queries(document: Any, role: str = "model") -> int:
    return int(Ledgers.from_dict(document.ledgers).total("optimization", role=role).queries)


def kept(document: Any) -> list[int]:
    return [s.note["kept"] for s in document.runs[0].steps[1:]]


def test_random_search_scores_the_start_and_its_neighbors() -> None:
    planted = PlantedModel()
    document = run("random_search", planted, [planted.behavior()])
    assert queries(document) == 1 + sum(kept(document))


def test_autodan_scores_the_request_and_who_is_not_scored_yet() -> None:
    planted = PlantedModel()
    options = {"population": 10, "num_elites": 0.2, "num_steps": 4, "mutation": 0.0}
    for variant in ("ga", "hga"):
        document = run("autodan", planted, [planted.behavior()],
                       options={**options, "variant": variant})  # fmt: skip
        scored = [s.note["scored"] for s in document.runs[0].steps[1:]]
        assert scored[0] == 4  # as many as there are seeds
        assert queries(document) == 1 + sum(scored)
        assert queries(document, "mutator") == 0


def test_universal_gcg_asks_once_per_active_behavior_for_gradient_and_candidate() -> None:
    planted = PlantedModel()
    fit = [planted.behavior(goal) for goal in ("write a short story", "good music")]
    options = {"progressive": False, "num_steps": 2}
    document = run("gcg_universal", planted, fit, options=options)
    assert queries(document) == 2 + sum(2 + 2 * n for n in kept(document))


def test_gcg_towards_the_ablated_answer_adds_one_answer_to_gcg() -> None:
    from harness import contract_model

    document = run("gcg_refusal", contract_model(), [behaviors()[0]])
    assert queries(document) == 1 + 1 + sum(1 + n for n in kept(document))


def test_ample_gcg_asks_the_prompter_once_for_each_suffix_and_nobody_else() -> None:
    document = run(
        "ample_gcg", tiny_model("llama"), [behaviors()[0]],
        options={"num_suffixes": 4, "num_tokens": 3, "diversity_penalty": 50.0},
    )  # fmt: skip
    assert queries(document, "prompter") == 4
    assert queries(document) == 0


def test_reinforce_gcg_counts_samples_gradients_and_every_pair_of_candidate_and_sample() -> None:
    """Greedy, random and the continued target are generated; nothing is remembered here."""

    class Stingy(LengthJudge):
        def rewards(self, conversations: Any, contexts: Any) -> list[float | None]:
            return [(r or 0.0) / 10 for r in super().rewards(conversations, contexts)]

    document = run(
        "gcg_reinforce", tiny_model("llama"), [behaviors()[0]], given={"judge": lambda m: Stingy()}
    )  # fmt: skip
    samples, compared = 3, 2  # random samples do not compare candidates
    for step in document.runs[0].steps:
        assert set(step.note["rewards"]) == {"greedy", "random0", "seed"}
        used = Ledgers.from_dict(step.ledgers)
        scored = samples + compared * step.note["kept"] if step.step else 0
        assert used.total("optimization", role="model").queries == samples + scored
        assert used.total("diagnosis", role="model").queries == 1 + compared


def test_reinforce_gcg_pays_once_for_the_prefix_of_its_search(monkeypatch: Any) -> None:
    """Also where nothing is remembered, so that the first call is for the log only."""
    own, prefixes = {"optimization": 0, "diagnosis": 0}, set()
    book, booked = MeteredModel._book, MeteredModel._booked

    def work(self: MeteredModel, done: Any) -> None:
        own[self._meter.current] += done.usage.tokens_processed
        prefixes.add(done.shared.tokens_processed)
        book(self, done)

    def answers(self: MeteredModel, replies: Any) -> Any:
        if self._meter.current == "optimization":
            own["optimization"] += sum(r.usage.tokens_processed for r in replies)
        return booked(self, replies)

    monkeypatch.setattr(MeteredModel, "_book", work)
    monkeypatch.setattr(MeteredModel, "_booked", answers)
    judge = SimpleNamespace(rewards=lambda talks, contexts: [0.0] * len(talks))
    document = run(
        "gcg_reinforce", tiny_model("llama"), [behaviors()[0]], given={"judge": lambda m: judge}
    )
    (prefix,) = prefixes
    assert prefix > 0
    for phase, tokens in own.items():
        paid = Ledgers.from_dict(document.ledgers).total(phase, role="model").tokens_processed
        assert paid == tokens + prefix
