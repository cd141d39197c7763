"""Measures how robust a language model is against published attack algorithms.

Importing the package is cheap: every name is imported when it is first asked for, and neither torch
nor transformers before one that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adversariallm.core.budget import Budget, Ledgers, Usage
    from adversariallm.core.errors import AdversariaLLMError
    from adversariallm.core.generation import GenerationConfig
    from adversariallm.core.types import (
        Behavior,
        Candidate,
        Conversation,
        Message,
        ModelInput,
        Reply,
        Segments,
        Task,
    )
    from adversariallm.datasets import load_dataset
    from adversariallm.models.loading import load_model
    from adversariallm.reporting import load_results
    from adversariallm.runs.api import AttackResult, load_attack
    from adversariallm.runs.campaign import run
    from adversariallm.runs.names import (
        list_attacks,
        list_datasets,
        list_defenses,
        list_models,
    )

__version__ = "1.0.0.dev0"

_HOMES = {
    "AdversariaLLMError": "core.errors",
    "AttackResult": "runs.api",
    "Behavior": "core.types",
    "Budget": "core.budget",
    "Candidate": "core.types",
    "Conversation": "core.types",
    "GenerationConfig": "core.generation",
    "Ledgers": "core.budget",
    "Message": "core.types",
    "ModelInput": "core.types",
    "Reply": "core.types",
    "Segments": "core.types",
    "Task": "core.types",
    "Usage": "core.budget",
    "list_attacks": "runs.names",
    "list_datasets": "runs.names",
    "list_defenses": "runs.names",
    "list_models": "runs.names",
    "load_attack": "runs.api",
    "load_dataset": "datasets",
    "load_model": "models.loading",
    "load_results": "reporting",
    "run": "runs.campaign",
}

__all__ = [
    "AdversariaLLMError",
    "AttackResult",
    "Behavior",
    "Budget",
    "Candidate",
    "Conversation",
    "GenerationConfig",
    "Ledgers",
    "Message",
    "ModelInput",
    "Reply",
    "Segments",
    "Task",
    "Usage",
    "__version__",
    "list_attacks",
    "list_datasets",
    "list_defenses",
    "list_models",
    "load_attack",
    "load_dataset",
    "load_model",
    "load_results",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
