from __future__ import annotations

import pytest

from adversariallm.runs.overrides import OverrideError, parse, translate_hydra


def test_a_comma_sweeps_and_a_bracket_does_not() -> None:
    assert parse("attack=gcg,pair").values == ("gcg", "pair")
    assert parse("attack=gcg,pair").sweep
    assert parse("attack=[gcg,pair]").values == (["gcg", "pair"],)
    assert not parse("attack=[gcg,pair]").sweep


def test_quotes_keep_text_as_text() -> None:
    assert parse("a='1'").values == ("1",)
    assert parse("a='x,y'").values == ("x,y",)
    assert parse('a="range(0,4)"').values == ("range(0,4)",)


def test_a_value_may_hold_a_path_or_an_equals_sign() -> None:
    assert parse("out=~/runs/a=b").values == ("~/runs/a=b",)
    assert parse("models../my.model.dtype=float32").key == "models../my.model.dtype"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("attack", "write attack=VALUE"),
        ("9 9=1", "is not a key"),
        ("a=[1,2", "']' is missing"),
        ("a='x", "quote is not closed"),
        ("a=${b}", "${...} is not supported"),
        ("a=glob(x)", "there are range() and choice()"),
        ("a=range(0,4),5", "must be the whole value"),
        ("a=range(1,1)", "is empty"),
        ("a=1,,2", "a value is missing"),
        ("a=x)", "put quotes around the value"),
    ],
)
def test_errors_say_what_to_write(text: str, part: str) -> None:
    with pytest.raises(OverrideError) as error:
        parse(text)
    assert part in str(error.value)
    assert text in str(error.value)


def test_hydra_habits_are_translated_with_a_note() -> None:
    kept, notes = translate_hydra(
        ["-m", "attack=gcg", "hydra.launcher.timeout_min=240", "hydra.run.dir=x",
         "hydra/launcher=submitit_slurm"]
    )  # fmt: skip
    assert kept == ["attack=gcg", "launcher.timeout_min=240", "launcher.kind=slurm"]
    assert len(notes) == 4
    assert any("commas always sweep" in n for n in notes)
