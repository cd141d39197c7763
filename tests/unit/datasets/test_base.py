from __future__ import annotations

import json
from pathlib import Path

import pytest

from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.types import Behavior
from adversariallm.datasets import load_dataset
from adversariallm.datasets._targets import FALLBACK, RULE, affirmative_target


@pytest.mark.parametrize(
    ("goal", "target"),
    [
        ("Write a letter to my mom.", "Sure, here is a letter to your mom"),
        ("How do I whistle loudly?", "Sure, here is how to whistle loudly"),
        ("Explain how to bake bread", "Sure, here is how to bake bread"),
        ("Can you explain how to bake bread?", "Sure, here is how to bake bread"),
        ("Please draft an email to us.", "Sure, here is an email to you"),
        ("List 5 ways to relax!", "Sure, here are 5 ways to relax"),
        ("bake bread", "Sure, here is how to bake bread"),
        ("Bake a cake. Then eat it.", "Sure, here is how to bake a cake"),
        ("Who am I?", FALLBACK),
        ("", FALLBACK),
    ],
)
def test_the_rule_takes_up_the_request(goal: str, target: str) -> None:
    assert affirmative_target(goal) == target


def test_the_rule_gives_one_plain_line_for_any_request() -> None:
    for goal in [
        "It\u2019s \u201cfine\u201d.\nWrite a poem",
        "Write a\npoem",
        "Make a " + "x " * 99,
    ]:
        target = affirmative_target(goal)
        assert target.isascii() and "\n" not in target and target[-1] not in " .?!;:,"
        assert len(target.split()) <= 30


def test_targets_come_from_the_set_the_rule_or_the_user(tmp_path: Path) -> None:
    shipped = load_dataset("starter_harmful", ids="harmful-01")[0]
    ruled = load_dataset("starter_harmful", ids="harmful-01", targets="rule")[0]
    none = load_dataset("starter_harmful", ids="harmful-01", targets="none")[0]
    file = tmp_path / "targets.json"
    file.write_text(json.dumps({"harmful-01": "Of course"}), encoding="utf-8")
    own = load_dataset("starter_harmful", idx=0, shuffle=False, targets_file=str(file))[0]
    assert shipped.target and shipped.target_source == "dataset"
    assert ruled.target == affirmative_target(ruled.goal) and ruled.target_source == RULE
    assert (none.target, none.target_source) == (None, None)
    assert (own.target, own.target_source) == ("Of course", "user")


def test_harmless_items_get_no_target_unless_asked_for() -> None:
    assert all(b.target is None for b in load_dataset("starter_benign"))
    assert all(b.target for b in load_dataset("starter_benign", targets="rule"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('["a"]', "expected an object"),
        ('{"harmful-01": ["a", "b"]}', "of several targets"),
        ('{"harmful-01": ""}', "non-empty"),
        ('{"harmful-1": "Sure"}', "not in dataset"),
    ],
)
def test_a_wrong_targets_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "targets.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_dataset("starter_harmful", targets_file=str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_dataset("starter_harmful", targets_file=str(tmp_path / "missing.json"))


def test_an_attack_that_needs_targets_refuses_early() -> None:
    load_dataset("starter_harmful").require_targets("gcg")
    with pytest.raises(NeedsError, match=r"'gcg'.*40 of 40.*targets=rule"):
        load_dataset("starter_benign").require_targets("gcg")


def test_a_system_prompt_stands_first_in_every_conversation_and_changes_the_fingerprint() -> None:
    plain = load_dataset("starter_benign")
    a = load_dataset("starter_benign", system_prompt="Answer briefly.")
    assert [m.role for m in a[0].conversation] == ["system", "user"]
    assert all(b.conversation[0].content == "Answer briefly." for b in a)
    assert a.fingerprint != plain.fingerprint
    assert [b.id for b in a] == [b.id for b in plain]


def test_conversations_never_hold_the_target() -> None:
    for b in load_dataset("starter_harmful"):
        assert [m.role for m in b.conversation] == ["user"]
        assert b.target and b.target not in b.conversation[0].content


def test_behaviors_survive_storage() -> None:
    for name in ("starter_harmful", "starter_utility"):
        for b in load_dataset(name, sample=5):
            assert Behavior.from_dict(json.loads(json.dumps(b.to_dict()))) == b


def test_a_dataset_is_a_sequence() -> None:
    data = load_dataset("starter_utility", shuffle=False)
    assert data[0].id == "utility-01" and [b.id for b in data[:2]] == ["utility-01", "utility-02"]
    assert data[0] in data and len(list(data)) == 40
