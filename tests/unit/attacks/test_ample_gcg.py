"""AmpleGCG: diverse beam search against its definition, and the steps it makes of the suffixes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import ample_gcg
from adversariallm.attacks.ample_gcg import group_beam_search
from adversariallm.core.budget import Budget, Ledgers, Meter
from adversariallm.core.errors import NeedsError
from adversariallm.core.plugins import ATTACKS
from adversariallm.models.card import get_card
from adversariallm.models.metered import MeteredModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, run  # noqa: E402


@pytest.fixture(scope="module")
def prompter() -> Any:
    return tiny_model("qwen2", seed=1)


def by_definition(
    model: Any, prompt: tuple[int, ...], allowed: torch.Tensor, groups: int, length: int, lam: float
) -> list[list[int]]:
    """Every group and position on its own, with a full forward each and no sharing."""
    rows: list[list[int]] = [[] for _ in range(groups)]
    scores = [0.0] * groups
    for position in range(length):
        for g in range(groups):
            logits = model.next_logits([[*prompt, *rows[g]]]).logits[0]
            log_probs = logits.log_softmax(-1).masked_fill(~allowed, -torch.inf)
            for earlier in range(g):
                log_probs[rows[earlier][position]] -= lam
            token = int(log_probs.argmax())
            scores[g] += float(log_probs[token])
            rows[g].append(token)
    return [rows[g] for g in sorted(range(groups), key=lambda g: -scores[g])]


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0, 5.0])
def test_group_beam_search_is_its_definition(prompter: Any, penalty: float) -> None:
    prompt = prompter.chat.encode_text("a short story")
    allowed = prompter.chat.mask(prompter.num_embeddings)
    found = group_beam_search(prompter, prompt, allowed, 5, 4, penalty)
    assert found == by_definition(prompter, prompt, allowed, 5, 4, penalty)
    assert all(allowed[t] for row in found for t in row)
    if penalty == 0:
        assert len({tuple(r) for r in found}) == 1
    if penalty == 5:
        assert len({r[0] for r in found}) == 5


def test_steps_are_the_request_then_the_suffixes_by_rank() -> None:
    model = tiny_model("llama")
    document = run("ample_gcg", model, [behaviors()[0]], options={"num_suffixes": 5})
    steps = document.runs[0].steps
    request = behaviors()[0].conversation[0].content
    assert steps[0].model_input[0]["content"] == request
    suffixes = [s.note["suffix"] for s in steps[1:]]
    assert len(set(suffixes)) == len(suffixes) > 1
    for step in steps[1:]:
        assert step.model_input[0]["content"] == f"{request} {step.note['suffix']}"
    ranks = [s.note["rank"] for s in steps[1:]]
    assert ranks == sorted(set(ranks)) and ranks[0] == 1


def test_an_equal_suffix_keeps_its_best_rank_and_the_later_ones_keep_theirs(
    monkeypatch: pytest.MonkeyPatch, prompter: Any
) -> None:
    words = [list(prompter.chat.encode_text(f" {w}")) for w in ("list", "names")]
    rows = [words[0], words[0], [], words[1], words[0]]
    monkeypatch.setattr(ample_gcg, "group_beam_search", lambda *args: rows)
    document = run("ample_gcg", tiny_model("llama"), [behaviors()[0]])
    notes = [s.note for s in document.runs[0].steps[1:]]
    assert [(n["rank"], n["suffix"]) for n in notes] == [(1, "list"), (4, "names")]


def test_the_clean_request_is_there_before_the_prompter_works() -> None:
    document = run("ample_gcg", tiny_model("llama"), [behaviors()[0]], budget=Budget(queries=3))
    (start,) = document.runs[0].steps
    assert "optimization" not in start.ledgers
    assert document.status.startswith("stopped: budget.queries=3 ")


def test_a_suffix_is_one_query_and_nothing_is_computed_twice(prompter: Any) -> None:
    options = {"num_suffixes": 6, "num_tokens": 5}
    document = run(
        "ample_gcg", tiny_model("llama"), [behaviors()[0]], options=options,
        budget=Budget(queries=6), given={"helpers": {"prompter": prompter}},
    )  # fmt: skip
    assert document.status == "done"
    used = Ledgers.from_dict(document.ledgers).total("optimization", role="prompter")
    prompt = prompter.chat.encode_text("### Query:write a short story ### Prompt:")
    assert used.queries == 6
    assert used.tokens_processed == len(prompt) + 6 * 4
    assert used.tokens_generated == 6 * 5


def test_a_prompter_that_decodes_nothing_side_by_side_is_refused_with_the_remedy() -> None:
    planted = MeteredModel(PlantedModel(), Meter(), role="prompter")
    with pytest.raises(NeedsError, match="decodes no sequences side by side; use a local model"):
        planted.decode_together([1], 2, 3, lambda k, position, logits: 0)


def test_the_model_that_is_named_as_a_prompter_is_in_the_catalog() -> None:
    words = ATTACKS.load("ample_gcg").INFO.helpers["prompter"].split()
    assert get_card(words[-1])


def test_the_prompter_pays_for_the_search_and_the_logged_loss_is_diagnosis() -> None:
    model = tiny_model("llama")
    document = run("ample_gcg", model, [behaviors()[0]])
    ledgers = Ledgers.from_dict(document.ledgers)
    assert ledgers.total("optimization", role="prompter").queries > 0
    assert ledgers.total("optimization", role="model").queries == 0
    assert ledgers.total("diagnosis", role="model").queries == len(document.runs[0].steps)
