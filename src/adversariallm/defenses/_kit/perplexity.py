"""Log-perplexity of texts under a causal model: of the whole text, or of its worst window.

Source: Alon and Kamfonas 2023, arXiv 2308.14132; Jain et al. 2023, arXiv 2309.00614, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from adversariallm.core.budget import Usage
from adversariallm.core.protocols import WhiteBoxModel


@dataclass(frozen=True)
class Measured:
    """Log-perplexity of one text.

    Attributes:
        value: nats per token; 0 for a text without a token to predict; None where it does not fit.
        usage: useful work.
    """

    value: float | None
    usage: Usage = Usage()


@dataclass(frozen=True)
class Perplexity:
    """Measures texts; each alone, after the tokenizer's start token where it has one.

    Attributes:
        model: gives the probabilities.
        window: number of tokens of a window; None takes the whole text.
    """

    model: WhiteBoxModel
    window: int | None = None

    @property
    def start(self) -> tuple[int, ...]:
        """What stands before a text: the start token, or nothing."""
        chat = self.model.chat
        first = chat.tokenizer.bos_token_id
        return chat.codec.bos_ids or (() if first is None else (int(first),))

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of a text without what the tokenizer puts before it."""
        ids, bos = tuple(self.model.chat.codec.encode(text)), self.model.chat.codec.bos_ids
        return ids[len(bos) :] if bos and ids[: len(bos)] == bos else ids

    def __call__(self, texts: Sequence[str]) -> list[Measured]:
        """One measurement per text; row i depends on text i alone."""
        out = [Measured(0.0)] * len(texts)
        inputs, targets, places = [], [], []
        for i, text in enumerate(texts):
            row = (*self.start, *self.ids(text))
            known = max(1, len(self.start))
            if len(row) > self.model.context_length:
                out[i] = Measured(None)
            elif len(row) > known:
                inputs.append(row[:known])
                targets.append(row[known:])
                places.append(i)
        if places:
            found = self.model.losses(inputs, targets)
            for i, nll, usage in zip(places, found.per_token, found.work.rows, strict=True):
                out[i] = Measured(float(worst(nll, self.window)), usage)
        return out


def worst(nll_T: torch.Tensor, window: int | None) -> torch.Tensor:
    """Mean negative log-likelihood of a text, or the largest of its windows.

    Windows follow each other; the last one ends with the text and may overlap the one before.

    Args:
        nll_T: `[T]` float32, of each token.
        window: tokens; None, or one that is no shorter than the text, takes the whole.
    """
    if window is None or len(nll_T) <= window:
        return nll_T.mean()
    starts = [*range(0, len(nll_T) - window, window), len(nll_T) - window]
    return torch.stack([nll_T[s : s + window].mean() for s in starts]).max()


def calibrated(values: Sequence[float], false_positives: float) -> float:
    """The smallest observed value that at most a share of the values lies above."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * (1 - false_positives) - 1e-9) - 1)]
