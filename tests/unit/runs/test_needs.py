"""All that a command needs is known before it runs, so that it can be carried elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adversariallm.core.errors import ConfigError
from adversariallm.runs.needs import needed


def test_texts_data_judges_and_models_are_all_named() -> None:
    what = needed(
        "model=smollm2-135m,smollm2-guarded",
        "dataset=advbench,starter_harmful",
        "attack=pair,autodan",
        "helpers.attacker=smollm2-135m",
        "helpers.scorer=openai:x",
        "helpers.mutator=smollm2-135m",
        "judge=[strong_reject_rubric,refusal_prefix]",
        "models.smollm2-guarded.system_prompt=hello",
    )
    assert "autodan/prompt_group" in what.assets
    assert any(a.startswith("pair/") for a in what.assets)
    assert any(a.startswith("advbench/") for a in what.assets)
    assert any("strong_reject" in a for a in what.assets)
    assert set(what.models) == {"smollm2-135m", "smollm2-guarded", "openai:x"}
    assert what.models["smollm2-guarded"] == {"system_prompt": "hello"}


def test_what_is_ours_needs_nothing() -> None:
    what = needed("model=smollm2-135m", "dataset=starter_harmful", "attack=gcg")
    assert what.assets == ()


def test_a_model_that_judges_counts() -> None:
    what = needed(
        "model=smollm2-135m",
        "dataset=starter_harmful",
        "attack=direct",
        "judge=or_bench",
        "judges.or_bench.backend='model:smollm2-guarded'",
    )
    assert "smollm2-guarded" in what.models


def test_mistakes_are_told_before_anything_is_fetched() -> None:
    with pytest.raises(ConfigError, match="."):
        needed("model=smollm2-135m", "dataset=starter_harmfull", "attack=direct", "x=1")


def test_offline_with_an_empty_folder_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adversariallm.cli import assets

    for name in ("JUDGEZOO_CACHE", "ADVERSARIALLM_CACHE", "HF_HOME", "JUDGEZOO_OFFLINE"):
        monkeypatch.setenv(name, "")
    command = "adversariallm run model=openai:x dataset=starter_harmful attack=pair"
    helpers = " helpers.attacker=openai:x helpers.scorer=openai:x"
    arguments: list[Any] = ["fetch", "--for", command + helpers, "--to", str(tmp_path), "--offline"]
    result = CliRunner().invoke(assets.app, arguments)
    assert result.exit_code == 1
    assert "offline" in result.output.lower()
    assert f"JUDGEZOO_CACHE={tmp_path}" in result.output.replace("\n", "")
