from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from adversariallm.core import plugins
from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.core.plugins import ATTACKS, Registry


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    package = tmp_path / "toy_plugins"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "good.py").write_text("INFO = 1\n")
    (package / "bad.py").write_text("raise RuntimeError('no library')\n")
    (package / "lacking.py").touch()
    (package / "_helper.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Registry("toy", "toy_plugins", "toy.group", ("INFO",), {"fine": "good"})
    for name in [n for n in sys.modules if n.startswith("toy_plugins")]:
        del sys.modules[name]


def external(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, "toy.group") for name, value in points]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)


def test_names_are_file_names_and_nothing_is_imported(registry: Registry) -> None:
    assert registry.names() == ["bad", "good", "lacking"]
    assert "toy_plugins.bad" not in sys.modules


def test_an_unknown_name_gets_the_nearest_ones(registry: Registry) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown toy 'goood'. Did you mean 'good'"):
        registry.load("goood")


def test_an_alias_leads_to_its_plugin(registry: Registry) -> None:
    assert registry.load("fine").INFO == 1


def test_a_module_that_lacks_what_its_kind_requires_says_so(registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"'lacking'.*lacks INFO.*docs/adding/toy.md"):
        registry.load("lacking")


def test_a_name_given_twice_names_both_places(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    external(monkeypatch, ("good", "other_package.good"))
    with pytest.raises(ConfigError, match=r"'good': .*toy_plugins/good.py and other_package.good"):
        registry.names()


def test_a_broken_plugin_is_reported_and_stops_nobody(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    external(monkeypatch, ("far", "no_such_package.far"))
    assert registry.load("good").INFO == 1
    broken = registry.broken()
    assert set(broken) == {"bad", "far", "lacking"}
    assert "no library" in broken["bad"] and "no_such_package" in broken["far"]


def test_every_attack_of_ours_can_be_imported_and_names_itself() -> None:
    for name in ATTACKS.names():
        info = ATTACKS.load(name).INFO
        assert info.name == name
        assert info.summary and info.source
