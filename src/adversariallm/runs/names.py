"""The names that a command can use, without loading a model or reading data."""

from __future__ import annotations

from adversariallm.core.plugins import ATTACKS, DATASETS, DEFENSES


def list_attacks() -> list[str]:
    """Names of all attacks, sorted."""
    return ATTACKS.names()


def list_datasets() -> list[str]:
    """Names of all datasets, sorted."""
    return DATASETS.names()


def list_defenses() -> list[str]:
    """Names of all defenses, sorted."""
    return DEFENSES.names()


def list_models() -> list[str]:
    """Names of all models of the catalog, sorted; hub ids and folders work as well."""
    from adversariallm.models.card import list_models as names

    return names()
