"""`doctor model=`: template, shipped template, stop tokens, BOS and system prompt of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.cli._chat_checks import NEUTRAL, check_chat
from adversariallm.cli.doctor import Finding
from adversariallm.models.options import ModelOptions
from adversariallm.models.tiny import tiny_tokenizer
from adversariallm.tokenization import ChatTokenizer
from adversariallm.tokenization.formats import template_source

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A folder with a tokenizer, a configuration and no weights."""

    def build(template: str | None = None, eos: Any = None) -> Path:
        tokenizer = tiny_tokenizer()
        if template is not None:
            tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        if eos is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
        return tmp_path

    return build


def look(folder: Path, template: str = "tokenizer", **options: Any) -> dict[str, Finding]:
    stated = ModelOptions(dtype="float32", quantization="none", template=template, **options)
    return {f.check.split(" of ")[0]: f for f in check_chat(str(folder), stated)}


def test_another_template_than_the_shipped_one_is_shown_with_what_differs(make: Make) -> None:
    found = look(make(), "chatml")
    tokenizer = tiny_tokenizer()
    ours = ChatTokenizer(tokenizer, "chatml")
    differing = [
        c
        for c in NEUTRAL
        if ours.render(c).text
        != tokenizer.apply_chat_template(c.to_dicts(), tokenize=False, add_generation_prompt=True)
    ]
    shipped = found["shipped template"]
    assert shipped.state == "note"
    assert len(shipped.facts["differences"]) == len(differing) > 0
    assert "<|im_start|>user" in shipped.facts["differences"][0]
    assert found["template"].facts["origin"] == "ours:chatml"
    assert found["template"].facts["hash"] == ours.template.hash
    assert found["template"].facts["checked"] == "rendered"


def test_a_shipped_template_that_renders_the_same_is_no_difference(make: Make) -> None:
    found = look(make("{# another text #}" + template_source("chatml")), "chatml")
    assert found["shipped template"].state == "ok"
    assert found["shipped template"].facts["differences"] == []


def test_the_shipped_template_in_force_is_not_compared_with_itself(make: Make) -> None:
    found = look(make())
    assert "shipped template" not in found
    assert found["template"].facts["origin"] == "tokenizer"
    assert found["segments"].state == "ok"


def test_every_stop_token_names_its_places(make: Make) -> None:
    eos = tiny_tokenizer().eos_token_id
    stops = look(make(eos=[eos, 40]))["stop tokens"]
    assert stops.facts["ids"] == sorted([eos, 40])
    assert stops.facts["sources"]["generation_config"] == [eos, 40]
    assert stops.facts["sources"]["tokenizer"] == [eos]
    assert f"40 {tiny_tokenizer().decode([40])!r} (generation_config)" in stops.detail


MESSAGES = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("start", "count", "state"),
    [("", 0, "ok"), ("{{ bos_token }}", 1, "ok"), ("{{ bos_token }}{{ bos_token }}", 2, "problem")],
)
def test_bos_is_counted(make: Make, start: str, count: int, state: str) -> None:
    bos = look(make(start + MESSAGES))["BOS"]
    assert bos.facts["count"] == count
    assert bos.state == state


def test_the_system_prompt_is_the_given_or_the_injected_one(make: Make) -> None:
    default = "{% if messages[0]['role'] != 'system' %}[system]Be kind.{% endif %}" + MESSAGES
    folder = make(default)
    injected = look(folder)["system prompt"]
    assert injected.state == "note"
    assert "Be kind." in injected.facts["injected"]
    given = look(folder, system_prompt="Be brief.")["system prompt"]
    assert (given.facts["source"], given.facts["text"]) == ("user", "Be brief.")


def test_a_check_that_breaks_does_not_hide_the_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, config: Any = None) -> None:
        raise RuntimeError("gone")

    monkeypatch.setattr(ChatTokenizer, "stops", broken)
    found = look(make())
    assert found["stop tokens"].state == "problem"
    assert "gone" in found["stop tokens"].detail
    assert found["system prompt"].state == "ok"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the checks of models."""
    monkeypatch.setattr("adversariallm.cli.doctor.CHECKS", ())


@pytest.mark.usefixtures("quick")
def test_doctor_takes_models_as_run_does(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make()
    words = [f"models.{folder}.{k}" for k in ("dtype=float32", "quantization=none")]
    words += [f"model={folder}", f"models.{folder}.template=chatml"]
    assert main(["doctor", *words, "--json"]) == 0
    found = {f["check"]: f for f in json.loads(capsys.readouterr().out)}
    assert found[f"template of {folder}"]["facts"]["origin"] == "ours:chatml"
    assert main(["doctor", *words]) == 0
    assert "--- ours:chatml (conversation 0)" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_doctor_refuses_other_words_and_names_the_nearest_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "model=smollm2-135m", "seed=3"]) == 2
    assert "doctor takes model=" in capsys.readouterr().err
    assert main(["doctor", "model=smollm2-135"]) == 2
    assert "Did you mean 'smollm2-135m'" in capsys.readouterr().err
