"""Check the installation: versions, extras, memory, caches, plug-ins, and a model.

Of a local model the tokenization is checked, of one behind an address what its server honors.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from adversariallm.models.options import ModelOptions


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        facts: what `detail` says, for programs.
        configuration: whether what is wrong is what the user said, not this installation.
    """

    check: str
    state: Literal["ok", "note", "problem"]
    detail: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    configuration: bool = False


def command(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="model=NAME: also check its tokenization, or what an endpoint honors; "
            "models.NAME.* as in `run`"
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The same as model=NAME.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this installation; 1 where something is broken, 2 where a model is told wrongly."""
    from adversariallm.cli._console import say, say_json

    words = [*(overrides or ()), *([f"model={model}"] if model else ())]
    models = _models(words) if words else {}
    findings = [f for check in CHECKS for f in guarded(check, check.__name__)]
    for name, options in models.items():
        findings += guarded(partial(_model, name, options), f"model {name}")
    if as_json:
        say_json([asdict(f) for f in findings])
    else:
        for finding in findings:
            first, *more = finding.detail.split("\n")
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            say("\n".join([f"{finding.state:8s}{finding.check}: {first}{remedy}", *more]))
    problems = [f for f in findings if f.state == "problem"]
    raise typer.Exit(2 if any(f.configuration for f in problems) else int(bool(problems)))


def _models(words: Sequence[str]) -> dict[str, ModelOptions]:
    """The models that the words name, with their loading options.

    Raises:
        ConfigError: a key that has nothing to do with models, or a model that is not known.
    """
    from adversariallm.core.errors import ConfigError
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.options import resolve
    from adversariallm.models.remote import endpoint_config
    from adversariallm.runs.lookups import model_options
    from adversariallm.runs.settings import read

    request = read(words)
    for key, text in request.typed.items():
        if key.split(".")[0] not in ("model", "models"):
            raise ConfigError(f"{text!r}: doctor takes model= and models.NAME.OPTION=")
    unused = {"dataset": "none", "attack": "none"}  # a run needs them, a check of models does not
    points = replace(request, values={**unused, **request.values}).points()
    found = {
        name: model_options(name, settings.models.get(name, {}))
        for settings in points
        for name in settings.model
    }
    for name, options in found.items():
        card = resolve(name, options)
        if isinstance(card, EndpointCard):
            endpoint_config(card, options)
    return found


def guarded(check: Callable[[], Iterator[Finding]], title: str) -> list[Finding]:
    """The findings of a check; one that breaks is itself a finding, after those it had made."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as error:  # noqa: BLE001  -- doctor reports, whatever is broken
        found.append(Finding(title, "problem", f"{type(error).__name__}: {error}"))
    return found


def interpreter() -> Iterator[Finding]:
    """Python and the packages that decide numbers."""
    yield Finding("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")
    for package in ("adversariallm", "judgezoo", "torch", "transformers", "pydantic"):
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            yield Finding(package, "problem", "not installed", f"pip install {package}")


def extras() -> Iterator[Finding]:
    """Optional packages."""
    uses = {
        "openai": "models and judges behind an endpoint: pip install 'adversariallm[api]'",
        "anthropic": "Anthropic models: pip install 'adversariallm[api]'",
        "bitsandbytes": "quantization=int8 and nf4: pip install 'adversariallm[quantized]'",
        "pandas": "load_results: pip install pandas",
    }
    for package, use in uses.items():
        if importlib.util.find_spec(package):
            yield Finding(f"extra {package}", "ok", "installed")
        else:
            yield Finding(f"extra {package}", "note", "not installed", f"only for {use}")


def machine() -> Iterator[Finding]:
    """Devices, threads, memory, disk."""
    import psutil
    import torch

    if torch.cuda.is_available():
        yield Finding("device", "ok", torch.cuda.get_device_name(0))
    else:
        yield Finding("device", "note", "CPU only: small models, hours instead of minutes")
    yield Finding("threads", "ok", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    free = psutil.virtual_memory().available / 1e9
    yield Finding("memory", "ok" if free > 4 else "note", f"{free:.1f} GB free")


def caches() -> Iterator[Finding]:
    """Where models and assets are kept."""
    from adversariallm.models.card import catalog
    from adversariallm.models.sources import cache_dir, find_local
    from adversariallm.runs.lookups import asset_store

    for name, folder in {"models": cache_dir(), "assets": asset_store().cache_dir}.items():
        place = Path(folder).absolute()
        while not place.exists():
            place = place.parent
        writable = os.access(place, os.W_OK)
        free = shutil.disk_usage(place).free / 1e9
        yield Finding(
            f"cache of {name}",
            "ok" if writable else "problem",
            f"{folder}, {free:.0f} GB free",
            "" if writable else "make it writable, or set ADVERSARIALLM_CACHE to another folder",
        )
    here = [name for name, card in catalog().items() if find_local(card)]
    yield Finding(
        "models here", "ok" if here else "note", ", ".join(here) or "none",
        "" if here else "make model fetches the small one",
    )  # fmt: skip
    states = [s.state for s in asset_store().list()]
    damaged = states.count("damaged")
    yield Finding(
        "assets",
        "problem" if damaged else "ok",
        f"{states.count('ok')} of {len(states)} here, {damaged} damaged",
        "adversariallm assets verify" if damaged else "",
    )


def plugins() -> Iterator[Finding]:
    """Attacks, datasets, defenses and judges that cannot be imported."""
    from adversariallm.core.plugins import ATTACKS, DATASETS, DEFENSES
    from judgezoo.registry import list_judges

    for registry in (ATTACKS, DATASETS, DEFENSES):
        broken = registry.broken()
        for name, reason in broken.items():
            origin = registry.origins()[name]
            yield Finding(f"{registry.kind} {name}", "problem", reason, f"look at {origin}")
        good = len(registry.names()) - len(broken)
        yield Finding(f"{registry.kind} plug-ins", "ok", f"{good} work")
    yield Finding("judges", "ok", f"{len(list_judges())} work")


def _model(name: str, options: ModelOptions) -> Iterator[Finding]:
    from adversariallm.cli._chat_checks import check_chat
    from adversariallm.cli._endpoint_checks import check_endpoint
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.options import resolve

    card = resolve(name, options)
    if isinstance(card, EndpointCard):
        return check_endpoint(card, options)
    return check_chat(name, options)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    interpreter,
    machine,
    extras,
    caches,
    plugins,
)
