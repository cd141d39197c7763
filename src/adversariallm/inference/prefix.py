"""The immutable store of a prefilled prefix.

Its tensors are read by many calls and never handed to a model, so nothing can grow or crop them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from adversariallm.core.budget import Usage


@dataclass(frozen=True)
class Prefix:
    """Keys and values of a stretch of ids that stands at the start of sequences.

    Attributes:
        ids: the ids it stands for.
        keys: per layer `[1, H_kv, P, D]`.
        values: per layer `[1, H_kv, P, D_v]`.
        usage: useful work of prefilling it, to be charged once.
        executed: floating-point operations really done.
    """

    ids: tuple[int, ...] = ()
    keys: tuple[torch.Tensor, ...] = field(default=(), repr=False)
    values: tuple[torch.Tensor, ...] = field(default=(), repr=False)
    usage: Usage = Usage()
    executed: int = 0

    def __len__(self) -> int:
        """Number of positions."""
        return len(self.ids)

    @property
    def key(self) -> str:
        """A hash of the ids, for charging the prefix once."""
        return hashlib.sha256(",".join(map(str, self.ids)).encode()).hexdigest()[:32]
