"""Our `gcg` on one behavior, step by step, with the seconds of each step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from adversariallm.attacks import gcg
from adversariallm.attacks._kit.proposals import uniform_positions
from adversariallm.core.budget import Budget, Meter
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Context, Losses, Objective
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Task
from adversariallm.models.local import LocalModel
from adversariallm.models.metered import MeteredModel
from adversariallm.tokenization import ChatTokenizer
from gcg_contest.arms import INITIAL, TOPK, Arm


def bfloat16_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy `[W]` computed in bfloat16, as code does that never leaves that type."""
    rows, length = targets.shape
    logits = logits.bfloat16().view(rows * length, -1)
    losses = torch.nn.functional.cross_entropy(logits, targets.reshape(-1), reduction="none")
    return losses.view(rows, length).mean(-1).float()


class Variant:
    """A model as a search sees it: another template, or losses in a coarser number format."""

    def __init__(self, model: LocalModel, arm: Arm) -> None:
        """Show `model` as the arm wants it."""
        self.model = model
        self.chat = model.chat
        self.rounded = arm.rounded
        if arm.template != "%s":
            self.chat = ChatTokenizer(model.chat.codec, arm.template % model.chat.template.source)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the model has."""
        return getattr(self.model, name)

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """The model's losses."""
        if self.rounded and objective is None:
            objective = bfloat16_loss
        return self.model.losses(inputs, targets, objective=objective, shared=shared)


def stream(behavior: Behavior, seed: int) -> Rng:
    """What a search draws from."""
    return Rng.root(seed).child("gcg", behavior.id)


def draws(
    behavior: Behavior, seed: int, steps: int, width: int
) -> list[tuple[list[int], list[int]]]:
    """Positions and ranks that our search draws at each step, for a slot of `INITIAL`."""
    out = []
    for step in range(1, steps + 1):
        rng = stream(behavior, seed).child("step", step).child("propose", 0)
        length = len(INITIAL.split())
        positions = uniform_positions(length, width, 1, rng.child("positions").torch())
        ranks = torch.randint(TOPK, (width,), generator=rng.child("token_choice").torch())
        out.append((positions[:, 0].tolist(), ranks.tolist()))
    return out


def search(
    model: LocalModel, behavior: Behavior, arm: Arm, seed: int, steps: int, width: int
) -> dict[str, Any]:
    """One run: losses, texts, ids and seconds per step, the start included."""
    common = {"initial": INITIAL, "topk": TOPK, "join": "none", "position_sampling": "uniform"}
    config = gcg.Config(num_steps=steps, search_width=width, **{**common, **arm.options})
    meter = Meter(Budget())
    ctx = Context(
        models=(MeteredModel(Variant(model, arm), meter),),  # type: ignore[arg-type]
        rng=stream(behavior, seed),
        meter=meter,
        generation=GenerationConfig(),
        log=lambda **values: None,
    )
    cuda = model.engine.forward.device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    found: dict[str, Any] = {k: [] for k in ("losses", "texts", "ids", "notes", "seconds")}
    start = clock()
    with meter.phase("optimization"):
        for candidate in gcg.Attack(config).search(Task((behavior,)), ctx):
            given = candidate.inputs[0]
            assert given.conversation is not None and given.ids is not None
            found["losses"].append(candidate.losses[0])
            found["texts"].append(given.conversation[given.conversation.last_user].content)
            found["ids"].append(list(given.ids))
            found["notes"].append({k: candidate.note.get(k) for k in ("sampled", "kept")})
            found["seconds"].append(clock() - start)
    return found
