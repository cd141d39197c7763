"""Named random streams: the only place in the package where generators are made.

A child depends on its name and on its ancestors' names, never on how many numbers were drawn before
it, so any draw can be repeated alone. There is deliberately no global seed.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    import torch

Name = str | int


@dataclass(frozen=True, slots=True)
class Rng:
    """A node in the tree of streams.

    Attributes:
        path: the names from the root, e.g. `(seed, attack, fit key, role, purpose, step, sample)`.
    """

    path: tuple[Name, ...]

    @classmethod
    def root(cls, seed: int) -> Rng:
        """The root of a run's streams."""
        return cls((int(seed),))

    def child(self, *names: Name) -> Rng:
        """The stream of that name below this one."""
        for name in names:
            if isinstance(name, bool) or not isinstance(name, (str, int)):
                raise TypeError(
                    f"stream name {name!r} is {type(name).__name__}: expected str or int"
                )
        return Rng((*self.path, *names))

    def _digest(self, *counter: int) -> bytes:
        """128 bits of (path, counter); lengths and kinds are written out, so no two paths meet."""
        parts = []
        for kind, names in (("n", self.path), ("c", counter)):
            for name in names:
                text = str(name)
                parts.append(f"{kind}{'i' if isinstance(name, int) else 's'}{len(text)}:{text}")
        return hashlib.blake2b("".join(parts).encode("utf-8"), digest_size=16).digest()

    @property
    def seed(self) -> int:
        """A 63-bit seed that belongs to this path, for libraries that want a number."""
        return int.from_bytes(self._digest()[:8], "big") >> 1

    def uniform(self, *counter: int) -> float:
        """A number in [0, 1), 53 random bits, that belongs to (path, counter): no state."""
        return (int.from_bytes(self._digest(*counter)[:8], "big") >> 11) / (1 << 53)

    def torch(self, device: str = "cpu") -> torch.Generator:
        """A fresh `torch.Generator`; equal on every call."""
        import torch

        return torch.Generator(device=device).manual_seed(self.seed)

    def python(self) -> random.Random:
        """A fresh `random.Random`; equal on every call."""
        return random.Random(self.seed)  # noqa: S311

    def numpy(self) -> numpy.random.Generator:
        """A fresh `numpy.random.Generator`; equal on every call."""
        import numpy

        return numpy.random.default_rng(self.seed)


def torch_permutation(n: int, seed: int) -> list[int]:
    """The permutation that `torch.randperm(n)` gives right after `torch.manual_seed(seed)`.

    Only for replaying orders that others published; it leaves torch's global generator alone.
    """
    import torch

    order: list[int] = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
