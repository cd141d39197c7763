"""Chat attacks and the probe against `transformers serve` with the small real model.

Needs PyPI for the server's web framework, which nothing else here uses. The server samples only
where the checkpoint's generation_config.json says so; it ignores n, logprobs and schemas, and
leaves stop strings in.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models import sources
from adversariallm.models.card import get_card
from adversariallm.models.probe import probe
from adversariallm.models.remote import RemoteModel
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.spec import BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from judgezoo.backends import Capabilities, EndpointBackend, EndpointConfig

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1200)]
FRAMEWORK = ("fastapi", "uvicorn", "starlette", "h11", "annotated-doc")
HONORED = Capabilities(n=False, logprobs=False, schema_mode="none", stop=False)
START_S = 240


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Address and model name of a running server."""
    folder = tmp_path_factory.mktemp("serve")
    library = os.environ.get("ADVERSARIALLM_SERVING", str(folder / "lib"))
    if not Path(library).is_dir():
        command = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps"]
        subprocess.run([*command, "--target", library, *FRAMEWORK], check=True)
    model = folder / "model"
    shutil.copytree(sources.fetch(get_card("smollm2-135m")), model, symlinks=False)
    settings = model / "generation_config.json"
    stored = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**stored, "do_sample": True}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("transformers")), *command, "--default-seed", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": library, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
    )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}/v1", str(model)
    finally:
        process.terminate()
        process.wait()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start (exit status {process.poll()})")


def remote(served: tuple[str, str], able: Capabilities = HONORED) -> RemoteModel:
    address, name = served
    config = EndpointConfig(
        model=name, base_url=address, max_concurrency=1, capabilities=able, timeout_s=300
    )
    return RemoteModel(EndpointBackend(config), name="smollm2")


def test_the_probe_sees_what_the_server_ignores(served: tuple[str, str]) -> None:
    found = {row.ability: row for row in probe(remote(served, Capabilities()))}
    assert found["answers"].seen is True and found["usage"].seen is True
    ignored = {name for name, row in found.items() if not row.agrees}
    assert ignored == {"n", "logprobs", "schema", "stop"}
    assert found["temperature"].seen is True and found["seed"].seen is True


@pytest.mark.parametrize("attack", ["direct", "pair", "crescendo"])
def test_a_run_is_made_of_answers_and_recorded_failures(
    attack: str, served: tuple[str, str]
) -> None:
    model = remote(served)
    module = ATTACKS.load(attack)
    goal = "Name three birds that live near water."
    behavior = Behavior("b", Conversation.user(goal), goal, True)
    spec = ModelSpec(name="smollm2", identity=dict(model.identity()))
    short = {"max_new_tokens": 48, "temperature": 0.7}
    options: dict[str, Any] = {
        "direct": {},
        "pair": {"num_streams": 1, "num_iterations": 1, "attempts": 2, "attacker": short},
        "crescendo": {
            "max_turns": 1, "max_backtracks": 1, "attempts": 1, "attacker": short,
            "refusal_scorer": short, "scorer": short,
        },
    }[attack]  # fmt: skip
    run_spec = RunSpec(
        attack=PluginSpec(
            name=attack,
            version=module.INFO.version,
            options=module.Config(**options).semantic(),
        ),
        models=(spec,),
        helpers=dict.fromkeys(module.INFO.helpers, spec),
        fit=BehaviorSet(dataset="t", content_hash="0", ids=("b",), keys=(behavior.key,)),
        generation=GenerationConfig(max_new_tokens=16),
    )
    resources = Resources(
        models=(model,),
        helpers=dict.fromkeys(module.INFO.helpers, model),
        assets=getattr(module, "EXAMPLE_ASSETS", {}),
    )
    task = RunTask(spec=run_spec, fit=(behavior.to_dict(),))
    document = execute(task, resources, MemoryLog())[0]
    assert document.status == "done" or document.status.startswith("ended: ")
    spent = [u for roles in document.ledgers.values() for u in roles.values()]
    assert spent and all(u["queries"] and u["tokens_generated"] for u in spent)
    assert all(u["flops"] is None for u in spent)
    for step in document.runs[0].steps:
        assert step.completions[0].raw["served_model"]
        assert step.model_input is not None and step.model_input[-1]["content"].strip()


def test_a_seed_repeats_a_sampled_answer_and_another_stream_does_not(
    served: tuple[str, str],
) -> None:
    model = remote(served)
    options = GenerationConfig(max_new_tokens=16, temperature=1.0)
    talk = Conversation.user("Tell me about a bird.")
    streams = [Rng.root(1), Rng.root(1), Rng.root(2)]
    first, again, other = (r.text for r in model.generate([talk] * 3, options, streams))
    assert first == again != other
