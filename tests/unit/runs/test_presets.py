from __future__ import annotations

from pathlib import Path

import pytest

import adversariallm.attacks
from adversariallm.core.errors import ConfigError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.runs import presets as module
from adversariallm.runs.presets import presets
from adversariallm.runs.settings import configure

FOLDER = Path(str(adversariallm.attacks.__file__)).parent / "presets"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_shipped_preset_belongs_to_an_attack_and_is_valid(path: Path) -> None:
    assert path.stem in ATTACKS.names()
    found = presets(path.stem)
    assert found
    for preset in found.values():
        assert preset.source
        configure("attacks", path.stem, preset.options)
        GenerationConfig(**preset.generation_config)


def test_an_attack_without_a_file_has_no_presets() -> None:
    assert presets("direct") == {}


@pytest.mark.parametrize("text", ["[1, 2]", "mine: {options: {}}", "mine: {source: x, extra: 1}"])
def test_a_file_of_another_form_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "direct.yaml"
    path.write_text(text)
    monkeypatch.setattr(module, "preset_file", lambda attack: path)
    with pytest.raises(ConfigError, match=r"direct\.yaml is not a preset file"):
        presets("direct")
