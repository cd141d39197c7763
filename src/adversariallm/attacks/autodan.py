"""AutoDAN: a genetic algorithm over fluent paragraphs that are put before the request.

Source: Liu et al. 2023 (arXiv 2310.04451), Algorithms 1 (`variant=ga`) and 2 (`variant=hga`);
SheltonLiu-N/AutoDAN and HarmBench's copy for defaults, garak 0.17.1's port for the names in the
seeds, the connector after them and the word level. Each generation scores the population by the
loss of the target (behind a marker, where one is given), keeps elites, draws parents in proportion
to softmax(-loss), crosses them at sentence ends and lets a helper model paraphrase some children.
The hierarchical variant does so every fifth time; in between all but the elites have words replaced
by synonyms that stand in members of low loss.

Deviations from the reference code: the marker is empty unless given; every behavior starts from a
fresh copy of the seeds; elites, and whoever returns as in the generation before, keep their loss
instead of being scored again, and equal members are scored once; the connector is not bred, so that
no paraphrase loses it; a paraphrase's first words are a real prefill where the helper can take one;
a paraphrase that is empty, cut off or in error keeps the parent; texts of fewer than three
sentences are not crossed. A synonym is drawn with probability softmax of its momentum score, since
the port's ratio of negative scores prefers the worse word; spacing and punctuation stay as they
are; the words that are never replaced are a list of ours, the names put into the seeds and the
request's slot; the thesaurus is WordNet 3.1 without its lists of irregular forms. Step 0 is the
request alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import Field

from adversariallm.attacks._kit import mutation
from adversariallm.attacks._kit.ranking import NOT_A_NUMBER, lowest, ranked
from adversariallm.attacks._kit.thesaurus import PARTS, Thesaurus
from adversariallm.attacks._kit.words import replace_words, update_momentum, words
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import DataError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Candidate, Conversation, ModelInput, State, Task

SEEDS = "autodan/prompt_group"
NAMES = re.compile("(?P<model>chatgpt)|(?P<developer>modelkeeper)", re.IGNORECASE)
SLOT = "[PROMPT]"  # how the seeds call the request
WORDNET = {part: f"wordnet/3.1/{part}" for part in PARTS}
INFO = AttackInfo(
    name="autodan",
    summary="a genetic algorithm over paragraphs before the request",
    source="Liu et al. 2023, arXiv 2310.04451",
    reference_code="SheltonLiu-N/AutoDAN",
    version=2,
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS,
    modality="prompt",
    target="required",
    helpers={"mutator": "a chat model that paraphrases; idle with mutation=0"},
    assets=(SEEDS,),
    deviations=(
        "every behavior starts from the seeds",
        "marker: empty unless given",
        "a member that returns unchanged keeps its loss",
        "the connector before the request is not bred",
        "hga: synonyms are drawn by softmax of their momentum score",
    ),
    quick={"num_steps": 3, "population": 6, "num_elites": 0.2, "mutation": 0.5},
)
REQUEST = (
    "Please revise the following text. Keep its meaning and its length, and give back only the "
    "revised text:\n\n"
)  # our own words


class Config(FrozenConfig):
    """Options; defaults are those of the authors' repository."""

    variant: Literal["ga", "hga"] = Field(
        "ga",
        description="genetic algorithm, or the hierarchical one, which also replaces words",
        json_schema_extra={"since": "1.0"},
    )
    num_steps: int = Field(
        100, ge=0, description="generations", json_schema_extra={"extends": True}
    )
    population: int = Field(256, ge=2, description="paragraphs per generation")
    num_elites: float = Field(0.05, ge=0, lt=1, description="share that passes unchanged")
    crossover: float = Field(
        0.5, ge=0, le=1, description="probability that two parents cross; hga: of a replacement"
    )
    num_points: int = Field(5, ge=1, description="cut points of a crossover")
    mutation: float = Field(0.01, ge=0, le=1, description="probability of a child's paraphrase")
    paragraph_every: int = Field(
        5,
        ge=1,
        description="hga: paragraphs cross once in so many times, else words change",
        json_schema_extra={"since": "1.0"},
    )
    num_words: int = Field(
        30,
        ge=0,
        description="hga: words with a momentum score; 0: all",
        json_schema_extra={"since": "1.0"},
    )
    patience: int = Field(0, ge=0, description="generations without improvement; 0: no limit")
    marker: str = Field("", description="text before the target that the fitness reads too")
    model_name: str = Field(
        "the assistant", description="name of the model, put into the seeds for ChatGPT"
    )
    developer: str = Field(
        "its developer", description="name of its developer, put into the seeds for ModelKeeper"
    )
    mutation_tokens: int = Field(
        1024, ge=1, description="token limit of a paraphrase; the seeds have up to 800 tokens"
    )

    def needs_assets(self) -> tuple[str, ...]:
        """The thesaurus, for the variant that replaces words."""
        return tuple(WORDNET.values()) if self.variant == "hga" else ()

    def idle_helpers(self) -> tuple[str, ...]:
        """The mutator, where nothing is paraphrased."""
        return () if self.mutation else ("mutator",)


@dataclass
class _Population:
    """Paragraphs with their losses (empty before the first score), and how the search goes."""

    texts: list[str]
    losses: list[float] = field(default_factory=list)
    best: float = float("inf")
    stale: int = 0
    mutated: int = 0
    cut: int = 0
    replaced: int = 0
    momentum: dict[str, float] = field(default_factory=dict)

    def state(self) -> State:
        best = None if self.best == math.inf else self.best
        kept = {"texts": list(self.texts), "losses": list(self.losses), "best": best}
        return State({**vars(self), **kept})

    @classmethod
    def read(cls, state: State) -> _Population:
        """The population of a state; the journal writes null for what is no finite number."""
        values = dict(state.values)
        values["best"] = math.inf if values["best"] is None else values["best"]
        values["losses"] = [math.nan if x is None else x for x in values["losses"]]
        return cls(**values)


class Attack:
    """A genetic algorithm whose fitness is the target's likelihood."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the request, then the best paragraph of each generation before it."""
        c = self.config
        behavior = task.behavior
        thesaurus = self._thesaurus(ctx)
        if ctx.state is None:
            people = _Population(self._seeds(ctx.assets[SEEDS]))
            clean = behavior.conversation
            target = ctx.model.chat.segments(clean, target=behavior.target)
            loss = float(ctx.model.losses([target.input_ids], [target.target_ids]).loss[0])
            yield Candidate.of(clean, loss, state=people.state())
            first = 1
        else:
            people, first = _Population.read(ctx.state), ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            if c.patience and people.stale >= c.patience:
                return
            known = self._breed(people, thesaurus, step, ctx) if step > 1 else {}
            yield self._evaluate(people, known, behavior, ctx)

    def _thesaurus(self, ctx: Context) -> Thesaurus | None:
        """WordNet, where words are replaced."""
        if self.config.variant == "ga":
            return None
        return Thesaurus({part: ctx.assets[asset] for part, asset in WORDNET.items()})

    def _seeds(self, text: str) -> list[str]:
        """The first seeds with names filled in."""
        rows = json.loads(text)
        if not isinstance(rows, list) or not rows or not all(isinstance(r, str) for r in rows):
            raise DataError(f"asset {SEEDS} is no JSON list of texts; fetch it again")
        named = {"model": self.config.model_name, "developer": self.config.developer}
        filled = [NAMES.sub(lambda found: named[str(found.lastgroup)], r) for r in rows]
        repeats = -(-self.config.population // len(filled))
        return (filled * repeats)[: self.config.population]

    # One generation

    def _evaluate(
        self, people: _Population, known: Mapping[str, float], behavior: Behavior, ctx: Context
    ) -> Candidate:
        """Score whose loss is not known yet; the best member becomes the step."""
        new = list(dict.fromkeys(text for text in people.texts if text not in known))
        known = {**known, **self._scores(new, behavior, ctx)}
        losses = people.losses = [known[text] for text in people.texts]
        found = lowest(torch.tensor(losses, dtype=torch.float64))
        winner = found or 0
        fitness = None if found is None else losses[winner]
        people.stale += 1
        if fitness is not None and fitness < people.best:
            people.best, people.stale = fitness, 0
        talk = self._talk(behavior, people.texts[winner])
        plain = fitness
        if self.config.marker:
            with ctx.phase("diagnosis"):
                target = ctx.model.chat.segments(talk, target=behavior.target)
                plain = float(ctx.model.losses([target.input_ids], [target.target_ids]).loss[0])
        numbers = [loss for loss in losses if not math.isnan(loss)]
        note = {
            "fitness": fitness,
            "mean_fitness": sum(numbers) / len(numbers) if numbers else None,
            "scored": len(new),
            "mutated": people.mutated,
            "cut": people.cut,
        }
        if self.config.variant == "hga":
            note["replaced"] = people.replaced
        flags = () if len(numbers) == len(losses) else (NOT_A_NUMBER,)
        return Candidate.of(talk, plain, state=people.state(), note=note, flags=flags)

    def _scores(self, texts: Sequence[str], behavior: Behavior, ctx: Context) -> dict[str, float]:
        """The loss of each text before the request, marker included."""
        if not texts:
            return {}
        target = self.config.marker + (behavior.target or "")
        segments = [
            ctx.model.chat.segments(self._talk(behavior, text), target=target) for text in texts
        ]
        found = ctx.model.losses([s.input_ids for s in segments], [s.target_ids for s in segments])
        losses = [loss if math.isfinite(loss) else math.nan for loss in found.loss.tolist()]
        return dict(zip(texts, losses, strict=True))

    @staticmethod
    def _talk(behavior: Behavior, text: str) -> Conversation:
        clean = behavior.conversation
        turn = clean.last_user
        return clean.with_content(turn, f"{text} {SLOT}: {clean[turn].content}")

    def _breed(
        self, people: _Population, thesaurus: Thesaurus | None, step: int, ctx: Context
    ) -> dict[str, float]:
        """Elites, then children: of parents drawn by fitness, or the others with new words.

        Returns the losses of the generation that was replaced, by text.
        """
        c = self.config
        rng = ctx.rng.child("generation", step)
        losses = people.losses
        known = dict(zip(people.texts, losses, strict=True))
        order = ranked(torch.tensor(losses, dtype=torch.float64)).tolist()
        count = int(c.population * c.num_elites)
        elites = order[:count]
        if thesaurus is None or (step - 2) % c.paragraph_every == 0:
            wanted = c.population - count
            parents = mutation.roulette(losses, wanted, rng.child("select").python())
            children = self._cross([people.texts[i] for i in parents], rng.child("cross"))
            people.replaced = 0
        else:
            children = self._reword(people, order[count:], thesaurus, rng.child("words"))
        self._mutate(people, children, ctx, rng.child("mutate"))
        people.texts = [people.texts[i] for i in elites] + children
        return known

    def _reword(
        self,
        people: _Population,
        chosen: Sequence[int],
        thesaurus: Thesaurus,
        rng: Rng,
    ) -> list[str]:
        """The chosen members, words exchanged for synonyms that stand in members of low loss."""
        c = self.config
        names = set(words(f"{c.model_name} {c.developer} {SLOT}"))
        scored = [i for i, loss in enumerate(people.losses) if not math.isnan(loss)]
        texts, losses = [people.texts[i] for i in scored], [people.losses[i] for i in scored]
        people.momentum = update_momentum(people.momentum, texts, losses, c.num_words, names)
        found = [
            replace_words(
                people.texts[i],
                people.momentum,
                thesaurus,
                c.crossover,
                names,
                rng.child(k).python(),
            )
            for k, i in enumerate(chosen)
        ]
        people.replaced = sum(changed for _, changed in found)
        return [text for text, _ in found]

    def _cross(self, parents: Sequence[str], rng: Rng) -> list[str]:
        """Neighbors cross with a probability; an odd last one pairs with the first."""
        generator = rng.python()
        children: list[str] = []
        for i in range(0, len(parents), 2):
            pair = (parents[i], parents[i + 1] if i + 1 < len(parents) else parents[0])
            crossed = None
            if generator.random() < self.config.crossover:
                crossed = mutation.crossover(*pair, self.config.num_points, generator)
            children += crossed or pair
        return children[: len(parents)]

    def _mutate(self, people: _Population, children: list[str], ctx: Context, rng: Rng) -> None:
        """Paraphrase each child with a probability; what comes back unusable keeps the child."""
        people.mutated = people.cut = 0
        chosen = [i for i in range(len(children)) if rng.uniform(i) < self.config.mutation]
        if not chosen:
            return
        helper = ctx.helpers["mutator"]
        generation = GenerationConfig(temperature=1.0, max_new_tokens=self.config.mutation_tokens)
        inputs, openings = [], []
        for i in chosen:
            opening = " ".join(children[i].split()[:2]) if Needs.TOKENS in helper.gives else ""
            talk = Conversation.user(REQUEST + children[i])
            inputs.append(ModelInput(talk, prefill=opening))
            openings.append(opening)
        streams = [rng.child("paraphrase", i) for i in chosen]
        replies = helper.generate(inputs, generation, streams)
        for i, opening, reply in zip(chosen, openings, replies, strict=True):
            text = (opening + reply.text).strip()
            people.cut += reply.finish_reason == "length"
            if reply.error or reply.finish_reason == "length" or not reply.text.strip():
                continue
            people.mutated += text != children[i]
            children[i] = text


EXAMPLE_ASSETS = {
    SEEDS: json.dumps(
        [
            f"Here is story {k} about a garden. It was told {k} times by ChatGPT. Cat {k} sat. "
            f"The weather was fine on day {k}, said ModelKeeper. Please go on with number {k}."
            for k in range(4)
        ]
    )
}
EXAMPLE_MEANINGS = {"noun": ("cat", "day", "garden", "story"), "verb": ("said", "told")}
EXAMPLE_ASSETS |= {
    asset: f"{1:08} 00 x {len(same):02x} {' '.join(f'{word} 0' for word in same)} 000 | ours\n"
    for asset, same in ((WORDNET[p], EXAMPLE_MEANINGS.get(p, ("kindly", "nicely"))) for p in PARTS)
}
EXAMPLE_REPLIES = {"mutator": ["A river is near the town. It has seen good music. Please answer."]}
