"""AmpleGCG: a prompter model, fine-tuned on GCG suffixes, writes many suffixes for one request.

Source: Liao and Sun 2024 (arXiv 2404.07921); OSU-NLP-Group/AmpleGCG for format and decoding:
diverse (group) beam search with as many groups as suffixes, penalty 1.0, exactly 20 new tokens,
request and suffix joined by a space. Step 0 is the clean request; step k the suffix of beam rank k.

Deviations from the reference code: group beam search is our own (it left transformers' core), ties
go to the lowest id; equal suffixes are tried once, at their best rank; special tokens are never
written.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    helpers={"prompter": "a model fine-tuned to write suffixes, e.g. ample_gcg-llama2"},
    helper_needs={"prompter": Needs.TOKENS | Needs.LOGITS},
    deviations=("ties go to the lowest id", "equal suffixes are tried once"),
    quick={"num_suffixes": 4, "num_tokens": 3},
)


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
        if ctx.state is None:
            prompter: WhiteBoxModel = ctx.helpers["prompter"]  # type: ignore[assignment]
            suffixes = self._suffixes(prompter, clean[clean.last_user].content)
            loss = diagnosed_loss(ctx, clean, behavior.target, self.config.log_loss)
            yield Candidate.of(clean, loss, state=State({"suffixes": suffixes}))
        else:
            suffixes = ctx.state.values["suffixes"]
        first = 1 if ctx.state is None else ctx.state.step + 1
        turn = clean.last_user
        for rank in range(first, len(suffixes) + 1):
            suffix = suffixes[rank - 1]
            talk = clean.with_content(turn, f"{clean[turn].content} {suffix}")
            loss = diagnosed_loss(ctx, talk, behavior.target, self.config.log_loss)
            note = {"rank": rank, "suffix": suffix}
            yield Candidate.of(talk, loss, state=State({"suffixes": suffixes}), note=note)

    def _suffixes(self, prompter: WhiteBoxModel, request: str) -> list[str]:
        """Distinct suffixes by beam rank."""
        c = self.config
        prompt = prompter.chat.encode_text(f"### Query:{request} ### Prompt:")
        allowed = prompter.chat.mask(prompter.num_embeddings, ascii_only=False)
        rows = group_beam_search(
            prompter, prompt, allowed, c.num_suffixes, c.num_tokens, c.diversity_penalty
        )
        texts = [prompter.chat.decode_reply(prompt, row).strip() for row in rows]
        return [t for t in dict.fromkeys(texts) if t]


def group_beam_search(
    model: WhiteBoxModel,
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
    rows: list[list[int]] = [[] for _ in range(groups)]
    scores = [0.0] * groups
    for _ in range(length):
        distinct = list(dict.fromkeys(tuple(r) for r in rows))
        shared = len(prompt) if rows[0] else 0
        found = model.next_logits([(*prompt, *d) for d in distinct], shared=shared).logits
        log_probs = found.float().cpu().log_softmax(-1).masked_fill(~allowed, -torch.inf)
        of = {d: log_probs[i] for i, d in enumerate(distinct)}
        used = torch.zeros(log_probs.shape[1])
        for g, row in enumerate(rows):
            penalized = of[tuple(row)] - penalty * used
            token = int(penalized.argmax())
            scores[g] += float(penalized[token])
            used[token] += 1
            rows[g] = [*row, token]
    order = sorted(range(groups), key=lambda g: -scores[g])
    return [rows[g] for g in order]
