"""Catalog rows: what they must state, how they are looked up, and what goes wrong clearly."""

from __future__ import annotations

from pathlib import Path

import pytest

from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.models import card as cards
from adversariallm.models.card import HubSource, ModelCard, WheelSource, catalog, get_card


@pytest.mark.parametrize("row", list(catalog().values()), ids=lambda c: c.name)
def test_every_row_states_what_changes_results_and_pins_nothing_unproven(row: ModelCard) -> None:
    assert row.dtype in cards.DTYPES
    assert row.quantization in cards.QUANTIZATIONS
    assert row.template
    if isinstance(row.source, HubSource):
        assert row.source.revision is None
        assert row.pin == "unverified"
    else:
        assert isinstance(row.source, WheelSource)
        assert len(row.source.wheel_sha256) == len(row.source.member_sha256) == 64


def test_the_catalog_holds_the_papers_families() -> None:
    names = set(catalog())
    for family in (
        "llama-2-7b llama-3-8b llama-3.1-8b llama-3.2-1b gemma-2-2b gemma-3-1b mistral-7b-v0.3"
        " ministral-8b mistral-nemo qwen2-7b qwen2.5-7b qwen3-8b phi-3-mini phi-4 vicuna-13b"
        " zephyr-7b-beta zephyr-7b-r2d2 zephyr-cat llama-3-8b-rr mistral-7b-rr gpt-oss-20b"
        " tulu-3-8b hermes-2-pro-llama-3-8b smollm2-135m smollm2-135m-hf"
    ).split():
        assert family in names


def test_a_row_is_found_by_its_hub_id_and_by_an_alias() -> None:
    assert get_card("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert get_card("meta-llama/Meta-Llama-3.1-8B-Instruct").name == "llama-3.1-8b"


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'qwen3-8'.*Did you mean 'qwen3-8b'"):
        get_card("qwen3-8")


def rows_of(tmp_path: Path, text: str) -> list[ModelCard]:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return list(cards._rows(path))


def test_a_row_without_a_number_format_is_refused(tmp_path: Path) -> None:
    text = "models: {a: {summary: A, repo: x/a, quantization: none, template: tokenizer}}"
    with pytest.raises(ConfigError, match=r"mine\.yaml: model 'a': dtype: Field required"):
        rows_of(tmp_path, text)


def test_an_unknown_key_in_a_row_is_refused(tmp_path: Path) -> None:
    text = (
        "defaults: {dtype: float32, quantization: none, template: tokenizer}\n"
        "models: {a: {summary: A, repo: x/a, dtpye: float32}}"
    )
    with pytest.raises(ConfigError, match="dtpye"):
        rows_of(tmp_path, text)


def test_a_name_given_twice_names_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (
        "defaults: {dtype: float32, quantization: none, template: tokenizer}\n"
        "models: {NAME: {summary: A, repo: x/a}}"
    )
    (tmp_path / "one.yaml").write_text(row.replace("NAME", "a"), encoding="utf-8")
    (tmp_path / "two.yaml").write_text(row.replace("NAME", "b"), encoding="utf-8")
    monkeypatch.setattr(cards, "_folders", lambda: iter([tmp_path]))
    with pytest.raises(ConfigError, match=r"two models are named 'x/a'.*one\.yaml.*two\.yaml"):
        catalog.__wrapped__()
