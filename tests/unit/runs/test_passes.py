"""Later passes over a small store: sample, transfer, extend, judge; replay of what they make."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.core.errors import ConfigError, NeedsError, StoreError
from adversariallm.core.plugins import ATTACKS
from adversariallm.evaluation.facts import has_own_seconds, setting_of
from adversariallm.runs import campaign, passes
from adversariallm.runs.document import strip_volatile
from adversariallm.runs.replay import replay
from adversariallm.runs.store import Store
from adversariallm.runs.stored import STATE
from adversariallm.runs.worker import Workshop

SHORT = "attacks.random_search.num_steps=2"


def loading(model: str) -> tuple[str, ...]:
    settings = ("dtype=float32", "quantization=none", "template=tokenizer")
    return (f"model={model}", *(f"models.{model}.{setting}" for setting in settings))


@pytest.fixture
def store(small_store: Store) -> Store:
    return small_store


def out(store: Store) -> str:
    return f"out={store.root}"


def texts(document: dict[str, Any]) -> list[list[str]]:
    return [step["model_completions"] for step in document["runs"][0]["steps"]]


# sample


def test_more_samples_are_those_that_more_would_have_given_at_first(
    store: Store, search: tuple[str, ...], workshop: Workshop, tmp_path: Path
) -> None:
    words = ("generation_config.num_return_sequences=3", "completions=last")
    finished = passes.sample(out(store), *words, workshop=workshop)
    assert finished.exit_code == 0
    assert [o.detail for o in finished.outcomes] == ["2 completions added"] * 2
    again = passes.sample(out(store), *words, workshop=workshop)
    assert again.outcomes == ()
    whole = (*search, SHORT, "generation_config.num_return_sequences=3")
    other = campaign.run(*whole, f"out={tmp_path / 'whole'}", workshop=workshop)
    for run_id in store.runs():
        now, at_once = texts(store.read(run_id)), texts(other.store.read(run_id))
        assert [len(t) for t in now] == [1, 1, 3]
        assert now[-1] == at_once[-1]
        scores = store.read(run_id)["runs"][0]["steps"][-1]["scores"]["refusal_prefix"]
        assert None not in scores["p_harmful"]
        assert len(scores["p_harmful"]) == 3


def test_other_decoding_gives_runs_of_their_own(store: Store, workshop: Workshop) -> None:
    before = {run_id: store.text(run_id) for run_id in store.runs()}
    words = (out(store), "generation_config.temperature=1")
    finished = passes.sample(*words, workshop=workshop)
    assert len(finished.run_ids) == 2
    assert not set(finished.run_ids) & set(before)
    for run_id in finished.run_ids:
        document = store.read(run_id)
        parent = store.read(document["config"]["parent"]["run_id"])
        assert document["config"]["generation"]["temperature"] == 1
        sent = [s["model_input_tokens"] for s in document["runs"][0]["steps"]]
        assert sent == [s["model_input_tokens"] for s in parent["runs"][0]["steps"]]
        assert "optimization" not in document["ledgers"]
        assert replay(store, run_id, workshop=workshop).passed
    assert {run_id: store.text(run_id) for run_id in before} == before
    # neither repeated, nor taken as a starting point by the next pass
    assert passes.sample(*words, workshop=workshop).outcomes == ()
    assert len(list(store.runs())) == 4


# transfer


def test_stored_inputs_are_tokenized_for_the_other_model(
    store: Store, models: tuple[str, str], workshop: Workshop
) -> None:
    finished = passes.transfer(
        out(store), *loading(models[1]), "completions=best", workshop=workshop
    )
    assert finished.exit_code == 0
    assert len(finished.run_ids) == 2
    chat = workshop.model(finished.plan.todo[0].task.spec.models[0]).chat  # type: ignore[attr-defined]
    for run_id in finished.run_ids:
        document = store.read(run_id)
        parent = store.read(document["config"]["parent"]["run_id"])
        assert document["resolved"]["parent"]["made_for"] == models[0]
        losses = [s["loss"] for s in parent["runs"][0]["steps"]]
        best = losses.index(min(losses))
        for k, (step, old) in enumerate(
            zip(document["runs"][0]["steps"], parent["runs"][0]["steps"], strict=True)
        ):
            assert step["model_input"] == old["model_input"]
            assert step["loss"] is None
            assert step["note"]["source"] == {"step": k, "loss": old["loss"]}
            from adversariallm.core.types import Conversation

            talk = Conversation.from_dicts(step["model_input"])
            assert tuple(step["model_input_tokens"]) == chat.encode(talk)
            assert len(step["model_completions"]) == (k == best)
        assert len(store.scores(run_id)) == 1
        assert replay(store, run_id, workshop=workshop).passed


def test_reports_keep_passes_apart_and_their_items_together(
    store: Store, models: tuple[str, str], workshop: Workshop
) -> None:
    first = list(store.runs())
    sent = passes.transfer(out(store), *loading(models[1]), workshop=workshop).run_ids
    longer = passes.extend(out(store), "attacks.random_search.num_steps=3", workshop=workshop)
    settings = [
        {setting_of(store.header(run_id)).key for run_id in ids}
        for ids in (first, sent, longer.run_ids)
    ]
    assert [len(keys) for keys in settings] == [1, 1, 1]
    assert len(set.union(*settings)) == 3
    assert not any(has_own_seconds(store.header(run_id)) for run_id in sent)
    label = setting_of(store.header(sent[0])).attack
    assert label == f"random_search, inputs made for {models[0]}"


def test_what_a_pass_made_needs_its_parent_no_longer(
    store: Store, models: tuple[str, str], workshop: Workshop
) -> None:
    first = list(store.runs())
    sent = passes.transfer(out(store), *loading(models[1]), workshop=workshop).run_ids
    for run_id in first:
        store.set_aside(run_id)
    more = "generation_config.num_return_sequences=2"
    finished = passes.sample(out(store), more, runs=sent, workshop=workshop)
    assert [o.detail for o in finished.outcomes] == ["3 completions added"] * 2
    assert all(replay(store, run_id, workshop=workshop).passed for run_id in sent)


def test_a_system_prompt_is_another_model(
    store: Store, models: tuple[str, str], workshop: Workshop
) -> None:
    prompt = f"models.{models[0]}.system_prompt='a careful helper'"
    finished = passes.transfer(out(store), *loading(models[0]), prompt, workshop=workshop)
    assert len(finished.run_ids) == 2
    document = store.read(finished.run_ids[0])
    assert document["resolved"]["models"][0]["identity"]["chat"]["system"]["text"]


def test_stored_inputs_are_sent_to_a_defended_model(store: Store, workshop: Workshop) -> None:
    finished = passes.transfer(out(store), "defense=smooth_llm", workshop=workshop)
    assert finished.exit_code == 0
    document = store.read(finished.run_ids[0])
    assert document["config"]["defense"][0]["name"] == "smooth_llm"
    views = {part.header["view"] for part in store.scores(finished.run_ids[0])}
    assert views == {"clean", "undefended"}
    replayed = replay(store, finished.run_ids[0], workshop=workshop)
    assert replayed.passed, replayed.difference


def test_embeddings_are_refused_with_the_reason(
    models: tuple[str, str], search: tuple[str, ...], workshop: Workshop, tmp_path: Path
) -> None:
    words = (*search[:-2], "attack=pgd", "attacks.pgd.num_steps=1", f"out={tmp_path}")
    assert campaign.run(*words, workshop=workshop).exit_code == 0
    with pytest.raises(NeedsError, match="its inputs are embeddings of .*no other model reads"):
        passes.transfer(f"out={tmp_path}", *loading(models[1]), workshop=workshop)
    # the model they were made for may be asked again
    finished = passes.sample(
        f"out={tmp_path}", "generation_config.temperature=1", workshop=workshop
    )
    assert finished.exit_code == 0
    assert all(replay(finished.store, r, workshop=workshop).passed for r in finished.run_ids)


def test_the_model_an_input_was_made_for_is_no_target(store: Store, workshop: Workshop) -> None:
    with pytest.raises(NeedsError, match="this is the model it was made for"):
        passes.transfer(out(store), workshop=workshop)


# extend


def test_an_extended_run_equals_one_that_was_longer_from_the_start(
    store: Store, search: tuple[str, ...], workshop: Workshop, tmp_path: Path
) -> None:
    short = set(store.runs())
    longer = "attacks.random_search.num_steps=4"
    finished = passes.extend(out(store), longer, workshop=workshop)
    assert finished.exit_code == 0
    whole = (*search, longer)
    straight = campaign.run(*whole, f"out={tmp_path / 'straight'}", workshop=workshop)
    by_item = {straight.store.header(r)["config"]["fit"]["ids"][0]: r for r in straight.run_ids}
    for run_id in finished.run_ids:
        document = strip_volatile(store.read(run_id))
        assert document["config"]["parent"]["run_id"] in short
        twin = strip_volatile(straight.store.read(by_item[document["config"]["fit"]["ids"][0]]))
        for part in ("runs", "ledgers", "status"):
            assert document[part] == twin[part]
    again = passes.extend(out(store), longer, runs=sorted(short), workshop=workshop)
    assert again.outcomes == ()


@pytest.mark.parametrize("schedule", ["last", "best", "geometric"])
def test_an_extended_run_has_the_answers_of_its_own_schedule_only(
    search: tuple[str, ...], workshop: Workshop, tmp_path: Path, schedule: str
) -> None:
    words = (*search, f"completions={schedule}")
    few, many = "attacks.random_search.num_steps=2", "attacks.random_search.num_steps=5"
    campaign.run(*words, few, f"out={tmp_path / 'short'}", workshop=workshop)
    # samples that were added later are no part of what goes on
    more = ("generation_config.num_return_sequences=2", "completions=all")
    passes.sample(f"out={tmp_path / 'short'}", *more, workshop=workshop)
    extended = passes.extend(f"out={tmp_path / 'short'}", many, workshop=workshop)
    straight = campaign.run(*words, many, f"out={tmp_path / 'straight'}", workshop=workshop)
    longer = [strip_volatile(straight.store.read(r)) for r in straight.run_ids]
    twins = {d["config"]["fit"]["ids"][0]: d for d in longer}
    for one in extended.run_ids:
        now = strip_volatile(extended.store.read(one))
        twin = twins.pop(now["config"]["fit"]["ids"][0])
        for part in ("runs", "ledgers", "status"):
            assert now[part] == twin[part]
        if schedule == "last":
            assert [len(t) for t in texts(now)] == [0, 0, 0, 0, 0, 1]
        assert replay(extended.store, one, search=True, workshop=workshop).passed
    assert twins == {}


def test_a_search_that_a_limit_ended_goes_on_with_a_larger_one(
    search: tuple[str, ...], workshop: Workshop, tmp_path: Path
) -> None:
    words = (*search, SHORT, "budget.queries=3", f"out={tmp_path}")
    limited = campaign.run(*words, workshop=workshop)
    assert all("budget.queries=3" in o.detail for o in limited.outcomes)
    with pytest.raises(NeedsError, match="give a larger budget"):
        passes.extend(f"out={tmp_path}", "attacks.random_search.num_steps=9", workshop=workshop)
    finished = passes.extend(f"out={tmp_path}", "budget.queries=100", workshop=workshop)
    assert [o.detail for o in finished.outcomes] == ["done"] * 2
    document = finished.store.read(finished.run_ids[0])
    assert len(document["runs"][0]["steps"]) == 3


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("attacks.random_search.num_steps=1",), NeedsError, "has num_steps=2 already"),
        ((), NeedsError, "give attacks.random_search.num_steps="),
        (("attacks.random_search.num_candidates=9",), ConfigError, "only num_steps can grow"),
        (("model=other",), ConfigError, "extend takes out"),
        (("judge=exact_match,target_prefix", "retry=true,false"), ConfigError, "cannot be swept"),
    ],
)
def test_what_cannot_be_extended_is_said(
    store: Store, words: Sequence[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        passes.extend(out(store), *words)


def test_the_reason_is_that_of_the_attack_that_was_spoken_of(
    store: Store, workshop: Workshop, search: tuple[str, ...]
) -> None:
    other = ("attack=beast", "attacks.beast.num_tokens=1", "attacks.beast.k1=2")
    campaign.run(*search[:-2], *other, "attacks.beast.k2=2", out(store), workshop=workshop)
    for name, words in (
        ("beast", "attacks.beast.num_tokens=1"),
        ("random_search", "attacks.random_search.num_steps=2"),
    ):
        with pytest.raises(NeedsError, match=rf"attacks\.{name}\..*4 runs are refused in all"):
            passes.extend(out(store), words, workshop=workshop)


def test_an_attack_that_cannot_go_on_says_so(
    search: tuple[str, ...], workshop: Workshop, tmp_path: Path
) -> None:
    words = (*search[:-2], "attack=direct", f"out={tmp_path}")
    campaign.run(*words, workshop=workshop)
    with pytest.raises(NeedsError, match="attack 'direct' cannot be extended"):
        passes.extend(f"out={tmp_path}", "attacks.random_search.num_steps=9")


def test_another_version_of_an_attack_extends_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ATTACKS.load("random_search")
    newer = replace(module.INFO, version=module.INFO.version + 1)
    monkeypatch.setattr(module, "INFO", newer)
    with pytest.raises(NeedsError, match=f"this is version {newer.version}, which gives other"):
        passes.extend(out(store), "attacks.random_search.num_steps=4")


def test_a_run_without_its_state_is_not_extended(store: Store) -> None:
    for run_id in store.runs():
        (store.run_dir(run_id) / STATE).unlink()
    with pytest.raises(NeedsError, match="the state of its search was not stored"):
        passes.extend(out(store), "attacks.random_search.num_steps=4")


# judge, choosing, resuming


def test_a_damaged_run_is_left_out_with_the_reason(store: Store, workshop: Workshop) -> None:
    first, second = store.runs()
    path = store.run_dir(first) / "run.json"
    header, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(header + b"\n" + body.replace(b'"loss":', b'"loss": ', 1))
    finished = passes.sample(out(store), "generation_config.temperature=1", workshop=workshop)
    assert [s.label for s in finished.plan.skipped] == [first[:8]]
    assert "was changed after it was published" in finished.plan.skipped[0].reason
    (made,) = finished.run_ids
    assert store.header(made)["config"]["parent"]["run_id"] == second


def test_both_views_of_a_judge_are_stored_apart_and_made_once(
    store: Store, workshop: Workshop
) -> None:
    for view in ("clean", "attacked"):
        passes.judge(out(store), "judge=target_prefix", view=view, workshop=workshop)  # type: ignore[arg-type]
    run_id = next(iter(store.runs()))
    views = sorted(part.header.get("view", "clean") for part in store.scores(run_id))
    assert views == ["attacked", "clean", "clean"]
    passes.judge(out(store), "judge=target_prefix", workshop=workshop)
    assert len(store.scores(run_id)) == 3


def test_runs_are_chosen_by_id_or_filter(store: Store) -> None:
    first, second = store.runs()
    assert passes.choose(store, [first[:6]]) == [first]
    item = store.header(second)["config"]["fit"]["ids"][0]
    assert passes.choose(store, None, [f"fit.ids={item}"]) == [second]
    with pytest.raises(StoreError, match="no run starts with 'zz'"):
        passes.choose(store, ["zz"])


def test_a_selection_without_runs_is_refused_and_never_means_all(
    store: Store, workshop: Workshop
) -> None:
    first, second = store.runs()
    item = store.header(second)["config"]["fit"]["ids"][0]
    assert passes.choose(store, [first, second], [f"fit.ids={item}"]) == [second]
    with pytest.raises(ConfigError, match="attack=beast: no stored run has attack=beast"):
        passes.choose(store, None, ["attack=beast"], derived=True)
    with pytest.raises(ConfigError, match="none of the runs named with --id fits"):
        passes.choose(store, [first], [f"fit.ids={item}"])
    with pytest.raises(ConfigError, match="leave it out for all of them"):
        passes.judge(out(store), "judge=target_prefix", runs=[], workshop=workshop)
    made = passes.sample(out(store), "generation_config.temperature=1", workshop=workshop)
    with pytest.raises(ConfigError, match="only runs that a pass made fit"):
        passes.choose(store, None, ["generation.temperature=1"])
    terms = ["generation.temperature=1", "parent.kind=inputs"]
    assert passes.choose(store, None, terms) == sorted(made.run_ids)


def test_a_place_without_runs_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no run store"):
        passes.sample(f"out={tmp_path / 'nothing'}", "completions=last")


def test_a_pass_is_remembered_and_repeated(store: Store, workshop: Workshop) -> None:
    words = (out(store), "generation_config.temperature=1")
    passes.sample(*words, where=["seed=0"], workshop=workshop)
    command = campaign.remembered(store.root)[-1]
    assert (command.verb, command.where) == ("sample", ("seed=0",))
    passes.sample(*words, where="seed=0", workshop=workshop)
    assert campaign.remembered(store.root)[-1] == command  # one text is one term
    finished = passes.repeat(command, workshop=workshop)
    assert finished.outcomes == ()
    assert len(finished.plan.done) == 2


def test_runs_that_other_commands_left_unfinished_are_told(
    store: Store,
    workshop: Workshop,
    search: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*search, "attacks.random_search.num_steps=3", out(store))
    (wanted, *_) = campaign.preview(*words).todo
    claim = store.claim(wanted.run_id, wanted.task.model_dump(mode="json"))
    assert not isinstance(claim, str)
    with claim:
        pass  # given back without a step
    notes: list[str] = []

    class Listener(campaign.Watcher):
        def note(self, text: str) -> None:
            notes.append(text)

    campaign.run(*search, SHORT, out(store), watcher=Listener(), workshop=workshop)
    (said,) = notes
    assert "unfinished runs of other commands: 1" in said
    assert f"{wanted.run_id}, differs in attack.options.num_steps: stored 3, now 2)" in said
    assert f"adversariallm resume {store.root} --all" in said
    passes.judge(out(store), "judge=target_prefix", workshop=workshop)
    assert main(["resume", str(store.root)]) == 0
    assert "1 runs of earlier commands are unfinished" in capsys.readouterr().out
    notes.clear()
    campaign.run(*words, watcher=Listener(), workshop=workshop)
    assert notes == []


# With workers


@pytest.mark.slow
def test_local_workers_top_up_transfer_and_judge(
    store: Store, models: tuple[str, str], workshop: Workshop
) -> None:
    local = ("launcher.kind=local", "launcher.workers=2")
    more = ("generation_config.num_return_sequences=2", *local)
    finished = passes.sample(out(store), *more)
    assert [o.detail for o in finished.outcomes] == ["completions added"] * 2
    assert finished.exit_code == 0
    sent = passes.transfer(out(store), *loading(models[1]), *local)
    assert sent.exit_code == 0
    assert len(sent.run_ids) == 2
    judged = passes.judge(out(store), "judge=target_prefix", *local)
    assert judged.exit_code == 0
    for run_id in store.runs():
        document = store.read(run_id)
        last = document["runs"][0]["steps"][-1]
        assert set(last["scores"]) == {"refusal_prefix", "target_prefix"}
        assert all(None not in s["p_harmful"] for s in last["scores"].values() if "p_harmful" in s)
        assert replay(store, run_id, workshop=workshop).passed
    assert store.damaged() == {}
    states = json.loads(json.dumps(dict(store.survey())))
    assert set(states.values()) == {"done"}
