"""AmpleGCG: a prompter model, fine-tuned on GCG suffixes, writes many suffixes for one request.

Source: Liao and Sun 2024 (arXiv 2404.07921); OSU-NLP-Group/AmpleGCG for format and decoding:
diverse (group) beam search with as many groups as suffixes, penalty 1.0, exactly 20 new tokens,
request and suffix joined by a space. Step 0 is the clean request; the steps after it are the
suffixes by beam rank, which `note.rank` says.

Deviations from the reference code: group beam search is our own (it left transformers' core), ties
go to the lowest id; equal suffixes are tried once, at their best rank; special tokens are never
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from pydantic import Field

from adversariallm.attacks._kit.diagnosis import diagnosed_loss
from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs, WhiteBoxModel
from adversariallm.core.types import Candidate, State, Task

INFO = AttackInfo(
    name="ample_gcg",
    summary="suffixes written by a prompter model, most likely first",
    source="Liao and Sun 2024, arXiv 2404.07921",
    reference_code="OSU-NLP-Group/AmpleGCG",
    needs=Needs.TEXT,
    modality="suffix",
    target="optional",
    version=2,
    helpers={"prompter": "a model fine-tuned to write suffixes, e.g. amplegcg-llama-2"},
    helper_needs={"prompter": Needs.TOKENS | Needs.LOGITS},
    deviations=("ties go to the lowest id", "equal suffixes are tried once"),
    quick={"num_suffixes": 4, "num_tokens": 3},
)


class Prompter(WhiteBoxModel, Protocol):
    """A white-box model that also decodes sequences which look at each other."""

    def decode_together(
        self,
        prompt: Sequence[int],
        count: int,
        length: int,
        choose: Callable[[int, int, torch.Tensor], int],
    ) -> list[tuple[int, ...]]:
        """`count` continuations of `length` ids; `choose(k, position, logits_V)` takes each id."""


class Config(FrozenConfig):
    """Options; defaults are those of the paper's main setting."""

    num_suffixes: int = Field(200, ge=1, description="suffixes tried: beams and beam groups")
    num_tokens: int = Field(20, ge=1, description="tokens of each suffix, in the prompter's count")
    diversity_penalty: float = Field(
        1.0, ge=0, description="taken off for each earlier group's use"
    )
    log_loss: bool = Field(
        True, description="record the target loss, booked as diagnosis; white-box models only"
    )


class Attack:
    """Send the request with each suffix that the prompter writes."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the clean request, then one suffix per step."""
        behavior = task.behavior
        clean = behavior.conversation
        turn = clean.last_user
        known = [] if ctx.state is None else ctx.state.values.get("suffixes", [])
        if ctx.state is None:
            yield Candidate.of(
                clean, diagnosed_loss(ctx, clean, behavior.target, self.config.log_loss)
            )
        prompter: Prompter = ctx.helpers["prompter"]  # type: ignore[assignment]
        suffixes = known or self._suffixes(prompter, clean[turn].content)
        first = 1 if ctx.state is None else ctx.state.step + 1
        for rank, suffix in suffixes[first - 1 :]:
            talk = clean.with_content(turn, f"{clean[turn].content} {suffix}")
            loss = diagnosed_loss(ctx, talk, behavior.target, self.config.log_loss)
            note = {"rank": rank, "suffix": suffix}
            yield Candidate.of(talk, loss, state=State({"suffixes": suffixes}), note=note)

    def _suffixes(self, prompter: Prompter, request: str) -> list[tuple[int, str]]:
        """Distinct suffixes with the best beam rank of each, from 1 on."""
        c = self.config
        prompt = prompter.chat.encode_text(f"### Query:{request} ### Prompt:")
        allowed = prompter.chat.mask(prompter.num_embeddings, ascii_only=False)
        rows = group_beam_search(
            prompter, prompt, allowed, c.num_suffixes, c.num_tokens, c.diversity_penalty
        )
        best: dict[str, int] = {}
        for rank, row in enumerate(rows, 1):
            text = prompter.chat.decode_reply(prompt, row).strip()
            if text:
                best.setdefault(text, rank)
        return [(rank, text) for text, rank in best.items()]


def group_beam_search(
    model: Prompter,
    prompt: tuple[int, ...],
    allowed: torch.Tensor,
    groups: int,
    length: int,
    penalty: float,
) -> list[list[int]]:
    """Diverse beam search with one beam per group, best cumulative score first.

    At every position the groups choose one after the other: a group takes the id whose
    log-probability, less `penalty` times the number of earlier groups that took it here, is
    highest. Source: Vijayakumar et al. 2016 (arXiv 1610.02424), with Hamming diversity.

    Args:
        model: the prompter.
        prompt: ids that all groups continue.
        allowed: `[V]` bool, ids that may be written.
        groups: number of groups, one beam each.
        length: exact number of new ids.
        penalty: diversity strength.
    """
    taken = torch.full((groups, length), -1, dtype=torch.long)
    gained = torch.zeros(groups, length, dtype=torch.float64)

    def choose(group: int, position: int, logits_V: torch.Tensor) -> int:
        log_probs = logits_V.cpu().log_softmax(-1).masked_fill(~allowed, -torch.inf)
        earlier = taken[:group, position]
        used = torch.bincount(earlier[earlier >= 0], minlength=len(log_probs))
        penalized = log_probs - penalty * used
        token = int(penalized.argmax())
        taken[group, position], gained[group, position] = token, penalized[token]
        return token

    rows = model.decode_together(prompt, groups, length, choose)
    order = torch.sort(gained.sum(1), descending=True, stable=True).indices
    return [list(rows[g]) for g in order.tolist()]
