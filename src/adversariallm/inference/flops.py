"""Floating-point operations of a transformer, from its architecture: the project's only counter.

Counts useful work (DESIGN 6, white-box specification 1.4): no padding, no repeated rows. What the
machine really executed is counted by the same formula from the shapes that ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from adversariallm.core.budget import Usage


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one layer's attention.

    Attributes:
        score_width: query heads times key width.
        value_width: query heads times value width.
        window: positions a query sees at most; None for all.
    """

    score_width: int
    value_width: int
    window: int | None = None


@dataclass(frozen=True)
class Architecture:
    """What a forward pass costs depends on these numbers alone.

    Attributes:
        body: weights used in products per position, embeddings and head excluded, active experts
            only.
        head: weights of the output head.
        layers: one attention shape per layer.
        key_value_width: numbers cached per position and layer.
    """

    body: int
    head: int
    layers: tuple[AttentionShape, ...]
    key_value_width: int = 0

    def products(self, positions: int) -> int:
        """Operations of the body's weight products at that many positions."""
        return 2 * self.body * positions

    def projection(self, positions: int) -> int:
        """Operations of the head at that many positions."""
        return 2 * self.head * positions

    def attention(self, new: int, cached: int, *, square: bool = False) -> int:
        """Operations of both attention products.

        Args:
            new: new positions.
            cached: positions before them.
            square: count masked scores too, as kernels without causality do.
        """
        return sum(
            2 * (s.score_width + s.value_width) * _seen(new, cached, s.window, square=square)
            for s in self.layers
        )

    def forward(self, new: int, cached: int, logits: int, *, square: bool = False) -> int:
        """Operations of a forward pass over `new` positions with `logits` of them projected."""
        attention = self.attention(new, cached, square=square)
        return self.products(new) + self.projection(logits) + attention

    def backward(self, new: int, cached: int, logits: int, *, square: bool = False) -> int:
        """Operations of a backward pass to the inputs alone (weights frozen).

        A weight product costs as much as forward, an attention product twice (both its inputs have
        gradients).
        """
        attention = self.attention(new, cached, square=square)
        return self.products(new) + self.projection(logits) + 2 * attention

    def usage(
        self,
        new: int,
        cached: int,
        logits: int,
        *,
        queries: int = 1,
        backward: bool = False,
        generated: int = 0,
    ) -> Usage:
        """Useful work of one sequence-level evaluation, in all measures."""
        flops = self.forward(new, cached, logits)
        if backward:
            flops += self.backward(new, cached, logits)
        per_token = 2 * (self.body + self.head) * (2 if backward else 1)
        return Usage(
            queries=queries,
            forward_passes=1,
            backward_passes=int(backward),
            tokens_processed=new,
            tokens_cached=cached,
            tokens_generated=generated,
            flops=flops,
            flops_2n=per_token * new,
        )

    def generation(self, prompt: int, generated: int, cached: int = 0) -> Usage:
        """Useful work of one answer: prefill of the uncached prompt, then one pass per fed id.

        The last id is not fed back. Positions the model itself put into its cache do not count as
        `tokens_cached`; `cached` is a shared prefix.
        """
        total = self.usage(prompt - cached, cached, 1, generated=generated)
        steps = max(0, generated - 1)
        flops = sum(self.forward(1, prompt + i, 1) for i in range(steps))
        return total + Usage(
            forward_passes=steps,
            tokens_processed=steps,
            flops=flops,
            flops_2n=2 * (self.body + self.head) * steps,
        )


def _seen(new: int, cached: int, window: int | None, *, square: bool) -> int:
    """Number of (query, visible key) pairs."""
    if square:
        return new * (cached + new)
    if window is None or cached + new <= window:
        return new * cached + new * (new + 1) // 2
    growing = max(0, min(new, window - cached))
    return growing * cached + growing * (growing + 1) // 2 + (new - growing) * window


def architecture(model: Any) -> Architecture:
    """Read the numbers from a transformers model."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    skipped = {id(m) for m in (*head.modules(), *embedding.modules())}
    body = 0
    for module in model.modules():
        if id(module) not in skipped and not isinstance(module, torch.nn.Embedding):
            body += _product_weights(module, config)
    shapes = _attention_shapes(config)
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    share = kv_heads / config.num_attention_heads
    width = max(int((s.score_width + s.value_width) * share) for s in shapes)
    projected = sum(_product_weights(m, config) for m in head.modules())
    return Architecture(body, projected, shapes, width)


def _product_weights(module: torch.nn.Module, config: Any) -> int:
    """Weights of one module (children excluded) that take part in products, per position."""
    sizes: tuple[Any, Any] = (
        getattr(module, "in_features", None),
        getattr(module, "out_features", None),
    )
    # a wrapper repeats the sizes of the layer inside it
    if None not in sizes and not any(module.children()):
        return int(sizes[0]) * int(sizes[1])
    own = [p for p in module.parameters(recurse=False) if p.dim() >= 2]
    experts = getattr(module, "num_experts", None)
    total = 0
    for p in own:
        if p.dim() == 3 and isinstance(experts, int):
            total += p.numel() // experts * active_experts(config)
        elif p.dim() == 2:
            total += p.numel()
    return total


def active_experts(config: Any) -> int:
    """Experts that a token is sent to."""
    for name in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 1


def _attention_shapes(config: Any) -> tuple[AttentionShape, ...]:
    heads = int(config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    key_dim = dim
    if getattr(config, "qk_nope_head_dim", None) is not None:
        key_dim = int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
    value_dim = int(getattr(config, "v_head_dim", None) or dim)
    count = int(config.num_hidden_layers)
    kinds = getattr(config, "layer_types", None) or [None] * count
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    return tuple(
        AttentionShape(
            heads * key_dim,
            heads * value_dim,
            window if kind in ("sliding_attention", None) else None,
        )
        for kind in kinds
    )
