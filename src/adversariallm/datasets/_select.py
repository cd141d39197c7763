"""From all items of a dataset to those of a run: filter, then shuffle, then slice.

Pure functions of items and options. The shuffle gives each item a number that depends on the seed
and its id alone, so it is the same in any process, and two items keep their order whatever else is
filtered away; no generator is shared or advanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from adversariallm.core.errors import ConfigError, DataError, UnknownNameError
from adversariallm.core.rng import Rng, torch_permutation
from adversariallm.core.types import Behavior
from adversariallm.datasets._config import DatasetConfig

SPLIT_SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}


def select(name: str, items: Sequence[Behavior], config: DatasetConfig) -> list[Behavior]:
    """Items that `config` asks for, in the order of the run.

    Raises:
        ConfigError: an unknown category or id, a position out of range, or nothing left.
        DataError: two items share an id.
    """
    _refuse_duplicate_ids(name, items)
    kept = _filter(name, items, config)
    if not kept:
        raise ConfigError(
            f"dataset {name!r}: no item is left after filtering {len(items)}; loosen the filters"
        )
    ordered = _shuffle(kept, config)
    if config.idx is not None:
        return _positions(name, ordered, config.idx)
    return ordered if config.sample is None else _sample(name, ordered, config)


def _refuse_duplicate_ids(name: str, items: Iterable[Behavior]) -> None:
    twice = [i for i, n in Counter(b.id for b in items).items() if n > 1]
    if twice:
        shown = ", ".join(repr(i) for i in twice[:5])
        raise DataError(
            f"dataset {name!r}: {len(twice)} ids stand for several items ({shown}); make ids unique"
        )


def _filter(name: str, items: Sequence[Behavior], config: DatasetConfig) -> list[Behavior]:
    kept = list(items)
    if config.deduplicate:
        first: dict[str, Behavior] = {}
        for b in kept:
            first.setdefault(b.conversation.key, b)
        kept = list(first.values())
    if config.random_split is not None:
        kept = _random_split(kept, config.random_split, config.seed)
    if config.category is not None:
        wanted = {c.casefold() for c in config.category}
        known = {c.casefold(): c for b in items if (c := b.category) is not None}
        for given in config.category:
            if given.casefold() not in known:
                raise UnknownNameError(f"category of {name}", given, known.values())
        kept = [b for b in kept if b.category is not None and b.category.casefold() in wanted]
    if config.ids is not None:
        known_ids = {b.id for b in items}
        for given in config.ids:
            if given not in known_ids:
                raise UnknownNameError(f"id in {name}", given, known_ids)
        kept = [b for b in kept if b.id in set(config.ids)]
    return kept


def _random_split(items: list[Behavior], part: str, seed: int) -> list[Behavior]:
    ranked = _by_key(items, Rng.root(seed).child("datasets", "split"))
    start = 0
    for name, share in SPLIT_SHARES.items():
        end = len(ranked) if name == "test" else start + round(share * len(ranked))
        if name == part:
            chosen = {b.id for b in ranked[start:end]}
            return [b for b in items if b.id in chosen]
        start = end
    raise ValueError(f"no random split is named {part!r}")


def _by_key(items: Iterable[Behavior], rng: Rng) -> list[Behavior]:
    return sorted(items, key=lambda b: (rng.child(b.id).uniform(), b.id))


def _shuffle(items: list[Behavior], config: DatasetConfig) -> list[Behavior]:
    if not config.shuffle:
        return items
    if config.order == "adversariallm":
        return [items[i] for i in torch_permutation(len(items), config.seed)]
    return _by_key(items, Rng.root(config.seed).child("datasets", "shuffle"))


def _positions(name: str, items: list[Behavior], idx: tuple[int, ...]) -> list[Behavior]:
    if max(idx) >= len(items):
        raise ConfigError(
            f"dataset {name!r}: idx {max(idx)} is out of range; after filtering there are "
            f"{len(items)} items, so positions go from 0 to {len(items) - 1}"
        )
    return [items[i] for i in idx]


def _sample(name: str, items: list[Behavior], config: DatasetConfig) -> list[Behavior]:
    size = config.sample
    count = size if isinstance(size, int) else max(1, round(size * len(items))) if size else 0
    if count > len(items):
        raise ConfigError(
            f"dataset {name!r}: sample={count}, but after filtering there are {len(items)} items"
        )
    if not config.stratify:
        return items[:count]
    left = _apportion(Counter(b.category for b in items), count)
    chosen = []
    for b in items:
        if left[b.category] > 0:
            left[b.category] -= 1
            chosen.append(b)
    return chosen


def _apportion(sizes: Counter[str | None], count: int) -> dict[str | None, int]:
    """Seats per category by largest remainder; ties go to the first name."""
    total = sizes.total()
    exact = {c: count * n / total for c, n in sizes.items()}
    seats = {c: int(x) for c, x in exact.items()}
    by_remainder = sorted(exact, key=lambda c: (seats[c] - exact[c], c or ""))
    for c in by_remainder[: count - sum(seats.values())]:
        seats[c] += 1
    return seats
