"""Kernels for products of activations with weights: the library's own, and oneDNN on a CPU.

In float32 torch hands products to MKL, whose bits depend on the number of rows and which leaves
the wide registers of other makers' processors than Intel's unused. oneDNN takes the weights as they
are, without a packed copy. Which kernel is used is decided by `selfcheck`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

NAMES = ("onednn", "torch")
DEPTH = 192
"""Longest sum of products in one chain while prefilling and scoring.

oneDNN adds in one chain, whose rounding error grows with its length: over 576 to 1536 terms 1.7 to
2 times MKL's [measured with AVX2], over at most 320 1.2 times, over at most 192 as much as MKL's.
"""
HEAD = 4
"""Weights with more than this many times as many outputs as inputs are output heads: there one
product adds little error, few rows are computed, and copying the weight in parts would cost most.
"""
BACKWARD_DEPTH = 2048


@dataclass(frozen=True)
class Kernel:
    """A way to compute `x W^T + b`.

    Attributes:
        name: one of `NAMES`.
        depth: longest chain of additions; None for no limit.
    """

    name: str = "torch"
    depth: int | None = None

    @classmethod
    def filling(cls, name: str) -> Kernel:
        """For many rows: exact enough to score with."""
        return cls(name, DEPTH if name == "onednn" else None)

    @classmethod
    def decoding(cls, name: str) -> Kernel:
        """For few rows, where reading the weights is all that costs."""
        return cls(name)

    @property
    def plain(self) -> bool:
        """Whether it is the library's own product."""
        return self.name == "torch"

    def takes(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether it can compute this product; quantized and moved weights are left alone."""
        return (
            self.name == "onednn"
            and type(weight) in (torch.Tensor, torch.nn.Parameter)
            and weight.device.type == "cpu"
            and weight.layout == torch.strided
            and weight.dtype == x.dtype == torch.float32
            and not weight.requires_grad
        )

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """`x W^T + b` of `x` `[..., K]`, `weight` `[N, K]`, `bias` `[N]`; differentiable in `x`."""
        if x.dim() != 2:
            return self(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)
        if x.requires_grad and torch.is_grad_enabled():
            out: torch.Tensor = _Differentiable.apply(x, weight, bias, self.depth)  # type: ignore[no-untyped-call]
            return out
        return _product(x, weight, bias, self.depth)


def available(dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
    """The kernels that could be used for weights of that type, the preferred one first.

    oneDNN against MKL [measured, product by product, 256 rows]: up to twice as fast with AVX-512 of
    AMD (Zen 5, chains of 320), 0.65 to 0.77 times as fast with that of Intel (a Xeon with AMX,
    chains of 192), 0.55 to 1 times with AVX2 (Zen 3, chains of 320). The order is a fact of the
    processor, not of a stopwatch, so that it is the same on every load.
    """
    built = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not built or dtype != torch.float32 or device.type != "cpu":
        return ("torch",)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return NAMES if wide and "Intel" not in maker() else NAMES[::-1]


def maker() -> str:
    """What torch calls this processor, e.g. "Intel Xeon"; the name may be empty."""
    return str(torch.cpu.get_capabilities().get("cpu_name", ""))


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _cuts(length: int, depth: int | None) -> list[slice]:
    """Equal parts of at most `depth`, in whole vectors."""
    parts = 1 if depth is None else -(-length // depth)
    step = -(-length // parts)
    step = -(-step // 16) * 16 if parts > 1 else step
    return [slice(a, min(a + step, length)) for a in range(0, length, step)]


def chains(weight: torch.Tensor, depth: int | None) -> list[slice]:
    """The parts in which the inputs of a weight `[N, K]` are summed."""
    outputs, inputs = weight.shape
    return _cuts(inputs, None if outputs > HEAD * inputs else depth)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, depth: int | None
) -> torch.Tensor:
    first, *others = chains(weight, depth)
    if not others:
        return _onednn(x.contiguous(), weight, bias)
    # a strided slice of a weight would take a reference routine that is slower by thousands
    out = _onednn(x[:, first].contiguous(), weight[:, first].contiguous(), bias)
    for part in others:
        out += _onednn(x[:, part].contiguous(), weight[:, part].contiguous(), None)
    return out


class _Differentiable(torch.autograd.Function):
    """The product with a gradient for the activations; weights are frozen in the engine."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        depth: int | None,
    ) -> torch.Tensor:
        ctx.weight = weight
        return _product(x, weight, bias, depth)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        first, *others = _cuts(gradient.shape[1], BACKWARD_DEPTH)
        out = _onednn(gradient[:, first].contiguous(), ctx.weight[first].t(), None)
        for part in others:
            out += _onednn(gradient[:, part].contiguous(), ctx.weight[part].t(), None)
        return out, None, None, None
