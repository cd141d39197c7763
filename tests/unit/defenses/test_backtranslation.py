"""Every way through the defense: kept, taken back, withheld because something failed."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import Supplies
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses.backtranslation import Config, wrap
from adversariallm.models.fakes import echo_model
from adversariallm.models.tiny import tiny_model

from .doubles import WordJudge, ask, costing, prompt_of


def behind(answers: dict[str, Any], guess: Any = "guessed", **options: Any) -> Any:
    def answer(conversation: Conversation, rng: Rng) -> Any:
        return answers[prompt_of(conversation)]

    config = Config(judge="word", **{"min_log_likelihood": None, **options})
    supplies = Supplies(helpers={"defense": costing(guess)}, judges={"word": WordJudge("yes")})
    return wrap(costing(answer), config, supplies)


def test_an_answer_whose_guessed_request_is_refused_is_taken_back() -> None:
    [reply] = ask(behind({"hidden": "yes, here", "guessed": "no"}), "hidden")
    assert (reply.finish_reason, reply.error, reply.undefended) == (
        "content_filter", None, "yes, here",
    )  # fmt: skip
    [facts] = reply.raw["defense"]
    assert facts["withheld"] == "the guessed request is refused" and facts["guess"] == "guessed"
    assert reply.usage.flops == 10
    # the guess, the second answer, two verdicts
    assert reply.defense_usage.flops == 10 + 10 + 7 + 7
    assert reply.defense_usage.queries == 2
    assert reply.executed == 36


def test_an_answer_whose_guessed_request_is_answered_stays() -> None:
    [reply] = ask(behind({"plain": "yes, here", "guessed": "yes"}), "plain")
    assert (reply.text, reply.error) == ("yes, here", None)
    assert reply.raw["defense"][0]["kept"] == "the guessed request is answered"


def test_a_refusal_is_kept_without_a_guess() -> None:
    model = behind({"q": "no"})
    [reply] = ask(model, "q")
    assert (reply.text, reply.raw["defense"][0]["kept"]) == ("no", "refusal")
    assert reply.defense_usage.queries == 0 and len(model.model.calls) == 1


@pytest.mark.parametrize(
    ("answers", "guess", "error"),
    [
        ({"q": "yes"}, Reply("", error="timeout"), "timeout"),
        ({"q": "yes"}, "  ", "empty"),
        ({"q": "yes?"}, "guessed", "parse"),
        ({"q": "yes", "guessed": Reply("", error="server")}, "guessed", "server"),
        ({"q": "yes", "guessed": "eh?"}, "guessed", "parse"),
    ],
)
def test_a_step_that_fails_withholds_marks_and_touches_no_other_row(
    answers: dict[str, Any], guess: Any, error: str
) -> None:
    model = behind({**answers, "other": "no"}, guess)
    bad, other = ask(model, "q", "other")
    assert bad.error == f"defense:backtranslation:{error}"
    assert "yes" not in bad.text
    assert (other.text, other.error) == ("no", None)


def test_a_failed_answer_of_the_model_stays_what_it_is() -> None:
    [reply] = ask(behind({"q": Reply("", error="timeout")}), "q")
    assert reply.error == "timeout"


def test_the_guess_is_asked_alone_with_the_system_prompt() -> None:
    model = behind({"q": "yes", "guessed": "yes"})
    ask(model, "q", system="careful")
    assert model.model.calls[-1].to_dicts() == [
        {"role": "system", "content": "careful"},
        {"role": "user", "content": "guessed"},
    ]


@pytest.mark.parametrize(("least", "used"), [(-100.0, True), (0.0, False)])
def test_a_guess_that_does_not_explain_the_answer_is_not_used(least: float, used: bool) -> None:
    inner = tiny_model("llama")
    supplies = Supplies(helpers={"defense": costing("good music")}, judges={"word": WordJudge("")})
    model = wrap(inner, Config(judge="word", min_log_likelihood=least), supplies)
    [reply] = ask(model, "write a short story")
    [facts] = reply.raw["defense"]
    if used:
        assert facts["kept"] == "the guessed request is answered"
        return
    assert facts["kept"] == "unlikely guess"
    cut = inner.chat.segments(Conversation.user("good music"), target=reply.text)
    loss = inner.losses([cut.input_ids], [cut.target_ids])
    assert facts["log_likelihood"] == pytest.approx(-float(loss.loss[0]), abs=1e-5)
    assert reply.defense_usage.flops == 17 + (loss.work.usage.flops or 0)


def test_batches_change_nothing() -> None:
    answers = {"a": "yes a", "b": "no", "c": "yes c", "guessed": "yes"}
    together = ask(behind(answers), "a", "b", "c")
    assert [ask(behind(answers), p)[0] for p in "abc"] == together


def test_likelihoods_need_logits() -> None:
    supplies = Supplies(helpers={"defense": echo_model()}, judges={"word": WordJudge("yes")})
    with pytest.raises(NeedsError, match="defense 'backtranslation' needs logits"):
        wrap(echo_model(), Config(judge="word"), supplies)
