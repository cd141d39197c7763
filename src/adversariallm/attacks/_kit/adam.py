"""Adam's direction as a pure function, so that its moments can be stored with a step.

Source: Kingma and Ba 2015 (arXiv 1412.6980), Algorithm 1, with its default constants.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def adam(
    gradient: Tensor, moments: Mapping[str, Tensor], count: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The direction to step against, and the new moments.

    Args:
        gradient: of any shape.
        moments: `first` and `second` of the step before; empty at the start.
        count: number of this step, from 1.
    """
    first, second = (moments.get(k, torch.zeros_like(gradient)) for k in ("first", "second"))
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient * gradient
    unbiased = first / (1 - 0.9**count)
    spread = (second / (1 - 0.999**count)).sqrt()
    return unbiased / (spread + 1e-8), {"first": first, "second": second}
