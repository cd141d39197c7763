"""Loads what a card describes: tokenizer, weights, adapter, on one device or several.

It reads files of this machine only (`sources` brings them here), runs no code that comes with a
checkpoint unless told to, and never reads a pickle.
"""

from __future__ import annotations

import json
import logging
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import ConfigError, ModelError
from adversariallm.models import sources
from adversariallm.models.card import EndpointCard, Quantization
from adversariallm.models.identity import adapter_folder, identity
from adversariallm.models.options import ModelOptions, resolve
from adversariallm.tokenization import ChatTokenizer

if TYPE_CHECKING:
    from adversariallm.models.card import ModelCard
    from adversariallm.models.local import LocalModel
    from adversariallm.models.remote import RemoteModel

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BITS = {"int8": 8, "nf4": 4}
ROOM = 0.9
"""Share of the free memory that weights may take; activations need the rest."""


def load_model(name: str, **options: Any) -> LocalModel | RemoteModel:
    """The model that `model=NAME` and `models.NAME.*` stand for.

    Args:
        name: a catalog name, a hub id, a local folder, or `openai:MODEL[@URL]`.
        options: fields of `ModelOptions`.

    Raises:
        UnknownNameError: nothing of that name.
        ConfigError: an option is wrong, or has to be stated and is not.
        ModelError: the weights cannot be had or do not fit.
    """
    chosen = ModelOptions(**options)
    return load(resolve(name, chosen), chosen)


def load(
    card: ModelCard | EndpointCard, options: ModelOptions | None = None
) -> LocalModel | RemoteModel:
    """The model of a fully stated card."""
    options = options or ModelOptions()
    if isinstance(card, EndpointCard):
        from adversariallm.models.remote import RemoteModel

        return RemoteModel.from_card(card, options)
    from adversariallm.models.local import LocalModel

    model = load_weights(card, options)
    return LocalModel.from_parts(
        model,
        load_chat(card, options),
        name=card.name,
        identity=identity(card, options),
        context_length=card.context_length,
        stop_tokens=card.stop_tokens,
    )


def load_chat(card: ModelCard, options: ModelOptions | None = None) -> ChatTokenizer:
    """Tokenizer and chat template of a card; reads only the small files."""
    from transformers import AutoTokenizer

    options = options or ModelOptions()
    folder = sources.fetch(card, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=options.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"the tokenizer of {card.name!r} cannot be loaded: {error}") from error
    return ChatTokenizer(
        tokenizer,
        _template(card.template),
        system=options.system_prompt,
        thinking=options.thinking,
        answer_at=options.answer_at,
    )


def _template(template: str) -> str | None:
    """What `ChatTokenizer` takes for a card's template."""
    if template == "tokenizer":
        return None
    if not template.endswith((".jinja", ".jinja2")):
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise ConfigError(f"template {template!r}: no such file")
    return path.read_text(encoding="utf-8")


def load_weights(card: ModelCard, options: ModelOptions) -> Any:
    """The transformers model of a card, frozen and in evaluation mode, its adapter merged."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = sources.fetch(card)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if options.device_map is None:
        _require_memory(card, folder, device)
    arguments: dict[str, Any] = {
        "dtype": getattr(torch, card.dtype),
        "device_map": options.device_map or {"": device},
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": options.trust_remote_code,
    }
    if options.offload_folder is not None:
        arguments["offload_folder"] = options.offload_folder
    quantization = _quantization(card.quantization, card.dtype)
    if quantization is not None:
        arguments["quantization_config"] = quantization
    with sources.plain_lines(), _without_advice():
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, **arguments)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(
                f"model {card.name!r} cannot be loaded from {folder}: {error}"
            ) from error
        if card.adapter is not None:
            model = _with_adapter(model, card)
    return model.eval().requires_grad_(False)


@contextmanager
def _without_advice() -> Iterator[None]:
    """On some processors bitsandbytes, once imported, advises to install kernels we do not use."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _quantization(kind: Quantization, dtype: str) -> Any:
    """The quantization configuration of transformers; None where weights are taken as they are."""
    if kind in ("none", "checkpoint"):
        return None
    import importlib.util

    import torch
    from transformers import BitsAndBytesConfig

    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            f"quantization={kind} needs the package bitsandbytes: "
            "pip install 'adversariallm[quantized]', or use quantization=none"
        )
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )


def _with_adapter(model: Any, card: ModelCard) -> Any:
    """The model with its PEFT adapter, merged into the weights unless these are quantized."""
    from peft import PeftModel

    folder = adapter_folder(str(card.adapter))
    try:
        with warnings.catch_warnings():
            # peft 0.21 reads a property that transformers 5.24 renamed
            warnings.simplefilter("ignore", FutureWarning)
            adapted = PeftModel.from_pretrained(model, str(folder), local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"adapter {card.adapter!r} does not fit model {card.name!r}: {error}"
        ) from error
    return adapted if card.quantization in ("int8", "nf4") else adapted.merge_and_unload()


def _require_memory(card: ModelCard, folder: Path, device: str) -> None:
    """Refuse weights that cannot fit, before the kernel kills the process."""
    import torch

    from adversariallm.inference.memory import available_bytes

    needed = _weight_bytes(card, folder)
    free = available_bytes(torch.device(device))
    if needed > free * ROOM:
        raise ModelError(
            f"model {card.name!r} needs about {needed / 2**30:.1f} GiB for its weights in "
            f"{card.dtype}, and {device} has {free / 2**30:.1f} GiB free: set "
            f"models.{card.name}.device_map=auto to spread it over devices and disk, "
            "quantization=int8 or nf4, a smaller dtype, or choose a smaller model"
        )


def _weight_bytes(card: ModelCard, folder: Path) -> int:
    """Size of the weights once loaded, from the headers of the files."""
    bits = BITS.get(card.quantization, 8 * BYTES[card.dtype])
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            rows = json.loads(file.read(length))
        for name, row in rows.items():
            if name == "__metadata__":
                continue
            start, end = row["data_offsets"]
            stored = card.quantization == "checkpoint"
            total += end - start if stored else math.prod(row["shape"]) * bits // 8
    return total
