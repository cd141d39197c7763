"""A published protocol as settings: it fills in what the user left open and names what differs.

What the protocols fix is data of `evaluation.protocols`. Only values reach the run: a run under a
protocol has the id that the same values typed by hand give.
"""

from __future__ import annotations

from collections.abc import Callable

from adversariallm.core.plugins import ATTACKS, DATASETS
from adversariallm.evaluation.protocols import Protocol, protocol_of, setting_deviations
from adversariallm.runs.settings import Settings


def under_protocol(
    settings: Settings, text: Callable[[str], str]
) -> tuple[Settings, tuple[str, ...]]:
    """The settings with the protocol's values where the user gave none, and what to tell the user.

    Args:
        settings: of one point of the sweep; without `protocol` they come back as they are.
        text: the text of an asset.

    Raises:
        UnknownNameError: no such protocol.
        DataError: a system prompt is not at hand; the text has the command that fetches it.
    """
    if settings.protocol is None:
        return settings, ()
    protocol = protocol_of(settings.protocol)
    judge = (protocol.judge,) if settings.judge == ("auto",) else settings.judge
    generation = {**protocol.generation, **settings.generation_config}
    models = {name: dict(options) for name, options in settings.models.items()}
    notes = [str(protocol)]
    for name in settings.model:
        if name in protocol.system_prompts:
            prompt = text(protocol.system_prompts[name].asset)
            models.setdefault(name, {}).setdefault("system_prompt", prompt)
            if models[name]["system_prompt"] != prompt:
                notes.append(_deviates(protocol, f"system prompt of {name} is yours"))
        elif protocol.system_prompts:
            notes.append(f"{protocol.name} publishes no system prompt for {name}: its own holds")
    changed = settings.model_copy(
        update={"judge": judge, "generation_config": generation, "models": models}
    )
    return changed, (*notes, *_notes(protocol, changed))


def _notes(protocol: Protocol, settings: Settings) -> list[str]:
    """Sentences on every value in force that is not the published one."""
    dataset, generation = DATASETS.resolve(settings.dataset), settings.generation_config
    others = () if protocol.judge in settings.judge else settings.judge
    found = [*setting_deviations(protocol, dataset, generation)]
    found += [f"judge {name}, published {protocol.judge}" for name in others]
    if not settings.judge:
        found.append(f"no judge, published {protocol.judge}")
    notes = [_deviates(protocol, sentence) for sentence in found]
    prescribed = {} if settings.attack == "all" else ATTACKS.load(settings.attack).INFO.generation
    return notes + [
        f"attack {settings.attack} prescribes {key}={prescribed[key]}; protocol={protocol.name} "
        f"takes {generation[key]}"
        for key in protocol.generation
        if key in prescribed and prescribed[key] != generation[key]
    ]


def _deviates(protocol: Protocol, sentence: str) -> str:
    return f"deviates from protocol={protocol.name}: {sentence}"
