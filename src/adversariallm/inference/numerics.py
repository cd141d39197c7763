"""Row-invariant matrix products: which row counts give the same bits, and how to use only those.

A product's row depends on the number of rows beside it, because libraries choose kernels by shape.
Here every product is cut into tiles whose row counts were seen to agree, with the kernel that was
chosen. Measuring them is `selfcheck`'s work, not this module's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from adversariallm.inference.kernels import Kernel


@dataclass(frozen=True)
class RowPolicy:
    """The row counts that prefill and decode may use.

    Attributes:
        prefill: tile sizes for many positions, ascending; all give the same bits.
        decode: tile sizes for one position per row, ascending; all give the same bits.
        verified: whether an end-to-end comparison on this machine confirmed it.
        kernel: name of the product kernel (`kernels.NAMES`).
    """

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    verified: bool = False
    kernel: str = "torch"

    @property
    def fixed(self) -> bool:
        """Whether every product has one single shape (safe mode)."""
        return len(self.prefill) == len(self.decode) == 1

    @property
    def filling(self) -> Products:
        """Products of many positions."""
        return Products(self.prefill, Kernel.filling(self.kernel))

    @property
    def decoding(self) -> Products:
        """Products of one position per row."""
        return Products(self.decode, Kernel.decoding(self.kernel))


@dataclass(frozen=True)
class Products:
    """How products of activations with weights are computed: in which tiles, by which kernel."""

    tiles: tuple[int, ...]
    kernel: Kernel = Kernel()

    def leaves_alone(self, rows: int) -> bool:
        """Whether the library's own product of that many rows is already what is wanted."""
        return self.kernel.plain and rows in self.tiles


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

    def __init__(self, products: Products) -> None:
        """Use these tile sizes and this kernel."""
        super().__init__()
        self.tiles, self.kernel = products.tiles, products.kernel

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Reroute `linear`, `mm`, `addmm` and `matmul` with a 2-D weight."""
        if func not in _PRODUCTS:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        found = as_product(func, args, kwargs)
        if found is None:
            return func(*args, **kwargs)
        x, weight, bias, product = found
        if weight is None or not self.kernel.takes(x, weight):
            return tiled_product(x, self.tiles, product)
        return tiled_product(x, self.tiles, lambda m: self.kernel(m, weight, bias))


Found = tuple[
    torch.Tensor, torch.Tensor | None, torch.Tensor | None, Callable[[torch.Tensor], torch.Tensor]
]
_MATMULS = (torch.mm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
_PRODUCTS = frozenset({F.linear, torch.addmm, *_MATMULS})


def as_product(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Found | None:
    """See a call as a product of activations with a weight.

    Returns:
        Activations `[..., K]`, weight `[N, K]` and bias `[N]` (a weight of None where the call can
        only be repeated as it is), and the library's own product of `[m, K]` rows; None where it
        is no such product.
    """
    if func is F.linear:
        return _as_linear(args, kwargs)
    if func is torch.addmm and x_is_rows(args, 3):
        bias, x, weight = args
        seen = weight.t() if not kwargs and bias.dim() == 1 else None
        return x, seen, bias, lambda m: torch.addmm(bias, m, weight, **kwargs)
    if func in _MATMULS and x_is_rows(args, 2) and args[1].dim() == 2:
        x, weight = args
        return x, weight.t(), None, lambda m: torch.matmul(m, weight)
    return None


def _as_linear(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found | None:
    if "input" in kwargs or len(args) < 2 or not args[0].numel():
        return None
    x, rest = args[0], args[1:]
    bias = rest[1] if len(rest) > 1 else kwargs.get("bias")
    return x, rest[0], bias, lambda m: F.linear(m, *rest, **kwargs)


def x_is_rows(args: Sequence[Any], count: int) -> bool:
    """Whether there are `count` positional tensors and the activations have rows."""
    return (
        len(args) == count
        and all(isinstance(a, torch.Tensor) for a in args)
        and args[count - 2].dim() >= 2
        and args[count - 2].numel() > 0
    )
