"""What a user may say about a model, and the card that name and options make together.

It decides nothing silently: outside the catalog, number format, quantization and template have to
be stated. Nothing here reads weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.models.card import (
    DTYPES,
    QUANTIZATIONS,
    Dtype,
    EndpointCard,
    FolderSource,
    HubSource,
    ModelCard,
    Quantization,
    catalog,
    endpoint_card,
    find_card,
)
from adversariallm.tokenization.formats import list_templates

INERT: dict[str, Any] = {"inert": True}


class ModelOptions(FrozenConfig):
    """The `models.<name>.*` options. None keeps what the catalog row says."""

    dtype: Dtype | None = Field(None, description="number format of weights and activations")
    quantization: Quantization | None = Field(
        None, description="int8, nf4: bitsandbytes; checkpoint: as the files are"
    )
    template: str | None = Field(
        None, description="tokenizer, the name of one of our templates, or a .jinja file"
    )
    revision: str | None = Field(None, description="commit of a hub model")
    adapter: str | None = Field(None, description="PEFT adapter: a folder or a hub id")
    system_prompt: str | None = Field(
        None,
        description="system message where a conversation has none; null leaves it to the template",
    )
    thinking: Literal["default", "on", "off", "low", "medium", "high"] = Field(
        "default", description="reasoning mode, where the template has one"
    )
    answer_at: Literal["answer", "start"] = Field(
        "answer",
        description="where a target or prefill stands: where the template puts an answer, or right "
        "where the model starts to write",
    )
    context_length: int | None = Field(None, ge=1, description="lower the context window to this")
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the checkpoint"
    )
    reasoning_allowance: int = Field(
        0, ge=0, description="endpoints: tokens added to every limit for hidden reasoning"
    )
    allow_dropped: tuple[str, ...] = Field(
        (), description="endpoints: parameters that may be left out where they are not honored"
    )
    capabilities: dict[str, Any] | None = Field(
        None,
        description="endpoints: what the server honors, over the provider's usual set, e.g. "
        "{n: false, schema_mode: none, token_ids: completions}",
    )
    extra_body: dict[str, Any] = Field(
        {}, description="endpoints: further fields of every request, e.g. {top_k: 0, min_p: 0}"
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = Field(
        None,
        description="endpoints: name of the token limit in a request; null chooses by address",
        json_schema_extra=INERT,
    )
    reuse_replies: bool = Field(
        True,
        description="endpoints: take the answer to a request that was paid for before",
        json_schema_extra=INERT,
    )
    api_key_env: str | None = Field(
        None,
        description="endpoints: environment variable that holds the key",
        json_schema_extra=INERT,
    )
    max_concurrency: int = Field(
        8, ge=1, description="endpoints: requests in flight at once", json_schema_extra=INERT
    )
    rpm: float | None = Field(
        None, gt=0, description="endpoints: requests per minute", json_schema_extra=INERT
    )
    tpm: float | None = Field(
        None, gt=0, description="endpoints: tokens per minute", json_schema_extra=INERT
    )
    input_price: float | None = Field(
        None,
        ge=0,
        description="endpoints: US dollars for a million input tokens",
        json_schema_extra=INERT,
    )
    output_price: float | None = Field(
        None,
        ge=0,
        description="endpoints: US dollars for a million output tokens",
        json_schema_extra=INERT,
    )
    active_params: float | None = Field(
        None,
        gt=0,
        description="endpoints: parameters at work per token; counts 2N FLOPs a token, which are "
        "unknown otherwise",
        json_schema_extra=INERT,
    )
    device: str | None = Field(
        None,
        description="cpu, cuda, cuda:1; null: cuda where there is one",
        json_schema_extra=INERT,
    )
    device_map: str | None = Field(
        None,
        description="auto, balanced, sequential: shard over devices and offload what does not fit",
        json_schema_extra=INERT,
    )
    offload_folder: str | None = Field(
        None, description="where device_map may put weights on disk", json_schema_extra=INERT
    )


def resolve(name: str, options: ModelOptions | None = None) -> ModelCard | EndpointCard:
    """The fully stated card for what a user typed as `model=`.

    Args:
        name: a catalog name, a hub id, a local folder, or `openai:MODEL[@URL]`.
        options: overrides; they win over the catalog row.

    Raises:
        UnknownNameError: nothing of that name, with the nearest catalog names.
        ConfigError: a model outside the catalog lacks a choice that has to be made.
    """
    options = options or ModelOptions()
    endpoint = endpoint_card(name)
    if endpoint is not None:
        return endpoint
    card = find_card(name)
    if card is None:
        return _outside_catalog(name, options)
    changes: dict[str, Any] = {
        key: value
        for key in ("dtype", "quantization", "template", "adapter", "context_length")
        if (value := getattr(options, key)) is not None
    }
    if options.revision is not None:
        if not isinstance(card.source, HubSource):
            raise ConfigError(
                f"models.{name}.revision={options.revision!r}: {card.name} is not a hub model "
                f"(its source is a {card.source.kind}); drop the option"
            )
        changes["source"] = card.source.model_copy(update={"revision": options.revision})
    return card.model_copy(update=changes)


def _outside_catalog(name: str, options: ModelOptions) -> ModelCard:
    """A card for a folder or hub id that no row describes."""
    folder = Path(name).expanduser()
    source: FolderSource | HubSource
    if (folder / "config.json").is_file():
        source = FolderSource(path=str(folder.resolve()))
    elif folder.is_dir():
        raise ConfigError(
            f"model={name}: the folder holds no config.json; give the folder of a transformers "
            "checkpoint (for a PEFT adapter: model=BASE models.BASE.adapter=FOLDER)"
        )
    elif name.count("/") == 1 and not name.startswith((".", "/", "~")):
        source = HubSource(repo=name, revision=options.revision)
    elif "/" in name:
        raise ConfigError(
            f"model={name}: no such folder on this machine (looked at {folder.absolute()}); "
            "expected the folder of a transformers checkpoint, with its config.json. Check the "
            "path, or give a catalog name (`adversariallm list models`) or a hub id (OWNER/NAME)"
        )
    else:
        raise UnknownNameError("model", name, catalog())
    choices = {
        "dtype": DTYPES,
        "quantization": QUANTIZATIONS,
        "template": ("tokenizer", *(t.name for t in list_templates()), "a .jinja file"),
    }
    missing = [
        f"models.NAME.{key}={'|'.join(valid)}"
        for key, valid in choices.items()
        if getattr(options, key) is None
    ]
    if missing:
        raise ConfigError(
            f"model={name} is not in the catalog, and these change results, so nothing is assumed: "
            f"state {', '.join(missing)}"
        )
    return ModelCard(
        name=name,
        summary="outside the catalog",
        source=source,
        dtype=cast("Dtype", options.dtype),
        quantization=cast("Quantization", options.quantization),
        template=cast("str", options.template),
        adapter=options.adapter,
        context_length=options.context_length,
    )
