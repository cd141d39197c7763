"""The run store through its public face: claims, publishing, later passes, damage, full disks."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from adversariallm.core.errors import LostLeaseError, SchemaError, StoreError
from adversariallm.runs import document as doc
from adversariallm.runs.claim import Claim, StopRequested
from adversariallm.runs.document import strip_volatile
from adversariallm.runs.files import CorruptRunError
from adversariallm.runs.store import Store

RUN = "ab" + "0" * 30
OTHER = "cd" + "1" * 30


@pytest.fixture(params=["none", "zstd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path / "store", compression=request.param)


def claimed(store: Store, run_id: str = RUN, **options: Any) -> Claim:
    claim = store.claim(run_id, {"seed": 0}, **options)
    assert isinstance(claim, Claim)
    return claim


def document(num_steps: int = 2) -> dict[str, Any]:
    steps = [
        {"step": i, "loss": i / 3, "model_completions": [f"a\n{i}"], "scores": {}, "time_taken": i}
        for i in range(num_steps)
    ]
    run = {"original_prompt": [{"role": "user", "content": "hi"}], "total_time": 1.5}
    return {"config": {"seed": 0}, "runs": [{**run, "steps": steps}, {**run, "steps": steps[:1]}]}


def published(store: Store, run_id: str = RUN, **facts: Any) -> Store:
    with claimed(store, run_id) as claim:
        assert claim.publish({**document(), **facts})
    return store


def costs(queries: int, cost: float = 0.1) -> dict[str, Any]:
    return {"optimization": {"model": {"queries": queries, "cost": cost}}}


def test_a_run_is_claimed_journaled_published_and_read_back(store: Store) -> None:
    assert store.status(RUN) == "new"
    with claimed(store) as claim:
        assert store.status(RUN) == "held"
        assert store.claim(RUN, {"seed": 0}) == "held"
        claim.append("step", {"step": 0})
        assert claim.publish(document())
    assert store.status(RUN) == "done"
    assert store.claim(RUN, {"seed": 0}) == "done"
    read = store.read(RUN)
    assert {k: v for k, v in read.items() if k in ("config", "runs")} == document()
    assert read["run_id"] == RUN
    assert list(store.runs()) == [RUN]
    assert list((store.root / "trash").iterdir()) == []
    assert not (store.root / "work" / "ab" / RUN).exists()


def test_the_file_is_one_json_document_with_the_header_first_and_one_step_a_line(
    store: Store,
) -> None:
    published(store)
    text = store.text(RUN)
    assert json.loads(text)["runs"] == document()["runs"]
    lines = text.splitlines()
    assert json.loads(lines[0] + b"]}")["config"] == {"seed": 0}
    steps = [json.loads(line.rstrip(b",")) for line in lines if line.startswith(b'{"step":')]
    assert steps == [*document()["runs"][0]["steps"], *document()["runs"][1]["steps"]]
    assert store.header(RUN)["runs"] == []


@pytest.mark.parametrize("runs", [[], [{"steps": []}], [{"steps": []}, {"steps": [{}]}]])
def test_empty_documents_are_valid_json(store: Store, runs: list[Any]) -> None:
    with claimed(store) as claim:
        claim.publish({"config": {}, "runs": runs})
    assert json.loads(store.text(RUN))["runs"] == runs
    assert store.read(RUN)["runs"] == runs


def test_both_compressions_give_the_same_bytes(tmp_path: Path) -> None:
    plain, packed = Store(tmp_path / "a"), Store(tmp_path / "b", compression="zstd")
    assert published(plain).text(RUN) == published(packed).text(RUN)
    assert (packed.run_dir(RUN) / "run.json.zst").exists()


def test_a_released_run_resumes_at_its_last_record(store: Store) -> None:
    with claimed(store) as claim:
        claim.append("step", {"step": 0, "text": "x" * 200_000})
        claim.append("completion", {"step": 0, "sample": 0})
        claim.append("step", {"step": 1}, {"state": torch.arange(4, dtype=torch.bfloat16)})
    assert store.status(RUN) == "released"
    with claimed(store) as claim:
        assert claim.generation == 2
        resumed = claim.resume()
        assert [s["step"] for s in resumed.steps] == [0, 1]
        assert resumed.completions == [{"step": 0, "sample": 0}]
        state = resumed.last_tensors()["state"]
        assert state.dtype == torch.bfloat16
        assert state.tolist() == [0, 1, 2, 3]


def test_a_torn_tail_and_what_follows_it_is_dropped(store: Store) -> None:
    with claimed(store) as claim:
        claim.append("step", {"step": 0})
        claim.append("step", {"step": 1})
    log = next((store.root / "work").glob("*/*/journal.*"))
    whole = log.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        log.write_bytes(whole[:-cut])
        with claimed(store) as claim:
            assert [s["step"] for s in claim.resume().steps] == [0]
        for path in log.parent.glob("*.000002*"):
            path.unlink()
    log.write_bytes(whole.replace(b'"step":0', b'"step":7'))  # a flipped bit
    with claimed(store) as claim:
        assert claim.resume().steps == []


def test_a_record_whose_tensors_are_missing_is_not_resumed(store: Store) -> None:
    with claimed(store) as claim:
        claim.append("step", {"step": 0}, {"x": torch.ones(1)})
        claim.append("step", {"step": 1}, {"x": torch.ones(1)})
    sorted((store.root / "work").glob("*/*/tensors.*"))[1].unlink()
    with claimed(store) as claim:
        assert [s["step"] for s in claim.resume().steps] == [0]


def test_the_older_of_two_holders_is_fenced_off(tmp_path: Path) -> None:
    slow, fast = (Store(tmp_path, ttl_s=60, host=h) for h in ("slow", "fast"))
    zombie = claimed(slow)
    zombie.append("step", {"step": 0, "by": "zombie"})
    os.utime(zombie.work / "lease.000001", (1, 1))  # silent for longer than the TTL
    assert fast.status(RUN) == "expired"
    with claimed(fast) as claim:
        assert [s["by"] for s in claim.resume().steps] == ["zombie"]
        zombie.append("step", {"step": 1, "by": "zombie"})  # it has not looked yet
        claim.append("step", {"step": 1, "by": "heir"})
        with pytest.raises(LostLeaseError, match="generation 2 took the run over"):
            zombie.heartbeat()
        with pytest.raises(LostLeaseError):
            zombie.publish(document(0))
        assert not fast.is_published(RUN)
    with claimed(fast) as claim:
        assert [s["by"] for s in claim.resume().steps] == ["zombie", "heir"]
        assert claim.publish(document())
    with pytest.raises(LostLeaseError, match="finished or removed"):
        zombie.heartbeat()
    zombie.fail("too late")
    assert fast.failed() == []
    assert fast.status(RUN) == "done"


def test_the_second_to_publish_loses_even_when_it_passed_every_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = claimed(store)
    os.utime(late.work / "lease.000001", (1, 1))
    monkeypatch.setattr(store, "host", "elsewhere")
    first = claimed(store)
    monkeypatch.setattr(late, "check", lambda: None)
    monkeypatch.setattr(store, "discard_work", lambda work: None)
    assert first.publish(document(3))
    assert late.publish(document(1)) is False
    assert len(store.read(RUN)["runs"][0]["steps"]) == 3


def test_the_clock_of_a_host_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = claimed(Store(tmp_path))
    for skew_s in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda skew_s=skew_s: 1.7e9 + skew_s)
        monkeypatch.setattr(time, "time_ns", lambda skew_s=skew_s: int((1.7e9 + skew_s) * 1e9))
        other = Store(tmp_path, host="with a wrong clock")
        assert other.status(RUN) == "held"
        assert other.claim(RUN, {}) == "held"
    os.utime(holder.work / "lease.000001", (1, 1))
    assert other.status(RUN) == "expired"
    holder.release()


def test_a_dead_process_on_this_host_loses_its_lease_at_once(tmp_path: Path) -> None:
    code = (
        "import os; from adversariallm.runs.store import Store;"
        f"c = Store({str(tmp_path)!r}, ttl_s=1e6).claim({RUN!r}, {{}});"
        "c.append('step', {'n': 1}); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    store = Store(tmp_path, ttl_s=1e6)
    assert store.status(RUN) == "expired"
    assert Store(tmp_path, ttl_s=1e6, host="another").status(RUN) == "held"
    with claimed(store) as claim:
        assert claim.resume().steps == [{"n": 1}]


def test_a_failed_run_keeps_its_traceback_and_is_taken_again_only_on_request(store: Store) -> None:
    with claimed(store) as claim:
        claim.append("step", {"step": 0})
        claim.fail("ValueError: no", "Traceback ...")
    assert store.status(RUN) == "failed"
    assert store.claim(RUN, {}) == "failed"
    (failure,) = store.failed()
    assert (failure.key, failure.error, failure.generation) == (RUN, "ValueError: no", 1)
    assert failure.traceback == "Traceback ..."
    with claimed(store, retry=True) as claim:
        assert len(claim.resume().steps) == 1
        claim.publish(document())
    assert store.failed() == []
    assert failure.path.exists()


def test_a_run_that_keeps_killing_its_worker_is_failed_not_tried_for_ever(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(1, 4):
        claim = claimed(store)
        if number == 1:
            claim.append("step", {"step": 0})  # progress: such a death does not count
        claim._lease.close()
        os.utime(claim.work / f"lease.{number:06d}", (1, 1))
    claim = claimed(store)
    claim._lease.close()
    os.utime(claim.work / "lease.000004", (1, 1))
    assert store.claim(RUN, {}) == "failed"
    assert "died 3 times in a row" in store.failed()[0].error
    with claimed(store, retry=True) as claim:
        assert claim.generation == 5
        assert claim.resume().steps == [{"step": 0}]


def test_a_reopened_run_is_claimed_once_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    claimed(store).fail("first")
    store.reopen(RUN)
    assert store.status(RUN) == "released"
    claimed(store).fail("second")
    assert store.claim(RUN, {}) == "failed"
    assert [f.error for f in store.failed()] == ["second"]
    store.reopen(OTHER)
    assert store.status(OTHER) == "new"


def test_a_process_that_is_asked_to_stop_gives_its_run_back_between_steps(tmp_path: Path) -> None:
    asked: list[int] = []
    store = Store(tmp_path, stop=lambda: bool(asked))
    with pytest.raises(StopRequested), claimed(store) as claim:
        claim.heartbeat()
        asked.append(1)
        claim.append("step", {"step": 0})
        claim.heartbeat()
    assert store.status(RUN) == "released"
    with claimed(store) as claim:
        assert claim.resume().steps == [{"step": 0}]
        assert claim.publish(document())  # what is complete is published even then


def test_an_exception_gives_the_run_back(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(store):
        raise KeyboardInterrupt
    assert store.status(RUN) == "released"


def test_scores_and_later_completions_are_joined(store: Store) -> None:
    published(store)
    rows = [{"run": 0, "step": 1, "scores": {"p_harmful": [0.5], "label": ["no"]}}]
    assert store.write_scores(RUN, "j1", rows, {"judge": "strict"})
    assert not store.write_scores(RUN, "j1", rows, {"judge": "strict"})
    more = [{"run": 0, "step": 1, "append": {"model_completions": ["b", "c"]}}]
    assert store.top_up(RUN, more, {"flops": 1})
    assert not store.top_up(RUN, more, {"flops": 1})
    late = [{"run": 0, "step": 1, "start": 2, "scores": {"p_harmful": [1.0]}}]
    assert store.write_scores(RUN, "j1", late, {"judge": "strict"}, after=1)
    assert store.write_scores(RUN, "j2", rows, {"judge": "mild"})
    step = store.read(RUN)["runs"][0]["steps"][1]
    assert step["model_completions"] == ["a\n1", "b", "c"]
    assert step["scores"]["strict"] == {"p_harmful": [0.5, None, 1.0], "label": ["no"]}
    assert step["scores"]["mild"]["p_harmful"] == [0.5]
    assert [s.path.name for s in store.scores(RUN)] == [
        "scores.j1.jsonl",
        "scores.j1.2.jsonl",
        "scores.j2.jsonl",
    ]
    assert len(store.scores(RUN, "j1")) == 2
    assert store.read(RUN)["runs"][1]["steps"][0]["scores"] == {}


def test_two_judges_of_one_name_are_told_apart(store: Store) -> None:
    published(store)
    rows = [{"run": 0, "step": 0, "scores": {"p_harmful": [0.5]}}]
    for judge_id in ("j1", "j2"):
        store.write_scores(RUN, judge_id, rows, {"judge": "strict"})
    assert list(store.read(RUN)["runs"][0]["steps"][0]["scores"]) == ["strict:j1", "strict:j2"]


def test_a_later_pass_is_claimed_apart_from_its_run(store: Store) -> None:
    published(store)
    with claimed(store, task="judge.j1") as claim:
        assert store.status(RUN, "judge.j1") == "held"
        assert store.claim(RUN, {}, task="judge.j1") == "held"
        claim.append("completion", {"n": 1})
    with claimed(store, task="judge.j1") as claim:
        assert claim.resume().completions == [{"n": 1}]
        claim.finish()
    assert store.status(RUN, "judge.j1") == "new"
    assert store.status(RUN) == "done"


def test_a_zombie_does_not_mistake_the_next_first_generation_for_its_own(tmp_path: Path) -> None:
    store = published(Store(tmp_path))
    zombie = claimed(store, task="t")
    store.discard_work(zombie.work)
    claimed(store, task="t")
    with pytest.raises(LostLeaseError):
        zombie.heartbeat()


def test_a_zombie_learns_that_its_run_was_finished(tmp_path: Path) -> None:
    store = Store(tmp_path)
    zombie = claimed(store)
    store.discard_work(zombie.work)
    with pytest.raises(LostLeaseError, match="finished or removed"):
        zombie.append("step", {}, {"x": torch.ones(1)})
    with pytest.raises(LostLeaseError, match="finished or removed"):
        zombie.publish(document())


def test_tensors_of_a_run_lie_beside_it(store: Store) -> None:
    from safetensors.torch import load_file

    with claimed(store) as claim:
        claim.publish(document(), {"0/embeddings": torch.eye(3)[:, :2]})
    path = store.tensor_file(RUN)
    assert path is not None
    assert load_file(path)["0/embeddings"].tolist() == torch.eye(3)[:, :2].tolist()


def test_the_survey_tells_all_states_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.survey() == {}
    published(store)
    for char, action in (("1", "release"), ("2", "fail"), ("3", "hold"), ("4", "expire")):
        claim = claimed(store, char * 32)
        if action == "release":
            claim.release()
        elif action == "fail":
            claim.fail("e")
        elif action == "expire":
            os.utime(claim.work / "lease.000001", (1, 1))
    states = {key[0]: state for key, state in store.survey().items()}
    assert states == {"a": "done", "1": "released", "2": "failed", "3": "held", "4": "expired"}


# Damage


@pytest.mark.parametrize("damage", ["cut", "edit", "empty", "gone", "other"])
def test_a_damaged_run_is_reported_set_aside_and_run_again(store: Store, damage: str) -> None:
    published(store)
    path = next(store.run_dir(RUN).iterdir())
    text = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": text[: len(text) // 3],
                "empty": b"",
                "edit": text[:-1] + b"x",
                "other": b"{}\n",
            }[damage]
        )
    if damage != "gone":
        with pytest.raises((CorruptRunError, SchemaError), match=path.name):
            store.read(RUN)
    assert list(store.damaged()) == [RUN]
    if damage == "edit":  # its header is whole: only reading finds it
        store.set_aside(RUN)
    with claimed(store) as claim:
        claim.publish(document())
    assert store.damaged() == {}
    assert len(list((store.root / "corrupt").iterdir())) == 1


def test_a_value_edited_by_hand_is_noticed(tmp_path: Path) -> None:
    store = published(Store(tmp_path))
    path = store.run_dir(RUN) / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"loss":0.0', b'"loss":9.0'))
    with pytest.raises(CorruptRunError, match="changed after it was published.*set it aside"):
        store.read(RUN)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_edited_header_is_noticed_and_set_aside(
    tmp_path: Path, compression: Literal["none", "zstd"]
) -> None:
    store = published(Store(tmp_path, compression=compression), ledgers=costs(38))
    path = doc.run_file(store.run_dir(RUN))
    assert path is not None
    header, _, body = doc.read_text(path).partition(b"\n")
    changed, body = header.replace(b'"queries":38', b'"queries":48') + b"\n", body
    path.write_bytes(doc.compress(changed, body) if compression == "zstd" else changed + body)
    for read in (store.read, store.header):
        with pytest.raises(CorruptRunError, match="header_sha256 does not match its header"):
            read(RUN)
    assert list(store.damaged()) == [RUN]
    assert not isinstance(store.claim(RUN, {}), str)


def test_a_header_without_a_hash_still_opens_and_its_costs_are_summed_again(
    tmp_path: Path,
) -> None:
    runs = [{"steps": [{"ledgers": costs(1)}, {"ledgers": costs(2)}]}]
    whole = {**costs(7, cost=0.3), "setup": {"model": {"queries": 1}}}
    facts = {"ledgers": whole, "remainder": costs(4), "resolved": {"seed": 0}, "runs": runs}
    store = Store(tmp_path)
    with claimed(store) as claim:
        claim.publish({**document(), **facts})
    path = store.run_dir(RUN) / "run.json"
    assert doc.header_is_verified(store.header(RUN))
    older = re.sub(rb',"header_sha256":"[0-9a-f]{64}"', b"", path.read_bytes())
    path.write_bytes(older)
    assert not doc.header_is_verified(store.read(RUN))
    assert store.damaged() == {}
    for changed in (b'"queries":70', b'"queries":"x"', b'"unknown":7'):
        path.write_bytes(older.replace(b'"queries":7', changed, 1))
        with pytest.raises(CorruptRunError, match="changed after it was published.*ledgers"):
            store.read(RUN)


def test_an_edited_score_file_is_named(store: Store) -> None:
    published(store)
    store.write_scores(RUN, "j1", [{"run": 0, "step": 0, "scores": {"x": [1]}}], {"judge": "j"})
    path = store.run_dir(RUN) / "scores.j1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"[1]", b"[0]"))
    with pytest.raises(CorruptRunError, match=r"scores\.j1\.jsonl"):
        store.read(RUN)


def test_another_schema_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    store = published(Store(tmp_path))
    path = store.run_dir(RUN) / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":99'))
    with pytest.raises(SchemaError, match="schema version 99; this release reads 1"):
        store.read(RUN)
    assert store.claim(RUN, {}) == "done"


def test_a_journal_of_another_schema_version_is_started_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adversariallm.runs.store.SCHEMA_VERSION", 0)
    with claimed(store) as claim:
        claim.append("step", {"step": 0})
    monkeypatch.undo()
    with claimed(store) as claim:
        assert claim.resume().entries == ()


def test_a_store_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"layout": 7}', encoding="utf-8")
    with pytest.raises(SchemaError, match="layout 7"):
        Store(tmp_path)


@pytest.mark.parametrize("run_id", ["../x", "", "a/b", ".hidden", "a..b", "x" * 200])
def test_names_cannot_leave_the_store(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(StoreError, match="cannot name a file"):
        Store(tmp_path).claim(run_id, {})


def test_an_unknown_run_is_an_error_that_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="runs list"):
        Store(tmp_path).read(RUN)
    with pytest.raises(StoreError, match="runs list"):
        Store(tmp_path).write_scores(RUN, "j", [], {"judge": "j"})


# Full and read-only disks


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_in_the_middle_of_a_step_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.write

    def half(fd: int, data: Any) -> int:
        monkeypatch.setattr(os, "write", broken)
        return real(fd, bytes(data)[: len(data) // 2])

    def broken(fd: int, data: Any) -> int:
        raise OSError(code, os.strerror(code))

    with claimed(store) as claim:
        claim.append("step", {"step": 0})
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(StoreError, match="could not append a step.*are kept"):
            claim.append("step", {"step": 1})
        with pytest.raises(StoreError, match="could not publish"):
            claim.publish(document())
        monkeypatch.setattr(os, "write", real)
        claim.append("step", {"step": 1})
    with claimed(store) as claim:
        assert [s["step"] for s in claim.resume().steps] == [0, 1]
        assert claim.publish(document())
    assert store.damaged() == {}


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting needs root")
def test_a_really_full_and_a_read_only_file_system(tmp_path: Path) -> None:
    options = ["-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        store = Store(tmp_path)
        with claimed(store) as claim:
            done = 0
            with pytest.raises(StoreError, match="the disk is full"):
                for done in range(1000):
                    claim.append("step", {"step": done, "text": "x" * 5000})
        with pytest.raises(StoreError, match="could not claim a run.*the disk is full"):
            store.claim(RUN, {})
        subprocess.run(["mount", "-o", "remount,size=512k", str(tmp_path)], check=True)
        with claimed(store) as claim:
            assert len(claim.resume().steps) == done > 10
            with pytest.raises(StoreError, match="the disk is full"):
                claim.publish({"runs": [{"steps": [{"text": "y" * 300_000}]}]})
        assert store.status(RUN) in ("released", "expired")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(StoreError, match="read-only"):
            store.claim(OTHER, {})
        assert Store(tmp_path).survey() == {RUN: "released"}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# Cleaning and comparing


def test_gc_removes_leftovers_and_keeps_unfinished_work(tmp_path: Path) -> None:
    store = published(Store(tmp_path))
    (store.root / "runs" / "ab" / ".tmp.x").touch()
    (store.root / "trash" / "t").mkdir()
    stale = store.root / "work" / "ab" / RUN
    stale.mkdir()
    claimed(store, OTHER).release()
    assert store.gc() == []
    listed = store.gc(older_than_s=-5, dry_run=True)
    assert {p.name for p in listed} == {".tmp.x", "t", RUN}
    assert store.gc(older_than_s=-5) == listed
    assert not stale.exists()
    assert store.survey() == {RUN: "done", OTHER: "released"}


def test_strip_volatile_removes_times_and_execution_everywhere() -> None:
    a = {
        "total_time": 1,
        "execution": {"host": "a"},
        "runs": [{"steps": [{"time_taken": 2, "x": 1}]}],
    }
    assert strip_volatile(a) == {"runs": [{"steps": [{"x": 1}]}]}
    assert a["total_time"] == 1


def test_equal_runs_are_equal_after_stripping_whatever_their_history(tmp_path: Path) -> None:
    smooth, bumpy = Store(tmp_path / "a"), Store(tmp_path / "b")
    published(smooth)
    claimed(bumpy).release()
    published(bumpy)
    assert smooth.text(RUN) != bumpy.text(RUN)
    assert strip_volatile(smooth.read(RUN)) == strip_volatile(bumpy.read(RUN))


def test_importing_the_store_does_not_import_torch() -> None:
    code = "import sys, adversariallm.runs.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
