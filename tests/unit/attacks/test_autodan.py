"""AutoDAN's operators by hand, and its search on the planted problem."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adversariallm.attacks import autodan
from adversariallm.attacks._kit import mutation
from adversariallm.core.types import Reply
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import resources, run, spec, stable  # noqa: E402


def test_sentences_keep_every_character() -> None:
    text = "One. Two!  Three?\nFour, v2.0 is here. five"
    assert mutation.sentences(text) == [
        "One. ",
        "Two!  ",
        "Three?\n",
        "Four, v2.0 is here. ",
        "five",
    ]
    assert mutation.sentences("") == []


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_children_share_out_their_parents_sentences(seed: int, points: int) -> None:
    left = "A one. A two. A three. A four."
    right = "B one. B two. B three. B four. B five."
    children = mutation.crossover(left, right, points, random.Random(seed))
    assert children is not None
    whole = Counter(" ".join(children).replace(".", "").split())
    assert whole == Counter(f"{left} {right}".replace(".", "").split())
    for child in children:
        assert "  " not in child and child == child.strip()


def test_short_texts_are_not_crossed() -> None:
    assert mutation.crossover("One. Two.", "A. B. C.", 5, random.Random(0)) is None


def test_the_roulette_follows_softmax_of_minus_loss() -> None:
    drawn = Counter(mutation.roulette([1000.0, 1001.0, 1e9], 20_000, random.Random(0)))
    assert drawn[2] == 0
    assert drawn[0] / drawn[1] == pytest.approx(2.71828, rel=0.1)


def planted_run(mutator: Any, **options: Any) -> Any:
    planted = PlantedModel()
    task = spec("autodan", planted, [planted.behavior()], options=options)
    given = resources("autodan", planted, helpers={"mutator": mutator})
    return execute(task, given, MemoryLog())[0].runs[0].steps


def test_every_behavior_starts_from_the_seeds() -> None:
    planted = PlantedModel()
    alone = run("autodan", planted, [planted.behavior("good music")])
    run("autodan", planted, [planted.behavior()])
    again = run("autodan", planted, [planted.behavior("good music")])
    assert stable(alone) == stable(again)


def test_elites_are_not_scored_again() -> None:
    steps = planted_run(ScriptedModel(["A. B. C."]), population=10, num_elites=0.3, num_steps=3)
    assert [s.note["scored"] for s in steps[1:]] == [10, 7, 7]


@pytest.mark.parametrize(
    ("reply", "mutated"),
    [
        (Reply("Here is another text. It is new. It goes on."), True),
        (Reply(""), False),
        (Reply("Half of a", finish_reason="length"), False),
        (Reply("gone", error="provider_error", finish_reason="error"), False),
    ],
)
def test_an_unusable_paraphrase_keeps_its_parent(reply: Reply, mutated: bool) -> None:
    steps = planted_run(ScriptedModel([reply]), mutation=1.0, crossover=0.0, num_steps=2)
    assert (steps[2].note["mutated"] > 0) == mutated


def test_a_paraphrase_that_was_cut_off_keeps_its_parent() -> None:
    """`mutation_tokens` reaches the helper, and what it cuts off is not used."""

    def answer(limit: int) -> Any:
        seen: list[int] = []

        class Limited(ScriptedModel):
            def generate(self, inputs: Any, generation: Any, rngs: Any, **rest: Any) -> Any:
                seen.append(generation.max_new_tokens)
                reason = "length" if generation.max_new_tokens < 5 else "stop"
                return [Reply("A new one. It goes on. And on.", finish_reason=reason)] * len(inputs)

        steps = planted_run(Limited(["x"]), mutation=1.0, num_steps=2, mutation_tokens=limit)
        return steps[2].note["mutated"], set(seen)

    assert answer(4) == (0, {4})
    mutated, seen = answer(5)
    assert mutated > 0 and seen == {5}


def test_the_fitness_reads_the_marker_and_the_loss_does_not() -> None:
    planted = PlantedModel()
    plain = run("autodan", planted, [planted.behavior()]).runs[0].steps[1]
    marked = run("autodan", planted, [planted.behavior()], options={"marker": "[X] "})
    step = marked.runs[0].steps[1]
    assert step.note["fitness"] != pytest.approx(plain.note["fitness"])
    assert "diagnosis" in step.ledgers and "diagnosis" not in plain.ledgers
    target = planted.chat.segments(
        planted.behavior().conversation, target=planted.answer
    ).target_ids
    again = planted.losses([step.model_input_tokens], [target]).loss[0]
    assert step.loss == pytest.approx(float(again), abs=1e-5)


class Remembering:
    """A tiny helper that remembers what it was asked."""

    def __init__(self) -> None:
        self._model: Any = tiny_model("qwen2", seed=1)
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, inputs: Any, generation: Any, rngs: Any, **rest: Any) -> Any:
        self.asked += inputs
        return self._model.generate(inputs, generation, rngs, **rest)


def test_a_paraphrase_begins_with_the_childs_first_words_as_a_real_prefill() -> None:
    """The words are no part of the question, and the helper writes with its own template."""
    helper = Remembering()
    planted = PlantedModel()
    task = spec(
        "autodan", planted, [planted.behavior()],
        options={"mutation": 1.0, "crossover": 0.0, "num_steps": 2, "mutation_tokens": 8},
    )  # fmt: skip
    document, _ = execute(
        task, resources("autodan", planted, helpers={"mutator": helper}), MemoryLog()
    )
    assert len(helper.asked) == 5  # six people, one of them elite
    for asked in helper.asked:
        assert asked.ids is None and asked.prefill == "Here is"
        assert asked.conversation[0].content.startswith(autodan.REQUEST + "Here is story")
        assert len(asked.conversation) == 1
    used = document.ledgers["optimization"]["mutator"]
    assert used["queries"] == 5
    assert used["tokens_generated"] > 5 and used["flops"] > 0
    assert used["tokens_processed"] > used["tokens_generated"]


# The hierarchical variant


def hierarchical_run(model: Any, assets: dict[str, str], **options: Any) -> Any:
    settings = {"mutation": 0.0, **options}
    task = spec("autodan", model, [model.behavior()], options=settings)
    given = resources("autodan", model)
    given = Resources(models=given.models, helpers=given.helpers, assets=assets)
    return execute(task, given, MemoryLog())[0].runs[0].steps


def spread(model: PlantedModel, secrets: list[str]) -> dict[str, str]:
    """One secret word in each seed of one sentence, plain synonyms of the others beside it."""
    plain = ["garden", "river", "music", "bread"]
    rows = []
    for k in range(len(secrets)):
        chosen = [secrets[k] if i == k else plain[i] for i in range(len(secrets))]
        rows.append("see " + " and ".join(chosen))
    nouns = "".join(
        f"{k:08} 03 n 02 {word} 0 {plain[k]} 0 000 | ours\n" for k, word in enumerate(secrets)
    )
    wordnet = {asset: "" for asset in autodan.WORDNET.values()}
    return {autodan.SEEDS: json.dumps(rows), **wordnet, autodan.WORDNET["noun"]: nouns}


def test_hga_solves_the_planted_problem_where_ga_has_no_sentences_to_cross() -> None:
    """The separating test: same seed, same seeds of one sentence, another result."""
    planted = PlantedModel()
    secrets = [planted.chat.decode([i]).strip() for i in planted.secret_ids]
    assets = spread(planted, secrets)
    options = {"num_steps": 20, "population": 12, "crossover": 0.8, "num_elites": 0.1}
    ga = hierarchical_run(planted, assets, **options)
    hga = hierarchical_run(planted, assets, variant="hga", **options)
    assert [s.loss for s in ga[:3]] == [s.loss for s in hga[:3]]  # paragraphs cross first
    assert {round(s.loss, 6) for s in ga[1:]} == {round(ga[1].loss, 6)}
    assert min(s.loss for s in hga) == pytest.approx(planted.best_loss, abs=1e-5)
    best = min(hga, key=lambda s: s.loss)
    assert planted.score(best.model_input_tokens) == 1.0
    target = planted.chat.segments(
        planted.behavior().conversation, target=planted.answer
    ).target_ids
    for step in hga:
        again = planted.losses([step.model_input_tokens], [target]).loss[0]
        assert step.loss == pytest.approx(float(again), abs=1e-5)


def test_paragraphs_cross_once_in_so_many_generations() -> None:
    planted = PlantedModel()
    secrets = [planted.chat.decode([i]).strip() for i in planted.secret_ids]
    steps = hierarchical_run(
        planted, spread(planted, secrets), variant="hga", num_steps=8, paragraph_every=3,
        crossover=1.0, num_words=0, population=8,
    )  # fmt: skip
    replaced = [s.note["replaced"] for s in steps[1:]]
    assert [r == 0 for r in replaced] == [True, True, False, False, True, False, False, True]


def test_the_names_in_the_seeds_are_never_replaced() -> None:
    planted = PlantedModel()
    rows = json.dumps([f"story {k} is told by [MODEL] of [COMPANY]" for k in range(3)])
    nouns = "00000001 03 n 03 story 0 river 0 garden 0 000 | ours\n"
    assets = {a: "" for a in autodan.WORDNET.values()}
    assets |= {autodan.SEEDS: rows, autodan.WORDNET["noun"]: nouns}
    steps = hierarchical_run(
        planted, assets, variant="hga", model_name="River", developer="garden", crossover=1.0,
        num_steps=6,
    )  # fmt: skip
    for step in steps[1:]:
        text = step.model_input[-1]["content"]
        assert text.startswith("story ") and "told by River of garden" in text


def test_only_hga_asks_for_the_thesaurus() -> None:
    assert autodan.INFO.assets_of(autodan.Config()) == (autodan.SEEDS,)
    wanted = autodan.INFO.assets_of(autodan.Config(variant="hga"))
    assert wanted == (autodan.SEEDS, *autodan.WORDNET.values())
