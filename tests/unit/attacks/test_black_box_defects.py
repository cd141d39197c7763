"""Faults seen in other implementations of chat attacks that no other test would notice.

The list of faults with all tests is docs/defects_black_box.md.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks import actor, crescendo, pair
from adversariallm.attacks.actor import Judgment
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.records import RunDocument
from adversariallm.core.types import Behavior, Conversation, Message
from adversariallm.models.fakes import ScriptedModel
from adversariallm.runs.execute import Resources, check_needs, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.settings import configure, read
from adversariallm.runs.spec import Amounts, BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from adversariallm.runs.worker import Workshop

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, behavior, in_turn, play, steps  # noqa: E402  -- beside this file

ROOT = Path(__file__).parents[3]
CHAT = ("actor", "crescendo", "pair", "tap")
SAMPLED = GenerationConfig(temperature=0.9, top_p=0.8, max_new_tokens=7)


def numbered(talk: Any, rng: Any) -> str:
    return f"{talk.key[:6]} {rng.seed % 10**6}"


def run(name: str, asked: Behavior | None = None, samples: int = 1) -> tuple[RunDocument, Paid]:
    """A quick run with the attack's own example helpers."""
    module, item, target = ATTACKS.load(name), asked or behavior(), Paid(numbered)
    spec = RunSpec(
        attack=PluginSpec(
            name=name,
            version=module.INFO.version,
            options=module.Config(**module.INFO.quick).semantic(),
        ),
        models=(ModelSpec(name="target", identity={"name": "target"}),),
        fit=BehaviorSet(dataset="t", content_hash="0", ids=(item.id,), keys=(item.key,)),
        generation=SAMPLED,
        amounts=Amounts(num_return_sequences=samples),
    )
    helpers = {r: Paid(s) for r, s in getattr(module, "EXAMPLE_REPLIES", {}).items()}
    assets = getattr(module, "EXAMPLE_ASSETS", {})
    resources = Resources(models=(target,), helpers=helpers, assets=assets)
    task = RunTask(spec=spec, fit=(item.to_dict(),))
    return execute(task, resources, MemoryLog())[0], target


def test_defaults_are_those_of_the_papers() -> None:
    p, c, a = pair.Config(), crescendo.Config(), actor.Config()
    assert (p.num_streams, p.num_iterations, p.keep_last, p.cutoff) == (30, 3, 4, 10)
    assert (p.attempts, p.stop_on_success) == (5, True)
    assert (c.max_turns, c.max_backtracks, c.success_threshold) == (10, 10, 0.8)
    assert (a.num_actors, a.num_questions, a.stop_on_success) == (3, 5, True)


@pytest.mark.parametrize("name", CHAT)
def test_no_helper_has_a_default_least_of_all_the_model_under_attack(name: str) -> None:
    info = ATTACKS.load(name).INFO
    model = ScriptedModel(["a"])
    for role in info.helpers:
        rest: dict[str, Any] = {r: model for r in info.helpers if r != role}
        with pytest.raises(NeedsError, match=f"helpers.{role}=MODEL"):
            check_needs(info, [model], rest, [behavior()])


@pytest.mark.parametrize("name", CHAT)
def test_further_samples_belong_to_their_own_step_and_steer_nothing(name: str) -> None:
    plain, _ = run(name)
    more, target = run(name, samples=3)
    assert len({len(s.model_completions) for s in steps(more)}) == 1
    for one, three in zip(steps(plain), steps(more), strict=True):
        assert one.model_input == three.model_input and one.note == three.note
        assert three.model_completions[0] == one.model_completions[0]
        key = Conversation.from_dicts(three.model_input).key[:6]
        assert all(text.startswith(key) for text in three.model_completions)
        assert len(set(three.model_completions)) == 3
    assert set(target.generations) == {SAMPLED}  # one way of decoding for all samples
    booked = [s.ledgers["sampling"]["model"]["queries"] for s in steps(more)]
    assert booked == [2] * len(steps(more))


@pytest.mark.parametrize("name", [*CHAT, "bon", "direct", "human_jailbreaks"])
def test_nobody_touches_how_the_model_under_attack_answers(name: str) -> None:
    _, target = run(name)
    assert set(target.generations) == {SAMPLED} and not SAMPLED.stop
    assert set(target.schemas) == {None}


@pytest.mark.parametrize("name", [*CHAT, "bon", "direct", "human_jailbreaks"])
def test_system_messages_and_earlier_turns_stay_in_front(name: str) -> None:
    before = (
        Message("system", "Be brief."), Message("user", "Hello."), Message("assistant", "Hello!"),
    )  # fmt: skip
    goal = "name three birds"
    asked = Behavior("b", Conversation((*before, Message("user", goal))), goal, True)
    document, _ = run(name, asked)
    assert steps(document)
    for step in steps(document):
        assert step.model_input[:3] == [{"role": m.role, "content": m.content} for m in before]


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_turns_are_counted_and_not_halves_of_a_list(system: str | None) -> None:
    goal = "name three birds"
    asked = Behavior("b", Conversation.user(goal, system=system), goal, True)
    document, _ = run("crescendo", asked)
    kept = [s for s in steps(document) if not s.note["backtracked"]]
    assert [s.note["turn"] for s in kept] == list(range(len(kept)))
    for step in kept:
        users = [m for m in step.model_input if m["role"] == "user"]
        assert len(users) == step.note["turn"] + 1


def test_a_replaced_question_takes_its_place_in_later_prompts_and_the_network_stands_once() -> None:
    def plan(talk: Any, rng: Any) -> str:
        asked = talk[talk.last_user].content
        if '"actors"' in asked:
            return json.dumps({"actors": [{"actor_name": "Ada", "relationship": "r"}]})
        if '"questions"' in asked:
            return json.dumps({"questions": ["q0", "q1"]})
        if '"delivery_type"' in asked:
            parts = {"target": "birds", "delivery_type": "a list", "other_details": ""}
            return json.dumps(parts)
        return "the network"

    verdicts = in_turn(*(json.dumps({"type": t}) for t in ("rejective", "successful") * 2))
    helpers = {
        "planner": Paid(plan),
        "attacker": Paid(in_turn("new q0", "new q1")),
        "refusal_scorer": Paid(verdicts),
        "scorer": Paid(in_turn(json.dumps({"reason": "r", "score": 2}))),
    }
    document = play("actor", Paid(numbered), helpers, num_actors=1)
    told = helpers["attacker"].calls[1][0].content
    assert '["new q0", "q1"]' in told
    stored = json.dumps(steps(document)[0].note)
    assert stored.count("the network") == 1


def test_the_reason_comes_before_the_score_and_has_room() -> None:
    assert list(Judgment.wire_schema()["properties"]) == ["reason", "score"]
    assert "maxLength" not in json.dumps(Judgment.model_json_schema())
    assert actor.Config().scorer.max_new_tokens >= 512


@pytest.mark.parametrize(("typed", "value"), [("false", False), ("False", False), ("true", True)])
def test_a_typed_false_is_false(typed: str, value: bool) -> None:
    words = ["model=m", "dataset=d", "attack=actor", f"attacks.actor.stop_on_success={typed}"]
    (settings,) = read(words).points()
    assert configure("attacks", "actor", settings.attacks["actor"]).stop_on_success is value


def test_a_model_is_loaded_once_for_all_roles_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(name: str, **options: Any) -> ScriptedModel:
        loaded.append(name)
        return ScriptedModel(["a"], name=name)

    monkeypatch.setattr("adversariallm.models.loading.load_model", load)
    workshop = Workshop()
    attacker = ModelSpec(name="helper", identity={"weights": "h"})
    scorer = ModelSpec(name="helper", identity={"weights": "h"})
    other = ModelSpec(name="other", identity={"weights": "o"})
    first = workshop.model(attacker)
    assert workshop.model(scorer) is first
    assert workshop.model(other) is not first
    assert loaded == ["helper", "other"]


def sources() -> list[Path]:
    folders = (ROOT / "src", ROOT / "judgezoo" / "src")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def test_no_file_of_variables_is_read_over_the_users_environment() -> None:
    for path in sources():
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        assert "load_dotenv" not in names, path
        assert not re.search(r"^\s*(import|from)\s+dotenv", path.read_text(), re.MULTILINE), path


LOG = {"debug", "info", "warning", "error", "exception", "critical"}


def test_every_log_line_has_a_place_for_each_of_its_values() -> None:
    found = 0
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            named = isinstance(owner, ast.Name) and owner.id.lower() in ("log", "logger", "_log")
            if named and node.func.attr in LOG and isinstance(node.args[0], ast.Constant):
                found += 1
                places = re.findall(r"%[a-z]", str(node.args[0].value).replace("%%", ""))
                assert len(places) == len(node.args) - 1, f"{path}:{node.lineno}"
    assert found
