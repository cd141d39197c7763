"""AutoDAN's operators by hand, and its search on the planted problem."""

from __future__ import annotations

import json
import math
import random
import sys
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adversariallm.attacks import autodan
from adversariallm.attacks._kit import mutation
from adversariallm.attacks._kit.ranking import NOT_A_NUMBER
from adversariallm.core.rng import Rng
from adversariallm.core.types import Reply
from adversariallm.models.card import get_card
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.loading import load_chat
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.files import encode
from adversariallm.runs.lookups import asset_store
from adversariallm.runs.runlog import MemoryLog
from judgezoo.errors import AssetMissing

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


def test_the_roulette_never_draws_a_loss_that_is_no_number_unless_all_are() -> None:
    nan = float("nan")
    assert set(mutation.roulette([nan, 5.0, nan], 500, random.Random(0))) == {1}
    assert set(mutation.roulette([nan, nan], 500, random.Random(0))) == {0, 1}


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


class Listening(PlantedModel):
    """Remembers the texts of each call for losses; `spoil` makes losses of it."""

    def __init__(self, spoil: Any = None) -> None:
        super().__init__()
        self.calls: list[list[str]] = []
        self.spoil = spoil

    def losses(self, inputs: Any, targets: Any, **rest: Any) -> Any:
        found = super().losses(inputs, targets, **rest)
        self.calls.append([self.chat.decode(ids) for ids in inputs])
        return replace(found, loss=self.spoil(found.loss)) if self.spoil else found


class Inventive(ScriptedModel):
    """Never gives the same paraphrase twice."""

    def __init__(self) -> None:
        super().__init__(["x"])
        self.count = 0

    def generate(self, inputs: Any, *rest: Any, **named: Any) -> Any:
        self.count += len(inputs)
        return [Reply(f"{self.count - k} is new. It goes on. And on.") for k in range(len(inputs))]


def listening_run(model: Listening, **options: Any) -> Any:
    task = spec("autodan", model, [model.behavior()], options={"mutation": 0.0, **options})
    return execute(task, resources("autodan", model), MemoryLog())[0].runs[0].steps


def test_elites_are_not_scored_again() -> None:
    steps = planted_run(Inventive(), population=4, num_elites=0.5, num_steps=3, mutation=1.0)
    assert [s.note["scored"] for s in steps[1:]] == [4, 2, 2]


def test_a_population_larger_than_the_seeds_scores_each_text_once() -> None:
    planted = Listening()
    steps = listening_run(planted, population=10, num_elites=0.3, num_steps=6)
    _, *generations = planted.calls
    assert len(generations[0]) == 4 == steps[1].note["scored"]  # as many as there are seeds
    assert sum(s.note["scored"] for s in steps[1:]) == sum(map(len, generations))
    for texts, before in zip(generations, [[], *generations], strict=False):
        assert len(set(texts)) == len(texts)
        assert not set(texts) & set(before)


def test_a_loss_that_is_no_number_never_wins() -> None:
    """Of each call the first loss is NaN and the second the lowest."""

    def spoil(losses: torch.Tensor) -> torch.Tensor:
        found = torch.arange(len(losses)) + 2.0
        found[0] = math.nan if len(losses) > 1 else 9.0
        return found

    steps = listening_run(Listening(spoil), num_steps=4, num_elites=0.4, crossover=1.0)
    assert [s.loss for s in steps[1:]] == [3.0] * 4
    assert "It was told 1 times" in steps[1].model_input[-1]["content"]
    assert [s.note["mean_fitness"] for s in steps[1:2]] == [pytest.approx((3 + 3 + 4 + 5) / 4)]
    assert [s.flags for s in steps[:2]] == [[], [NOT_A_NUMBER]]


def test_where_no_loss_is_a_number_the_search_goes_on_without_one() -> None:
    def spoil(losses: torch.Tensor) -> torch.Tensor:
        return losses if len(losses) == 1 else torch.full_like(losses, math.nan)

    for variant in ("ga", "hga"):
        steps = listening_run(Listening(spoil), num_steps=3, variant=variant)
        assert [s.loss for s in steps[1:]] == [None] * 3
        assert [s.note["fitness"] for s in steps[1:]] == [None] * 3
        assert steps[1].flags == [NOT_A_NUMBER]


def test_patience_counts_generations_without_improvement_only() -> None:
    """The loss falls in each but the third and the last two."""
    fall = iter([9.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0, 2.0])

    def spoil(losses: torch.Tensor) -> torch.Tensor:
        return torch.full_like(losses, next(fall))

    options = {"patience": 2, "num_steps": 9, "num_elites": 0.0, "mutation": 1.0}
    planted = Listening(spoil)
    task = spec("autodan", planted, [planted.behavior()], options=options)
    given = resources("autodan", planted, helpers={"mutator": Inventive()})
    document, _ = execute(task, given, MemoryLog())
    assert [s.loss for s in document.runs[0].steps] == [9.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0]


def test_an_odd_last_parent_is_crossed_with_the_first() -> None:
    attack = autodan.Attack(autodan.Config(crossover=1.0, num_points=5))
    parents = [f"{name} one. {name} two. {name} three. {name} four." for name in "abc"]
    seen = set()
    for seed in range(20):
        children = attack._cross(parents, Rng.root(seed))
        assert len(children) == 3
        seen |= set(children[2].replace(".", "").split()) & set("abc")
    assert seen == {"a", "c"}


class Various(PlantedModel):
    """Losses from 0 to 10 that have nothing to do with each other; every seventh is NaN."""

    def losses(self, inputs: Any, targets: Any, **rest: Any) -> Any:
        found = super().losses(inputs, targets, **rest)
        sums = [zlib.crc32(repr(list(ids)).encode()) % 997 for ids in inputs]
        return replace(found, loss=torch.tensor([s / 100 if s % 7 else math.nan for s in sums]))


@pytest.mark.parametrize("variant", ["ga", "hga"])
def test_a_run_cut_anywhere_goes_on_to_the_same_end(variant: str) -> None:
    """With momentum and patience in the state; some losses are no numbers."""
    options = {"variant": variant, "num_steps": 9, "patience": 5, "num_elites": 0.2,
               "num_words": 0, "crossover": 0.9, "population": 8, "mutation": 0.0}  # fmt: skip
    log = MemoryLog()
    whole = run("autodan", Various(), [PlantedModel().behavior()], options=options, log=log)
    steps = [e for e in log.entries if e.kind == "step"]
    assert len(steps) > 7
    if variant == "hga":
        assert any(s.note["replaced"] for s in whole.runs[0].steps[4:])
    for cut in range(1, len(log.entries)):
        read = [replace(e, record=json.loads(encode(e.record))) for e in log.entries[:cut]]
        again = run("autodan", Various(), [PlantedModel().behavior()],
                    options=options, log=MemoryLog(read))  # fmt: skip
        assert stable(again) == stable(whole), f"cut after entry {cut}"


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
    assert (steps[2].note["cut"] > 0) == (reply.finish_reason == "length")


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


def test_names_are_filled_in_and_the_connector_stands_before_the_request() -> None:
    steps = planted_run(
        ScriptedModel(["It is new. It goes on. And on."]), mutation=0.5, num_steps=3,
        model_name=r"M\1", developer="D",
    )  # fmt: skip
    for step in steps[1:]:
        text = step.model_input[-1]["content"]
        assert text.endswith("[PROMPT]: write a short story") and text.count("[PROMPT]") == 1
        assert not autodan.NAMES.search(text)
    assert r"by M\1." in steps[1].model_input[-1]["content"]
    assert "said D." in steps[1].model_input[-1]["content"]


def test_the_published_seeds_are_filled_in_and_their_paraphrases_fit() -> None:
    """On the real list, where it is in the cache."""
    store = asset_store()
    try:
        rows = json.loads(store.text(autodan.SEEDS))
    except AssetMissing:
        pytest.skip(f"{autodan.SEEDS} is not in the cache; fetch it with `assets fetch`")
    config = autodan.Config(model_name="Q1", developer="Q2")
    seeds = autodan.Attack(config)._seeds(json.dumps(rows))
    assert len(rows) == 128 and len(seeds) == 256 and len(set(seeds)) == 128
    assert all("Q1" in s and "Q2" in s and autodan.SLOT in s for s in seeds)
    assert not any(autodan.NAMES.search(s) for s in seeds)
    chat = load_chat(get_card("smollm2-135m"))
    lengths = [len(chat.encode_text(row)) for row in rows]
    assert max(lengths) < config.mutation_tokens


def test_a_mutator_is_asked_for_only_where_something_is_paraphrased() -> None:
    assert set(autodan.INFO.with_options(autodan.Config()).helpers) == {"mutator"}
    assert autodan.INFO.with_options(autodan.Config(mutation=0)).helpers == {}
    planted = PlantedModel()
    task = spec("autodan", planted, [planted.behavior()], options={"mutation": 0.0})
    document, _ = execute(task, resources("autodan", planted, helpers={}), MemoryLog())
    assert document.status == "done"


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
    """Nor is the word of the request's slot."""
    planted = PlantedModel()
    row = "good bread is told by ChatGPT of Modelkeeper for [PROMPT]"
    nouns = "00000001 03 n 04 bread 0 river 0 garden 0 prompt 0 000 | ours\n"
    assets = {a: "" for a in autodan.WORDNET.values()}
    rows = [row, row.replace("bread", "story"), row.replace("bread", "music")]
    assets |= {autodan.SEEDS: json.dumps(rows), autodan.WORDNET["noun"]: nouns}
    steps = hierarchical_run(
        planted, assets, variant="hga", model_name="River", developer="garden", crossover=1.0,
        num_steps=6, num_elites=0.0,
    )  # fmt: skip
    for step in steps[1:]:
        text = step.model_input[-1]["content"]
        assert "told by River of garden for [PROMPT] [PROMPT]: write" in text


def test_only_hga_asks_for_the_thesaurus() -> None:
    assert autodan.INFO.assets_of(autodan.Config()) == (autodan.SEEDS,)
    wanted = autodan.INFO.assets_of(autodan.Config(variant="hga"))
    assert wanted == (autodan.SEEDS, *autodan.WORDNET.values())
