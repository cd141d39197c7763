"""What an adaptive attacker differentiates where a defense itself gives no gradient.

The text of a prompt is found again in ids, and scores of tokens are written as a direction in the
embedding space, the only form in which a gradient reaches an attack.
"""

from __future__ import annotations

import torch

from adversariallm.core.errors import NeedsError
from adversariallm.core.types import Conversation, Message
from adversariallm.tokenization import ChatTokenizer


class PromptFinder:
    """Finds the last user message in ids that a chat tokenizer made."""

    def __init__(self, chat: ChatTokenizer) -> None:
        """Learn what the template writes around a user message, frames left out."""
        self._chat = chat
        alone = chat.render(Conversation.user("a"))
        span = alone.spans[-1]
        self._after = alone.text[span.end :]
        talk = (Message("user", "a"), Message("assistant", "b"), Message("user", "a"))
        several = chat.render(Conversation(talk))
        between = several.text[several.spans[-2].end : several.spans[-1].start]
        self._before = _common_end(alone.text[: span.start], between)

    def __call__(self, ids: tuple[int, ...]) -> str:
        """The message's text.

        Raises:
            NeedsError: the ids do not end with a user message and the start of an answer.
        """
        text = self._chat.decode(ids)
        start = text.rfind(self._before)
        end = text.rfind(self._after)
        if not self._before or start < 0 or end < start + len(self._before):
            raise NeedsError(
                "an adaptive attack on this defense must end its input with a user message; the "
                f"ids read {text[-200:]!r}. Use knowledge=unaware"
            )
        return text[start + len(self._before) : end]


def _common_end(a: str, b: str) -> str:
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return a[len(a) - n :]


class TokenScores:
    """Scores of tokens as directions in the embedding space, by least squares.

    `direction(scores)` is the `[n, d]` G for which `G E^T` is closest to the scores, up to a
    constant per row, which no choice among tokens sees. For scores that are linear in the embedding
    (minus the logits of a model whose head is its embedding) it is exact.
    """

    def __init__(self, embedding_Vd: torch.Tensor) -> None:
        """Factorize the centered embedding once."""
        rows = embedding_Vd.float()
        self._centered = rows - rows.mean(0)
        gram = self._centered.T @ self._centered
        ridge = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
        self._factor = torch.linalg.cholesky(gram + ridge)

    def direction(self, scores_nV: torch.Tensor) -> torch.Tensor:
        """`[n, d]` float32 for scores `[n, V]`."""
        centered = scores_nV - scores_nV.mean(1, keepdim=True)
        right = (centered.to(self._centered.device) @ self._centered).T
        return torch.cholesky_solve(right, self._factor).T
