"""Check the installation: versions, extras, memory, caches, plug-ins, a model's tokenization."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: Literal["ok", "note", "problem"]
    detail: str
    remedy: str = ""


def command(
    model: Annotated[
        str | None, typer.Option(help="Also check the tokenization of this model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this installation; 1 where something is broken."""
    from adversariallm.cli._console import say, say_json

    findings = [f for check in CHECKS for f in _guarded(check)]
    if model is not None:
        findings += _guarded(lambda: tokenization(model))
    if as_json:
        say_json([asdict(f) for f in findings])
    else:
        for finding in findings:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            say(f"{finding.state:8s}{finding.check}: {finding.detail}{remedy}")
    raise typer.Exit(int(any(f.state == "problem" for f in findings)))


def _guarded(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """A check that breaks is itself a finding."""
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001  -- doctor reports, whatever is broken
        name = getattr(check, "__name__", "check").replace("<lambda>", "tokenization")
        return [Finding(name, "problem", f"{type(error).__name__}: {error}")]


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
        "bitsandbytes": "quantization=int8 and nf4: pip install bitsandbytes",
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


def tokenization(name: str) -> Iterator[Finding]:
    """Whether a model's template and tokenizer keep their promises."""
    from adversariallm.core.types import Conversation
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.loading import load_chat
    from adversariallm.models.options import resolve

    card = resolve(name)
    if isinstance(card, EndpointCard):
        yield Finding(f"tokenization of {name}", "note", "behind an endpoint, nothing to check")
        return
    chat = load_chat(card)
    talk = Conversation.user("What is the capital of France?")
    segments = chat.segments(talk, target="Sure, here is")
    rendered = tuple(chat.encode(talk))
    same = segments.input_ids == rendered
    yield Finding(
        f"segments of {name}",
        "ok" if same else "problem",
        f"{len(segments.spans)} spans concatenate to the {len(rendered)} ids of the rendering"
        if same
        else "the spans do not concatenate to the ids of the rendered conversation",
    )
    yield Finding(f"stop tokens of {name}", "ok", str(chat.stops()))
    if chat.injected_system:
        yield Finding(
            f"system prompt of {name}", "note", f"the template adds {chat.injected_system!r}"
        )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    interpreter,
    machine,
    extras,
    caches,
    plugins,
)
