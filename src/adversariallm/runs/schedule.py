"""Which steps of a run get completions: the Monte Carlo schedules of the paper's section 4.3.

Pure; how many samples each scheduled step gets is `Amounts.num_return_sequences`.
"""

from __future__ import annotations

from collections.abc import Sequence


def scheduled(schedule: str, losses: Sequence[float | None]) -> list[int]:
    """Numbers of the steps that get completions.

    Args:
        schedule: `all`, `last`, `best` (lowest loss; the last step where losses are missing),
            `best_so_far` (every step that lowers the loss), `geometric` (0, 1, 2, 4, 8, ... and
            the last) or `none`.
        losses: loss of each step.
    """
    n = len(losses)
    if schedule == "none" or n == 0:
        return []
    if schedule == "all":
        return list(range(n))
    if schedule == "geometric":
        return sorted({0, n - 1, *(2**k for k in range(n.bit_length()) if 2**k < n)})
    known = [(loss, i) for i, loss in enumerate(losses) if loss is not None]
    if schedule == "last" or not known:
        return [n - 1]
    if schedule == "best":
        return [min(known)[1]]
    best, out = float("inf"), []
    for loss, i in known:
        if loss < best:
            best = loss
            out.append(i)
    return out
