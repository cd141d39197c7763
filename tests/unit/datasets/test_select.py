from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adversariallm.core.errors import ConfigError, DataError, UnknownNameError
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets import DatasetConfig, load_dataset
from adversariallm.datasets._config import parse_positions
from adversariallm.datasets._select import select


def items(n: int, categories: str = "AAAB") -> list[Behavior]:
    return [
        Behavior(
            f"i{k}",
            Conversation.user(f"question {k}"),
            f"question {k}",
            False,
            category=categories[k % len(categories)],
        )
        for k in range(n)
    ]


def ids(found: list[Behavior]) -> list[str]:
    return [b.id for b in found]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (3, (3,)),
        ([4, 1], (4, 1)),
        ("7", (7,)),
        ("range(0,4)", (0, 1, 2, 3)),
        (" range( 2 , 8 , 3 ) ", (2, 5)),
        ("range(3)", (0, 1, 2)),
        ("list(range(0,3))", (0, 1, 2)),
        ("[5, 2]", (5, 2)),
        ("0-2,7", (0, 1, 2, 7)),
        ("range(4,1,-1)", (4, 3, 2)),
    ],
)
def test_idx_is_read_in_every_documented_form(typed: object, expected: tuple[int, ...]) -> None:
    assert parse_positions(typed) == expected


@pytest.mark.parametrize(
    "typed",
    [
        True,
        1.0,
        -1,
        [0, -2],
        [1, 1],
        [True],
        ["1"],
        [],
        "",
        "range(4,4)",
        "range(0,4,0)",
        "range(-2,2)",
        "3-1",
        "range(0,10**2)",
        "range(0,99999999999999)",
        "0-99999999999999",
        "list(range(0)).__class__.__base__.__subclasses__()",
        "list(range(0))or __import__('os')",
        "range(0,4) if 1 else 2",
        "range(1,2,3,4)",
    ],
)
def test_any_other_idx_is_an_error_and_nothing_is_evaluated(typed: object) -> None:
    with pytest.raises(ValueError, match="idx"):
        parse_positions(typed)


@given(st.text(max_size=30))
def test_no_text_makes_the_parser_fail_in_another_way(text: str) -> None:
    try:
        positions = parse_positions(text)
    except ValueError:
        return
    assert all(isinstance(p, int) and p >= 0 for p in positions)


def test_the_filter_comes_before_the_shuffle_and_the_slice_last() -> None:
    pool = items(40)
    every_b = select("x", pool, DatasetConfig(category=("b",)))
    assert {b.category for b in every_b} == {"B"} and len(every_b) == 10
    first = select("x", pool, DatasetConfig(category=("B",), idx="range(0,3)"))
    assert first == every_b[:3]


def test_two_items_keep_their_order_whatever_else_is_filtered_away() -> None:
    pool = items(60)
    everything = ids(select("x", pool, DatasetConfig(seed=5)))
    some = ids(select("x", pool[10:33], DatasetConfig(seed=5)))
    assert some == [i for i in everything if i in set(some)]


def test_the_order_depends_on_the_seed_and_not_on_the_order_of_the_file() -> None:
    pool = items(50)
    one = ids(select("x", pool, DatasetConfig(seed=1)))
    assert one == ids(select("x", pool[::-1], DatasetConfig(seed=1)))
    assert one != ids(select("x", pool, DatasetConfig(seed=2)))
    assert one != ids(pool)
    assert ids(select("x", pool, DatasetConfig(shuffle=False, seed=1))) == ids(pool)


def test_each_item_comes_first_about_equally_often() -> None:
    pool = items(5)
    first = Counter(select("x", pool, DatasetConfig(seed=s, idx=0))[0].id for s in range(1000))
    chi2 = sum((n - 200) ** 2 / 200 for n in first.values())
    assert len(first) == 5 and chi2 < 18.5  # 0.1 % quantile of chi-squared with 4 degrees


def test_selection_neither_reads_nor_moves_the_ambient_generators() -> None:
    random.seed(1)
    torch.manual_seed(1)
    before = (random.getstate(), torch.get_rng_state())
    one = load_dataset("starter_harmful", idx="range(0,5)")
    replay = load_dataset("starter_harmful", idx="range(0,5)", order="adversariallm", seed=3)
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    random.seed(2)
    torch.manual_seed(2)
    assert one.behaviors == load_dataset("starter_harmful", idx="range(0,5)").behaviors
    again = load_dataset("starter_harmful", idx="range(0,5)", order="adversariallm", seed=3)
    assert replay.behaviors == again.behaviors


def test_another_process_with_another_hash_seed_selects_the_same() -> None:
    code = (
        "import random; random.seed(9); from adversariallm.datasets import load_dataset;"
        "print(load_dataset('starter_benign', seed=4, sample=0.5, stratify=True).fingerprint)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert found == load_dataset("starter_benign", seed=4, sample=0.5, stratify=True).fingerprint


def test_the_selection_of_a_released_version_never_changes() -> None:
    assert ids(list(load_dataset("starter_harmful", idx="range(0,4)"))) == [
        "harmful-12",
        "harmful-34",
        "harmful-17",
        "harmful-25",
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (300, [44, 120, 71, 270, 111, 139]),
        (400, [44, 214, 287, 174, 155, 34]),
        (100, [44, 19, 93, 90, 71, 69]),
        (313, [26, 16, 279, 203, 308, 140]),
        (60, [44, 49, 19, 3, 47, 2]),
        (250, [44, 136, 79, 1, 71, 119]),
        (1319, [1266, 86, 766, 523, 577, 812]),
        (260, [224, 74, 217, 65, 71, 209]),
        (14042, [3798, 11177, 1615, 2570, 3121, 9551]),
    ],
)
def test_the_published_order_is_replayed(n: int, expected: list[int]) -> None:
    config = DatasetConfig(order="adversariallm", idx="range(0,6)")
    assert ids(select("x", items(n), config)) == [f"i{k}" for k in expected]


def test_a_position_out_of_range_names_the_range() -> None:
    with pytest.raises(ConfigError, match=r"idx 10 is out of range.*0 to 9"):
        select("x", items(10), DatasetConfig(idx=[0, 10]))


def test_an_unknown_category_or_id_names_the_valid_ones() -> None:
    with pytest.raises(UnknownNameError, match="cheating"):
        load_dataset("starter_harmful", category="cheeting")
    with pytest.raises(UnknownNameError, match="harmful-01"):
        load_dataset("starter_harmful", ids=["harmful-1"])


def test_an_empty_selection_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no item is left"):
        load_dataset("starter_harmful", ids=["harmful-01"], category="cheating")


def test_duplicate_ids_are_an_error() -> None:
    with pytest.raises(DataError, match="'i0'"):
        select("x", [*items(3), *items(1)], DatasetConfig())


def test_deduplication_keeps_the_first_of_equal_questions() -> None:
    pool = items(4)
    twin = Behavior("twin", pool[1].conversation, pool[1].goal, False, category="A")
    kept = select("x", [*pool, twin], DatasetConfig(deduplicate=True, shuffle=False))
    assert ids(kept) == ids(pool)
    assert len(select("x", [*pool, twin], DatasetConfig())) == 5


def test_random_splits_are_disjoint_cover_everything_and_ignore_filters() -> None:
    pool = items(50)
    parts = {
        p: ids(select("x", pool, DatasetConfig(random_split=p, seed=3)))  # type: ignore[arg-type]
        for p in ("train", "val", "test")
    }
    assert {p: len(v) for p, v in parts.items()} == {"train": 30, "val": 10, "test": 10}
    assert sorted(sum(parts.values(), [])) == sorted(ids(pool))
    only_b = ids(select("x", pool, DatasetConfig(random_split="test", category=("B",), seed=3)))
    assert set(only_b) == {i for i in parts["test"] if int(i[1:]) % 4 == 3}


@given(st.integers(1, 37), st.integers(0, 50))
def test_a_stratified_sample_has_the_size_and_the_proportions(count: int, seed: int) -> None:
    pool = items(37, "AAAAABBC")
    found = select("x", pool, DatasetConfig(sample=count, stratify=True, seed=seed))
    assert len(found) == count == len(set(ids(found)))
    sizes = Counter(b.category for b in pool)
    for category, n in Counter(b.category for b in found).items():
        assert abs(n - count * sizes[category] / 37) < 1


def test_a_sample_is_a_prefix_of_a_larger_one() -> None:
    pool = items(40)
    ten = select("x", pool, DatasetConfig(sample=10))
    assert ten == select("x", pool, DatasetConfig(sample=20))[:10]
    assert ten == select("x", pool, DatasetConfig(sample=0.25))


@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0},
        {"sample": 1.5},
        {"sample": True},
        {"sample": 3, "idx": 1},
        {"stratify": True},
        {"seed": -1},
        {"seed": True},
        {"order": "torch"},
        {"no_such": 1},
        {"idx": "evil()"},
    ],
)
def test_a_wrong_option_names_its_path_and_value(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^datasets\.starter_harmful"):
        load_dataset("starter_harmful", **options)


def test_a_sample_larger_than_the_set_is_an_error() -> None:
    with pytest.raises(ConfigError, match="sample=41"):
        load_dataset("starter_harmful", sample=41)


def test_an_unknown_dataset_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="starter_harmful"):
        load_dataset("starter_harmfull")


def test_a_configuration_is_frozen_and_loading_changes_nothing_in_it() -> None:
    config = DatasetConfig(idx="range(0,3)")
    before = config.model_dump()
    select("x", items(9), config)
    assert config.model_dump() == before
    with pytest.raises(ValueError, match="frozen"):
        config.idx = (1,)  # type: ignore[misc]
