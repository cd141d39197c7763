"""The index and its filters, against reading every header."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from adversariallm.core.config import stable_hash
from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.facts import setting_of
from adversariallm.runs import document as doc
from adversariallm.runs import index as index_module
from adversariallm.runs.claim import Claim
from adversariallm.runs.filters import fits, lookup, parse, why_none
from adversariallm.runs.index import Index
from adversariallm.runs.store import Store


def config(seed: int, attack: str = "gcg") -> dict[str, Any]:
    return {
        "attack": {"name": attack, "options": {"num_steps": seed * 10, "note": "it's, [odd]"}},
        "seed": seed,
        "defense": [{"name": "smooth"}] if seed % 2 else [],
        "fit": {"dataset": "starter", "ids": [f"b{seed}"]},
    }


def add(store: Store, seed: int, attack: str = "gcg") -> str:
    value = config(seed, attack)
    run_id = stable_hash(value)
    claim = store.claim(run_id, value)
    assert isinstance(claim, Claim)
    resolved = {"models": [{"name": f"model-{seed % 3}"}]}
    with claim:
        claim.publish(
            {
                "config": value,
                "resolved": resolved,
                "status": "done",
                "runs": [],
                "provenance": {"torch": seed},
            }
        )
    return run_id


def settle(store: Store) -> None:
    """Make everything look older than the resolution of modification times."""
    for path in [*(store.root / "runs").glob("*/*"), *(store.root / "runs").glob("*")]:
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10_000_000_000))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path, durable=False)
    for seed in range(12):
        add(store, seed, "gcg" if seed < 8 else "pair")
    settle(store)
    return store


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", set(range(12))),
        ("attack=pair", {8, 9, 10, 11}),
        ("attack.name!=pair,seed>=5", {5, 6, 7}),
        ("attack=[pair,pgd],seed<10", {8, 9}),
        ("seed=[1,2,'3',30]", {1, 2}),
        ("attack.options.num_steps<=20", {0, 1, 2}),
        ("attack.options.note~odd,seed=3", {3}),
        ("defense=smooth,seed<4", {1, 3}),
        ("defense!=smooth,seed<4", {0, 2}),
        ("defense=none,seed<4", {0, 2}),
        ("defense=,seed<4", {0, 2}),
        ("defense!=none,seed<4", {1, 3}),
        ("model=model-1,seed<6", {1, 4}),
        ("dataset=starter,fit.ids=b7", {7}),
        ("status=done,seed>10", {11}),
        ("models.0.name~model-2,seed<5", {2}),
        ("provenance.torch=7", {7}),
        ("no.such.thing=1", set()),
        ("no.such.thing=null,seed=1", {1}),
        ("seed>one", set()),
        ("attack.name>gcg", {8, 9, 10, 11}),
    ],
)
def test_filters_select_over_any_field(store: Store, where: str, expected: set[int]) -> None:
    rows = Index(store).select(where, ["seed", "attack.name"])
    assert {row.values[0] for row in rows} == expected
    assert all(row.values[1] in ("gcg", "pair") for row in rows)
    terms = parse(where)
    headers = {run_id: store.header(run_id) for run_id in store.runs()}
    by_hand = [
        run_id
        for run_id, header in headers.items()
        if all(term.holds(lookup(header, term.path)) for term in terms)
    ]
    assert [row.run_id for row in rows] == by_hand


@pytest.mark.parametrize("text", ["attack", "attack=gcg,seed", "=3", "seed<[1,2]"])
def test_an_unreadable_filter_names_itself_and_what_is_expected(store: Store, text: str) -> None:
    with pytest.raises(ConfigError, match="filter"):
        Index(store).select(text)


def test_runs_are_found_by_their_setting_and_by_the_data_they_were_evaluated_on(
    store: Store,
) -> None:
    headers = {run_id: store.header(run_id) for run_id in store.runs()}
    run_id, header = next(iter(headers.items()))
    key = setting_of(header).key
    same = [i for i, h in headers.items() if setting_of(h).key == key]
    assert [row.run_id for row in Index(store).select(f"setting={key}")] == same
    moved = {**header, "config": {**header["config"], "evaluated": {"dataset": "other"}}}
    assert fits(parse("dataset=other"), moved)
    assert not fits(parse("dataset=starter"), moved)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("attack=beast", "no stored run has attack=beast; attack is one of gcg, pair"),
        ("attak=gcg", "no stored run has a value for 'attak'; did you mean attack?"),
        ("model=gpt", "no stored run has model=gpt; model is one of model-0, model-1, model-2"),
        ("defense=[a,b]", "no stored run has defense=[a,b]; defense is one of none, smooth"),
        ("attack=pair,seed=2", "no stored run has attack=pair and seed=2 at once"),
    ],
)
def test_why_nothing_fits_is_said(store: Store, where: str, said: str) -> None:
    assert why_none(parse(where), [store.header(run_id) for run_id in store.runs()]) == said


def test_only_changed_shards_are_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(store)
    assert len(index.select()) == 12
    read: list[Path] = []
    real = index_module._describe

    def counted(path: Path) -> dict[str, Any]:
        read.append(path)
        return real(path)

    monkeypatch.setattr(index_module, "_describe", counted)
    before = index.path.stat().st_ino
    assert len(index.select()) == 12
    assert read == []
    assert index.path.stat().st_ino == before
    new = add(store, 99)
    assert len(Index(store).select()) == 13
    assert read == [store.run_dir(new)]


def test_scores_and_removals_are_noticed(store: Store) -> None:
    index = Index(store)
    run_id = index.select("seed=4")[0].run_id
    store.write_scores(run_id, "j1", [], {"judge": "strict"})
    assert index.select("seed=4")[0].beside == ("scores.j1.jsonl",)
    store.set_aside(run_id)
    assert index.select("seed=4") == []
    assert len(index.select()) == 11


def test_a_change_within_the_clock_resolution_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path, durable=False)
    index = Index(store)
    assert index.select() == []
    run_id = add(store, 1)
    shard, directory = store.run_dir(run_id).parent.stat(), store.run_dir(run_id).stat()
    assert index.select()[0].beside == ()
    store.write_scores(run_id, "j1", [], {"judge": "strict"})
    os.utime(store.run_dir(run_id), ns=(directory.st_atime_ns, directory.st_mtime_ns))
    os.utime(store.run_dir(run_id).parent, ns=(shard.st_atime_ns, shard.st_mtime_ns))
    assert index.select()[0].beside == ("scores.j1.jsonl",)


def test_a_score_whose_writer_was_killed_before_tidying_is_noticed(store: Store) -> None:
    index = Index(store)
    row = index.select("seed=4")[0]
    directory = store.run_dir(row.run_id)
    left = directory.parent / ".tmp.dead"
    left.write_bytes(doc.encode_beside({"judge": "x", "judge_id": "j1"}, []))
    settle(store)
    assert index.select("seed=4")[0].beside == ()
    os.link(left, directory / "scores.j1.jsonl")  # and then it dies: the shard does not change
    assert index.select("seed=4")[0].beside == ("scores.j1.jsonl",)


@pytest.mark.parametrize("damage", ["delete", "garbage", "other release"])
def test_the_cache_may_be_deleted_or_damaged(store: Store, damage: str) -> None:
    index = Index(store)
    rows = index.select("attack=pair", ["seed"])
    index.path.unlink()
    if damage == "garbage":
        index.path.write_bytes(b"PAR1 not really")
    if damage == "other release":
        duckdb.sql(f"COPY (SELECT 'x' AS run_id, 1 AS shard_mtime) TO '{index.path}'")
    assert Index(store).select("attack=pair", ["seed"]) == rows


def test_damaged_runs_are_reported_and_do_not_hide_the_others(store: Store) -> None:
    run_id = next(store.runs())
    (store.run_dir(run_id) / "run.json").write_bytes(b"{")
    settle(store)
    index = Index(store)
    assert len(index.select()) == 11
    assert list(index.problems()) == [run_id]
    assert list(Index(store).problems()) == [run_id]


def test_a_store_that_may_only_be_read_is_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / "index").write_text("not a directory", encoding="utf-8")
    index = Index(store)
    assert len(index.select("attack=gcg")) == 8
    index.close()


def test_compressed_and_plain_runs_are_listed_alike(tmp_path: Path) -> None:
    add(Store(tmp_path), 1)
    add(Store(tmp_path, compression="zstd"), 2)
    rows = Index(Store(tmp_path)).select((), ["seed", "execution.generation"])
    assert sorted(row.values for row in rows) == [(1, 1), (2, 1)]
