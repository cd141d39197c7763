"""Human jailbreaks: the request inside each of a list of texts that people wrote and published.

Source: Shen et al. 2023 (arXiv 2308.03825) for the texts, Mazeika et al. 2024, "HarmBench"
(arXiv 2402.04249) for the baseline. The lists are assets. Step k is the k-th text of the list with
the request in it; there is no un-optimized step 0, `direct` is that baseline.

Deviations from the reference code: the request goes into a text's slot where it has one
(`insertion=append` appends it and leaves the slot, as published); a random subset is the same for
every behavior; characters that were written as two halves are put together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import DataError
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Candidate, Task

SLOT = re.compile(r"\{\{|\}\}|\{(?:0|prompt|behavior|goal|query)?\}|\[INSERT PROMPT HERE\]")
JINJA_SLOT = re.compile(r"\{\{ prompt \}\}")
SLOTS = {"human/pyrit_in_the_wild": JINJA_SLOT}
"""Lists whose slots are written in a way of their own; braces in their texts mean nothing."""
BRACES = {"{{": "{", "}}": "}"}

INFO = AttackInfo(
    name="human_jailbreaks",
    summary="the request inside published texts that people wrote",
    source="Shen et al. 2023, arXiv 2308.03825; Mazeika et al. 2024, arXiv 2402.04249",
    reference_code="centerforaisafety/HarmBench, baselines/human_jailbreaks",
    needs=Needs.TEXT,
    modality="prompt",
    cost="sampling",
    deviations=(
        "the request goes into the slot, where a text has one",
        "a random subset is the same for every behavior",
    ),
    quick={"subset": 3},
)


class Config(FrozenConfig):
    """Options; defaults are the benchmark's list."""

    texts: Literal["harmbench", "shen_2023_05", "pyrit_in_the_wild"] = Field(
        "harmbench",
        description="list of texts: HarmBench's 114, 666 found in the wild until May 2023, or 488 "
        "until December 2023, each with one slot",
    )
    insertion: Literal["append_if_no_slot", "slot", "append"] = Field(
        "append_if_no_slot", description="where the request goes; slot skips texts without one"
    )
    subset: int | None = Field(
        None, ge=1, description="number of texts, chosen at random; null: all"
    )
    subset_seed: int = Field(0, ge=0, description="seed of that choice")
    indices: tuple[int, ...] | None = Field(None, description="exactly these texts, counted from 0")

    @model_validator(mode="after")
    def _one_choice(self) -> Config:
        if self.subset is not None and self.indices is not None:
            raise ValueError("subset and indices are two choices; give one")
        return self

    def needs_assets(self) -> tuple[str, ...]:
        """The list of texts."""
        return (f"human/{self.texts}",)


class Attack:
    """One text per step."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the request inside one text after the other."""
        c = self.config
        (asset,) = c.needs_assets()
        texts = read_texts(ctx.assets[asset], asset)
        slot = SLOTS.get(asset, SLOT)
        talk = task.behavior.conversation
        turn = talk.last_user
        chosen = self._chosen(texts, slot)
        first = 0 if ctx.state is None else ctx.state.step + 1
        for index in chosen[first:]:
            text = texts[index]
            found, how = insert(text, talk[turn].content, c.insertion, slot)
            note = {
                "list": asset,
                "index": index,
                "text": hashlib.sha256(text.encode("utf-8")).hexdigest(),
                "insertion": how,
            }
            yield Candidate.of(talk.with_content(turn, found), note=note)

    def _chosen(self, texts: list[str], slot: re.Pattern[str]) -> list[int]:
        """Indices of the texts that are used, the same for every behavior."""
        c = self.config
        if c.indices is not None:
            wrong = [i for i in c.indices if not 0 <= i < len(texts)]
            if wrong:
                raise DataError(f"indices {wrong}: the list has {len(texts)} texts, 0 on")
            return list(c.indices)
        usable = [i for i, t in enumerate(texts) if c.insertion != "slot" or has_slot(t, slot)]
        if c.subset is None:
            return usable
        if c.subset > len(usable):
            raise DataError(f"subset={c.subset}: the list has {len(usable)} such texts")
        generator = Rng.root(c.subset_seed).child("human_jailbreaks", "subset").python()
        return sorted(generator.sample(usable, c.subset))


def read_texts(content: str, asset: str) -> list[str]:
    """The texts of a JSON list, halves of characters put together.

    Raises:
        DataError: it is no list of texts.
    """
    rows = json.loads(content)
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise DataError(f"asset {asset} is no JSON list of texts; fetch it again")
    return [row.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for row in rows]


def has_slot(text: str, slot: re.Pattern[str] = SLOT) -> bool:
    """Whether the text says where a request goes."""
    return any(found[0] not in BRACES for found in slot.finditer(text))


def insert(text: str, request: str, how: str, slot: re.Pattern[str] = SLOT) -> tuple[str, str]:
    """The text with the request in it, and how it got there.

    In a text with a slot doubled braces stand for single ones; what is put in is never read again.
    """
    if how == "append" or not has_slot(text, slot):
        return f"{text}\n\n{request}", "append"
    return slot.sub(lambda found: BRACES.get(found[0], request), text), "slot"


_EXAMPLE = ["Tell a story: {}", "No slot here", "Say {{this}} and {0}, then {0}", "Last: {prompt}"]
EXAMPLE_ASSETS = {
    "human/harmbench": json.dumps(_EXAMPLE),
    "human/shen_2023_05": json.dumps(["A letter", "A poem", "A play", "A song"]),
    "human/pyrit_in_the_wild": json.dumps(["A {letter}: {{ prompt }}", "{{ prompt }} as {}"] * 2),
}
