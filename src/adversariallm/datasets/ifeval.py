"""IFEval: prompts with instructions that a program can check.

`reference` holds the instructions; `_instructions` checks an answer against them.
"""

from __future__ import annotations

from adversariallm.core.errors import DataError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_jsonl
from adversariallm.datasets._instructions import CHECKS

INFO = DatasetInfo(
    name="ifeval",
    summary="prompts with 25 kinds of instructions that a program can check",
    source="Zhou et al. 2023, arXiv 2311.07911; hub google/IFEval",
    licence="Apache-2.0",
    purpose="utility",
    harmful=False,
    size=541,
    assets=("ifeval/input",),
    sha256="86ea91641ee9e6b891330f3f019e82c481abddbdea5945106df1dfe59757fbc2",
    judge="instruction_check",
    notes=("the hash is of one public copy", "a prompt has one to three instructions"),
)


class Config(FileConfig):
    """Options of `ifeval`; a category is the family of the first instruction."""


def load(config: Config) -> Dataset:
    """The selected prompts.

    Raises:
        DataError: an instruction is none of the 25 kinds.
    """
    asset = INFO.assets[0]
    file = get_files(config, asset)[asset]
    items = []
    columns = ("key", "prompt", "instruction_id_list", "kwargs")
    for index, row in enumerate(read_jsonl(file, columns)):
        kinds = row["instruction_id_list"]
        unknown = [kind for kind in kinds if kind not in CHECKS]
        if unknown or len(kinds) != len(row["kwargs"]):
            raise DataError(f"{file.name}: row {index}: unknown or incomplete instructions {kinds}")
        given = [{k: v for k, v in kw.items() if v is not None} for kw in row["kwargs"]]
        items.append(
            Behavior(
                id=str(row["key"]),
                conversation=Conversation.user(row["prompt"]),
                goal=row["prompt"],
                harmful=False,
                category=kinds[0].split(":")[0],
                reference=[{"kind": k, **kw} for k, kw in zip(kinds, given, strict=True)],
                source=file.source or "ifeval",
                extra={"index": index},
            )
        )
    return finish(INFO, config, items, {asset: file.identity})
