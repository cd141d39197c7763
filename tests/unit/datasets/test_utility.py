"""Utility sets: prompts, keys and scorers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adversariallm.core.errors import ConfigError, DataError, UnknownNameError
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets import Dataset, load_dataset
from adversariallm.datasets._files import DataFile
from adversariallm.datasets._instructions import CHECKS, failed_instructions
from adversariallm.datasets._scoring import choices_by_likelihood
from adversariallm.datasets.mmlu import read_questions


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assets")


@pytest.fixture
def local_files(data_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVERSARIALLM_DATA", str(data_dir))
    monkeypatch.setenv("JUDGEZOO_CACHE", str(cache))


@pytest.fixture(scope="module")
def mmlu_test(data_dir: Path, cache: Path) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADVERSARIALLM_DATA", str(data_dir))
        patch.setenv("JUDGEZOO_CACHE", str(cache))
        return load_dataset("mmlu", shuffle=False)


def test_mmlu_has_the_published_counts_and_answer_balance(mmlu_test: Dataset) -> None:
    assert len(mmlu_test) == 14042 and mmlu_test[0].id == "abstract_algebra-0"
    assert mmlu_test[-1].id == "world_religions-170"
    balance = Counter(b.reference for b in mmlu_test)
    assert balance == {"D": 3776, "C": 3582, "B": 3462, "A": 3222}
    assert len({b.category for b in mmlu_test}) == 57
    assert max(len(b.goal) for b in mmlu_test) == 4671


def test_mmlu_keeps_the_text_none_and_can_drop_repeats(
    mmlu_test: Dataset, local_files: None
) -> None:
    cells = [c for b in mmlu_test for c in b.extra["choices"]]
    assert cells.count("None") == 10 and all(isinstance(c, str) for c in cells)
    assert len(load_dataset("mmlu", deduplicate=True)) == 13937


@pytest.mark.parametrize(("split", "count"), [("val", 1531), ("dev", 285)])
def test_mmlu_other_splits(local_files: None, split: str, count: int) -> None:
    assert len(load_dataset("mmlu", split=split)) == count


def test_mmlu_writes_the_prompt_with_header_and_shots(local_files: None) -> None:
    options: dict[str, Any] = {"category": "anatomy", "shuffle": False, "idx": 0}
    bare = load_dataset("mmlu", header="", **options)[0]
    headed = load_dataset("mmlu", header="On {subject}:", **options)[0]
    shot = load_dataset("mmlu", header="On {subject}:", shots=2, **options)[0]
    lines = bare.conversation[0].content.split("\n")
    assert lines[-5:-1] == [f"{x}. {c}" for x, c in zip("ABCD", bare.extra["choices"], strict=True)]
    assert lines[-1] == "Answer:"
    assert headed.conversation[0].content == "On anatomy:\n\n" + bare.conversation[0].content
    text = shot.conversation[0].content
    assert text.endswith(bare.conversation[0].content) and text.count("\nAnswer:") == 3
    assert [p[-2] for p in text.split("\n\n")[1:-1]] == [" ", " "]
    assert bare.reference in "ABCD"


def test_mmlu_subjects_are_categories_in_any_case(local_files: None) -> None:
    assert len(load_dataset("mmlu", category="Anatomy")) == 135
    with pytest.raises(UnknownNameError, match="anatomy"):
        load_dataset("mmlu", category="anatomi")
    with pytest.raises(ConfigError, match=r"datasets\.mmlu\.shots"):
        load_dataset("mmlu", shots=6)


def test_mmlu_refuses_a_row_of_another_form() -> None:
    good = b'"a ""b""\nc",1,2,3,None,D\n'
    rows = read_questions(DataFile("x.csv", good, "custom:0"))
    assert rows[0].text == 'a "b"\nc' and rows[0].choices[3] == "None"
    for bad in (b"a,1,2,3,4,E\n", b"a,1,2,3,D\n", b'"a,1,2,3,4,D\n'):
        with pytest.raises(DataError, match="record 1"):
            read_questions(DataFile("x.csv", bad, "custom:0"))


def test_gsm8k_keys_are_numbers_that_the_judge_reads(local_files: None) -> None:
    from judgezoo.judges.exact_match import is_correct

    data = load_dataset("gsm8k", shuffle=False)
    assert len(data) == 1319
    for b in data:
        assert is_correct(f"so it is {b.reference}.", b.reference, match="contains")
        assert not is_correct("so it is 0.123.", b.reference, match="contains")
    thousands = [b for b in data if float(b.reference) >= 1000]
    assert thousands and not any("," in b.reference for b in data)
    b = thousands[0]
    assert is_correct(f"{int(float(b.reference)):,}", b.reference, match="contains")


def test_ifeval_knows_every_instruction_of_the_file(local_files: None) -> None:
    data = load_dataset("ifeval", shuffle=False)
    assert len(data) == 541 and len({b.id for b in data}) == 541
    kinds = {i["kind"] for b in data for i in b.reference}
    assert kinds == set(CHECKS) and len(kinds) == 25
    assert Counter(len(b.reference) for b in data).keys() == {1, 2, 3}
    for b in data:
        assert len(failed_instructions("", b.reference)) == len(b.reference)
        failed_instructions("A plain answer, with a comma.", b.reference)


CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "at least", "capital_frequency": 2},
        ["A BIG dog"],
        ["a BIG dog", "Big Dog"],
    ),
    ("change_case:english_capital", {}, ["HELLO, YOU 2."], ["HELLO you"]),
    ("change_case:english_lowercase", {}, ["hello 2."], ["Hello"]),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say it."},
        ["say it. Here: x"],
        ["Here: Say it."],
    ),
    (
        "combination:two_responses",
        {},
        ["one ****** two", "one\n******\ntwo\n******"],
        ["one", "one ****** one", "a ****** b ****** c"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[a] and [b]"],
        ["[a] and b"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. more", "Bye.\np. s. more"],
        ["Bye."],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Bye.\nP.P.S more"],
        ["Bye.\nP.S. more"],
    ),
    ("detectable_format:constrained_response", {}, ["My answer is no."], ["No."]),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', '```json\n{"a": 1}\n```'],
        ["{a: 1}", "text"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb"],
        ["SECTION 1\na"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b"],
        ["* a", "* a\n* b\n* c", "**a**\n**b**"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** and *b*"],
        ["*a*", "** ** and *b*"],
    ),
    ("detectable_format:title", {}, ["<<A title>>\ntext"], ["<< >>", "<A title>"]),
    ("keywords:existence", {"keywords": ["sun", "moon"]}, ["Sun and moon"], ["Sun"]),
    ("keywords:forbidden_words", {"forbidden_words": ["rock"]}, ["rocket"], ["a Rock."]),
    (
        "keywords:frequency",
        {"relation": "less than", "keyword": "war", "frequency": 2},
        ["one war", "none"],
        ["war and war"],
    ),
    (
        "keywords:letter_frequency",
        {"let_relation": "at least", "letter": "!", "let_frequency": 2},
        ["a! b!"],
        ["a!"],
    ),
    (
        "language:response_language",
        {"language": "en"},
        ["It is the end of the day."],
        ["Das ist es."],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Das ist nicht der Weg."],
        ["It is the end."],
    ),
    ("language:response_language", {"language": "ru"}, ["\u0434\u0430"], ["da"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"first_word": "two", "num_paragraphs": 2, "nth_paragraph": 2},
        ["One a.\n\nTwo, b.", 'One.\n\n"Two" b.'],
        ["One a.\n\nb two.", "One.\n\nTwo.\n\nThree."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a *** b ***"],
        ["a", "a *** b *** c", "a *** *** b"],
    ),
    (
        "length_constraints:number_sentences",
        {"relation": "less than", "num_sentences": 3},
        ["One. Two!", "Dr. Who paid 3.50 today. Yes."],
        ["One. Two? Three."],
    ),
    (
        "length_constraints:number_words",
        {"relation": "at least", "num_words": 3},
        ["one two three"],
        ["one two"],
    ),
    ("punctuation:no_comma", {}, ["none here."], ["one, here"]),
    (
        "startend:end_checker",
        {"end_phrase": "The end."},
        ["x the end.", '"x The end."'],
        ["The end. x"],
    ),
    ("startend:quotation", {}, ['"all of it"'], ['"half', "none", '"']),
]


@pytest.mark.parametrize(("kind", "options", "good", "bad"), CASES)
def test_instruction_checks(
    kind: str, options: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    reference = [{"kind": kind, **options}]
    assert [a for a in good if failed_instructions(a, reference)] == []
    assert [a for a in bad if not failed_instructions(a, reference)] == []


def test_every_kind_of_instruction_has_a_case() -> None:
    assert {kind for kind, *_ in CASES} == set(CHECKS)


class Letters:
    """A model whose preference is written into the prompt: it likes the letter that stands last."""

    class chat:  # noqa: N801
        @staticmethod
        def encode_text(text: str) -> tuple[int, ...]:
            return tuple(map(ord, text))

        @staticmethod
        def encode(conversation: Conversation) -> tuple[int, ...]:
            return tuple(map(ord, conversation[0].content))

    def losses(self, inputs: Sequence[Any], targets: Sequence[Any], *, shared: int) -> Any:
        assert all(row[:shared] == inputs[0][:shared] for row in inputs)
        liked = inputs[0][-1]
        return SimpleNamespace(
            per_token=[torch.tensor([0.5, math.pi * (t[-1] != liked)]) for t in targets]
        )


@pytest.mark.parametrize("chat", [False, True])
def test_the_most_probable_letter_is_chosen_and_the_first_of_equals(chat: bool) -> None:
    def item(prompt: str, n: int) -> Behavior:
        choices = [str(k) for k in range(n)]
        return Behavior("x", Conversation.user(prompt), "x", False, extra={"choices": choices})

    found = choices_by_likelihood(
        Letters(),  # type: ignore[arg-type]
        [item("say C", 4), item("say A", 4), item("say D", 3)],
        chat=chat,
    )
    assert found == ["C", "A", "A"]
