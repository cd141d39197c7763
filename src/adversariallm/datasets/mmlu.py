"""MMLU: multiple-choice questions on 57 subjects.

Reads the authors' CSV layout and writes the prompt; how choices are scored is in `_scoring`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.resources import files
from typing import Literal, NamedTuple

from pydantic import Field

from adversariallm.core.errors import DataError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import DataFile, FileConfig, get_files

LETTERS = "ABCD"
SUBJECTS: tuple[str, ...] = tuple(
    files("adversariallm.datasets")
    .joinpath("catalog", "mmlu_subjects.txt")
    .read_text("utf-8")
    .split()
)
INFO = DatasetInfo(
    name="mmlu",
    summary="multiple-choice questions on 57 subjects",
    source="Hendrycks et al. 2020, arXiv 2009.03300; github hendrycks/test",
    licence="MIT",
    purpose="utility",
    harmful=False,
    size=14042,
    splits=("test", "val", "dev"),
    assets=tuple(f"mmlu/{split}/{s}" for split in ("test", "val", "dev") for s in SUBJECTS),
    notes=(
        "the answer cell or a choice may be the text None; it stays text",
        "105 test questions repeat another; deduplicate=true leaves 13937",
        "one hash per subject file, of a public copy whose counts equal the official ones",
    ),
)


class Config(FileConfig):
    """Options of `mmlu`; a category is a subject."""

    split: Literal["test", "val", "dev"] = Field("test", description="dev gives the shots")
    shots: int = Field(0, ge=0, le=5, description="solved examples before the question, from dev")
    header: str = Field(
        "Questions with one right choice, on the subject of {subject}.",
        description="first paragraph of the prompt; {subject} is filled in",
    )


class Question(NamedTuple):
    """One row."""

    text: str
    choices: tuple[str, ...]
    answer: str

    def shown(self, answer: str = "") -> str:
        """Question and choices as the model reads them, ending where the letter belongs."""
        lines = [f"{x}. {choice}" for x, choice in zip(LETTERS, self.choices, strict=True)]
        return "\n".join([self.text.strip(), *lines, f"Answer:{answer}"])


def load(config: Config) -> Dataset:
    """The selected questions; `reference` is the letter, `extra["choices"]` the four texts."""
    wanted = {c.casefold() for c in config.category or SUBJECTS}
    subjects = [s for s in SUBJECTS if s in wanted] or list(SUBJECTS)
    splits = [config.split] + (["dev"] if config.shots else [])
    found = get_files(config, *(f"mmlu/{split}/{s}" for split in splits for s in subjects))
    items: list[Behavior] = []
    seen: set[Question] = set()
    for subject in subjects:
        file = found[f"mmlu/{config.split}/{subject}"]
        shots = read_questions(found[f"mmlu/dev/{subject}"])[: config.shots] if config.shots else []
        head = prompt_head(config.header, subject, shots)
        for index, question in enumerate(read_questions(file)):
            if config.deduplicate and question in seen:
                continue
            seen.add(question)
            prompt = head + question.shown()
            items.append(
                Behavior(
                    id=f"{subject}-{index}",
                    conversation=Conversation.user(prompt),
                    goal=question.text,
                    harmful=False,
                    category=subject,
                    split=config.split,
                    reference=question.answer,
                    source=file.source or "mmlu",
                    extra={"index": index, "choices": list(question.choices)},
                )
            )
    return finish(INFO, config, items, {a: f.identity for a, f in found.items()})


def read_questions(file: DataFile) -> list[Question]:
    """Rows of a subject's file: no header, question, four choices, letter.

    Raises:
        DataError: a row is not of that form.
    """
    rows: list[Question] = []
    try:
        for row in csv.reader(io.StringIO(file.text, newline=""), strict=True):
            if len(row) != 6 or row[5] not in LETTERS:
                raise csv.Error("expected question, four choices and a letter A to D")
            rows.append(Question(row[0], tuple(row[1:5]), row[5]))
    except csv.Error as error:
        raise DataError(f"{file.name}: record {len(rows) + 1}: {error}") from error
    return rows


def prompt_head(header: str, subject: str, shots: Sequence[Question]) -> str:
    """What stands before the question: the header and the solved examples."""
    parts = [header.replace("{subject}", subject.replace("_", " "))] if header else []
    parts += [shot.shown(f" {shot.answer}") for shot in shots]
    return "".join(f"{part}\n\n" for part in parts)
