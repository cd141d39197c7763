"""Chat attacks and the model layer against a real local HTTP server, proper and misbehaving."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.remote import RemoteModel
from adversariallm.models.replies import ReplyCache
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.spec import BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop, work
from judgezoo.backends import Capabilities, EndpointBackend, EndpointConfig

sys.path.insert(0, str(Path(__file__).parent))
from stub import FAULTS, Messages, Stub, digest, serving  # noqa: E402  -- beside this file

pytestmark = pytest.mark.timeout(300)
QUICK = tuple(f for f in FAULTS if f != "timeout")
EVERY = ("actor", "bon", "crescendo", "direct", "human_jailbreaks", "pair", "tap")


def model(stub: Stub, name: str, *, cache: Path | None = None, **fields: Any) -> RemoteModel:
    given = {
        "max_backoff_s": 0.01,
        "timeout_s": 30.0,
        "capabilities": Capabilities(schema_mode="none"),
        **fields,
    }
    backend = EndpointBackend(EndpointConfig(model=name, base_url=stub.address, **given))
    return RemoteModel(backend, name=name, replies=None if cache is None else ReplyCache(cache))


def plain(messages: Messages, seed: int) -> str:
    return f"an answer {digest(messages) % 1000} to {messages[-1]['content'][:20]}"


def rules_of(attack: str) -> dict[str, Any]:
    """The attack's own example helpers, served over HTTP."""
    module = ATTACKS.load(attack)

    def rule(script: Any) -> Any:
        def answer(messages: Messages, seed: int) -> str:
            talk = Conversation.from_dicts(messages)
            return str(script(talk, Rng.root(seed))) if callable(script) else script[0]

        return answer

    helpers = getattr(module, "EXAMPLE_REPLIES", {})
    return {"target": plain, **{r: rule(s) for r, s in helpers.items()}}


def behaviors(count: int) -> list[Behavior]:
    goals = [f"name {k + 2} birds" for k in range(count)]
    return [Behavior(f"b{k}", Conversation.user(g), g, True) for k, g in enumerate(goals)]


def task_of(attack: str, models: dict[str, RemoteModel], behavior: Behavior) -> RunTask:
    module = ATTACKS.load(attack)
    specs = {r: ModelSpec(name=r, identity=dict(m.identity())) for r, m in models.items()}
    spec = RunSpec(
        attack=PluginSpec(
            name=attack,
            version=module.INFO.version,
            options=module.Config(**module.INFO.quick).semantic(),
        ),
        models=(specs.pop("target"),),
        helpers=specs,
        fit=BehaviorSet(dataset="t", content_hash="0", ids=(behavior.id,), keys=(behavior.key,)),
        generation=GenerationConfig(max_new_tokens=20),
    )
    return RunTask(spec=spec, fit=(behavior.to_dict(),))


@pytest.mark.parametrize("attack", EVERY)
def test_the_ledger_is_the_servers_own_count_by_role(attack: str) -> None:
    with serving(Stub(rules_of(attack))) as stub:
        models = {name: model(stub, name) for name in stub.rules}
        module = ATTACKS.load(attack)
        helpers = {r: m for r, m in models.items() if r != "target"}
        assets = getattr(module, "EXAMPLE_ASSETS", {})
        resources = Resources(models=(models["target"],), helpers=helpers, assets=assets)
        task = task_of(attack, models, behaviors(1)[0])
        document, _ = execute(task, resources, MemoryLog())
    queries: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for rows in document.ledgers.values():
        for role, used in rows.items():
            served = "target" if role == "model" else role
            queries[served] += int(used["queries"])
            tokens[served] += int(used.get("tokens_generated") or 0)
            assert used["flops"] is None  # unknown, never a zero
    assert queries == stub.answered
    assert tokens == stub.tokens
    searched = ATTACKS.load(attack).INFO.cost == "search"
    for step in document.runs[0].steps:  # a sampling attack's search is a true zero
        assert step.flops == (None if searched else 0)
    assert stub.keys == {"role", "content"}  # nothing else leaves the process


def faulty(text: str, attempt: int) -> str | None:
    """Three requests of four fail at first, some always, some are blocked, a few never answer."""
    number = digest([{"t": text}])
    if number % 20 == 0:
        return "content_filter"
    if number % 20 == 1:
        return "500"
    if number % 31 == 2 and attempt == 1:
        return "timeout"
    if attempt <= number % 4:
        return QUICK[(number // 7 + attempt) % len(QUICK)]
    return None


def test_two_hundred_requests_under_faults_are_all_accounted_for() -> None:
    with serving(Stub({"target": plain}, faulty)) as stub:
        remote = model(stub, "target", timeout_s=7.0, max_concurrency=16)
        talks = [Conversation.user(f"question {k}") for k in range(200)]
        rngs = [Rng.root(k) for k in range(200)]
        replies = remote.generate(talks, GenerationConfig(max_new_tokens=9), rngs)
    assert len(replies) == 200
    kinds: Counter[str] = Counter()
    for talk, reply in zip(talks, replies, strict=True):
        messages = talk.to_dicts()
        number = digest([{"t": json.dumps(messages)}]) % 20
        kinds[reply.error or "ok"] += 1
        if number == 0:
            assert (reply.error, reply.text) == ("content_filter", "")
        elif number == 1:
            assert (reply.error, reply.text) == ("provider_error", "")
        else:  # its own answer, never a neighbor's
            assert (reply.error, reply.text) == (None, plain(messages, 0))
        assert reply.usage.queries == 1
    assert kinds["ok"] == stub.answered["target"] and sum(kinds.values()) == 200
    assert sum(r.raw["attempts"] for r in replies) == stub.attempts["target"]
    assert set(stub.failed) == {*FAULTS, "content_filter"}


class Texts:
    """Stands for the asset store."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def text(self, name: str) -> str:
        return self._texts[name]


@pytest.mark.parametrize("attack", ["crescendo", "actor"])
def test_transcripts_are_equal_at_concurrency_1_and_8(attack: str, tmp_path: Path) -> None:
    module = ATTACKS.load(attack)
    found = []
    for size in (1, 8):
        with serving(Stub(rules_of(attack))) as stub:
            models = {name: model(stub, name) for name in stub.rules}
            tasks = []
            for behavior in behaviors(5):
                task = task_of(attack, models, behavior)
                hashes = dict.fromkeys(module.INFO.assets_of(module.Config()), "0" * 64)
                spec = task.spec.model_copy(update={"assets": hashes})
                tasks.append(task.model_copy(update={"spec": spec}))
            held = {stable_hash(dict(m.identity())): m for m in models.values()}
            texts: Any = Texts(getattr(module, "EXAMPLE_ASSETS", {}))
            store = Store(tmp_path / f"{size}")
            outcomes = work(store, tasks, Workshop(models=held, assets=texts), concurrency=size)
            assert [o.ending for o in outcomes] == ["done"] * 5
            rows = [store.read(t.spec.run_id)["runs"][0]["steps"] for t in tasks]
        found.append(
            [[(s["model_input"], s["model_completions"], s["note"]) for s in r] for r in rows]
        )
    assert found[0] == found[1]


def test_one_broken_behavior_leaves_the_others_alone(tmp_path: Path) -> None:
    rules = rules_of("crescendo")
    good = rules["attacker"]

    def attacker(messages: Messages, seed: int) -> str:
        return "prose" if "name 3 birds" in json.dumps(messages) else str(good(messages, seed))

    with serving(Stub({**rules, "attacker": attacker})) as stub:
        models = {name: model(stub, name) for name in stub.rules}
        held = {stable_hash(dict(m.identity())): m for m in models.values()}
        tasks = [task_of("crescendo", models, b) for b in behaviors(3)]
        module = ATTACKS.load("crescendo")
        hashes = dict.fromkeys(module.INFO.assets_of(module.Config()), "0" * 64)
        tasks = [
            t.model_copy(update={"spec": t.spec.model_copy(update={"assets": hashes})})
            for t in tasks
        ]
        texts: Any = Texts(ATTACKS.load("crescendo").EXAMPLE_ASSETS)
        store = Store(tmp_path)
        work(store, tasks, Workshop(models=held, assets=texts), concurrency=3)
        documents = [store.read(t.spec.run_id) for t in tasks]
    assert documents[1]["status"] == "ended: attacker_failed"
    assert documents[1]["runs"][0]["steps"] == []
    assert all(d["runs"][0]["steps"] for d in (documents[0], documents[2]))


def test_a_run_whose_journal_is_lost_pays_for_nothing_twice(tmp_path: Path) -> None:
    module = ATTACKS.load("pair")
    with serving(Stub(rules_of("pair"))) as stub:
        models = {name: model(stub, name, cache=tmp_path) for name in stub.rules}
        helpers = {r: m for r, m in models.items() if r != "target"}
        resources = Resources(
            models=(models["target"],), helpers=helpers, assets=module.EXAMPLE_ASSETS
        )
        task = task_of("pair", models, behaviors(1)[0])
        first, _ = execute(task, resources, MemoryLog())
        paid = sum(stub.attempts.values())
        again, _ = execute(task, resources, MemoryLog())
        assert sum(stub.attempts.values()) == paid > 0
    notes = [[s.note for s in d.runs[0].steps] for d in (first, again)]
    assert notes[0] == notes[1] and first.ledgers == again.ledgers


@pytest.mark.parametrize(("name", "error"), [("missing", "provider_error"), ("target", None)])
def test_an_unknown_model_is_an_error_with_the_servers_reason(name: str, error: Any) -> None:
    with serving(Stub({"target": plain})) as stub:
        options = GenerationConfig(max_new_tokens=4)
        ask = [Conversation.user("a")]
        (reply,) = model(stub, name).generate(ask, options, [Rng.root(0)])
    assert reply.error == error
    if error:
        assert stub.attempts[name] == 1  # asking again would not help
        assert "missing" in str(reply.raw["error"])
