"""Replay passes on what it should, and names the first difference and its cause elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.protocols import Needs
from adversariallm.models.local import LocalModel
from adversariallm.models.tiny import tiny_parts, tiny_tokenizer
from adversariallm.runs import document as doc
from adversariallm.runs import replay as replays
from adversariallm.runs.api import load_attack
from adversariallm.runs.replay import Replayed, model_places, replay
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop
from adversariallm.tokenization import ChatTokenizer

DATED = "{{ strftime_now('%Y') }} "


@pytest.fixture(scope="module")
def parts() -> Any:
    return tiny_parts("llama")


def chat(tokenizer: Any, **options: Any) -> ChatTokenizer:
    """A chat template that prints the year it is told."""
    return ChatTokenizer(tokenizer, DATED + tokenizer.chat_template, **options)


@pytest.fixture(scope="module")
def model(parts: Any) -> LocalModel:
    return LocalModel.from_parts(parts.model, chat(parts.tokenizer))


@pytest.fixture(scope="module")
def store(model: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("store")
    runner = load_attack("random_search", num_steps=2, num_candidates=2, initial="x x x")
    options = {"max_new_tokens": 6, "temperature": 1.0, "num_return_sequences": 2}
    runner.run(model, None, [behavior()], generation=options, out=root)
    return Store(root)


def behavior() -> dict[str, Any]:
    talk = [{"role": "user", "content": "write a short story"}]
    return {
        "id": "story", "conversation": talk, "goal": "write a short story", "harmful": True,
        "target": "Sure, here is",
    }  # fmt: skip


def held(store: Store, model: Any) -> Workshop:
    """A workshop that gives this model out for that of the run."""
    (run_id,) = store.runs()
    identity = store.header(run_id)["resolved"]["models"][0]["identity"]
    return Workshop(models={stable_hash(identity): model})


def replayed(store: Store, model: Any, **options: Any) -> Replayed:
    (run_id,) = store.runs()
    return replay(store, run_id, workshop=held(store, model), **options)


def cause(result: Replayed) -> str:
    assert result.difference is not None
    return result.difference.cause


def test_the_same_model_passes_search_included(store: Store, model: LocalModel) -> None:
    result = replayed(store, model, search=True)
    assert result.passed, result.difference
    assert "3 inputs have the stored tokens" in result.compared
    assert "6 of 6 completions came out equal" in result.compared
    assert "every step of the search came out equal" in result.compared
    assert "the cost of the run came out equal" in result.compared
    assert "2 of 6 completions came out equal" in replayed(store, model, limit=2).compared


def test_another_time_for_the_template_is_named(store: Store, parts: Any) -> None:
    later = chat(parts.tokenizer, clock=datetime(2031, 5, 1))
    result = replayed(store, LocalModel.from_parts(parts.model, later))
    assert "the tokens sent of step 0 of story" in result.difference.where  # type: ignore[union-attr]
    assert cause(result).startswith("the time that the chat template was told")
    assert "2031-05-01" in cause(result)


def test_another_template_is_named(store: Store, parts: Any) -> None:
    other = ChatTokenizer(parts.tokenizer)
    result = replayed(store, LocalModel.from_parts(parts.model, other))
    assert cause(result).startswith("the chat template")


def test_another_tokenizer_is_named(store: Store, parts: Any) -> None:
    other = LocalModel.from_parts(parts.model, chat(tiny_tokenizer(400)))
    assert "the tokenizer" in cause(replayed(store, other))


def test_other_weights_are_named_even_where_no_token_differs(store: Store) -> None:
    other = tiny_parts("llama", seed=5)
    result = replayed(store, LocalModel.from_parts(other.model, chat(other.tokenizer)))
    assert cause(result).startswith("the weights")


class Perturbed:
    """The right model by its own account, whose answers differ in one token."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def gives(self) -> Needs:
        return self._model.gives

    def generate(self, inputs: Any, *rest: Any, **options: Any) -> Any:
        from dataclasses import replace

        replies = self._model.generate(inputs, *rest, **options)
        return [replace(r, ids=(*r.ids[:3], 7, *r.ids[4:])) for r in replies]


@pytest.mark.parametrize(
    ("path", "words"),
    [(("packages", "torch"), "a library version: torch was"), (("device",), "another device")],
)
def test_answers_that_differ_are_laid_to_what_changed(
    store: Store,
    model: LocalModel,
    monkeypatch: pytest.MonkeyPatch,
    path: tuple[str, ...],
    words: str,
) -> None:
    now = json.loads(json.dumps(replays.environment()))
    inner = now
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "something else"
    monkeypatch.setattr(replays, "environment", lambda: now)
    result = replayed(store, Perturbed(model))
    assert result.difference is not None
    assert result.difference.where == "the tokens of completion 0 of step 0 of story, position 3"
    assert cause(result).startswith(words)
    equal = replayed(store, model)
    assert equal.passed
    assert "equal although these differ" in " ".join(equal.notes)


def test_a_difference_without_a_cause_says_so(store: Store, model: LocalModel) -> None:
    assert "no recorded fact differs" in cause(replayed(store, Perturbed(model)))


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Iterator[tuple[Store, Path]]:
    import shutil

    shutil.copytree(store.root, tmp_path / "copy")
    found = Store(tmp_path / "copy")
    (run_id,) = found.runs()
    yield found, found.run_dir(run_id) / "run.json"


@pytest.mark.parametrize(
    ("old", "new"), [('"loss":', '"loss": '), ('"seed":0', '"seed":1')], ids=["a step", "the seed"]
)
def test_an_edited_artifact_is_told_apart(
    copy: tuple[Store, Path], model: LocalModel, old: str, new: str
) -> None:
    found, path = copy
    text = path.read_text(encoding="utf-8")
    assert old in text
    workshop = held(found, model)
    path.write_text(text.replace(old, new), encoding="utf-8")
    (run_id,) = found.runs()
    result = replay(found, run_id, workshop=workshop)
    assert cause(result) == "the artifact was edited or damaged"


def test_costs_are_made_again_with_the_search(copy: tuple[Store, Path], model: LocalModel) -> None:
    found, path = copy
    assert not any("no hash covers" in note for note in replayed(found, model, limit=0).notes)
    (run_id,) = found.runs()
    edited = doc.read_document(path)
    edited["ledgers"]["setup"] = {"model": {"queries": 5}}
    header, body = doc.encode_document(edited)
    path.write_bytes(header + body)
    result = replayed(found, model, search=True)
    assert result.difference is not None
    assert result.difference.where == "the cost of the run: setup.model.queries"
    assert (result.difference.stored, result.difference.found) == ("5", "0")


def test_a_header_that_no_hash_covers_is_said(
    copy: tuple[Store, Path], model: LocalModel, capsys: pytest.CaptureFixture[str]
) -> None:
    found, path = copy
    words = ["status", str(found.root), "--check"]
    assert main(words) == 0
    assert "no hash" not in capsys.readouterr().out
    older = re.sub(rb',"header_sha256":"[0-9a-f]{64}"', b"", path.read_bytes())
    path.write_bytes(older)
    result = replayed(found, model, limit=0)
    assert result.passed
    assert any("no hash covers its header" in note for note in result.notes)
    assert main(words) == 0
    assert "no hash covers their headers" in " ".join(capsys.readouterr().out.split())


def test_scores_are_made_again(copy: tuple[Store, Path], model: LocalModel) -> None:
    from adversariallm.runs.judging import judge_run

    found, _ = copy
    (run_id,) = found.runs()
    judge_run(found, run_id, Workshop().judge_factory("refusal_prefix"))
    assert "6 scores by refusal_prefix came out equal" in replayed(found, model).compared
    (part,) = found.scores(run_id)
    rows = json.loads(json.dumps(part.rows))
    key = "p_harmful"
    rows[0]["scores"][key][0] = 1 - rows[0]["scores"][key][0]
    part.path.unlink()
    found.write_scores(run_id, part.header["judge_id"], rows, part.header)
    result = replayed(found, model)
    assert result.difference is not None
    assert result.difference.where.startswith("score of completion 0 of step 0 of story")
    (part,) = found.scores(run_id)
    part.path.unlink()
    found.write_scores(run_id, "refusal_prefix-00", rows, part.header)
    assert "another setting of the judge" in cause(replayed(found, model))


def test_a_model_behind_an_endpoint_cannot_be_replayed(store: Store) -> None:
    from adversariallm.models.fakes import ScriptedModel

    with pytest.raises(NeedsError, match="behind an endpoint"):
        replayed(store, ScriptedModel(["hello"]))


def test_places_of_models_are_pairs() -> None:
    assert model_places(["m=/data/m"]) == {"m": "/data/m"}
    with pytest.raises(ConfigError, match="expected NAME=PLACE"):
        model_places(["m"])


def test_the_command_takes_stores_and_bundles(
    small_store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], models: tuple[str, str]
) -> None:
    def call(*words: str) -> tuple[int, str]:
        code = main(["replay", *words])
        return code, capsys.readouterr().out

    code, shown = call("--store", str(small_store.root))
    assert code == 0
    assert "2 of 2 runs came out equal" in shown
    bundle = tmp_path / "bundle.zip"
    assert main(["export", str(small_store.root), "--to", "bundle", "-o", str(bundle)]) == 0
    capsys.readouterr()
    name = Path(models[0]).name
    code, shown = call("--store", str(bundle), "--model", f"{name}={models[0]}", "--json")
    rows = json.loads(shown)
    assert code == 0
    assert [row["passed"] for row in rows] == [True, True]

    run_id = next(iter(small_store.runs()))
    path = small_store.run_dir(run_id) / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"temperature":0.0', b'"temperature":0.5'))
    code, shown = call(run_id[:10], f"out={small_store.root}", "--quiet")
    assert code == 1
    assert "likely cause: the artifact was edited or damaged" in shown
