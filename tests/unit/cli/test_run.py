"""The main job on a tiny model: run, repeat, look at it, judge again, report, resume."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.models.tiny import tiny_parts


@pytest.fixture(autouse=True)
def no_bars() -> None:
    """What the command line sets for its own process, where transformers is imported already."""
    from transformers.utils import logging

    logging.disable_progress_bar()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint folder with random weights."""
    folder = tmp_path_factory.mktemp("model")
    parts = tiny_parts("llama")
    from transformers.utils import logging

    logging.disable_progress_bar()
    parts.model.save_pretrained(folder)
    parts.tokenizer.save_pretrained(folder)
    return str(folder)


def arguments(model: str, out: Path, *more: str) -> list[str]:
    choices = [f"models.{model}.{k}" for k in
               ("dtype=float32", "quantization=none", "template=tokenizer")]  # fmt: skip
    return [
        f"model={model}", *choices, "dataset=starter_harmful",
        "datasets.starter_harmful.idx=range(0,3)", "generation_config.max_new_tokens=4",
        f"out={out}", *more,
    ]  # fmt: skip


def test_the_life_of_a_store(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    search = ["attack=direct,random_search", "attacks.random_search.num_steps=1",
              "attacks.random_search.num_candidates=2"]  # fmt: skip

    def call(*words: str) -> tuple[int, str]:
        code = main(list(words))
        return code, capsys.readouterr().out

    code, shown = call("run", *arguments(model, out, *search))
    assert code == 0
    assert "6 runs to do" in shown
    assert "[6/6, about 0 s left] done" in shown
    assert "refusal_prefix" in shown  # judged without being asked

    code, shown = call("run", *arguments(model, out, *search))
    assert code == 0
    assert "0 runs to do" in shown
    assert f"skipped: already done in {out}/runs/" in shown

    code, shown = call("status", str(out), "--json")
    assert (code, json.loads(shown)["states"]) == (0, {"done": 6})

    code, shown = call("runs", "list", "--store", str(out), "--where", "attack=direct", "--json")
    rows = json.loads(shown)
    assert [r["attack"] for r in rows] == ["direct"] * 3
    assert {tuple(r["judges"]) for r in rows} == {("refusal_prefix",)}

    code, shown = call("runs", "show", rows[0]["run_id"][:12], "--store", str(out), "--texts")
    assert code == 0
    assert "attack.name = direct" in shown

    code, shown = call("judge", f"out={out}", "judge=target_prefix", "--where", "attack=direct")
    assert code == 0
    assert "3 runs judged by target_prefix, 0 problems" in shown

    code, shown = call("judge", f"out={out}", "judge=exact_match", "--where", "attack=beast")
    assert code == 2
    kept = [json.loads(line) for line in (out / "commands.jsonl").read_text().splitlines()]
    assert [row["where"] for row in kept] == [[], ["attack=direct"]]
    first = ("--where", "attack=direct,fit.ids=" + rows[0]["items"][0])
    code, shown = call("judge", f"out={out}", "judge=exact_match", *first)
    assert "1 runs judged" in shown  # a comma is `and`, in every command alike
    code, shown = call("report", str(out), *first, "-o", str(tmp_path / "one.html"), "--csv",
                       str(tmp_path / "one.csv"))  # fmt: skip
    with (tmp_path / "one.csv").open() as file:
        assert {(r["attack"], r["behaviors"]) for r in csv.DictReader(file)} == {("direct", "1")}

    code, shown = call("report", str(out), "--csv", str(tmp_path / "table.csv"))
    assert code == 0
    assert "target_prefix" in (tmp_path / "table.csv").read_text()
    assert (out / "report.html").stat().st_size > 10_000

    changed = arguments(model, out, "attack=direct", "generation_config.top_k=5")
    code, shown = call("runs", "why-skipped", *changed)
    assert "generation.top_k: stored None, now 5" in shown

    code, shown = call("resume", str(out))
    assert code == 0
    assert "adversariallm judge" in shown
    code, shown = call("resume", str(out), "--all")
    assert code == 0
    assert "0 runs to do" in shown
    kept = [json.loads(line) for line in (out / "commands.jsonl").read_text().splitlines()]
    assert {row["verb"] for row in kept} == {"run", "judge"}


def test_later_passes_from_the_command_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"out={tmp_path / 'out'}"
    assert main(["run", *arguments(model, tmp_path / "out", "attack=direct"), "--quiet"]) == 0
    warmer = ["sample", out, "generation_config.temperature=1"]
    capsys.readouterr()
    assert main([*warmer, "--dry-run"]) == 0
    assert "3 runs to do in 1 group(s), 0 skipped" in capsys.readouterr().out
    assert main([*warmer, "--where", "fit.ids~harmful"]) == 0
    assert "[3/3, about 0 s left] done" in capsys.readouterr().out
    assert main(["runs", "list", "--store", str(tmp_path / "out"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted(r["parent"].split()[:1] for r in rows) == [[], [], [], *[["inputs"]] * 3]
    assert main(["transfer", out]) == 2
    assert "this is the model it was made for" in capsys.readouterr().err
    assert main(["extend", out]) == 2
    assert "attack 'direct' cannot be extended" in capsys.readouterr().err
    assert main(["sample", out, "--id", "zz", "completions=last"]) == 1
    assert "no run starts with 'zz'" in capsys.readouterr().err


def test_more_samples_are_added_to_what_is_stored(model: str, tmp_path: Path) -> None:
    import adversariallm

    warm = "generation_config.temperature=1.0"

    def samples(out: Path, *more: str) -> dict[str, list[list[str]]]:
        finished = adversariallm.run(
            *arguments(model, out, "attack=random_search", "attacks.random_search.num_steps=2",
                       "attacks.random_search.num_candidates=2", warm, *more)
        )  # fmt: skip
        assert finished.exit_code == 0
        found = {}
        for run_id in finished.run_ids:
            steps = finished.store.read(run_id)["runs"][0]["steps"]
            found[run_id] = [s["model_completions"] for s in steps]
            assert all(
                len(s["scores"]["refusal_prefix"]["p_harmful"]) == len(s["model_completions"])
                for s in steps
                if s["model_completions"]
            )
        return found

    three = "generation_config.num_return_sequences=3"
    one = samples(tmp_path / "grown", "completions=last")
    assert [[len(c) for c in steps] for steps in one.values()] == [[0, 0, 1]] * 3
    grown = samples(tmp_path / "grown", three)
    assert grown == samples(tmp_path / "at once", three)
    assert [[len(c) for c in steps] for steps in grown.values()] == [[3, 3, 3]] * 3
    assert samples(tmp_path / "grown", "completions=last") == grown  # fewer: nothing is taken away


def test_a_failed_run_is_kept_apart_and_costs_the_others_nothing(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import adversariallm.runs.worker as worker

    execute = worker.execute

    def sometimes(task: Any, *rest: Any, **options: Any) -> Any:
        if task.spec.fit.ids[0] == bad:
            raise RuntimeError("a bug in the attack")
        return execute(task, *rest, **options)

    from adversariallm.datasets import load_dataset

    bad = load_dataset("starter_harmful")[1].id
    monkeypatch.setattr(worker, "execute", sometimes)
    command = ["run", *arguments(model, tmp_path / "out", "attack=direct")]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "a bug in the attack" in shown.err
    assert "1 runs failed; the others are kept" in shown.out

    assert main(command) == 1
    assert "retry=true" in capsys.readouterr().out

    assert main(["status", str(tmp_path / "out")]) == 1
    assert "a bug in the attack" in capsys.readouterr().out

    monkeypatch.setattr(worker, "execute", execute)
    assert main([*command, "retry=true"]) == 0


def test_quiet_prints_nothing_where_all_is_well(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--quiet", *arguments(model, tmp_path / "out", "attack=direct")]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_the_python_entry_is_the_same_code(model: str, tmp_path: Path) -> None:
    import adversariallm

    finished = adversariallm.run(*arguments(model, tmp_path / "out", "attack=direct"))
    assert len(finished.run_ids) == 3
    assert finished.exit_code == 0
    assert all(finished.store.status(run_id) == "done" for run_id in finished.run_ids)
