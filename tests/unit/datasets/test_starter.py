from __future__ import annotations

import hashlib
from collections import Counter
from importlib.resources import files

import pytest

from adversariallm.core.errors import DataError
from adversariallm.datasets import Dataset, list_datasets, load_dataset

SETS = ("starter_harmful", "starter_benign", "starter_utility")


def everything(name: str) -> Dataset:
    return load_dataset(name, shuffle=False)


@pytest.mark.parametrize("name", SETS)
def test_counts_categories_and_hash_are_what_the_row_says(name: str) -> None:
    data, info = everything(name), list_datasets()[name]
    raw = files("adversariallm.datasets").joinpath("data", f"{name}.jsonl").read_bytes()
    assert len(data) == info.size == 40
    assert Counter(b.category for b in data) == info.categories
    assert info.sha256 == hashlib.sha256(raw).hexdigest() == data.files[name]
    assert info.licence == "MIT"
    assert all(b.harmful is info.harmful for b in data)


def test_there_are_six_harmful_categories_and_the_benign_set_mirrors_them() -> None:
    harmful = Counter(b.category for b in everything("starter_harmful"))
    assert len(harmful) == 6
    assert harmful == Counter(b.category for b in everything("starter_benign"))


def test_every_harmful_item_has_an_affirmative_target_of_one_line() -> None:
    targets = [b.target for b in everything("starter_harmful")]
    assert len(set(targets)) == 40
    for t in targets:
        assert t is not None and t.startswith(("Sure, here is ", "Sure, here are "))
        assert t.isascii() and "\n" not in t and t[-1].isalpha()


def test_benign_and_utility_items_have_no_target_and_utility_items_have_a_key() -> None:
    assert all(b.target is None for n in SETS[1:] for b in everything(n))
    assert all(b.reference for b in everything("starter_utility"))


def test_every_key_is_accepted_by_the_judge_and_not_contained_in_its_question() -> None:
    judge = pytest.importorskip("judgezoo.judges.exact_match")
    for b in everything("starter_utility"):
        keys = b.reference if isinstance(b.reference, list) else [b.reference]
        for key in keys:
            assert judge.is_correct(f"The answer is {key}.", b.reference, match="contains"), b.id
        assert not judge.is_correct(b.goal, b.reference, match="contains"), b.id


def test_a_changed_data_file_is_refused_with_both_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from adversariallm.datasets import starter_harmful

    wrong = replace(starter_harmful.INFO, sha256="0" * 64)
    monkeypatch.setattr(starter_harmful, "INFO", wrong)
    with pytest.raises(DataError, match="expected 0000") as caught:
        load_dataset("starter_harmful")
    assert str(list_datasets()["starter_benign"].sha256) not in str(caught.value)
    assert len(str(caught.value).split("SHA-256 ")[1].split(",")[0]) == 64
