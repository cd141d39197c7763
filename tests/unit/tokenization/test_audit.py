from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import DataError
from adversariallm.tokenization import ChatTokenizer
from adversariallm.tokenization.audit import audit, read_items


@pytest.fixture(scope="session")
def chat(tokenizer_of: Any) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_of.codec("llama3_1"))


def run(chat: ChatTokenizer, path: Path, text: str) -> list[tuple[str, str]]:
    path.write_text(text, encoding="utf-8")
    results, stats = audit(chat, read_items(path, "Tell me.", "none"))
    judged = [r for r in results if r.verdict != "error"]
    assert stats.sampled == len(judged)
    assert stats.sampled == stats.kept + stats.rejected_isolated + stats.rejected_conversation
    return [
        (r.verdict, "".join(m.left_text + "+" + m.right_text for m in r.merges)) for r in results
    ]


def test_plain_lines_are_suffixes(chat: ChatTokenizer, tmp_path: Path) -> None:
    assert run(chat, tmp_path / "a.txt", " x x\nx y\n\n one\r\n") == [
        ("reachable", ""),
        ("conversation", ".+x"),
        ("reachable", ""),
    ]


def test_ids_are_judged_where_a_tool_gives_them(chat: ChatTokenizer, tmp_path: Path) -> None:
    the = [chat.codec.encode(" th")[0], chat.codec.encode("e")[0]]
    rows = [
        {"goal": "Tell me", "suffix": " the", "suffix_ids": the},
        {"goal": "Tell me", "suffix": " the", "suffix_ids": chat.codec.encode(" the")},
    ]
    text = "\n".join(map(json.dumps, rows))
    assert run(chat, tmp_path / "a.jsonl", text) == [("isolated", ""), ("reachable", "")]


def test_jailbreakbench_prompts_are_split_at_the_goal(chat: ChatTokenizer, tmp_path: Path) -> None:
    rows = [
        {"index": 0, "goal": "Look at the", "prompt": "Look at the se people"},
        {"index": 1, "goal": "Look at the", "prompt": "Look at these people"},
        {"index": 2, "goal": "Look at the", "prompt": "Something else entirely"},
    ]
    found = run(chat, tmp_path / "a.json", json.dumps({"parameters": {}, "jailbreaks": rows}))
    assert found == [("reachable", ""), ("conversation", " the+se"), ("reachable", "")]


def test_whole_conversations_with_a_suffix_in_place(chat: ChatTokenizer, tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Look at these people"},
    ]
    rows = [{"messages": talk, "suffix": "se people"}, talk, {"messages": talk, "suffix": "eople"}]
    text = "\n".join(map(json.dumps, rows))
    assert run(chat, tmp_path / "a.jsonl", text)[:2] == [
        ("conversation", " the+se"),
        ("reachable", ""),
    ]


def test_a_conversation_the_template_refuses_is_an_error_of_that_item(
    tokenizer_of: Any, tmp_path: Path
) -> None:
    gemma = ChatTokenizer(tokenizer_of.codec("gemma2"))
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = json.dumps(talk) + "\n" + json.dumps({"goal": "Hi.", "suffix": " x"})
    assert [v for v, _ in run(gemma, tmp_path / "a.jsonl", text)] == ["error", "reachable"]


@pytest.mark.parametrize("text", ["{", "[1]", '[{"a": 1}]', '[{"messages": [{"role": "bot"}]}]'])
def test_other_files_are_refused_with_their_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json"):
        read_items(path, "p", "none")


def test_the_command_prints_verdicts_and_exits_1(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from adversariallm.cli import main

    path = tmp_path / "a.txt"
    path.write_text("x x\nthe\n", encoding="utf-8")
    folder = str(data_dir / "tokenizers" / "tiny_torchtune")
    arguments = ["audit", str(path), "--tokenizer", folder, "--template", "plain", "--join", "none"]
    code = main([*arguments, "--prompt", "Tell me.", "--json"])
    found = json.loads(capsys.readouterr().out)
    verdicts = [i["verdict"] for i in found["items"]]
    assert found["statistics"]["sampled"] == 2
    assert code == int(set(verdicts) != {"reachable"})
    assert main([*arguments, "--prompt", "Tell me."]) == code
    shown = capsys.readouterr().out
    assert f"{verdicts.count('reachable')} of 2 reachable" in shown and "a.txt:2" in shown
    assert main(["audit", str(tmp_path / "none"), "--tokenizer", folder]) == 2
