"""HarmBench: text behaviors of six kinds of harm, with context where one belongs to them.

Reads behaviors and answer prefixes; the hash files of the copyright behaviors, which are pickles,
are deliberately not read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.errors import DataError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv, read_json

TARGETS = "harmbench/targets_text"
INFO = DatasetInfo(
    name="harmbench",
    summary="text behaviors: standard 200, contextual 100, copyright 100",
    source="Mazeika et al. 2024, arXiv 2402.04249; github centerforaisafety/HarmBench",
    licence="MIT",
    purpose="harmfulness",
    harmful=True,
    size=400,
    categories={
        "illegal": 65,
        "misinformation_disinformation": 65,
        "cybercrime_intrusion": 67,
        "chemical_biological": 56,
        "harassment_bullying": 25,
        "harmful": 22,
        "copyright": 100,
    },
    splits=("all", "val", "test"),
    assets=("harmbench/text_all", "harmbench/text_val", "harmbench/text_test", TARGETS),
    sha256="8d81accedd38eaaf8b760618622bb888417d1fd0c86eba65c427a16f1cbb4afc",
    targets=True,
    notes=(
        "the 100 copyright behaviors are left out unless functional names them",
        "seven requests differ only in their context, so the request alone is no key",
        "contexts in text_all hold CR LF where text_val and text_test hold LF; both become LF",
        "the paper's own tool joins context and request by a blank line alone (separator)",
    ),
)
SEPARATORS = {"official": "\n\n---\n\n", "adversariallm": "\n\n"}
COLUMNS = ("Behavior", "FunctionalCategory", "SemanticCategory", "ContextString", "BehaviorID")


class Config(FileConfig):
    """Options of `harmbench`."""

    split: Literal["all", "val", "test"] = Field("all", description="val is meant for tuning")
    functional: tuple[Literal["standard", "contextual", "copyright"], ...] = Field(
        ("standard", "contextual"), description="kinds of behavior to keep"
    )
    separator: Literal["official", "adversariallm"] = Field(
        "official", description="what stands between context and request"
    )
    normalize_newlines: bool = Field(True, description="turn CR LF inside prompts into LF")


def load(config: Config) -> Dataset:
    """The selected behaviors.

    Raises:
        DataError: a behavior has no target in the published file.
    """
    asset = f"harmbench/text_{config.split}"
    shipped = config.targets in ("auto", "dataset")
    files = get_files(config, asset, *((TARGETS,) if shipped else ()))
    targets = read_json(files[TARGETS]) if shipped else {}
    items = []
    for index, row in enumerate(read_csv(files[asset], COLUMNS)):
        if row["FunctionalCategory"] not in config.functional:
            continue
        name = row["BehaviorID"]
        if shipped and not isinstance(targets.get(name), str):
            raise DataError(
                f"{TARGETS} has no single target for {name!r}; use targets=rule or targets_file"
            )
        items.append(_behavior(row, index, targets.get(name), config, files[asset].source))
    return finish(INFO, config, items, {a: f.identity for a, f in files.items()})


def _behavior(
    row: dict[str, str], index: int, target: str | None, config: Config, source: str | None
) -> Behavior:
    goal, context = row["Behavior"], row["ContextString"]
    note: dict[str, object] = {"index": index, "functional": row["FunctionalCategory"]}
    if config.normalize_newlines and "\r" in goal + context:
        goal, context = (t.replace("\r\n", "\n") for t in (goal, context))
        note["newlines"] = "CR LF to LF"
    prompt = context + SEPARATORS[config.separator] + goal if context else goal
    return Behavior(
        id=row["BehaviorID"],
        conversation=Conversation.user(prompt),
        goal=goal,
        harmful=True,
        target=target,
        context=context or None,
        category=row["SemanticCategory"],
        subcategory=row["FunctionalCategory"],
        split=config.split,
        source=source or "harmbench",
        extra=note,
    )
