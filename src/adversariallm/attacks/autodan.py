"""AutoDAN: a genetic algorithm over fluent paragraphs that are put before the request.

Source: Liu et al. 2023 (arXiv 2310.04451), Algorithms 1 (`variant=ga`) and 2 (`variant=hga`);
SheltonLiu-N/AutoDAN and HarmBench's copy for defaults, garak 0.17.1's port for the word level. Each
generation scores the population by the loss of the target (behind the marker that the seed texts
ask answers to begin with), keeps elites, draws parents in proportion to softmax(-loss), crosses
them at sentence ends and lets a helper model paraphrase some children. The hierarchical variant
does so every fifth time; in between all but the elites have words replaced by synonyms that stand
in members of low loss.

Deviations from the reference code: every behavior starts from a fresh copy of the seeds; elites
keep their loss instead of being scored again; a paraphrase's first words are a real prefill where
the helper can take one; a paraphrase that is empty, cut off or in error keeps the parent; texts of
fewer than three sentences are not crossed. A synonym is drawn with probability softmax of its
momentum score, since the port's ratio of negative scores prefers the worse word; spacing and
punctuation stay as they are; the words that are never replaced are a list of ours and the names put
into the seeds; the thesaurus is WordNet 3.1 without its lists of irregular forms. Step 0 is the
request alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from adversariallm.attacks._kit import mutation
from adversariallm.attacks._kit.thesaurus import PARTS, Thesaurus
from adversariallm.attacks._kit.words import replace_words, update_momentum, words
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import DataError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Candidate, Conversation, ModelInput, State, Task

SEEDS = "autodan/prompt_group"
WORDNET = {part: f"wordnet/3.1/{part}" for part in PARTS}
INFO = AttackInfo(
    name="autodan",
    summary="a genetic algorithm over paragraphs before the request",
    source="Liu et al. 2023, arXiv 2310.04451",
    reference_code="SheltonLiu-N/AutoDAN",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS,
    modality="prompt",
    target="required",
    helpers={"mutator": "a chat model that paraphrases"},
    assets=(SEEDS,),
    deviations=(
        "every behavior starts from the seeds",
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
    marker: str = Field("", description="text before the target, as the seeds ask for")
    model_name: str = Field("the assistant", description="name put into the seeds")
    developer: str = Field("its developer", description="developer put into the seeds")
    mutation_tokens: int = Field(512, ge=1, description="token limit of a paraphrase")

    def needs_assets(self) -> tuple[str, ...]:
        """The thesaurus, for the variant that replaces words."""
        return tuple(WORDNET.values()) if self.variant == "hga" else ()


@dataclass
class _Population:
    """Paragraphs with their losses (None: not scored yet), and how the search goes."""

    texts: list[str]
    losses: list[float | None] = field(default_factory=list)
    best: float = float("inf")
    stale: int = 0
    mutated: int = 0
    replaced: int = 0
    momentum: dict[str, float] = field(default_factory=dict)

    def state(self) -> State:
        best = None if self.best == float("inf") else self.best
        kept = {"texts": list(self.texts), "losses": list(self.losses), "best": best}
        return State({**vars(self), **kept})


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
            people.losses = [None] * len(people.texts)
            clean = behavior.conversation
            target = ctx.model.chat.segments(clean, target=behavior.target)
            loss = float(ctx.model.losses([target.input_ids], [target.target_ids]).loss[0])
            yield Candidate.of(clean, loss, state=people.state())
            first = 1
        else:
            values = dict(ctx.state.values)
            values["best"] = float("inf") if values["best"] is None else values["best"]
            people, first = _Population(**values), ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            if c.patience and people.stale >= c.patience:
                return
            if step > 1:
                self._breed(people, thesaurus, step, ctx)
            yield self._evaluate(people, behavior, ctx)

    def _thesaurus(self, ctx: Context) -> Thesaurus | None:
        """WordNet, where words are replaced."""
        if self.config.variant == "ga":
            return None
        return Thesaurus({part: ctx.assets[asset] for part, asset in WORDNET.items()})

    def _seeds(self, text: str) -> list[str]:
        """The first seeds with names filled in."""
        rows = json.loads(text)
        if not isinstance(rows, list) or not all(isinstance(r, str) for r in rows):
            raise DataError(f"asset {SEEDS} is no JSON list of texts; fetch it again")
        c = self.config
        filled = [
            r.replace("[MODEL]", c.model_name).replace("[COMPANY]", c.developer) for r in rows
        ]
        repeats = -(-c.population // len(filled))
        return (filled * repeats)[: c.population]

    # One generation

    def _evaluate(self, people: _Population, behavior: Behavior, ctx: Context) -> Candidate:
        """Score who is not scored yet; the best member becomes the step."""
        missing = [i for i, loss in enumerate(people.losses) if loss is None]
        inputs, targets = [], []
        for i in missing:
            talk = self._talk(behavior, people.texts[i])
            segments = ctx.model.chat.segments(
                talk, target=self.config.marker + (behavior.target or "")
            )
            inputs.append(segments.input_ids)
            targets.append(segments.target_ids)
        if missing:
            found = ctx.model.losses(inputs, targets).loss
            for i, loss in zip(missing, found.tolist(), strict=True):
                people.losses[i] = loss
        losses = [loss for loss in people.losses if loss is not None]
        winner = losses.index(min(losses))
        people.stale = 0 if losses[winner] < people.best else people.stale + 1
        people.best = min(people.best, losses[winner])
        talk = self._talk(behavior, people.texts[winner])
        plain = losses[winner]
        if self.config.marker:
            with ctx.phase("diagnosis"):
                target = ctx.model.chat.segments(talk, target=behavior.target)
                plain = float(ctx.model.losses([target.input_ids], [target.target_ids]).loss[0])
        note = {
            "fitness": losses[winner],
            "mean_fitness": sum(losses) / len(losses),
            "scored": len(missing),
            "mutated": people.mutated,
        }
        if self.config.variant == "hga":
            note["replaced"] = people.replaced
        return Candidate.of(talk, plain, state=people.state(), note=note)

    @staticmethod
    def _talk(behavior: Behavior, text: str) -> Conversation:
        clean = behavior.conversation
        turn = clean.last_user
        return clean.with_content(turn, f"{text} {clean[turn].content}")

    def _breed(
        self, people: _Population, thesaurus: Thesaurus | None, step: int, ctx: Context
    ) -> None:
        """Elites, then children: of parents drawn by fitness, or the others with new words."""
        c = self.config
        rng = ctx.rng.child("generation", step)
        losses = [loss for loss in people.losses if loss is not None]
        order = sorted(range(len(losses)), key=lambda i: losses[i])
        count = int(c.population * c.num_elites)
        elites = order[:count]
        if thesaurus is None or (step - 2) % c.paragraph_every == 0:
            wanted = c.population - count
            parents = mutation.roulette(losses, wanted, rng.child("select").python())
            children = self._cross([people.texts[i] for i in parents], rng.child("cross"))
            people.replaced = 0
        else:
            children = self._reword(people, losses, order[count:], thesaurus, rng.child("words"))
        children, people.mutated = self._mutate(children, ctx, rng.child("mutate"))
        kept: list[float | None] = [losses[i] for i in elites]
        people.losses = kept + [None] * len(children)
        people.texts = [people.texts[i] for i in elites] + children

    def _reword(
        self,
        people: _Population,
        losses: Sequence[float],
        chosen: Sequence[int],
        thesaurus: Thesaurus,
        rng: Rng,
    ) -> list[str]:
        """The chosen members, words exchanged for synonyms that stand in members of low loss."""
        c = self.config
        names = set(words(f"{c.model_name} {c.developer}"))
        people.momentum = update_momentum(people.momentum, people.texts, losses, c.num_words, names)
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

    def _mutate(self, children: list[str], ctx: Context, rng: Rng) -> tuple[list[str], int]:
        """Paraphrase each child with a probability; what comes back unusable keeps the child."""
        chosen = [i for i in range(len(children)) if rng.uniform(i) < self.config.mutation]
        if not chosen:
            return children, 0
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
        changed = 0
        for i, opening, reply in zip(chosen, openings, replies, strict=True):
            text = (opening + reply.text).strip()
            if reply.error or reply.finish_reason == "length" or not reply.text.strip():
                continue
            changed += text != children[i]
            children[i] = text
        return children, changed


EXAMPLE_ASSETS = {
    SEEDS: json.dumps(
        [
            f"Here is story {k} about a garden. It was told {k} times by [MODEL]. Cat {k} sat. "
            f"The weather was fine on day {k}, said [COMPANY]. Please go on with number {k}."
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
