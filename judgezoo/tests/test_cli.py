"""The command line, in process and once as a program."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from judgezoo.cli import app
from judgezoo.errors import AssetMissing, InvalidOption, UnknownName
from judgezoo.testing import StubServer, chat, completion

RUNNER = CliRunner()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"id": "a", "conversation": chat("q", "I can't help with that."), "label": 0}),
        json.dumps({"messages": chat("q", "=1+1 Sure \x1b[31m"), "label": True, "target": "=1"}),
        json.dumps(chat("q", "Sure.")),
        "{broken",
        "",
    ]
    path.write_text("\n".join(lines))
    return path


def test_score_writes_one_json_line_per_row(rows: Path, tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["score", str(rows), "--judge", "refusal_prefix"])
    assert done.exit_code == 1 and "1 of 4 rows without a score: 1 invalid_chat" in done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["id"] for row in found] == ["a", 1, 2, 3]
    assert [row["p_harmful"] for row in found] == [0.0, 1.0, 1.0, None]
    assert [row["error"] for row in found] == [None, None, None, "invalid_chat"]


def test_score_reads_stdin_and_writes_csv(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    arguments = ["score", "-", "--judge", "exact_match", "--out", str(out), "-o", "match=strict"]
    line = json.dumps({"id": "=cmd", "conversation": chat("q", "Paris"), "reference": "paris"})
    done = RUNNER.invoke(app, arguments, input=line + "\n")
    assert done.exit_code == 0 and done.stdout == ""
    table = list(csv.DictReader(io.StringIO(out.read_text())))
    assert table == [{"id": "'=cmd", "p_harmful": "", "error": "", "p_correct": "1.0"}]


def test_score_uses_the_cache_and_never_keeps_failures(
    rows: Path, tmp_path: Path, server: StubServer
) -> None:
    line = json.dumps(chat("q", "a"))
    source = tmp_path / "one.jsonl"
    source.write_text(f"{line}\n{line}\n")
    cache = tmp_path / "results"
    arguments = ["score", str(source), "--judge", "gpt_oss_safeguard", "--cache", str(cache)]
    arguments += ["--backend", f"openai:openai/gpt-oss-safeguard-20b@{server.url}"]
    server.answer = lambda n, p, b: (400, {}, b"{}")
    assert RUNNER.invoke(app, arguments).exit_code == 1
    server.answer = lambda n, p, b: (200, {}, completion("LABEL: 1"))
    assert RUNNER.invoke(app, arguments).exit_code == 0
    asked = len(server.requests)
    again = RUNNER.invoke(app, arguments)
    assert len(server.requests) == asked == 2
    assert [json.loads(x)["p_harmful"] for x in again.stdout.splitlines()] == [1.0, 1.0]
    file = next(cache.iterdir())
    file.write_text(file.read_text() + '{"key": "cut o')
    assert RUNNER.invoke(app, arguments).exit_code == 0 and len(server.requests) == asked
    assert RUNNER.invoke(app, [*arguments, "-o", "max_tokens=9"]).exit_code == 0
    assert len(server.requests) == asked + 1


def test_mistakes_are_named_before_anything_runs(rows: Path) -> None:
    cases = [
        (["score", str(rows), "--judge", "refusal_prefx"], UnknownName),
        (["score", str(rows), "--judge", "refusal_prefix", "-o", "x"], InvalidOption),
        (["score", str(rows), "--judge", "pair"], InvalidOption),
        (["score", str(rows), "--judge", "refusal_strings"], AssetMissing),
        (["score", str(rows), "--judge", "refusal_prefix", "-o", "x=[1"], InvalidOption),
        (["list", "nobody"], UnknownName),
        (["assets", "fetch"], InvalidOption),
        (["assets", "fetch", "judge/pair_sistem"], UnknownName),
        (["compare", str(rows), "--judge", "refusal_prefix"], InvalidOption),
    ]
    for arguments, error in cases:
        assert isinstance(RUNNER.invoke(app, arguments).exception, error), arguments


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes('["caf\u00e9"]'.encode("latin-1"))
    done = RUNNER.invoke(app, ["score", str(path), "--judge", "refusal_prefix"])
    assert isinstance(done.exception, InvalidOption) and "not UTF-8" in str(done.exception)


def test_the_program_ends_with_2_and_one_line() -> None:
    command = [sys.executable, "-c", "from judgezoo.cli import main; main()"]
    done = subprocess.run(
        [*command, "score", "nofile.jsonl", "--judge", "pear"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    done = subprocess.run([*command, "list", "peir"], capture_output=True, text=True)
    assert done.stderr == "error: unknown judge 'peir'; did you mean pair?\n"


def test_list_shows_every_judge_and_one_in_full() -> None:
    table = RUNNER.invoke(app, ["list"]).stdout
    assert "harmbench" in table and "cais/HarmBench-Llama-2-13b-cls" in table
    assert "CC-BY-NC-4.0" in table
    one = RUNNER.invoke(app, ["list", "pair"]).stdout
    assert "arXiv 2310.08419" in one and "rating 10" in one
    every = json.loads(RUNNER.invoke(app, ["list", "--json"]).stdout)
    assert every["xstest"]["semantics"] == "compliance"


def test_compare_prints_rates_with_intervals(tmp_path: Path) -> None:
    answers = ["Sure", "I can't help", "Sure", "I cannot do that", "  "]
    labels = [1, 0, 0, 1, 1]
    path = tmp_path / "labelled.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"conversation": chat("q", a), "label": y})
            for a, y in zip(answers, labels, strict=True)
        )
    )
    done = RUNNER.invoke(app, ["compare", str(path), "--judge", "refusal_prefix", "--json"])
    found = json.loads(done.stdout)["refusal_prefix"]
    assert (found["scored"], found["unscored"], found["kappa"]) == (4, 1, 0.0)
    assert (found["false_positive"]["hits"], found["false_positive"]["total"]) == (1, 2)
    text = RUNNER.invoke(app, ["compare", str(path), "--judge", "refusal_prefix"]).stdout
    assert "0.500 [0.150, 0.850] (2/4)" in text and "calibration of refusal_prefix" in text


def test_selftest_passes_for_the_rules_and_is_recorded() -> None:
    for name in ("refusal_prefix", "exact_match"):
        done = RUNNER.invoke(app, ["selftest", name])
        assert done.exit_code == 0 and done.stdout.endswith("passed\n")
    record = json.loads(RUNNER.invoke(app, ["selftest", "refusal_prefix", "--json"]).stdout)
    assert record["observed"]["selftest"]["passed"] is True


def test_selftest_fails_for_a_judge_that_calls_everything_harmful(server: StubServer) -> None:
    server.answer = lambda n, p, b: (200, {}, completion("LABEL: 1"))
    backend = f"openai:openai/gpt-oss-safeguard-20b@{server.url}"
    done = RUNNER.invoke(app, ["selftest", "gpt_oss_safeguard", "--backend", backend])
    assert done.exit_code == 1 and "OUT OF RANGE" in done.stdout


def test_assets_offline_and_states(tmp_path: Path) -> None:
    to = ["--to", str(tmp_path / "c")]
    done = RUNNER.invoke(app, ["assets", "fetch", "--judge", "pair", "--offline", *to])
    assert done.exit_code == 1 and "offline switch is on" in done.stderr
    table = RUNNER.invoke(app, ["assets", "list", *to]).stdout
    assert "judge/pair_system" in table and "missing" in table
    assert RUNNER.invoke(app, ["assets", "verify", *to]).exit_code == 0
    assert RUNNER.invoke(app, ["assets", "verify", "judge/pair_user", *to]).exit_code == 1


def test_assets_for_a_command_line_names_texts_and_weights(tmp_path: Path) -> None:
    command = "judgezoo score x.jsonl --judge harmbench"
    to = ["--to", str(tmp_path / "c"), "--offline"]
    done = RUNNER.invoke(app, ["assets", "fetch", "--for", command, *to])
    assert "judge/harmbench_llama2" in done.stderr
    assert "harmbench also needs weights: one of cais/HarmBench-Llama-2-13b-cls" in done.stdout


@pytest.mark.network
def test_assets_fetch_then_offline_use(tmp_path: Path) -> None:
    to = ["--to", str(tmp_path / "c")]
    done = RUNNER.invoke(app, ["assets", "fetch", "--judge", "pair", *to])
    assert done.exit_code == 0 and "judge/pair_system  9be96058" in done.stdout
    again = RUNNER.invoke(app, ["assets", "fetch", "--judge", "pair", "--offline", *to])
    assert again.exit_code == 0
    assert RUNNER.invoke(app, ["assets", "verify", "judge/pair_system", *to]).exit_code == 0
