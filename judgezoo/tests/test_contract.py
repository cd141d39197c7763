"""The contract of every judge: lengths, keys, isolation, no mutation, messages."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest

import judgezoo
import judgezoo.assets
import judgezoo.backends
from judgezoo import ERROR_CODES, Judge
from judgezoo.errors import InvalidOption, UnknownName
from judgezoo.testing import chat

GOOD = chat("a question", "an answer")
BAD = [
    [],
    None,
    "text",
    42,
    [{"role": "user", "content": "no answer"}],
    [{"role": "assistant", "content": "no question"}],
    [{"role": "user", "content": "x"}, {"role": "assistant"}],
    [{"role": "user", "content": "x"}, {"role": "robot", "content": "y"}],
    [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "y"}],
    ["x", "y"],
]


def test_bad_rows_get_a_code_and_leave_the_others_alone() -> None:
    judge = Judge.from_name("refusal_prefix")
    scores = judge([GOOD, *BAD, GOOD])  # type: ignore[list-item]
    assert scores["error"] == [None, *["invalid_chat"] * len(BAD), None]
    assert scores["p_harmful"] == [1.0, *[None] * len(BAD), 1.0]
    assert set(scores["error"]) - {None} <= set(ERROR_CODES)


def test_keys_are_constant_also_for_nothing() -> None:
    judge = Judge.from_name("refusal_prefix")
    keys = {"p_harmful", "error", "p_refusal", "matched"}
    for rows in ([], [GOOD], [[]]):
        scores = judge(rows)  # type: ignore[arg-type]
        assert set(scores) == keys and all(len(v) == len(rows) for v in scores.values())


def test_system_first_typed_parts_and_long_chats_are_judged_on_the_last_answer() -> None:
    parts = [{"type": "text", "text": "I can't "}, {"type": "text", "text": "help with that."}]
    long = [
        {"role": "system", "content": "be kind"},
        *chat("first", "Sure!"),
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": parts},
    ]
    assert Judge.from_name("refusal_prefix")([long])["p_refusal"] == [1.0]  # type: ignore[list-item]


def test_the_callers_objects_stay_as_they_were() -> None:
    chats = [GOOD, [{"role": "user", "content": [{"type": "text", "text": "x"}]}, GOOD[1]]]
    contexts = [{"target": "an", "goal": "g"}, {"target": "x"}]
    before = copy.deepcopy((chats, contexts))
    Judge.from_name("target_prefix")(chats, contexts)  # type: ignore[arg-type]
    assert (chats, contexts) == before


def test_per_row_arguments_must_have_the_right_length() -> None:
    judge = Judge.from_name("refusal_prefix")
    with pytest.raises(ValueError, match="contexts has 1 entries for 2 conversations"):
        judge([GOOD, GOOD], [{}])
    with pytest.raises(ValueError, match="goals has 3 entries"):
        judge([GOOD], goals=["a", "b", "c"])


def test_names_and_options_are_checked_with_the_nearest_names() -> None:
    with pytest.raises(UnknownName, match="did you mean refusal_prefix"):
        Judge.from_name("refusal_prefx")
    with pytest.raises(UnknownName, match="unknown option of judge 'exact_match' 'mtach'"):
        Judge.from_name("exact_match", mtach="strict")
    with pytest.raises(InvalidOption, match="match='loose'.*'contains' or 'strict'"):
        Judge.from_name("exact_match", match="loose")
    with pytest.raises(InvalidOption, match="no variant"):
        Judge.from_name("exact_match", variant="judgezoo")
    with pytest.raises(InvalidOption, match="takes no backend"):
        Judge.from_name("exact_match", backend="openai:gpt-4")


def test_progress_reaches_the_total() -> None:
    seen: list[tuple[int, int]] = []
    Judge.from_name("refusal_prefix")([GOOD, [], GOOD], progress=lambda *a: seen.append(a))
    assert seen[-1] == (3, 3)


def test_fingerprints_are_stable_and_tell_options_apart() -> None:
    one, two = (Judge.from_name("exact_match") for _ in range(2))
    strict = Judge.from_name("exact_match", match="strict")
    assert one.fingerprint() == two.fingerprint()
    assert one.fingerprint_id() == two.fingerprint_id() != strict.fingerprint_id()
    assert len(one.fingerprint_id()) == 16


def test_every_row_of_the_registry_is_consistent() -> None:
    for name, info in judgezoo.list_judges().items():
        assert info.name == name and info.summary and info.source and info.license
        assert info.score_key in {"p_harmful", *info.keys}
        assert {"p_harmful", "error"}.isdisjoint(info.keys)


def test_importing_and_listing_load_no_model_library_and_no_sdk() -> None:
    code = (
        "import sys, judgezoo, judgezoo.backends; judgezoo.list_judges();"
        "heavy = {'torch', 'transformers', 'openai', 'anthropic', 'peft'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readme_names_every_judge_and_code_and_its_first_example_is_true() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    from judgezoo.registry import judge_class

    ours = [n for n in judgezoo.list_judges() if judge_class(n).__module__.startswith("judgezoo.")]
    assert len(ours) >= 27
    assert all(f"`{name}`" in readme for name in ours)
    assert all(f"`{code}`" in readme for code in ERROR_CODES)
    refusal = chat("What is the capital of France?", "I'm sorry, but I can't help with that.")
    scores = Judge.from_name("refusal_prefix")([refusal])
    assert f"# {scores}" in readme


def test_the_public_names_are_what_is_exposed() -> None:
    for module in (judgezoo, judgezoo.backends, judgezoo.assets):
        assert all(hasattr(module, name) for name in module.__all__)
        assert list(module.__all__) == sorted(module.__all__)


def test_a_broken_judge_of_another_package_does_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from judgezoo import registry

    places = {**registry._locations(), "foreign": "no_such_package.judge"}
    monkeypatch.setattr(registry, "_locations", lambda: places)
    with pytest.warns(UserWarning, match="judge 'foreign' of no_such_package.judge is broken"):
        found = registry.list_judges()
    assert "foreign" not in found and "pair" in found
