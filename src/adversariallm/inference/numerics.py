"""Row-invariant matrix products: which row counts give the same bits, and how to use only those.

A product's row depends on the number of rows beside it, because libraries choose kernels by shape.
Here every product is cut into tiles whose row counts were seen to agree. Measuring them is
`selfcheck`'s work, not this module's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class RowPolicy:
    """The row counts that prefill and decode may use.

    Attributes:
        prefill: tile sizes for many positions, ascending; all give the same bits.
        decode: tile sizes for one position per row, ascending; all give the same bits.
        verified: whether an end-to-end comparison on this machine confirmed it.
    """

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    verified: bool = False

    @property
    def fixed(self) -> bool:
        """Whether every product has one single shape (safe mode)."""
        return len(self.prefill) == len(self.decode) == 1


SAFE_POLICY = RowPolicy(prefill=(32,), decode=(16,))
CALL_COST = 48
"""What one product costs beside its rows, in rows [measured on SmolLM2: 57 on two cores]."""


@lru_cache(maxsize=4096)
def split_rows(rows: int, tiles: tuple[int, ...]) -> tuple[int, ...]:
    """The cheapest tiles whose sum is at least `rows`; only the last may be padded.

    Every product reads all weights once, which costs as much as `CALL_COST` rows.
    """
    if rows <= 0:
        return ()
    fitting = [t for t in tiles if t <= rows]
    covering = [t for t in tiles if t >= rows]
    options: list[tuple[int, ...]] = [(min(covering),)] if covering else []
    if fitting:
        count = max(1, rows // max(fitting) - 1) if not covering else 1
        rest = rows - count * max(fitting)
        options.append((max(fitting),) * count + split_rows(rest, tiles))
    return min(options, key=lambda sizes: sum(sizes) + CALL_COST * len(sizes))


def padded_rows(rows: int, tiles: Sequence[int]) -> int:
    """The number of rows that `rows` rows occupy."""
    return sum(split_rows(rows, tuple(tiles)))


def tiled_product(
    x: torch.Tensor, tiles: Sequence[int], product: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """`product(x)` for `x` `[..., K]`, computed in verified tiles of rows.

    Differentiable; `product` must map `[m, K]` to `[m, N]` row by row.
    """
    shape = x.shape
    rows = x.numel() // shape[-1]
    if rows in tiles:
        return product(x)
    sizes = split_rows(rows, tuple(tiles))
    lengths = [*sizes[:-1], rows - sum(sizes[:-1])]
    pieces = list(torch.split(x.reshape(rows, shape[-1]), lengths))
    pieces[-1] = F.pad(pieces[-1], (0, 0, 0, sizes[-1] - len(pieces[-1])))
    outs = [product(piece) for piece in pieces]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out[:rows].reshape(*shape[:-1], out.shape[-1])


class RowInvariant(TorchFunctionMode):
    """Context in which products of activations with weights run in verified tiles.

    Batched products (attention) are left alone; attention has its own rules (`attention`).
    """

    def __init__(self, tiles: Sequence[int]) -> None:
        """Use these tile sizes."""
        super().__init__()
        self.tiles = tuple(tiles)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Reroute `linear`, `mm`, `addmm` and `matmul` with a 2-D weight."""
        kwargs = kwargs or {}
        if func is F.linear:
            x, rest = args[0], args[1:]
            if x.numel() and not kwargs.keys() & {"input"}:
                return tiled_product(x, self.tiles, lambda m: F.linear(m, *rest, **kwargs))
        elif func is torch.addmm and x_is_rows(args, 3):
            bias, x, weight = args
            return tiled_product(x, self.tiles, lambda m: torch.addmm(bias, m, weight, **kwargs))
        elif func in (torch.mm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            if x_is_rows(args, 2) and args[1].dim() == 2:
                x, weight = args
                return tiled_product(x, self.tiles, lambda m: torch.matmul(m, weight))
        return func(*args, **kwargs)


def x_is_rows(args: Sequence[Any], count: int) -> bool:
    """Whether there are `count` positional tensors and the activations have rows."""
    return (
        len(args) == count
        and all(isinstance(a, torch.Tensor) for a in args)
        and args[count - 2].dim() >= 2
        and args[count - 2].numel() > 0
    )
