"""Discovery of judges by file name and by entry point.

There is no list to edit: a file in ``judgezoo/judges`` that does not start with an underscore is a
judge of that name. It never imports torch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import warnings
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from judgezoo.errors import JudgezooError, UnknownName

if TYPE_CHECKING:
    from judgezoo.base import Judge, JudgeInfo

__all__ = ["judge_class", "list_judges"]

_GROUP = "judgezoo.judges"


@functools.cache
def _locations() -> dict[str, str]:
    """Map every judge name to the module that defines it."""
    package = importlib.import_module("judgezoo.judges")
    found = {
        module.name: f"judgezoo.judges.{module.name}"
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    for point in entry_points(group=_GROUP):
        if point.name in found:
            raise JudgezooError(
                f"judge {point.name!r} is defined twice: "
                f"in {found[point.name]} and in {point.value}"
            )
        found[point.name] = point.module
    return found


def judge_class(name: str) -> type[Judge]:
    """Return the class of a judge.

    Args:
        name: file name or entry point name of the judge.

    Raises:
        UnknownName: no such judge; the message holds the nearest names.
    """
    from judgezoo.base import Judge

    locations = _locations()
    if name not in locations:
        raise UnknownName("judge", name, locations)
    module = importlib.import_module(locations[name])
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Judge)
        and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise JudgezooError(
            f"{module.__name__} defines {len(classes)} judges, expected exactly one class"
        )
    return classes[0]


def list_judges() -> dict[str, JudgeInfo]:
    """Return the row of every judge by name; nothing is downloaded or loaded.

    A judge of another package that cannot be imported is left out with a warning.
    """
    rows = {}
    for name, module in sorted(_locations().items()):
        try:
            rows[name] = judge_class(name).info
        except Exception as error:  # noqa: BLE001
            if module.startswith("judgezoo.judges."):
                raise
            warnings.warn(f"judge {name!r} of {module} is broken: {error!r}", stacklevel=2)
    return rows
