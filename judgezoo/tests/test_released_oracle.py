"""Our ``judgezoo`` variants against the released package 0.1.9, run in a process of its own.

Where the released package is right the scores agree; where it is wrong the test shows both values.
Needs PyPI (the package, its prompts) and the tokenizers of the shared data.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judgezoo import Judge
from judgezoo.assets import AssetStore
from judgezoo.backends import EndpointBackend, EndpointConfig
from judgezoo.testing import StubServer, chat, completion

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::judgezoo.ReproductionWarning"),
]
HERE = Path(__file__).parent
DATA = Path(os.environ.get("ADVERSARIALLM_DATA", HERE.parents[2] / "shared" / "data"))
BANG = 2
CHATS = [
    chat("Name a fruit.", "An apple is a fruit that many people like."),
    chat("Say hi.", "Hi"),
    chat("Shout!", "Oh! Yes! No! 5"),
    chat("Say { and }", "100% {braces} and %s\n\n\nend"),
    chat("Wie geht es?", "Mir geht es gut, danke \u00fc\u00df \U0001f642"),
    chat("Long one", "words and more words " * 40),
    chat("Count", "1 2 3 4 5"),
    chat("A list", "- a\n- b\n- c\n"),
]


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the released package beside ours, without its dependencies."""
    target = tmp_path_factory.mktemp("released")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target"]
    subprocess.run([*command, str(target), "judgezoo==0.1.9", "peft", "accelerate"], check=True)
    return target


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> AssetStore:
    store = AssetStore(tmp_path_factory.mktemp("texts"))
    store.fetch_many([i for i in store.ids() if i != "judge/harmbench_gpt4"])
    return store


def run_released(target: Path, request: dict[str, Any], **environment: str) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, str(HERE / "oracle" / "run_released.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["file"].startswith(str(target))
    return dict(answer)


def load_tokenizer(name: str, folder: Path, template: str | None) -> Any:
    from transformers import AutoTokenizer

    source = DATA / "tokenizers" / name
    if not source.is_dir():
        pytest.skip(f"no {source}")
    folder.mkdir()
    for file in source.iterdir():
        if file.suffix == ".xz":
            (folder / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
        else:
            shutil.copy(file, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = template
    return tokenizer


GUARD_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m['role'] + ']\n' + m['content'] + '\n' }}"
    "{% endfor %}{{ 'Safety:' }}"
)
CASES = {
    "harmbench-llama2": ("harmbench", "llama2", {"classifier": "llama2"}, "LLAMA_2_13B"),
    "harmbench-mistral": ("harmbench", "mistral_v1", {"classifier": "mistral"}, "MISTRAL_7B"),
    "strong_reject": ("strong_reject", "llama2", {}, ""),
    "md_judge": ("md_judge", "mistral_v1", {"version": "v0.1"}, ""),
    "aegis_guard": ("aegis_guard", "llama2", {}, ""),
    "llama_guard_3": ("llama_guard_3", "llama3_1", {}, ""),
}


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory, texts: AssetStore, calibrated: Callable[..., None]
) -> Callable[[str], Path]:
    """Return a maker of tiny checkpoints with real vocabularies, calibrated to a judge."""

    def make(case: str) -> Path:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        name, tokenizer_name, options, _ = CASES[case]
        folder = tmp_path_factory.mktemp(case) / "model"
        template = GUARD_TEMPLATE if name.startswith("llama_guard") else None
        tokenizer = load_tokenizer(tokenizer_name, folder, template)
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=8192,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )
        model = LlamaForCausalLM(config).eval()
        for parameter, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in parameter:
                weight.data *= 4
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        judge: Any = our_judge(case, folder, texts, "judgezoo")
        if name == "strong_reject":
            positive = [tokenizer.convert_tokens_to_ids("1")]
            labels = [tokenizer.convert_tokens_to_ids(digit) for digit in "12345"]
        else:
            positive, negative = judge.labels()
            labels = [*positive, *negative]
        calibrated(model, judge.build_inputs(CHATS), labels, 1, len(positive))
        model.save_pretrained(folder)
        return folder

    return make


def our_judge(case: str, folder: Path, texts: AssetStore, variant: str) -> Judge:
    name, _, options, _ = CASES[case]
    return Judge.from_name(
        name,
        variant=variant,  # type: ignore[arg-type]
        checkpoint=str(folder),
        dtype="float32",
        assets=texts,
        **options,
    )


@pytest.mark.parametrize("case", CASES)
def test_the_judgezoo_variant_equals_the_released_package(
    case: str,
    released: Path,
    texts: AssetStore,
    checkpoint: Callable[[str], Path],
    record_property: Callable[[str, object], None],
) -> None:
    folder = checkpoint(case)
    name, _, _, classifier = CASES[case]
    request: dict[str, Any] = {"judge": name, "folder": str(folder), "chats": CHATS}
    if classifier:
        request["options"] = {"classifier": classifier}
    theirs = run_released(released, request)
    ours = our_judge(case, folder, texts, "judgezoo")(CHATS)["p_harmful"]
    official = our_judge(case, folder, texts, "official")(CHATS)["p_harmful"]
    single = [row["p_harmful"][0] for row in theirs["single"]]
    spread = max(single) - min(single)
    gaps = [abs(a - b) for a, b in zip(ours, single, strict=True)]
    moved = max(abs(a - b) for a, b in zip(official, single, strict=True))
    record_property("difference", max(g for i, g in enumerate(gaps) if i != BANG))
    record_property("official_minus_released", moved)
    sys.stderr.write(
        f"{case}: spread {spread:.3f} gaps {[f'{g:.1e}' for g in gaps]} official {moved:.3f}\n"
    )
    assert spread > 0.3
    for index, gap in enumerate(gaps):
        if name == "llama_guard_3" and index == BANG:
            # The released package hides every lone "!" (token 0) from the model.
            assert gap > 1e-3
        else:
            assert gap < 1e-5
    assert moved > 1e-3


def test_jail_judge_reads_its_own_example_in_the_released_package(
    released: Path, texts: AssetStore, tmp_path: Path, calibrated: Callable[..., None]
) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path / "model"
    tokenizer = load_tokenizer("llama2", folder, None)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    theirs = run_released(
        released, {"judge": "jail_judge", "folder": str(folder), "chats": CHATS[:1]}
    )
    ours = Judge.from_name("jail_judge", checkpoint=str(folder), dtype="float32", assets=texts)
    mine = ours(CHATS[:1])
    assert theirs["batch"]["p_harmful"] == [0.0] and theirs["batch"]["rating"] == [1]
    assert mine["p_harmful"] == [None] and mine["error"][0] in {"unparsable", "empty"}


RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "stub",
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
    "status": "completed",
}


def response(text: str) -> bytes:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    return json.dumps({**RESPONSE, "output": [message]}).encode()


@pytest.mark.parametrize(
    ("name", "reply", "limit"),
    [
        ("adaptive_attacks", "Rating: [[7]]", 512),
        ("pair", "[[2]] then [[9]]", 512),
        ("intention_analysis", "B (Harmful)", 16),
        ("xstest", "so [[indirect_refusal]]", 512),
        ("strong_reject_rubric", "#\n1.b 0\n2.b 4\n3.b 2\n", 512),
        ("strong_reject_rubric", "#\n1.b 1\n2.b 4\n3.b 2\n", 512),
    ],
)
def test_prompted_judgezoo_variants_send_the_released_messages(
    name: str, reply: str, limit: int, released: Path, texts: AssetStore, server: StubServer
) -> None:
    server.answer = lambda n, path, body: (
        200,
        {},
        response(reply) if path.endswith("responses") else completion(reply),
    )
    targets = [chat(c[0]["content"], "Sure, here") for c in CHATS]
    request: dict[str, Any] = {
        "judge": name,
        "chats": CHATS,
        "options": {"use_local_model": False, "remote_foundation_model": "gpt-4-0613"},
    }
    if name in {"adaptive_attacks", "pair"}:
        request["targets"] = targets
    theirs = run_released(
        released, request, OPENAI_BASE_URL=server.url, OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k"
    )
    sent = server.requests[: len(CHATS)]
    server.requests.clear()
    backend = EndpointBackend(EndpointConfig(model="gpt-4", base_url=server.url, max_concurrency=1))
    judge = Judge.from_name(name, variant="judgezoo", backend=backend, assets=texts)
    ours = judge(CHATS, [{"target": "Sure, here"}] * len(CHATS))
    for mine, their in zip(server.requests, sent, strict=True):
        assert mine["messages"] == their["input"]
        assert mine["max_tokens"] == their["max_output_tokens"] == limit
        assert mine["temperature"] == their["temperature"] == 0.0
    if "p_harmful" in theirs["batch"]:
        assert ours["p_harmful"] == pytest.approx(theirs["batch"]["p_harmful"])
    for key in ("rating", "category", "refusal_score", "convincing_score"):
        if key in theirs["batch"]:
            assert ours[key] == theirs["batch"][key]
