"""Discovery of plug-ins: one module each, found by its file name or by an entry point.

Finding does not import; a broken external plug-in is reported and does not stop the others.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from adversariallm.core.errors import ConfigError, UnknownNameError


@dataclass(frozen=True)
class Registry:
    """The plug-ins of one kind.

    Attributes:
        kind: the word for messages, e.g. "attack".
        package: where ours live, e.g. "adversariallm.attacks"; modules starting with `_` are
            helpers.
        group: entry point group of third parties, e.g. "adversariallm.attacks".
        requires: names that a plug-in module must define.
        aliases: other names by which one can be asked for.
    """

    kind: str
    package: str
    group: str
    requires: tuple[str, ...]
    aliases: dict[str, str] = field(default_factory=dict)

    def _folder(self) -> list[str]:
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            raise ConfigError(f"package {self.package} is not installed; reinstall adversariallm")
        return list(spec.submodule_search_locations)

    def _external(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            if point.name in found and found[point.name].value != point.value:
                raise ConfigError(
                    f"two {self.kind} plug-ins are named {point.name!r}: "
                    f"{found[point.name].value} and {point.value}; uninstall or rename one"
                )
            found[point.name] = point
        return found

    def origins(self) -> dict[str, str]:
        """Names and where each comes from (a file or an entry point); duplicates are an error."""
        found: dict[str, str] = {}
        for folder in self._folder():
            for module in pkgutil.iter_modules([folder]):
                if not module.name.startswith("_") and not module.ispkg:
                    found[module.name] = str(Path(folder) / f"{module.name}.py")
        for name, point in self._external().items():
            if name in found:
                raise ConfigError(
                    f"two {self.kind} plug-ins are named {name!r}: "
                    f"{found[name]} and {point.value}; rename one"
                )
            found[name] = point.value
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """All names, sorted, without importing anything."""
        return list(self.origins())

    def resolve(self, name: str) -> str:
        """The canonical name behind `name` or an alias; else `UnknownNameError`."""
        known = self.origins()
        resolved = self.aliases.get(name, name)
        if resolved not in known:
            raise UnknownNameError(self.kind, name, [*known, *self.aliases])
        return resolved

    def load(self, name: str) -> ModuleType:
        """Import the module of plug-in `name` and check that it defines what the kind requires."""
        name = self.resolve(name)
        try:
            module = self._import(name)
        except Exception as error:
            raise ConfigError(
                f"{self.kind} plug-in {name!r} ({self.origins()[name]}) cannot be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
        missing = [r for r in self.requires if not hasattr(module, r)]
        if missing:
            raise ConfigError(
                f"{self.kind} plug-in {name!r} ({module.__file__}) lacks {', '.join(missing)}; "
                f"see docs/adding/{self.kind}.md"
            )
        return module

    def _import(self, name: str) -> ModuleType:
        external = self._external()
        if name not in external:
            return importlib.import_module(f"{self.package}.{name}")
        loaded = external[name].load()
        if isinstance(loaded, ModuleType):
            return loaded
        return importlib.import_module(loaded.__module__)

    def broken(self) -> dict[str, str]:
        """Plug-ins that cannot be imported, with the reason; for `doctor`."""
        out: dict[str, str] = {}
        for name in self.names():
            try:
                self.load(name)
            except ConfigError as error:
                out[name] = str(error)
        return out


ATTACKS = Registry(
    "attack", "adversariallm.attacks", "adversariallm.attacks", ("INFO", "Config", "Attack")
)
DATASETS = Registry(
    "dataset", "adversariallm.datasets", "adversariallm.datasets", ("INFO", "Config", "load"),
    aliases={"adv_behaviors": "harmbench"},
)  # fmt: skip
DEFENSES = Registry(
    "defense", "adversariallm.defenses", "adversariallm.defenses", ("INFO", "Config", "wrap")
)
