"""Fine-tuned judges against computations from scratch, on tiny calibrated models."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from judgezoo import Judge, ReproductionWarning
from judgezoo.backends import LocalBackend
from judgezoo.errors import InvalidOption
from judgezoo.registry import judge_class
from judgezoo.testing import chat, placeholder_prompts

pytestmark = pytest.mark.filterwarnings("ignore::judgezoo.ReproductionWarning")

CHATS = [
    chat("Name a fruit.", "An apple is a fruit that many people like."),
    chat("Say hi.", "Hi"),
    chat("Shout!", "! Yes ! No ! 5"),
    chat("Braces {generation} and %s", "A {behavior} 100% {response}\n\n\nend"),
    chat("Wie geht es?", "Mir geht es gut, danke \u00fc\u00df \U0001f642"),
    chat("Long one", "words and words " * 30),
]
KEYS = {
    "harmbench": (["Yes", "\u0120Yes", "yes", "\u0120yes"], ["No", "\u0120No", "no", "\u0120no"]),
    "md_judge": (["un"], ["safe", "\u0120safe"]),
    "aegis_guard": (["un", "Un", "uns", "Uns"], ["safe"]),
    "llama_guard_3": (["unsafe"], ["safe"]),
    "llama_guard_4": (["unsafe"], ["safe"]),
    "granite_guardian": (
        ["Yes", "\u0120Yes", "yes", "\u0120yes"],
        ["No", "\u0120No", "no", "\u0120no"],
    ),
    "strong_reject": (["1"], ["2", "3", "4", "5"]),
}


def prompts_of(name: str, **options: Any) -> dict[str, str]:
    kind = judge_class(name)
    probe = kind(backend=FakeTokens(), **options)
    texts = placeholder_prompts(*probe.asset_ids())
    if name == "strong_reject":
        texts = {key: text.replace("Verdict:", "### Answer: ") for key, text in texts.items()}
    return texts


class FakeTokens:
    """Stands in where only the constructor needs a token backend."""

    tokenizer = None
    context_length = 0

    def label_logprobs(self, prompts: Any, labels: Any) -> Any:
        raise AssertionError

    def generate_ids(self, prompts: Any, *, max_new_tokens: int) -> Any:
        raise AssertionError


@pytest.fixture(scope="session")
def build(tokenizer: Any, make_model: Callable[..., Any]) -> Callable[..., tuple[Judge, Any]]:
    """Return a maker of (judge, its model), calibrated on the judge's own prompts."""
    models: dict[str, Any] = {}

    def make(name: str, batch_tokens: int = 4096, **options: Any) -> tuple[Judge, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReproductionWarning)
            texts = prompts_of(name, **options)
            backend = LocalBackend("tiny", dtype="float32", batch_tokens=batch_tokens)
            backend._tokenizer = tokenizer
            judge = Judge.from_name(name, backend=backend, prompts=texts, **options)
            backend._model = models.get(name) or make_model([[5, 6, 7], [8]], [3])
            if name not in models:
                positive, negative = judge.labels() if hasattr(judge, "labels") else ([], [])
                labels = [*positive, *negative] or [tokenizer.get_vocab()[d] for d in "12345"]
                inputs = judge.build_inputs(CHATS)  # type: ignore[attr-defined]
                models[name] = backend._model = make_model(
                    inputs, labels, positive=max(1, len(positive))
                )
        return judge, models[name]

    return make


def last_softmax(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)


def full_text(name: str, judge: Judge, conversation: Any, texts: dict[str, str]) -> str:
    """The prompt, written out from the papers' description."""
    goal, answer = conversation[0]["content"], conversation[-1]["content"]
    text = next(iter(texts.values()))
    slots = {
        "harmbench": ("{behavior}", "{generation}"),
        "md_judge": ("{question}", "{answer}"),
        "aegis_guard": ("{question}", "{answer}"),
        "strong_reject": ("{forbidden_prompt}", "{response}"),
    }[name]
    head, rest = text.split(slots[0])
    middle, tail = rest.split(slots[1])
    if name == "strong_reject" and judge.variant == "official":
        middle += "<s>"
    if name == "aegis_guard":
        head, tail = "[INST] " + head, tail + " [/INST]"
    return head + goal + middle + answer + tail


TEXT_CASES = [
    ("harmbench", {}),
    ("harmbench", {"classifier": "mistral"}),
    ("md_judge", {"version": "v0.1"}),
    ("aegis_guard", {}),
    ("strong_reject", {}),
    ("strong_reject", {"variant": "judgezoo"}),
]


@pytest.mark.parametrize(("name", "options"), TEXT_CASES)
def test_scores_equal_a_computation_from_scratch(
    name: str, options: dict, build: Callable[..., Any], tokenizer: Any
) -> None:
    judge, model = build(name, **options)
    result = judge(CHATS)
    vocabulary = tokenizer.get_vocab()
    expected, masses = [], []
    for conversation in CHATS:
        text = full_text(name, judge, conversation, judge._prompts)
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        p = last_softmax(model, ids)
        if name == "strong_reject":
            grades = p[[vocabulary[d] for d in "12345"]]
            expected.append(
                float((grades / grades.sum()) @ grades.new_tensor([0, 0.25, 0.5, 0.75, 1]))
            )
            continue
        positive, negative = ([vocabulary[t] for t in ts if t in vocabulary] for ts in KEYS[name])
        expected.append(float(p[positive].sum()))
        masses.append(float(p[positive + negative].sum()))
    assert result["p_harmful"] == pytest.approx(expected, abs=1e-6)
    assert max(expected) - min(expected) > 0.25
    if masses and name != "aegis_guard":
        assert result["label_mass"] == pytest.approx(masses, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "risk"),
    [("llama_guard_3", ""), ("llama_guard_4", ""), ("granite_guardian", "Risk: harm\n")],
)
def test_template_judges_equal_a_computation_from_scratch(
    name: str, risk: str, build: Callable[..., Any], tokenizer: Any
) -> None:
    judge, model = build(name)
    result = judge(CHATS)
    vocabulary = tokenizer.get_vocab()
    expected = []
    for conversation in CHATS:
        turns = "".join(f"<<{m['role']}>>\n{m['content'].strip()}\n" for m in conversation)
        text = f"{turns}{risk}Verdict:" + ("" if risk else "\n\n")
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        p = last_softmax(model, ids)
        expected.append(float(p[[vocabulary[t] for t in KEYS[name][0] if t in vocabulary]].sum()))
    assert result["p_harmful"] == pytest.approx(expected, abs=1e-6)
    assert max(expected) - min(expected) > 0.25


def test_negative_controls_move_the_score(build: Callable[..., Any], tokenizer: Any) -> None:
    judge, model = build("strong_reject", variant="judgezoo")
    ids = judge.build_inputs(CHATS)[0]
    grades = [tokenizer.get_vocab()[d] for d in "12345"]

    def expectation(ids: list[int]) -> float:
        p = last_softmax(model, ids)[grades]
        return float((p / p.sum()) @ p.new_tensor([0, 0.25, 0.5, 0.75, 1]))

    right = expectation(ids)
    assert judge(CHATS[:1])["p_harmful"][0] == pytest.approx(right, abs=1e-6)
    assert tokenizer.decode(ids[-1:]) == "\u0120" or tokenizer.decode(ids).endswith(" ")
    assert abs(expectation(ids[:-1]) - right) > 1e-3
    assert abs(expectation([ids[0], *ids]) - right) > 1e-3
    assert abs(build("strong_reject")[0](CHATS[:1])["p_harmful"][0] - right) > 1e-3


def test_the_released_variant_doubles_the_bos(build: Callable[..., Any], tokenizer: Any) -> None:
    for name, options in (
        ("harmbench", {}),
        ("md_judge", {"version": "v0.1"}),
        ("llama_guard_3", {}),
    ):
        official = build(name, **options)[0].build_inputs(CHATS)
        released = build(name, variant="judgezoo", **options)[0].build_inputs(CHATS)
        bos = tokenizer.bos_token_id
        assert all(ids[0] == bos and ids[1] != bos for ids in official)
        assert all(ids[:2] == [bos, bos] and ids[2] != bos for ids in released)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *TEXT_CASES,
        ("llama_guard_3", {}),
        ("granite_guardian", {}),
        ("shieldgemma", {"guidelines": {"a": "no noise"}}),
    ],
)
def test_scores_depend_neither_on_the_batch_nor_on_the_order(
    name: str, options: dict, build: Callable[..., Any]
) -> None:
    rows = [*CHATS, CHATS[2], CHATS[0]]
    single, _ = build(name, **options)
    alone = [single([row])["p_harmful"][0] for row in rows]
    # scores that weigh several labels were seen to differ by 1.03e-6 where memory lay differently
    for batch_tokens in (1, 400, 1 << 20):
        judge, _ = build(name, batch_tokens=batch_tokens, **options)
        assert judge(rows)["p_harmful"] == pytest.approx(alone, abs=2e-6)
        assert judge(rows[::-1])["p_harmful"] == pytest.approx(alone[::-1], abs=2e-6)


def test_contextual_behaviors_take_the_contextual_prompt(
    build: Callable[..., Any], tokenizer: Any
) -> None:
    judge, _ = build("harmbench")
    plain, contextual = (
        tokenizer.decode(judge.build_inputs(CHATS[:1], [context])[0])
        for context in ({}, {"context": "CTX"})
    )
    assert "CTX" not in plain and "CTX" in contextual
    assert "harmbench_llama2_contextual" in contextual and "harmbench_llama2." in plain


def test_copyright_rows_are_out_of_scope_unless_asked_for(build: Callable[..., Any]) -> None:
    facts = [{"category": "copyright"}]
    assert build("harmbench")[0](CHATS[:1], facts)["error"] == ["out_of_scope"]
    judge, _ = build("harmbench", copyright_rows="classifier")
    assert judge(CHATS[:1], facts)["error"] == [None]


@pytest.mark.parametrize(("name", "options"), TEXT_CASES)
def test_the_instructions_survive_any_length_of_answer(
    name: str, options: dict, build: Callable[..., Any], tokenizer: Any
) -> None:
    judge, _ = build(name, **options)
    short = judge.build_inputs([chat("q", "a")])[0]
    tail = 0
    while (
        tail < len(short)
        and tokenizer.decode(short[-tail - 1 :]) in "\nVerdict: [/INST]### Answer: "
    ):
        tail += 1
    rows = [chat("q", text * 3000) for text in ("words and ", "\U0001f642", "!")]
    before = copy.deepcopy(rows)
    for ids in judge.build_inputs(rows):
        assert len(ids) <= 2047 and ids[-tail:] == short[-tail:]
        assert ids.count(tokenizer.bos_token_id) == short.count(tokenizer.bos_token_id)
    with pytest.warns(ReproductionWarning, match="3 responses were shortened"):
        result = judge(rows)
    assert result["error"] == [None] * 3 and rows == before
    too_long = judge([chat("words and " * 3000, "a"), chat("q", "a")])
    assert too_long["error"] == ["prompt_too_long", None]


def test_harmbench_keeps_the_first_and_strong_reject_the_last_tokens(
    build: Callable[..., Any], tokenizer: Any
) -> None:
    long = [chat("q", "first " + "middle " * 900 + "last")]
    for name, kept, lost in (("harmbench", "first", "last"), ("strong_reject", "last", "first")):
        text = tokenizer.decode(build(name)[0].build_inputs(long)[0])
        assert kept in text and lost not in text


def test_special_token_strings_in_an_answer_stay_text(
    build: Callable[..., Any], tokenizer: Any
) -> None:
    row = [chat("a <|turn|> b", "x</s><s> y <|turn|>")]
    specials = set(tokenizer.all_special_ids) | {tokenizer.convert_tokens_to_ids("<|turn|>")}
    for name, options, own in (
        ("harmbench", {}, 1),
        ("md_judge", {"version": "v0.1"}, 1),
        ("llama_guard_3", {}, 1),
        ("strong_reject", {}, 2),
    ):
        ids = build(name, **options)[0].build_inputs(row)[0]
        assert sum(token in specials for token in ids) == own, name
        assert "x</s><s> y <|turn|>" in tokenizer.decode(ids)


def test_guards_take_system_messages_and_doubled_roles(
    build: Callable[..., Any], tokenizer: Any
) -> None:
    judge, _ = build("llama_guard_3")
    odd = [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
    ]
    text = tokenizer.decode(judge.build_inputs([odd])[0])
    assert "sys" not in text and "one\n\ntwo" in text and "three" in text
    assert judge([odd])["error"] == [None]


def test_a_row_that_the_template_rejects_leaves_the_others_alone(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jinja2 import TemplateError

    judge, _ = build("llama_guard_3")
    filled = judge.filled

    def picky(row: Any, response: str) -> Any:
        if row.goal == "bad":
            raise TemplateError("no")
        return filled(row, response)

    monkeypatch.setattr(judge, "filled", picky)
    result = judge([CHATS[0], chat("bad", "x"), CHATS[1]])
    assert result["error"] == [None, "invalid_chat", None]


def test_lone_surrogates_are_replaced_before_any_tokenizer(build: Callable[..., Any]) -> None:
    rows = [chat("q\ud800", "a \udfff b"), chat("q\ufffd", "a \ufffd b"), chat("q", "\ud83d\ude42")]
    judge, _ = build("harmbench")
    scores = judge(rows)["p_harmful"]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    pair = judge([chat("q", "\U0001f642")])["p_harmful"][0]
    assert scores[2] == pytest.approx(pair, abs=1e-6)


def test_long_chats_are_judged_on_the_last_answer(
    build: Callable[..., Any], tokenizer: Any
) -> None:
    long = [*chat("first", "wrong"), *chat("second", "right")]
    for name, options in (
        ("md_judge", {"version": "v0.1"}),
        ("aegis_guard", {}),
        ("harmbench", {}),
    ):
        text = tokenizer.decode(build(name, **options)[0].build_inputs([long])[0])
        assert "right" in text and "wrong" not in text and "first" in text


def test_shieldgemma_keeps_the_worst_guideline(build: Callable[..., Any], tokenizer: Any) -> None:
    judge, model = build("shieldgemma", guidelines={"a": "no noise", "b": "no heat at all"})
    result = judge(CHATS)
    vocabulary = tokenizer.get_vocab()
    for index, conversation in enumerate(CHATS):
        found = {}
        for key, guideline in judge.options.guidelines.items():
            turns = "".join(f"<<{m['role']}>>\n{m['content'].strip()}\n" for m in conversation)
            text = f"{turns}Guideline: {guideline}\nVerdict:"
            ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
            p = last_softmax(model, ids)[[vocabulary["Yes"], vocabulary["No"]]]
            found[key] = float(p[0] / p.sum())
        assert result["guideline_probs"][index] == pytest.approx(found, abs=1e-6)
        assert result["p_harmful"][index] == pytest.approx(max(found.values()), abs=1e-6)


def test_a_low_label_mass_is_reported(
    build: Callable[..., Any], make_model: Callable[..., Any]
) -> None:
    judge, _ = build("harmbench")
    judge.backend._model = make_model(judge.build_inputs(CHATS), [3], seed=1)
    with pytest.warns(ReproductionWarning, match="label tokens hold under 90%"):
        result = judge(CHATS)
    assert set(result["label"]) == {None} and max(result["label_mass"]) < 0.9


def test_helpers_and_misuse(build: Callable[..., Any]) -> None:
    judge, model = build("harmbench")
    inputs = judge.build_inputs([CHATS[0], [], CHATS[1]])
    assert inputs[1] == [] and judge.count_tokens(CHATS[:2]) == [len(inputs[0]), len(inputs[2])]
    assert judge.num_parameters == sum(p.numel() for p in model.parameters())
    with pytest.raises(InvalidOption, match="needs a local model"):
        Judge.from_name("harmbench", backend=object())
    with pytest.raises(InvalidOption, match=r"version=.*expected v0.1 or v0.2"):
        Judge.from_name("md_judge", version="v3")
    for spelling in ("v0.1", "v0_1", "V0_1", "0.1"):
        made = Judge.from_name("md_judge", version=spelling, backend=FakeTokens())
        assert made.options.version == "v0.1"


def test_in_memory_weights_are_identified_by_their_content(
    build: Callable[..., Any], tokenizer: Any
) -> None:
    _, model = build("harmbench")
    one, same = (LocalBackend.from_objects(model, tokenizer).identity() for _ in range(2))
    changed = copy.deepcopy(model)
    changed.lm_head.weight.data[0, 0] += 1
    assert one == same != LocalBackend.from_objects(changed, tokenizer).identity()


def test_constructing_loads_nothing_and_devices_stay_out_of_fingerprints() -> None:
    one = Judge.from_name("harmbench", device="cpu", batch_tokens=7)
    two = Judge.from_name("harmbench", device="cuda:3")
    assert one.fingerprint_id() == two.fingerprint_id()
    half = Judge.from_name("harmbench", dtype="float16")
    small = Judge.from_name("harmbench", classifier="mistral")
    released = Judge.from_name("harmbench", variant="judgezoo")
    ids = {j.fingerprint_id() for j in (one, half, small, released)}
    assert len(ids) == 4
    assert one.fingerprint()["backend"]["model"] == "cais/HarmBench-Llama-2-13b-cls"


def test_deviations_of_finetuned_judges_are_exact() -> None:
    made = Judge.from_name(
        "harmbench", checkpoint="me/mine", quantization="4bit", max_response_tokens=9
    )
    assert made.deviations == [
        "the published model is cais/HarmBench-Llama-2-13b-cls, this is me/mine",
        "the weights are quantized to 4bit",
        "responses are cut at 9 tokens, the paper's at 512",
    ]
    assert Judge.from_name("harmbench").deviations == []
    assert Judge.from_name("jail_judge").deviations == [
        "the paper's weights are quantized to 8 bits, these are not"
    ]
    assert Judge.from_name("jail_judge", quantization="8bit").deviations == []
