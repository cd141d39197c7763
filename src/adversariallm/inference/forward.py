"""One forward pass of an unchanged transformers model under the engine's rules.

Finds what it needs by looking at the model (embedding module, head, argument names), never by its
name, and leaves the model as it was found.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from adversariallm.core.errors import ModelError
from adversariallm.inference import attention
from adversariallm.inference.attention import Plan
from adversariallm.inference.cache import PassThrough
from adversariallm.inference.numerics import Products, RowInvariant
from adversariallm.inference.quantized import dequantizing, quantized_layers


class Forward:
    """A model seen as a function from ids (or embeddings), positions and a plan to logits.

    Attributes:
        model: the transformers model, unchanged.
        embedding: the module that turns ids into vectors.
        head: the module that turns hidden states into logits.
        num_embeddings: V, rows of the input embedding.
        width: hidden plus intermediate size, a measure of activations per position.
        step: positions per row come in multiples of this, so that element-wise kernels never end in
            a scalar remainder, whose functions round differently.
        context_length: most positions the model was made for.
        has_experts: whether it routes tokens to experts.
    """

    def __init__(self, model: Any) -> None:
        """Look at `model`; ModelError if something needed is missing."""
        self.model = model
        self.embedding: torch.nn.Module = model.get_input_embeddings()
        self.head: torch.nn.Module | None = model.get_output_embeddings()
        if self.embedding is None or self.head is None:
            raise ModelError(
                f"{type(model).__name__} has no input embedding or no output head: "
                "expected a causal language model of transformers"
            )
        config = model.config.get_text_config()
        self.config = config
        self.step = _step(config)
        self.width = int(config.hidden_size) + int(getattr(config, "intermediate_size", 0) or 0)
        self.num_embeddings = int(getattr(self.embedding, "num_embeddings", config.vocab_size))
        self.context_length = int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
        self.has_experts = any(
            p.dim() == 3 and hasattr(m, "num_experts")
            for m in model.modules()
            for p in m.parameters(recurse=False)
        )
        names = inspect.signature(_unwrapped(model).forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        self.lock = threading.RLock()
        self._configs = _distinct_configs(model)
        self._quantized = quantized_layers(model)
        self._check_interface()

    def _check_interface(self) -> None:
        if not getattr(_unwrapped(self.model), "_supports_attention_backend", True):
            raise ModelError(
                f"{type(self.model).__name__} does not use transformers' attention interface: "
                "the engine cannot run it"
            )

    @property
    def device(self) -> torch.device:
        """Where inputs go; of offloaded weights, where accelerate's hook brings them."""
        device = next(self.embedding.parameters()).device
        return device if device.type != "meta" else _execution_device(self.embedding)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the activations."""
        weight = next(self.embedding.parameters())
        return weight.dtype if weight.dtype.is_floating_point else torch.float32

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Only quantized layers as the engine computes them; the rest is the library's own."""
        with self.lock, dequantizing(self._quantized):
            yield

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Frozen weights, evaluation mode and our attention inside; everything restored after."""
        with self.plain():
            training = [m for m in self.model.modules() if m.training]
            trainable = [p for p in self.model.parameters() if p.requires_grad]
            before = [(c, c._attn_implementation, _experts(c)) for c in self._configs]
            try:
                for module in training:
                    module.training = False
                for parameter in trainable:
                    parameter.requires_grad_(False)
                for config in self._configs:
                    config._attn_implementation_internal = attention.NAME
                    if _experts(config) is not None:
                        config._experts_implementation_internal = "eager"
                yield
            finally:
                for config, implementation, experts in before:
                    config._attn_implementation_internal = implementation
                    if experts is not None:
                        config._experts_implementation_internal = experts
                for parameter in trainable:
                    parameter.requires_grad_(True)
                for module in training:
                    module.training = True

    def __call__(
        self,
        plan: Plan,
        positions: torch.Tensor,
        *,
        ids: torch.Tensor | None = None,
        embeddings: torch.Tensor | None = None,
        pick: tuple[Sequence[int], Sequence[int]] | None = None,
        products: Products | None = None,
    ) -> torch.Tensor:
        """Logits at the picked places; call inside `attached`.

        Args:
            plan: where keys go and come from.
            positions: `[B, T]` positions.
            ids: `[B, T]` ids, or
            embeddings: `[B, T, d]` vectors.
            pick: batch rows and offsets whose logits are wanted; None for the last of each row.
            products: how products are computed; None to leave them alone.

        Returns:
            `[N, V]` logits in the model's own type, N = number of picked places.
        """
        batch, length = positions.shape
        rows, offsets = pick if pick is not None else (range(batch), [length - 1] * batch)
        inputs = {"input_ids": ids} if embeddings is None else {"inputs_embeds": embeddings}
        exact = products is None or (
            not self.has_experts
            and products.leaves_alone(batch * length)
            and products.leaves_alone(len(rows))
        )
        mode = nullcontext() if products is None or exact else RowInvariant(products)
        with attention.active(plan), self._picking(rows, offsets), mode:
            out = self.model(
                **inputs,
                position_ids=positions.to(self.device),
                use_cache=True,
                return_dict=True,
                **{self.cache_name: PassThrough()},
            )
        logits: torch.Tensor = out.logits.reshape(-1, out.logits.shape[-1])
        return logits

    @contextmanager
    def _picking(self, rows: Sequence[int], offsets: Sequence[int]) -> Iterator[None]:
        """Let the head see only the wanted positions."""

        def gather(_: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = args[0]
            at = (
                torch.tensor(list(rows), device=hidden.device),
                torch.tensor(list(offsets), device=hidden.device),
            )
            return (hidden[at][None], *args[1:])

        assert self.head is not None  # noqa: S101  checked in __init__
        handle = self.head.register_forward_pre_hook(gather)
        try:
            yield
        finally:
            handle.remove()


def _unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _execution_device(module: torch.nn.Module) -> torch.device:
    hook = getattr(module, "_hf_hook", None)
    for part in getattr(hook, "hooks", [hook]):
        device = getattr(part, "execution_device", None)
        if device is not None:
            return torch.device(device)
    raise ModelError(
        "the input embedding has no data (device meta) and no hook of accelerate that loads it: "
        "load the model's weights first"
    )


def _distinct_configs(model: Any) -> list[Any]:
    found = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return [c for c in found.values() if hasattr(c, "_attn_implementation_internal")]


def _step(config: Any) -> int:
    """1 for sizes of real models, up to 64 where sizes are no multiples of two vectors."""
    sizes = [
        getattr(config, name, None)
        for name in ("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim")
    ]
    heads = int(getattr(config, "num_attention_heads", 1))
    known = [s for s in [*sizes, int(config.hidden_size) // heads] if isinstance(s, int) and s]
    return 64 // math.gcd(64, *known)


def _experts(config: Any) -> str | None:
    return getattr(config, "_experts_implementation_internal", None)
