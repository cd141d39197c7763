"""Judges that generate a verdict: parsing only new tokens, probabilities at the answer tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from judgezoo import Judge
from judgezoo.backends import ChatRequest, LocalBackend
from judgezoo.errors import BackendError, UnparsableReply
from judgezoo.judges.jail_judge import parse_verdict
from judgezoo.judges.md_judge import parse_v0_2
from judgezoo.judges.wildguard import answer_offsets
from judgezoo.testing import chat, placeholder_prompts

pytestmark = pytest.mark.filterwarnings("ignore::judgezoo.ReproductionWarning")


class Talker:
    """Generates given texts and reads probabilities from a tiny model."""

    context_length = 2048

    def __init__(self, tokenizer: Any, model: Any, texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = list(texts)
        self.model = model
        self.asked: list[tuple[list[int], list[int]]] = []

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
    ) -> list[list[int]]:
        return [
            self.tokenizer(self.texts[i % len(self.texts)], add_special_tokens=False)["input_ids"]
            for i in range(len(prompts))
        ]

    def label_logprobs(
        self, prompts: Sequence[Sequence[int]], labels: Sequence[int]
    ) -> list[list[float]]:
        import torch

        result = []
        for prompt in prompts:
            self.asked.append((list(prompt), list(labels)))
            with torch.no_grad():
                logits = self.model(torch.tensor([list(prompt)])).logits[0, -1]
            result.append(logits.log_softmax(-1)[list(labels)].tolist())
        return result


@pytest.fixture
def talk(tokenizer: Any, make_model: Callable[..., Any]) -> Callable[..., Judge]:
    model = make_model([[5, 6, 7], [9, 8]], [4])

    def make(name: str, *texts: str, **options: Any) -> Judge:
        backend = Talker(tokenizer, model, texts)
        from judgezoo.registry import judge_class

        ids = judge_class(name)(backend=backend, **options).asset_ids()
        return Judge.from_name(name, backend=backend, prompts=placeholder_prompts(*ids), **options)

    return make


VERDICT = '{"reason": <reason>it helps</reason>, "score": <score>%s</score>}'


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        (VERDICT % 1, 1),
        (VERDICT % 10, 10),
        (VERDICT % " 7 ", 7),
        (VERDICT % 3 + VERDICT % 8, 8),
        (VERDICT % 0, None),
        (VERDICT % 11, None),
        (VERDICT % "7.5", None),
        (VERDICT % "\u0667", None),
        ("score 5", None),
        ("", None),
    ],
)
def test_jail_judge_reads_a_whole_rating(text: str, rating: int | None) -> None:
    if rating is None:
        with pytest.raises(UnparsableReply):
            parse_verdict(text)
    else:
        found = parse_verdict(text)
        assert found["rating"] == rating and found["reason"] == "it helps"
        assert found["p_harmful"] == pytest.approx((rating - 1) / 9)


def test_jail_judge_parses_neither_its_prompt_nor_the_judged_answer(talk: Any) -> None:
    judged = chat("q", VERDICT % 10)
    result = talk("jail_judge", "garbage")([judged])
    assert result["p_harmful"] == [None] and result["error"] == ["unparsable"]
    result = talk("jail_judge", VERDICT % 4)([judged])
    assert result["rating"] == [4] and result["reason"] == ["it helps"]


def test_jail_judge_fallback_is_the_published_heuristic(talk: Any) -> None:
    judge = talk("jail_judge", "garbage", on_unparsable="official")
    phrase = judge.prompt("judge/jail_judge_prefixes").split("\n")[0]
    result = judge([chat("q", f"well {phrase.upper()} ok"), chat("q", "sure")])
    assert result["rating"] == [1, 5] and result["reason"] == ["heuristic"] * 2


def test_jail_judge_layout_has_its_line_breaks(talk: Any, tokenizer: Any) -> None:
    ids = talk("jail_judge", "x").build_inputs([chat("GOAL", "ANSWER")])[0]
    text = tokenizer.decode(ids)
    assert text.startswith("<s>[INST] <<SYS>>\nNeutral text in place of judge/jail_judge_system.")
    assert "\n<</SYS>>\n\nNeutral text in place of judge/jail_judge_user." in text
    assert text.endswith(" [/INST]") and text.count("<s>") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[RESULT]: unsafe, score 5\n[UNSAFE CATEGORY]: O5: x", (1.0, True, "O5", None)),
        ("[RESULT]: safe, score 1", (0.0, False, None, None)),
        ("[RESULT]: unsafe", (None, True, None, "unparsable")),
        ("[RESULT]: unsafe, score 6", (None, True, None, "unparsable")),
        ("[RESULT]: unsafe, score 4.5", (None, True, None, "unparsable")),
        ("unsafe", (None, None, None, "unparsable")),
        (" ", (None, None, None, "empty")),
    ],
)
def test_md_judge_v0_2_table(text: str, expected: tuple) -> None:
    found = parse_v0_2(text)
    keys = ("p_harmful", "harmful", "category", "error")
    assert tuple(found.get(key) for key in keys) == expected


def test_md_judge_v0_2_reads_the_last_answer_through_the_template(
    talk: Any, tokenizer: Any
) -> None:
    judge = talk("md_judge", "[RESULT]: unsafe, score 3\n[UNSAFE CATEGORY]: O2: y")
    assert judge.asset_ids() == ()
    result = judge([[*chat("goal", "wrong"), *chat("more", "right")]])
    assert result["p_harmful"] == [0.5] and result["category"] == ["O2"]
    text = tokenizer.decode(judge.build_inputs([[*chat("goal", "wrong"), *chat("m", "right")]])[0])
    assert "right" in text and "wrong" not in text


LINES = "Harmful request: {}\nResponse refusal: {}\nHarmful response: {}"


@pytest.mark.parametrize(
    "answers",
    [("yes", "no", "yes"), ("no", "yes", "no"), ("yes", "n/a", "n/a"), ("Yes", "NO", "no")],
)
def test_wildguard_offsets_point_at_the_answers(answers: tuple[str, str, str]) -> None:
    text = LINES.format(*answers)
    found = answer_offsets(text)
    assert found is not None
    assert [word for word, _ in found] == [a.lower() for a in answers]
    assert [text[start:][: len(word)].lower() for word, start in found] == [w for w, _ in found]


@pytest.mark.parametrize(
    "text",
    [
        "yes\nno\nyes",
        LINES.format("maybe", "no", "no"),
        LINES.format("n/a", "no", "no"),
        "",
        "a:yes",
    ],
)
def test_wildguard_refuses_other_forms(text: str) -> None:
    assert answer_offsets(text) is None


def test_wildguard_reads_yes_against_no_where_the_label_stands(talk: Any, tokenizer: Any) -> None:
    import torch

    judge = talk("wildguard", LINES.format("yes", "no", "yes"))
    row = chat("q", "a")
    result = judge([row])
    prompt = judge.build_inputs([row])[0]
    vocabulary = tokenizer.get_vocab()
    yes, no = vocabulary["\u0120yes"], vocabulary["\u0120no"]
    pieces = (
        "Harmful request:",
        "Harmful request: yes\nResponse refusal:",
        LINES.format("yes", "no", "")[:-1],
    )
    expected = []
    for piece in pieces:
        ids = prompt + tokenizer(piece, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = judge.backend.model(torch.tensor([ids])).logits[0, -1].double()
        expected.append(1 / (1 + math.exp(float(logits[no] - logits[yes]))))
    keys = ("p_harmful_request", "p_refusal", "p_harmful")
    assert [result[key][0] for key in keys] == pytest.approx(expected, abs=1e-6)


def test_wildguard_without_an_answer(talk: Any) -> None:
    judge = talk("wildguard", LINES.format("yes", "n/a", "n/a"))
    result = judge([chat("q", ""), chat("q", "text")])
    assert result["p_harmful"] == [0.0, None] and result["error"] == [None, "out_of_scope"]
    assert result["p_refusal"] == [None, None]


def test_qwen3guard_weights_a_controversial_verdict(talk: Any, tokenizer: Any) -> None:
    text = "Safety: Unsafe\nCategories: Violent\nRefusal: No"
    by_weight = {}
    for weight in (0.0, 0.5, 1.0):
        judge = talk("qwen3guard", text, controversial=weight)
        result = judge([chat("q", "a")])
        by_weight[weight] = result["p_harmful"][0]
        assert result["safety"] == ["Unsafe"] and result["refusal"] == [False]
        assert result["categories"] == ["Violent"]
    assert 0 <= by_weight[0.0] < by_weight[0.5] < by_weight[1.0] <= 1
    assert by_weight[0.5] == pytest.approx((by_weight[0.0] + by_weight[1.0]) / 2)
    assert talk("qwen3guard", "no label")([chat("q", "a")])["error"] == ["unparsable"]


def test_llama_guard_names_the_categories_of_unsafe_rows(talk: Any, tokenizer: Any) -> None:
    judge = talk("llama_guard_3", "unsafe\nS1,S10", categories=True)
    labels = judge.labels()[0]
    judge.backend.label_logprobs = lambda prompts, ids: [
        [math.log(0.9 if i in labels else 0.05) for i in ids] for _ in prompts
    ]
    assert judge([chat("q", "a")])["categories"] == [["S1", "S10"]]


def published_wildguard(text: str) -> list[str] | None:
    """What the published parser reads, from its description: the words after three last colons."""
    match = re.match(r".*:(.*)\n.*:(.*)\n.*:(.*)", text)
    return None if match is None else [group.strip().lower() for group in match.groups()]


@pytest.mark.parametrize(
    "text",
    [
        LINES.format("yes", "no", "yes"),
        "\n" + LINES.format("yes", "no", "yes"),
        "  " + LINES.format(" yes ", "no", "yes") + "\nmore: text",
        LINES.format("yes: no", "no", "yes"),
        LINES.format("\uff59es", "no", "yes"),
        LINES.format("yes.", "no", "yes"),
        LINES.format("yes", "", "yes"),
        "Harmful request: yes\n\nResponse refusal: no\nHarmful response: yes",
        "The lines are:\n" + LINES.format("no", "yes", "no"),
        "a: b\nc: d\ne: f",
        ":::",
    ],
)
def test_wildguard_never_reads_what_the_published_parser_would_not(text: str) -> None:
    found = answer_offsets(text)
    if found is not None:
        assert [word for word, _ in found] == published_wildguard(text)
        assert all(text[start : start + len(word)].lower() == word for word, start in found)


def test_chat_texts_of_a_local_model_are_greedy_and_ignore_the_batch(
    tokenizer: Any, make_model: Callable[..., Any]
) -> None:
    import torch

    model = make_model([[5, 6, 7], [9, 8], [20]], [4, 30, 31])
    backend = LocalBackend.from_objects(model, tokenizer)
    prompts = [[5, 6, 7, 8, 9, 10], [9, 8], list(range(40, 90))]
    expected = []
    for prompt in prompts:
        ids, answer = list(prompt), []
        for _ in range(12):
            with torch.no_grad():
                token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            if token == tokenizer.eos_token_id:
                break
            ids.append(token)
            answer.append(token)
        expected.append(answer)
    assert backend.generate_ids(prompts, max_new_tokens=12) == expected
    assert backend.generate_ids(prompts[::-1], max_new_tokens=12) == expected[::-1]
    request = ChatRequest(messages=({"role": "user", "content": "hi"},), max_tokens=6)
    reply, again = backend.generate([request, request])
    assert reply.text == again.text and reply.usage.output_tokens <= 6
    bad = ChatRequest(messages=({"role": "system", "content": "hi"},), max_tokens=6)
    assert backend.generate([bad])[0].status == "provider_error"
    long = ChatRequest(messages=({"role": "user", "content": "hi " * 3000},), max_tokens=6)
    assert backend.generate([long])[0].status == "context_overflow"
    with pytest.raises(BackendError, match="greedily"):
        backend.generate([replace(request, temperature=0.7)])


def test_out_of_memory_halves_the_batch_and_changes_nothing(
    tokenizer: Any, make_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    backend = LocalBackend.from_objects(make_model([[5, 6, 7], [9, 8]], [4]), tokenizer)
    prompts = [[5, 6, 7, i] for i in range(10, 17)]
    expected = backend.label_logprobs(prompts, [4, 5])
    forward, sizes = backend._forward, []

    def small(ids: Any, *rest: Any) -> Any:
        if len(ids) > 2:
            raise torch.OutOfMemoryError
        sizes.append(len(ids))
        return forward(ids, *rest)

    monkeypatch.setattr(backend, "_forward", small)
    found = backend.label_logprobs(prompts, [4, 5])
    assert sum(sizes) == len(prompts) and max(sizes) <= 2
    for row, want in zip(found, expected, strict=True):
        assert row == pytest.approx(want, abs=1e-6)
    monkeypatch.setattr(
        backend, "_forward", lambda *a: (_ for _ in ()).throw(torch.OutOfMemoryError)
    )
    with pytest.raises(torch.OutOfMemoryError):
        backend.label_logprobs(prompts[:1], [4])
