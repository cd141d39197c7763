"""Where the small model of the benchmarks is."""

from __future__ import annotations


def cached_model() -> str:
    """Folder of the small model that `make model` fetched."""
    from adversariallm.models.card import get_card
    from adversariallm.models.sources import find_local

    folder = find_local(get_card("smollm2-135m"))
    if folder is None:
        raise SystemExit("SmolLM2 is not in the cache: run `make model`, or give --model DIR")
    return str(folder)
