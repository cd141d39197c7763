"""ActorAttack's planning: the parts of a request, actors around its subject, their questions.

It asks the planner and nobody else; what is sent to the model under attack is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from adversariallm.attacks._kit.actor_texts import QuestionRows, Questions, Text, Texts
from adversariallm.attacks._kit.structured import Answer, Form, ask
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import ChatModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation

ROUNDS = 3  # of asking for actors


class Actor(Form):
    """Someone or something connected to the subject."""

    actor_name: Text
    relationship: Text


class Actors(Form):
    """The chosen ones."""

    actors: Annotated[list[Actor], Field(min_length=1)]


@dataclass
class Plan:
    """What the planning gave: the parts of the request, actors with questions, dropped actors."""

    extract: dict[str, str] = field(default_factory=dict)
    actors: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    network: str = ""


@dataclass(frozen=True)
class Planner:
    """One planning.

    Attributes:
        model: the planner.
        texts: of its stages.
        generation: how it answers.
        attempts: replies asked for before a stage has failed.
    """

    model: ChatModel
    texts: Texts
    generation: GenerationConfig
    attempts: int
    num_actors: int
    num_questions: int

    def make(self, goal: str, plan: Plan, rng: Rng) -> str | None:
        """Fill the plan in; returns the stage that failed, or None."""
        told = self.texts.text("extract", request=goal)
        found = self._fill_in(self.texts.extract, told, rng.child("extract"), self.attempts)
        if found.value is None:
            return "planner_failed: extract"
        plan.extract = found.value.parts()
        actors = self._actors(plan, rng)
        if not actors:
            return "planner_failed: actors"
        for number, actor in enumerate(actors):
            self._questions(plan, actor, rng.child("questions", number))
        return None if plan.actors else "planner_failed: questions"

    def _actors(self, plan: Plan, rng: Rng) -> list[Actor]:
        """The actors of a chat about the network, as many as asked for where there are."""
        talk = Conversation.user(self.texts.text("network", target=plan.extract["target"]))
        network = self._plainly(talk, rng.child("network"))
        if network.value is None:
            return []
        plan.network = network.value
        talk = talk.append("assistant", network.value)
        choose = self.texts.text("choose", number=self.num_actors)
        found: dict[str, Actor] = {}
        for attempt in range(ROUNDS):
            chosen = ask(
                self.model,
                talk.append("user", choose),
                Actors.read,
                self.generation,
                rng.child("actors", attempt),
                attempts=self.attempts,
                schema=Actors.wire_schema(),
            )
            for actor in [] if chosen.value is None else chosen.value.actors:
                found.setdefault(" ".join(actor.actor_name.lower().split()), actor)
            if len(found) >= self.num_actors or attempt == ROUNDS - 1:
                break
            talk = talk.append("user", self.texts.text("more"))
            more = self._plainly(talk, rng.child("more", attempt))
            if more.value is None:
                break
            talk = talk.append("assistant", more.value)
        return list(found.values())[: self.num_actors]

    def _questions(self, plan: Plan, actor: Actor, rng: Rng) -> None:
        """Plan one conversation; an actor without questions is dropped with the reason."""
        told = self.texts.text(
            "questions",
            actor=actor.actor_name,
            relationship=actor.relationship,
            target=plan.extract["target"],
            number=self.num_questions,
        )
        if self.texts.plans_in_words:
            found = self._listed(told, rng)
        else:
            found = self._fill_in(Questions, told, rng, self.attempts)
        if found.value is None:
            plan.dropped.append({**actor.model_dump(), **found.note()})
            return
        questions = found.value.texts()[: self.num_questions]
        plan.actors.append({**actor.model_dump(), "questions": questions})

    def _listed(self, told: str, rng: Rng) -> Answer[Any]:
        """Plan in words, then list the questions; both again where there is no list."""
        found: Answer[Any] = Answer(None, "", 0, failure="unreadable")
        for attempt in range(self.attempts):
            words = self._plainly(Conversation.user(told), rng.child("words", attempt))
            if words.value is None:
                return words
            listing = self.texts.text("listed", text=words.value)
            found = self._fill_in(QuestionRows, listing, rng.child("list", attempt), 1)
            if found.value is not None:
                break
        return found

    def _fill_in(self, form: Any, told: str, rng: Rng, attempts: int) -> Answer[Any]:
        return ask(
            self.model,
            Conversation.user(told),
            form.read,
            self.generation,
            rng,
            attempts=attempts,
            schema=form.wire_schema(),
        )

    def _plainly(self, talk: Conversation, rng: Rng) -> Answer[str]:
        """Free text of the planner."""
        return ask(self.model, talk, str, self.generation, rng, attempts=self.attempts)
