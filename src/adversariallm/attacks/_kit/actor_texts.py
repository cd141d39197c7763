"""The texts of ActorAttack's stages: ours, the authors' from a user's checkout, or a user's own.

The authors' repository has no license, so nothing of it stands here: only the names of its files
and slots (AI45Lab/ActorAttack@3258917, prompts/*.txt). Its judge and its closing requests stand in
Python code and are ours in every case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from adversariallm.attacks._kit import chat
from adversariallm.attacks._kit.structured import Form
from adversariallm.core.types import digest

Source = Literal["ours-v1", "authors", "custom"]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class Stage:
    """One question of the pipeline.

    Attributes:
        own: our text, None where we need no such question.
        file: the authors' file.
        slots: our names of what is filled in, and the authors'.
    """

    own: str | None
    file: str
    slots: Mapping[str, str]


STAGES: Mapping[str, Stage] = {
    "extract": Stage("actor_extract", "1_extract", {"request": "org_query"}),
    "network": Stage("actor_network", "2_network", {"target": "harm_target"}),
    "choose": Stage("actor_choose", "3_actor", {"number": "num_string"}),
    "more": Stage("actor_more", "3_more_actor", {}),
    "questions": Stage(
        "actor_questions", "4_queries", {"target": "harm_target", "actor": "actor_name"}
    ),
    "listed": Stage(None, "5_json_format", {"text": "resp"}),
    "rewrite": Stage(
        "actor_rewrite",
        "attack_modify",
        {
            "questions": "queries",
            "question": "query",
            "delivery_type": "output_type",
            "previous": "previous_response",
        },
    ),
    "verdict": Stage(
        "actor_verdict", "attack_step_judge", {"question": "query", "answer": "response"}
    ),
}


class Extract(Form):
    """The parts of a request, as our text asks for them."""

    target: Text
    delivery_type: Text
    other_details: str

    def parts(self) -> dict[str, str]:
        """By name."""
        return self.model_dump()


class Details(Form):
    """What else a request says."""

    delivery_type: Text
    other_details: str


class NestedExtract(Form):
    """The parts of a request, as the authors' text asks for them."""

    target: Text
    details: Details

    def parts(self) -> dict[str, str]:
        """By name."""
        return {"target": self.target, **self.details.model_dump()}


class Questions(Form):
    """A planned conversation."""

    questions: Annotated[list[Text], Field(min_length=1)]

    def texts(self) -> list[str]:
        """The questions in order."""
        return list(self.questions)


class Row(Form):
    """One question."""

    question: Text


class QuestionRows(Form):
    """A planned conversation, as the authors' text asks for it; plain texts are taken as well."""

    questions: Annotated[list[Row], Field(min_length=1)]

    @field_validator("questions", mode="before")
    @classmethod
    def _rows(cls, value: Any) -> Any:
        rows = value if isinstance(value, list) else []
        return [{"question": row} if isinstance(row, str) else row for row in rows]

    def texts(self) -> list[str]:
        """The questions in order."""
        return [row.question for row in self.questions]


@dataclass(frozen=True)
class Texts:
    """The texts of one run.

    Attributes:
        source: whose they are.
        assets: texts by asset id; ours need none.
    """

    source: Source
    assets: Mapping[str, str]

    @property
    def label(self) -> str:
        """What results name them by; only the authors' are the published instrument."""
        if self.source == "ours-v1":
            return "actor/ours-v1"
        if self.source == "authors":
            return "actor/authors@3258917"
        content = {a: self.assets[a] for a in asset_ids(self.source)}
        return f"actor/custom:{digest(content, 12)}"

    @property
    def plans_in_words(self) -> bool:
        """Whether questions are first planned in words and then listed, as published."""
        return self.source != "ours-v1"

    @property
    def extract(self) -> type[Extract] | type[NestedExtract]:
        """The form of the first stage."""
        return Extract if self.source == "ours-v1" else NestedExtract

    def text(self, stage: str, **values: str | int) -> str:
        """The filled text of a stage; slots that a text does not have are left out."""
        row = STAGES[stage]
        if self.source == "ours-v1":
            if row.own is None:
                raise ValueError(f"stage {stage!r} has no text of ours")
            return chat.fill(chat.own_text(row.own), **values)
        if "number" in values:
            values = {**values, "number": f"{values['number']} actors"}
        slots = {theirs: values[ours] for ours, theirs in row.slots.items()}
        return chat.fill_formatted(self.assets[f"actor/{self.source}/{row.file}"], **slots)


def asset_ids(source: Source) -> tuple[str, ...]:
    """What has to be fetched for these texts."""
    if source == "ours-v1":
        return ()
    return tuple(f"actor/{source}/{row.file}" for row in STAGES.values())
