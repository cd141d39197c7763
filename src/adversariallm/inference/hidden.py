"""The residual stream: reading it at given positions, and editing it while a model runs.

Layers are found by structure (the list of `num_hidden_layers` modules), never by a model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from adversariallm.core.errors import ModelError

Edit = Callable[[torch.Tensor], torch.Tensor]


def decoder_layers(model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    """The model's decoder layers, in order."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise ModelError(f"{type(model).__name__} has no list of {count} decoder layers")


@contextmanager
def recording(layers: list[torch.nn.Module]) -> Iterator[dict[int, torch.Tensor]]:
    """Collect the residual stream before each layer, and after the last, of the calls inside.

    Yields:
        A dictionary that maps 0..L to the latest `[B, T, d]` stream; L is after the last layer.
    """
    seen: dict[int, torch.Tensor] = {}

    def before(index: int) -> Callable[..., None]:
        def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    def after(_: torch.nn.Module, __: Any, output: Any) -> None:
        seen[len(layers)] = output[0] if isinstance(output, tuple) else output

    handles = [
        layer.register_forward_pre_hook(before(i), with_kwargs=True)
        for i, layer in enumerate(layers)
    ]
    handles.append(layers[-1].register_forward_hook(after))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def editing(layers: list[torch.nn.Module], edit: Edit) -> Iterator[None]:
    """Apply `edit` to the stream before every layer and to all that a layer's blocks add to it.

    Source: Arditi et al. 2024, arXiv 2406.11717, section 2.4 (directional ablation at every write).
    """

    def before(
        _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (edit(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": edit(kwargs["hidden_states"])}

    def after(_: torch.nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (edit(output[0]), *output[1:])
        return edit(output)

    handles = []
    for layer in layers:
        handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
        for child in layer.children():
            if any(p.dim() >= 2 for p in child.parameters()):
                handles.append(child.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def without_direction(direction: torch.Tensor) -> Edit:
    """An edit that removes the component along `direction` `[d]`."""
    unit = direction.float() / direction.float().norm()

    def edit(stream: torch.Tensor) -> torch.Tensor:
        along = unit.to(stream.device, stream.dtype)
        ablated: torch.Tensor = stream - (stream @ along)[..., None] * along
        return ablated

    return edit
