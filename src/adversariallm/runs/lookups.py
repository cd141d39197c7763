"""The plan's sources as they are installed here: model catalog, datasets, judges, assets, store.

Nothing is loaded or downloaded beyond the small files that fix a model's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from adversariallm.core.errors import ConfigError, DataError
from adversariallm.core.protocols import ChatModel, Needs
from adversariallm.datasets import Dataset, load_dataset
from adversariallm.models.card import EndpointCard
from adversariallm.models.identity import identity
from adversariallm.models.options import ModelOptions, resolve
from adversariallm.runs.plan import ModelFacts, Sources
from adversariallm.runs.settings import explain_invalid

if TYPE_CHECKING:
    from adversariallm.runs.settings import Settings
    from adversariallm.runs.store import Store
    from judgezoo import Judge
    from judgezoo.assets import AssetStore


def installed(store: Store | None = None) -> Sources:
    """The sources of this machine.

    Args:
        store: where finished runs are looked up; None plans as if there were none.
    """
    if store is None or not Path(store.root).exists():
        return Sources(model_facts, dataset, judge_fingerprint, asset_hash, text=asset_text)
    return Sources(
        model_facts, dataset, judge_fingerprint, asset_hash, store.status, text=asset_text
    )


def open_store(settings: Settings) -> Store:
    """The run store that the settings name."""
    from adversariallm.runs.store import Store

    kept = settings.store
    return Store(settings.out, ttl_s=kept.ttl_s, compression=kept.compression)


def model_options(name: str, options: Mapping[str, Any]) -> ModelOptions:
    """Validated loading options of a model.

    Raises:
        ConfigError: a wrong value, with its path.
    """
    try:
        return ModelOptions(**options)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error, f"models.{name}")) from None


def model_facts(name: str, options: Mapping[str, Any]) -> ModelFacts:
    """Identity and abilities of a model, from its card and files."""
    chosen = model_options(name, options)
    card = resolve(name, chosen)
    remote = isinstance(card, EndpointCard)
    return ModelFacts(
        identity(card, chosen),
        Needs.TEXT if remote else Needs.white_box(),
        counts_flops=not remote or chosen.active_params is not None,
    )


def dataset(name: str, options: Mapping[str, Any]) -> Dataset:
    """The selected items of a dataset."""
    return load_dataset(name, **options)


def judge_fingerprint(name: str, options: Mapping[str, Any]) -> str:
    """What identifies a judge with its options."""
    return _unloaded_judge(name, options).fingerprint_id()


def require_judge(name: str, options: Mapping[str, Any]) -> None:
    """Check that a judge has every option and text it needs.

    Raises:
        ConfigError: it has not; the text has the command that supplies what is missing.
    """
    from judgezoo.errors import JudgezooError

    judge = _unloaded_judge(name, options)
    try:
        judge.prepare()
    except JudgezooError as error:
        raise ConfigError(f"judge={name}: {error}") from None


def _unloaded_judge(name: str, options: Mapping[str, Any]) -> Judge:
    """A judge that is not asked anything; no weights are loaded."""
    import judgezoo
    from adversariallm.runs.judge_model import chosen_backend
    from judgezoo.errors import JudgezooError

    def unloaded(model: str) -> ChatModel:
        raise ConfigError(f"judges.{name}: a plan asks no judge")

    try:
        return judgezoo.Judge.from_name(name, **chosen_backend(options, unloaded))
    except JudgezooError as error:
        raise ConfigError(f"judges.{name}: {error}") from None


def asset_store() -> AssetStore:
    """The assets in the user's cache: of judges, datasets, attacks and protocols."""
    from adversariallm.datasets._files import catalogs
    from judgezoo.assets import AssetStore

    own = [
        path
        for package in ("attacks", "evaluation")
        for path in sorted(Path(str(files(f"adversariallm.{package}") / "catalog")).glob("*.yaml"))
    ]
    return AssetStore(catalogs=[*catalogs(), *own], command="adversariallm assets fetch")


def asset_hash(asset: str) -> str:
    """SHA-256 of an asset in the cache.

    Raises:
        DataError: it is not there; the text has the command that fetches it.
    """
    from judgezoo.errors import JudgezooError

    try:
        return asset_store().asset(asset).sha256
    except JudgezooError as error:
        raise DataError(str(error)) from None


def asset_text(asset: str) -> str:
    """The text of an asset in the cache.

    Raises:
        DataError: it is not there; the text has the command that fetches it.
    """
    from judgezoo.errors import JudgezooError

    try:
        return asset_store().text(asset)
    except JudgezooError as error:
        raise DataError(str(error)) from None
