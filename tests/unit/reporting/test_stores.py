"""Reading stores, comparing groups in them and bundling them, also through the command line."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.core.errors import ConfigError, DataError, StoreError
from adversariallm.evaluation.fakes import fake_document
from adversariallm.reporting.bundle import scrub, write_bundle
from adversariallm.reporting.imports import publish
from adversariallm.reporting.load import load_results, read_documents
from adversariallm.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    documents = [
        *(fake_document([[0.0], [0.0]], behavior=f"b{i}", attack="direct") for i in range(9)),
        *(fake_document([[0.0], [1.0]], behavior=f"b{i}", attack="gcg") for i in range(9)),
    ]
    documents[0]["provenance"] = {
        "packages": {"torch": "2.13.0"},
        "host": "gpu-node-7",
        "cache": "/home/alice/.cache/models",
    }
    made = Store(tmp_path / "out", durable=False, host="gpu-node-7")
    publish(made, documents)
    return made


def test_read_documents_selects_by_facets_and_skips_what_is_damaged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read_documents(store.root)) == 18
    assert len(read_documents(store.root, {"attack": "gcg"})) == 9
    assert len(read_documents(store.root, {"attack": ["gcg", "direct"], "seed": 1})) == 0
    with pytest.raises(ConfigError, match="expected some of"):
        read_documents(store.root, {"tactic": "gcg"})
    with pytest.raises(StoreError, match="no folder"):
        read_documents(store.root / "nowhere")
    damaged = next(iter(store.runs()))
    path = store.run_dir(damaged) / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"loss":null', b'"loss":1.0', 1))
    assert len(read_documents(store.root)) == 17
    assert damaged in caplog.text


def test_judging_cost_is_joined_into_the_ledgers(store: Store) -> None:
    run_id = next(iter(store.runs()))
    ledgers = {"judging": {"judge": {"queries": 2, "flops": 77}}}
    store.write_scores(run_id, "x", [], {"judge": "x", "ledgers": ledgers})
    document = next(d for d in read_documents(store.root) if d["run_id"] == run_id)
    assert document["ledgers"]["judging"]["judge"]["flops"] == 77


def test_frames_need_pandas_and_say_so(store: Store) -> None:
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="pip install"):
            load_results(store.root)
    else:
        frames = load_results(store.root, {"attack": "gcg"})
        assert (len(frames.runs), len(frames.steps), len(frames.completions)) == (9, 18, 18)


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out + out.err


def test_compare_command_concludes_in_a_sentence(store: Store, capsys: Any) -> None:
    code, text = _run(capsys, "compare", "attack=direct", "attack=gcg", "--out", store.root)
    assert code == 0
    assert "gcg has a higher attack success than direct" in text
    code, text = _run(
        capsys,
        "compare",
        "attack=direct",
        "attack=gcg",
        "--out",
        store.root,
        "--at",
        "queries",
        "--json",
    )
    assert json.loads(text)[0]["rate_b"] == 1.0
    code, text = _run(
        capsys,
        "compare",
        "attack=direct",
        "attack=gcg",
        "--out",
        store.root,
        "--at",
        "queries=12",
        "--sensitivity",
    )
    assert "No difference" in text and "under refusal_prefix at 0.5: B higher" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["attack=direct"], "two groups"),
        (
            ["attack=direct", "attack=bon"],
            "no stored run has attack=bon; attack is one of direct, gcg",
        ),
        (["attack=direct", "gcg"], "has no operator"),
        (["attack=direct", "attack=gcg", "--at", "money"], "expected one of flops"),
        (["attack=direct", "attack=gcg", "--at", "flops=much"], "expected a number"),
        (["attack=direct", "attack=gcg", "--when", "ever"], "expected one of any"),
    ],
)
def test_compare_command_refuses_with_the_reason(
    store: Store, capsys: Any, arguments: list[str], said: str
) -> None:
    code, text = _run(capsys, "compare", *arguments, "--out", store.root)
    assert code == 2
    assert said in text


def test_export_and_import_commands_close_the_circle(
    store: Store, tmp_path: Path, capsys: Any
) -> None:
    code, text = _run(capsys, "export", store.root, "--to", "table6", "-o", tmp_path / "t6")
    assert code == 0 and text.count("run.json") == 18
    other = tmp_path / "other"
    code, text = _run(capsys, "import", tmp_path / "t6", "--from", "table6", "--out", other)
    assert code == 0 and "18 runs added" in text
    assert _run(capsys, "import", tmp_path / "t6", "--from", "table6", "--out", other)[
        1
    ].startswith("0 runs added")
    again = read_documents(other)
    assert sum(s["scores"] != {} for d in again for r in d["runs"] for s in r["steps"]) == 36
    code, text = _run(
        capsys, "export", store.root, "--to", "csv", "-o", tmp_path / "c", "--redact", "answers"
    )
    assert code == 0
    assert "answer 0 at step" not in (tmp_path / "c" / "completions.csv").read_text()
    assert _run(capsys, "export", store.root, "--to", "cvs")[0] == 2


def test_bundle_names_nobody_and_reads_like_the_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    path = write_bundle(store, tmp_path / "bundle")
    again = write_bundle(store, tmp_path / "second.zip")
    assert path.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        everything = b"".join(archive.read(n) for n in names)
        manifest = json.loads(archive.read("manifest.json"))
        assert archive.read("requirements.txt") == b"torch==2.13.0\n"
        archive.extractall(tmp_path / "unpacked")
    for secret in (b"alice", b"gpu-node-7", str(tmp_path).encode()):
        assert secret not in everything
    assert len(manifest["runs"]) == 18
    ours, theirs = (read_documents(p) for p in (store.root, tmp_path / "unpacked" / "store"))
    assert [d["config"] for d in ours] == [d["config"] for d in theirs]
    assert [d["runs"] for d in ours] == [d["runs"] for d in theirs]


def test_bundle_refuses_an_identity_with_a_path_and_an_empty_selection(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no published run"):
        write_bundle(store, tmp_path / "x", where={"attack": "bon"})
    publish(store, [fake_document([[1.0]], options={"file": "/home/alice/prompts.txt"})])
    with pytest.raises(DataError, match=r"attack\.options\.file"):
        write_bundle(store, tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/bob/models/a.bin", "a.bin"),
        ("see /data/x/y.txt and https://host.org/a/b", "see y.txt and https://host.org/a/b"),
        ("org/model-7b", "org/model-7b"),
        ("C:\\Users\\bob\\x.txt", "x.txt"),
        ("models./home/bob/toy.dtype=float32", "models.toy.dtype=float32"),
    ],
)
def test_scrub_keeps_names_and_drops_places(text: str, left: str) -> None:
    assert scrub(text) == left


def test_report_command_gates_and_writes_every_form(
    store: Store, tmp_path: Path, capsys: Any
) -> None:
    gate = tmp_path / "gate.yaml"
    gate.write_text("- {name: g, measure: attack_success, where: {attack: gcg}, max: 0.5}\n")
    code, text = _run(
        capsys,
        "report",
        store.root,
        "--gate",
        gate,
        "--junit",
        tmp_path / "g.xml",
        "--markdown",
        tmp_path / "t.md",
        "--latex",
        tmp_path / "t.tex",
        "--csv",
        tmp_path / "t.csv",
        "--protocol",
        "bon",
    )
    assert code == 1
    assert "MISSED: g: gcg on toy" in text and "flag small_set" in text
    assert "deviates: judge refusal_prefix, published best_of_n" in text
    assert 'failures="1"' in (tmp_path / "g.xml").read_text()
    assert all((tmp_path / f"t.{e}").stat().st_size for e in ("md", "tex", "csv"))
    assert (store.root / "report.html").stat().st_size
    gate.write_text("- {name: g, measure: attack_success, where: {attack: direct}, max: 0.5}\n")
    assert _run(capsys, "report", store.root, "--gate", gate, "--quiet")[0] == 0


@pytest.mark.parametrize("option", ["-o", "--csv", "--latex", "--figures"])
def test_a_report_that_cannot_be_written_says_where(
    store: Store, tmp_path: Path, capsys: Any, option: str
) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "x"
    code, text = _run(capsys, "report", store.root, option, place)
    assert code == 2
    assert f"error: {place} cannot be written: " in text


@pytest.mark.parametrize("form", ["csv", "inspect-json", "bundle"])
def test_an_export_that_cannot_be_written_says_where(
    store: Store, tmp_path: Path, capsys: Any, form: str
) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "x"
    code, text = _run(capsys, "export", store.root, "--to", form, "-o", place)
    assert code == 2
    assert f"error: {place} cannot be written: " in text


def test_the_page_of_a_selection_leaves_that_of_the_store(store: Store, capsys: Any) -> None:
    assert _run(capsys, "report", store.root)[0] == 0
    whole = (store.root / "report.html").read_bytes()
    code, text = _run(capsys, "report", store.root, "--where", "attack=gcg,seed>=0")
    assert code == 0
    assert (store.root / "report.html").read_bytes() == whole
    assert (store.root / "report-attack=gcg_seed_=0.html").is_file()
    assert "report-attack=gcg_seed_=0.html" in text


def test_bundle_refuses_models_that_only_their_folders_tell_apart(tmp_path: Path) -> None:
    document = fake_document([[1.0]])
    document["runs"] = [{**document["runs"][0], "model": f"/home/{who}/toy"} for who in "ab"]
    other = Store(tmp_path / "out", durable=False)
    publish(other, [document])
    with pytest.raises(DataError, match="differ in their folder only"):
        write_bundle(other, tmp_path / "x")
