from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.cli._app import command_names
from adversariallm.cli._console import clean
from adversariallm.cli.new import PLACES, create
from adversariallm.cli.resume import with_setting
from adversariallm.core.errors import ConfigError
from adversariallm.core.plugins import ATTACKS, Registry

PROMISED = {
    "run", "plan", "judge", "report", "list", "explain", "doctor", "new", "runs", "status",
    "resume", "assets",
}  # fmt: skip


def adversariallm(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_every_promised_command_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(command_names()) >= PROMISED
    code, out, _ = adversariallm(capsys, "--help")
    assert code == 0
    assert all(name.replace("_", "-") in out for name in command_names())


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = adversariallm(capsys, name.replace("_", "-"), "--help")
    assert code == 0
    assert "Usage" in out


BASE = ("model=smollm2-135m", "dataset=starter_harmful", "attack=direct")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("model=smollm2-135", *BASE[1:]), "Did you mean 'smollm2-135m'"),
        ((*BASE[:2], "attack=directt"), "Did you mean 'direct'"),
        ((BASE[0], "dataset=starter_harmfull", BASE[2]), "Did you mean 'starter_harmful'"),
        ((*BASE, "judge=refusal"), "refusal_prefix"),
        ((*BASE, "sede=3"), "Did you mean seed?"),
        ((*BASE, "seed=many"), "seed='many': Input should be a valid integer"),
        ((*BASE, "datasets.starter_harmful.idx=99"), "positions go from 0 to 39"),
        ((*BASE, "generation_config.top_p=7"), "less than or equal to 1"),
        ((*BASE, "attack"), "write attack=VALUE"),
        ((*BASE, "out=a,b"), "cannot be swept"),
        (BASE[:2], "attack= is missing"),
    ],
)
def test_bad_configuration_ends_with_2_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adversariallm.runs.campaign.work", None)
    code, _, err = adversariallm(capsys, "run", *arguments)
    assert code == 2
    assert part in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = adversariallm(capsys, "run", *BASE, f"out={tmp_path}/file/store")
    assert code == 2
    assert "not a folder that can be written" in err


@pytest.mark.parametrize(
    ("call", "number", "code", "said"),
    [
        ("mkdir", errno.ENOENT, 2, "no such folder can be made"),
        ("mkdir", errno.EACCES, 2, "no such folder can be made"),
        ("open", errno.ENOSPC, 1, "the disk is full"),
        ("open", errno.EACCES, 1, "commands.jsonl"),
    ],
)
def test_a_store_that_cannot_be_begun_says_where_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    call: str,
    number: int,
    code: int,
    said: str,
) -> None:
    real = getattr(Path, call)

    def failing(path: Path, *rest: Any, **options: Any) -> Any:
        if path in (tmp_path / "out", tmp_path / "out" / "commands.jsonl"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(Path, call, failing)
    monkeypatch.setattr("adversariallm.runs.campaign.work", None)
    found, _, err = adversariallm(capsys, "run", *BASE, f"out={tmp_path}/out")
    assert (found, "Traceback" in err) == (code, False)
    assert said in err
    assert str(tmp_path / "out") in err


def test_an_interrupted_command_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adversariallm.runs.campaign.preview", interrupted)
    code, _, err = adversariallm(capsys, "plan", *BASE)
    assert code == 130
    assert "repeat the same command to go on" in err


def test_lists_are_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = adversariallm(capsys, "list", "datasets", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["starter_harmful"]["size"] == 40
    code, out, _ = adversariallm(capsys, "list", "models", "--json")
    pins = {row["name"]: row["pin"] for row in json.loads(out)}
    assert pins["smollm2-135m"].startswith("sha256:")
    code, out, _ = adversariallm(capsys, "list", "templates", "--json")
    assert {row["checked"] for row in json.loads(out)} <= {"run", "rendered", "documents"}


@pytest.mark.parametrize(
    "kind", ["attacks", "datasets", "defenses", "judges", "models", "templates"]
)
def test_every_kind_can_be_listed(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    code, out, _ = adversariallm(capsys, "list", kind)
    assert code == 0
    assert out.startswith(kind)


def test_an_unknown_kind_is_a_bad_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = adversariallm(capsys, "list", "modls")
    assert code == 2
    assert "Did you mean 'models'" in err


def test_explain_tells_source_options_and_where_they_are_declared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = adversariallm(capsys, "explain", "random_search")
    assert code == 0
    assert "source:" in out
    assert "attacks.random_search.num_steps: int" in out
    assert "attacks/random_search.py:" in out
    code, _, err = adversariallm(capsys, "explain", "random_serch")
    assert code == 2
    assert "random_search" in err


def test_explain_lists_the_parts_of_an_option_as_they_are_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = adversariallm(capsys, "explain", "gcg_refusal")
    assert "    attacks.gcg_refusal.gcg.num_steps: int" in out
    assert "    attacks.gcg_refusal.gcg:" not in out


def test_explain_says_which_variant_needs_which_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = adversariallm(capsys, "explain", "autodan")
    assert "  with variant=ga: assets autodan/prompt_group\n" in out
    assert "  with variant=hga: assets autodan/prompt_group, wordnet/3.1/noun," in out
    _, out, _ = adversariallm(capsys, "explain", "gcg")
    assert "  with " not in out


@pytest.mark.parametrize("name", ["starter_benign", "refusal_prefix", "smollm2-135m", "chatml"])
def test_explain_knows_every_kind(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = adversariallm(capsys, "explain", name)
    assert code == 0
    assert "options:" in out


def test_doctor_reports_a_broken_plug_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "broken", lambda self: {})
    code, out, _ = adversariallm(capsys, "doctor", "--json")
    found = {f["check"]: f for f in json.loads(out)}
    assert code == 0
    assert found["python"]["state"] == "ok"
    broken = {"direct": "ImportError: gone"}
    monkeypatch.setattr(Registry, "broken", lambda self: broken if self is ATTACKS else {})
    code, out, _ = adversariallm(capsys, "doctor", "--json")
    found = {f["check"]: f for f in json.loads(out)}
    assert code == 1
    assert found["attack direct"]["state"] == "problem"
    assert found["attack direct"]["remedy"].endswith("direct.py")


def checkout(root: Path) -> Path:
    for code, _ in PLACES.values():
        (root / code).mkdir(parents=True)
    return root


def test_new_writes_a_plug_in_and_a_failing_test(tmp_path: Path) -> None:
    checkout(tmp_path)
    tests = []
    for kind in PLACES:
        code, test = create(kind, f"my_{kind}", tmp_path)
        scope: dict[str, Any] = {"__name__": f"my_{kind}"}
        exec(compile(code.read_text(), str(code), "exec"), scope)
        assert scope["INFO"].name == f"my_{kind}"
        tests.append(str(test))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert all(f"FAILED {Path(t).relative_to(tmp_path)}" in done.stdout for t in tests)


def test_new_never_overwrites_and_checks_the_name(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    create("attack", "my_thing", root)
    for name, part in [("my_thing", "exists already"), ("MyThing", "lower_case"), ("_x", "lower")]:
        with pytest.raises(ConfigError, match=part):
            create("attack", name, root)
    with pytest.raises(ConfigError, match="no checkout"):
        create("attack", "other", tmp_path / "nowhere")


def test_text_of_others_cannot_move_the_cursor_or_reverse_the_line() -> None:
    hostile = "\x1b[31mred\x1b[0m \u202egnihton\u202c \x07 [bold]x[/bold]"
    shown = clean(hostile)
    assert shown.isprintable()
    assert "\\x1b[31mred" in shown
    assert "[bold]" in shown
    assert clean("two\nlines") == "two\nlines"


def test_resume_puts_the_store_into_the_command() -> None:
    kept = with_setting(["attack=direct", "out=old"], "out", "new")
    assert kept == ["attack=direct", "out=new"]
    assert with_setting(["attack=direct"], "out", "a,b") == ["attack=direct", 'out="a,b"']


def test_assets_are_listed_with_their_state(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = adversariallm(capsys, "assets", "list", "--json")
    assert code == 0
    assert {row["state"] for row in json.loads(out)} <= {"ok", "missing", "damaged"}
