from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError, TemplateError
from adversariallm.core.types import Conversation
from adversariallm.tokenization import ChatTemplate, ChatTokenizer, SystemPrompt

TRIM = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"


def talk(*pairs: tuple[str, str]) -> Conversation:
    return Conversation.from_dicts([{"role": r, "content": c} for r, c in pairs])


def test_spans_are_what_the_template_wrote_for_each_message() -> None:
    rendered = ChatTemplate(TRIM).render(
        talk(("system", "s"), ("user", "  a b\n"), ("assistant", ""), ("user", "a b")), False
    )
    assert (
        rendered.text == "<system>s</system><user>a b</user><assistant></assistant><user>a b</user>"
    )
    assert [rendered.text[s.start : s.end] for s in rendered.spans] == ["s", "a b", "", "a b"]
    assert [s.start for s in rendered.spans] == [8, 24, 45, 63]
    assert rendered.altered == ()


@pytest.mark.parametrize(
    ("expression", "left", "right"),
    [
        ("m.content", None, None),
        ("m.content | trim", "", ""),
        ("m.content.lstrip('\\n')", "\n", None),
        ("m.content.rstrip()", None, ""),
    ],
)
def test_what_a_template_strips_is_learned(
    expression: str, left: str | None, right: str | None
) -> None:
    template = ChatTemplate("{% for m in messages %}[" + "{{ " + expression + " }}]{% endfor %}")
    rendered = template.render(talk(("user", " \n a \n ")), False)
    assert rendered.trims[0] == (left, right)
    assert rendered.altered == ()
    content = rendered.text[rendered.spans[0].start : rendered.spans[0].end]
    assert f"[{content}]" == rendered.text


def test_contents_that_look_like_the_template_are_located_too() -> None:
    content = "</user><user>x</user>\ue0f00\ue0f1"
    rendered = ChatTemplate(TRIM).render(talk(("user", content), ("user", content)), False)
    assert [rendered.text[s.start : s.end] for s in rendered.spans] == [content, content]


def test_a_message_that_is_moved_is_located_where_it_went() -> None:
    source = (
        "{% for m in messages if m.role == 'user' %}({{ m.content }}){% endfor %}"
        "{% for m in messages if m.role == 'system' %}[{{ m.content }}]{% endfor %}"
    )
    rendered = ChatTemplate(source).render(talk(("system", "s"), ("user", "u")), False)
    assert [rendered.text[s.start : s.end] for s in rendered.spans] == ["s", "u"]


def test_altered_content_is_flagged_with_both_strings_and_does_not_raise() -> None:
    source = (
        "{% for m in messages %}<"
        "{{ m.content.replace('bad', 'good') if m.role == 'user' else '' }}>{% endfor %}"
    )
    rendered = ChatTemplate(source).render(talk(("user", "a bad b"), ("assistant", "gone")), False)
    assert [(a.message, a.given, a.rendered) for a in rendered.altered] == [
        (0, "a bad b", "a good b"),
        (1, "gone", ""),
    ]


def test_a_slot_in_altered_content_is_an_error_with_the_strings(trained: Any) -> None:
    chat = ChatTokenizer(trained, "{{ messages[0].content | upper }}")
    from adversariallm.tokenization import Slot

    with pytest.raises(TemplateError, match=r"'hello x' as 'HELLO X'"):
        chat.segments(Conversation.user("hello"), Slot(text=" x"))


def test_refusals_name_the_roles_and_the_reason(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("gemma2"))
    with pytest.raises(TemplateError, match=r"\[system, user\].*System role not supported"):
        chat.encode(talk(("system", "s"), ("user", "u")))
    with pytest.raises(TemplateError, match=r"\[user, user\].*must alternate"):
        chat.encode(talk(("user", "u"), ("user", "u")))


def test_our_gemma_template_takes_a_system_message(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("gemma2"), "gemma")
    text = chat.render(talk(("system", "s"), ("user", "u"))).text
    assert text == "<bos><start_of_turn>user\ns\n\nu<end_of_turn>\n<start_of_turn>model\n"


def test_a_lone_surrogate_is_a_clear_error(trained: Any) -> None:
    with pytest.raises(TemplateError, match=r"message 0 \(user\).*surrogate at character 1"):
        ChatTokenizer(trained, TRIM).encode(Conversation.user("a\ud800"))


def test_a_tokenizer_without_a_template_lists_ours(tokenizer_of: Any) -> None:
    with pytest.raises(TemplateError, match=r"no chat template.*llama-2"):
        ChatTokenizer(tokenizer_of.codec("gpt2"))


def test_invalid_jinja_is_a_template_error(trained: Any) -> None:
    with pytest.raises(TemplateError, match="not valid Jinja"):
        ChatTokenizer(trained, "{% for m in %}")


def test_the_clock_is_frozen_and_part_of_the_identity(trained: Any) -> None:
    source = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    early = ChatTokenizer(trained, source)
    late = ChatTokenizer(trained, source, clock=datetime(2027, 2, 3))
    assert early.render(Conversation.user("a")).text == "01 Jan 2026 a"
    assert late.render(Conversation.user("a")).text == "03 Feb 2027 a"
    assert early.identity()["template_hash"] != late.identity()["template_hash"]
    json.dumps(early.identity())


def test_templates_cannot_reach_python(trained: Any) -> None:
    with pytest.raises(TemplateError, match="unsafe|undefined"):
        ChatTokenizer(trained, "{{ ''.__class__.__mro__[1].__subclasses__() }}").encode(
            Conversation.user("a")
        )


def test_the_effective_system_prompt_is_recorded(tokenizer_of: Any) -> None:
    smollm2 = tokenizer_of("smollm2")
    default = ChatTokenizer(smollm2)
    assert default.identity()["system"]["source"] == "template"
    assert default.identity()["system"]["text"] == default.injected_system
    text = default.render(Conversation.user("a")).text
    assert f"system\n{default.injected_system}<|im_end|>" in text
    given = ChatTokenizer(smollm2, system="Be brief.")
    assert given.identity()["system"] == {"source": "user", "text": "Be brief."}
    assert given.render(Conversation.user("a")).text.startswith("<|im_start|>system\nBe brief.<")
    own = given.render(Conversation.user("a", system="Mine."))
    assert "Be brief" not in own.text and "Mine." in own.text
    with pytest.raises(ConfigError, match="writes a system prompt of its own"):
        ChatTokenizer(smollm2, system=SystemPrompt("none"))
    none = ChatTokenizer(smollm2, "chatml", system=SystemPrompt("none"))
    assert none.render(Conversation.user("a")).text.startswith("<|im_start|>user")


def test_only_a_default_system_prompt_counts_as_injected(
    tokenizer_of: Any,
) -> None:
    for name in ("llama3_1", "qwen3", "gemma2", "deepseek_v3"):
        assert ChatTokenizer(tokenizer_of.codec(name)).injected_system == "", name
