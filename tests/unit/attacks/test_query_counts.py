"""Sequences sent to the model, worked out by hand from what the steps say they kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from adversariallm.core.budget import Ledgers
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
        assert queries(document) == 1 + 10 + 3 * 8
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


def test_ample_gcg_asks_the_prompter_for_each_distinct_beginning_and_nobody_else() -> None:
    document = run(
        "ample_gcg", tiny_model("llama"), [behaviors()[0]],
        options={"num_suffixes": 4, "num_tokens": 3, "diversity_penalty": 50.0},
    )  # fmt: skip
    assert queries(document, "prompter") == 1 + 4 + 4  # at first all groups continue the prompt
    assert queries(document) == 0


def test_reinforce_gcg_counts_samples_gradients_and_every_pair_of_candidate_and_sample() -> None:
    """Greedy, random and the continued target are generated; the remembered answer is not."""
    document = run(
        "gcg_reinforce", tiny_model("llama"), [behaviors()[0]],
        options={"num_steps": 1}, given={"judge": lambda meter: LengthJudge()},
    )  # fmt: skip
    start, step = document.runs[0].steps
    assert set(start.note["rewards"]) == {"greedy", "random0", "seed"}
    optimization = [
        Ledgers.from_dict(s.ledgers).total("optimization", role="model").queries
        for s in (start, step)
    ]
    remembered = 1  # the likelihood of the answer that is remembered
    assert optimization[0] == 3 + remembered
    gradients, compared = 3, 2  # random samples do not compare candidates
    again = optimization[1] - 3 - gradients - compared * step.note["kept"]
    assert again in (0, 1, 2)  # likelihoods of a new answer to remember, and of the old one
