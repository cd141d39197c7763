"""Layers that bitsandbytes stores in few bits: one product each, with the dequantized weight.

The library's own layers take other kernels for one row than for several (NF4), or round
activations after a look at every row of the batch (LLM.int8), so a row's result depends on its
company. Here the stored weight is dequantized, multiplied like any other and dropped, in gradients
too: at no time is more than one layer whole in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

STORED = ("Params4bit", "Int8Params")
"""Classes of weights; the library is optional, so they go by name."""


def quantized_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The linear layers of a model whose own weight is stored quantized."""
    return [
        m
        for m in model.modules()
        if isinstance(m, torch.nn.Linear) and type(m._parameters.get("weight")).__name__ in STORED
    ]


def dequantized(layer: torch.nn.Module) -> torch.Tensor:
    """The weight `[N, K]` that a layer's stored bits stand for."""
    from bitsandbytes import functional

    weight: Any = layer.weight
    if type(weight).__name__ == "Int8Params":
        state: Any = layer.state
        # the scales move from the weight to the layer when the library first runs it
        scales = weight.SCB if state.SCB is None else state.SCB
        whole: torch.Tensor = functional.int8_vectorwise_dequant(weight.data, scales)
        return whole
    bits, state = _in_rows(weight.data, weight.quant_state)
    whole = functional.dequantize_4bit(bits, state)
    return whole


def _in_rows(bits: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
    """Bits and scales in the order of the rows, without touching the layer.

    On processors with bfloat16 instructions the library reorders both in place when it first runs a
    layer without gradients, and its way back leaves the scales transposed.
    """
    from bitsandbytes import functional

    if getattr(state, "packing_format_for_cpu", False):
        state = copy(state)
        state.original_nested = False
        bits, state = functional._convert_weight_packed_for_cpu_inverse(bits, state)
    if not state.nested and state.absmax.dim() == 2:
        state = copy(state)
        state.absmax = state.absmax.T.float().reshape(-1)
    return bits, state


class _Product(torch.autograd.Function):
    """`x W^T + b` with a gradient for `x`; the weight is made anew for the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        ctx.layer = layer
        bias: Any = layer.bias
        return F.linear(x, dequantized(layer).to(x), None if bias is None else bias.to(x))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return torch.matmul(gradient, dequantized(ctx.layer).to(gradient)), None


def _forward(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Product.apply(x, layer)  # type: ignore[no-untyped-call]
    return out


@contextmanager
def dequantizing(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Let these layers compute with dequantized weights inside; restored after."""
    before = []
    try:
        for layer in layers:
            # a hook of accelerate keeps the layer's own function under another name
            name = "_old_forward" if hasattr(layer, "_old_forward") else "forward"
            before.append((layer, name, layer.__dict__.get(name)))
            setattr(layer, name, partial(_forward, layer))
        yield
    finally:
        for layer, name, known in before:
            if known is None:
                delattr(layer, name)
            else:
                setattr(layer, name, known)
