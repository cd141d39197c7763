"""Any table of items as a dataset: which column holds what.

Serves the generic loaders; files of a known benchmark have their own module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from adversariallm.core.errors import DataError
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._config import DatasetConfig
from adversariallm.datasets._files import DataFile, require_columns, text_ids

CUSTOM_SEPARATOR = "\n\n"


class ColumnConfig(DatasetConfig):
    """Which column holds what; None where there is no such column."""

    prompt: str = Field("prompt", description="column of the request")
    id: str | None = Field(
        None, description="column of unique ids; by default a hash of the request"
    )
    target: str | None = Field(None, description="column of the answer prefix")
    context: str | None = Field(None, description="column of text put before the request")
    category_column: str | None = Field(None, description="column of the category")
    reference: str | None = Field(None, description="column of the answer key")
    harmful: bool = Field(True, description="whether complying is the failure")


def behaviors_from(
    file: DataFile, rows: Sequence[dict[str, Any]], config: ColumnConfig
) -> list[Behavior]:
    """Items of a table.

    Raises:
        DataError: a column is missing or a request is empty or no text.
    """
    used = [
        c
        for c in (
            config.prompt,
            config.id,
            config.target,
            config.context,
            config.category_column,
            config.reference,
        )
        if c is not None
    ]
    for row in rows:
        require_columns(file, row, used)
    prompts = [row[config.prompt] for row in rows]
    for number, prompt in enumerate(prompts, start=1):
        if not isinstance(prompt, str) or not prompt.strip():
            raise DataError(
                f"{file.name}: record {number}: {config.prompt!r} is {prompt!r}; expected text"
            )
    ids = text_ids(prompts) if config.id is None else [str(row[config.id]) for row in rows]
    return [
        _behavior(name, prompt, row, index, config, file)
        for index, (name, prompt, row) in enumerate(zip(ids, prompts, rows, strict=True))
    ]


def _behavior(
    name: str, prompt: str, row: dict[str, Any], index: int, config: ColumnConfig, file: DataFile
) -> Behavior:
    def text(column: str | None) -> str | None:
        value = None if column is None else row[column]
        if isinstance(value, (list, dict)):
            raise DataError(
                f"{file.name}: record {index + 1}: {column!r} holds several values; choose one"
            )
        return None if value is None or value == "" else str(value)

    context = text(config.context)
    full = prompt if context is None else context + CUSTOM_SEPARATOR + prompt
    return Behavior(
        id=name,
        conversation=Conversation.user(full),
        goal=prompt,
        harmful=config.harmful,
        target=text(config.target),
        context=context,
        category=text(config.category_column),
        reference=None if config.reference is None else row[config.reference],
        source=file.source or file.identity,
        extra={"index": index},
    )
