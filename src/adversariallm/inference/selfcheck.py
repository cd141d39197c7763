"""What holds on this machine: measured when a model is loaded, stored with every run.

Finds row counts whose products agree bit for bit, confirms the whole engine with them, and compares
it with the library's own forward pass. It takes seconds and repairs nothing: where invariance fails
the engine falls back to fixed shapes, and the report says so.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch.overrides import TorchFunctionMode

from adversariallm.core.errors import ModelError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import digest
from adversariallm.inference.cache import RaggedStore
from adversariallm.inference.decode import Decoder
from adversariallm.inference.flops import Architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.kernels import Kernel, available, chains, maker
from adversariallm.inference.numerics import SAFE_POLICY, RowPolicy, as_product
from adversariallm.inference.prefill import Filling, Prefill
from adversariallm.inference.prefix import Prefix
from adversariallm.inference.requests import Request
from adversariallm.inference.scoring import Item, Scorer

ROW_COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOVED = 64
"""Up to this many rows it is tried whether a row's place in the tile matters."""
VETO = 1.5
"""A kernel is refused only if it takes this many times as long as the library's."""
PROMPTS = (5, 12, 50, 63)
"""Lengths: two pairs that are prefilled together, and one whose keys are widened as it decodes."""
NEW_TOKENS = 3
BOUNDS = {torch.float32: 1e-3, torch.float64: 1e-6}
ROUGH = 0.5
"""The same in 16 bits. With AMX SmolLM2's logits in bfloat16 differ by 0.25, and the library's own
differ by 0.20 from those in float32 [measured]: a lower bound would refuse good models.
"""
VERSION = 7


@dataclass(frozen=True)
class Report:
    """The outcome, for `execution` of a run.

    Attributes:
        policy: row counts the engine uses.
        invariant: True if batched and single results were bitwise equal, False if they were not,
            None if nothing was checked (`invariance: unverified`).
        mode: `tiles` (several verified shapes), `fixed` (one shape) or `unchecked`.
        difference: largest difference of logits to the library's own forward pass, relative to
            their spread.
        seconds: how long the check took.
    """

    policy: RowPolicy
    invariant: bool | None
    mode: str
    device: str
    dtype: str
    threads: int
    torch: str
    transformers: str
    cpu: str
    difference: float = 0.0
    seconds: float = 0.0

    @property
    def checked(self) -> bool:
        """Whether anything was measured."""
        return self.mode != "unchecked"

    @property
    def flags(self) -> tuple[str, ...]:
        """Reliability flags this report raises."""
        if self.invariant is None:
            return ("invariance: unverified",)
        return () if self.invariant else ("invariance: failed",)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Report:
        """Inverse of `to_dict`."""
        policy = row["policy"]
        rebuilt = RowPolicy(
            prefill=tuple(policy["prefill"]),
            decode=tuple(policy["decode"]),
            verified=policy["verified"],
            kernel=policy.get("kernel", "torch"),
        )
        return cls(**{**row, "policy": rebuilt})


def unchecked_report(forward: Forward, policy: RowPolicy) -> Report:
    """Describe the machine without measuring anything."""
    return Report(
        policy=policy,
        invariant=None,
        mode="unchecked",
        device=_device_name(forward.device),
        dtype=str(forward.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        cpu=f"{torch.backends.cpu.get_cpu_capability()} {maker()}".rstrip(),
    )


def checked_report(forward: Forward, arch: Architecture, cache: Path | None = None) -> Report:
    """The outcome of `self_check`, from the folder `cache` where it is known."""
    if cache is None:
        return self_check(forward, arch)
    path = cache / f"{_shape_key(forward)}.json"
    try:
        return Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        report = self_check(forward, arch)
    cache.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(report.to_dict()), encoding="utf-8")
    part.replace(path)
    return report


def _shape_key(forward: Forward) -> str:
    """Everything the bits of a product may depend on: shapes, formats, devices, libraries, host."""
    model = forward.model
    config = {
        k: v
        for k, v in model.config.to_dict().items()
        if not k.startswith("_") and k not in ("transformers_version", "dtype", "architectures")
    }
    parameters = {
        f"{tuple(p.shape)} {p.dtype} {p.device} {type(p).__name__}" for p in model.parameters()
    }
    about = unchecked_report(forward, SAFE_POLICY).to_dict()
    shapes = [type(model).__name__, str(config), sorted(parameters)]
    return digest([VERSION, *shapes, about, platform.node()])


def self_check(forward: Forward, arch: Architecture) -> Report:
    """Measure row counts, compare with the library, and confirm that batches change nothing.

    Raises:
        ModelError: the engine's logits are not those of the library's own forward pass, so the
            architecture needs something the engine does not do.
    """
    started = time.perf_counter()
    with torch.no_grad():
        measured = measure_policy(forward)
        difference = library_difference(forward, arch, measured)
        bound = BOUNDS.get(forward.dtype, ROUGH)
        if not difference < bound:
            raise ModelError(
                f"{type(forward.model).__name__}: logits differ from the library's own by "
                f"{difference:.2g} of their spread (allowed {bound:g}). The architecture is not "
                "supported by the engine (recurrent layers, chunked attention or no key cache)"
            )
        chosen = measured
        invariant = is_invariant(forward, arch, measured)
        if not invariant and not measured.fixed:
            chosen = SAFE_POLICY
            invariant = is_invariant(forward, arch, SAFE_POLICY)
    return replace(
        unchecked_report(forward, replace(chosen, verified=invariant)),
        invariant=invariant,
        mode="fixed" if chosen.fixed else "tiles",
        difference=difference,
        seconds=time.perf_counter() - started,
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.machine()}"


Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class _Found:
    """A product of the model: what it is called on, and how each kernel computes it."""

    example: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    library: Product

    def by(self, kernel: Kernel) -> Product:
        weight = self.weight
        if weight is None or not kernel.takes(self.example, weight.detach()):
            return self.library
        return lambda x: kernel(x, weight.detach(), self.bias)

    def same(self, one: Kernel, other: Kernel) -> bool:
        """Whether two forms of one kernel compute it alike."""
        weight = self.weight
        if weight is None or not one.takes(self.example, weight.detach()):
            return True
        return chains(weight, one.depth) == chains(weight, other.depth)


class _Products(TorchFunctionMode):
    """Collects one product of every kind and shape that activations meet in the calls inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, _Found] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear or func is torch.addmm:
            found = as_product(func, args, kwargs)
            if found is not None and args[1].device.type != "meta":
                x, weight, bias, product = found
                key = (func, args[1].shape, len(args))
                self.found.setdefault(key, _Found(x.detach(), weight, bias, product))
        return func(*args, **kwargs)


def measure_policy(forward: Forward) -> RowPolicy:
    """Kernel and row counts to use, from all products that a short forward pass makes.

    The first kernel is taken, in their order of preference on this processor, whose bits allow
    tiles and which is not far slower than the library's: bits decide, and a stopwatch only has a
    veto, so that a busy machine chooses the same.
    """
    probe = torch.arange(8, device=forward.device)[None] % forward.num_embeddings
    with forward.plain(), _Products() as products:
        forward.model(input_ids=probe, use_cache=False)
    found = list(products.found.values())
    for name in available(forward.dtype, forward.device):
        policy = kernel_policy(found, name, forward.step)
        if not policy.fixed and (name == "torch" or not _far_slower(found, name)):
            return policy
    return SAFE_POLICY


def kernel_policy(found: Sequence[_Found], name: str, step: int = 1) -> RowPolicy:
    """The row counts that agree where all products run on this kernel.

    While decoding, a row is a position: there only multiples of `Forward.step` are used, so that
    element-wise kernels do not end in a scalar remainder.
    """
    fill, decode_by = Kernel.filling(name), Kernel.decoding(name)
    filled = [row_classes(f.by(fill), f.example) for f in found]
    decoded = [
        known if f.same(fill, decode_by) else row_classes(f.by(decode_by), f.example)
        for f, known in zip(found, filled, strict=True)
    ]
    filling, decoding = (choose_policy(group_row_counts(c)) for c in (filled, decoded))
    decode = tuple(rows for rows in decoding.decode if rows % step == 0)
    if SAFE_POLICY in (filling, decoding) or not decode:
        return replace(SAFE_POLICY, kernel=name)
    return RowPolicy(filling.prefill, decode, kernel=name)


def _far_slower(found: Sequence[_Found], name: str) -> bool:
    """Whether the kernel takes more than `VETO` times the library's time for 64 rows."""
    seconds = []
    for kernel in (Kernel.filling(name), Kernel()):
        best = float("inf")
        for _ in range(2):
            started = time.perf_counter()
            for f in found:
                f.by(kernel)(f.example.new_zeros(64, f.example.shape[-1]))
            best = min(best, time.perf_counter() - started)
        seconds.append(best)
    return seconds[0] > VETO * seconds[1]


def row_classes(product: Product, example: torch.Tensor) -> tuple[int, ...]:
    """For each of `ROW_COUNTS` a number, equal where a row gets the same bits.

    Args:
        product: what to try.
        example: of its input `[..., K]`; only its width, type and device count.
    """
    generator = Rng.root(0).child("self_check").torch()
    x = torch.randn(max(ROW_COUNTS), example.shape[-1], generator=generator)
    x = x.to(example.device, example.dtype)
    outs: list[torch.Tensor] = []
    classes = []
    for rows in reversed(ROW_COUNTS):  # the longest first, so that every row is compared
        out = product(x[:rows])
        known = (i for i, c in enumerate(outs) if torch.equal(c[:rows], out))
        index = next(known, len(outs))
        if index == len(outs):
            outs.append(out)
        elif rows <= MOVED and not _position_free(product, x, rows, outs[index]):
            index = -rows  # agrees with nothing
        classes.append(index)
    return tuple(reversed(classes))


def group_row_counts(classes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Row counts that agree in every product, grouped, each group ascending.

    Args:
        classes: what `row_classes` found of each product.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rows, *signature in zip(ROW_COUNTS, *classes, strict=True):
        groups.setdefault(tuple(signature), []).append(rows)
    return [tuple(g) for g in groups.values()] if classes else []


def _position_free(product: Product, x: torch.Tensor, rows: int, known: torch.Tensor) -> bool:
    """Whether a row that stands elsewhere in its tile keeps its bits."""
    start = (len(known) - rows) // 2 + 1
    end = min(start + rows, len(known))
    if end - start < rows:
        return True
    return torch.equal(product(x[start:end]), known[start:end])


def choose_policy(groups: Sequence[tuple[int, ...]]) -> RowPolicy:
    """Many sizes from few rows on for decode, large tiles for prefill; safe where nothing fits."""
    small = [g for g in groups if g[0] <= 16 and g[-1] >= 16]
    large = [g for g in groups if g[0] <= 64 <= g[-1]]
    if not small or not large:
        return SAFE_POLICY
    decode = max(small, key=lambda g: (len(g), -g[0]))
    return RowPolicy(max(large, key=lambda g: (g[-1], len(g))), decode)


def _random_prompts(forward: Forward) -> list[tuple[int, ...]]:
    generator = Rng.root(0).child("self_check", "prompts").torch()
    lengths = [min(n, forward.context_length - NEW_TOKENS - 1) for n in PROMPTS]
    high = forward.num_embeddings
    return [
        tuple(torch.randint(high, (n,), generator=generator).tolist()) for n in lengths if n > 0
    ]


def library_difference(forward: Forward, arch: Architecture, policy: RowPolicy) -> float:
    """Largest difference of the engine's logits to the library's, relative to their spread.

    Prefix, a second stretch and all windows up to 512 positions are exercised.
    """
    windows = [s.window for s in arch.layers if s.window is not None and s.window <= 512]
    length = min(max([72, *(w + 40 for w in windows)]), forward.context_length)
    generator = Rng.root(0).child("self_check", "library").torch()
    ids = tuple(torch.randint(forward.num_embeddings, (length,), generator=generator).tolist())
    cut = length // 2
    with forward.attached():
        store = RaggedStore()
        filling = Prefill(forward, arch, policy)
        store.rearrange([None], filling.room([Filling(ids[:cut])]))
        filling(store, 0, [Filling(ids[:cut])])
        prefix = Prefix(ids[:cut], *store.extract(0, cut))
        scorer = Scorer(forward, arch, policy)
        ours = scorer.map(prefix, [Item(ids[cut:], length - cut)], lambda x, _: x.cpu())[0]
    with forward.plain():
        tokens = torch.tensor([ids], device=forward.device)
        theirs = forward.model(input_ids=tokens, use_cache=False).logits[0, cut:].float().cpu()
    return float((ours - theirs).abs().max() / theirs.std().clamp(min=1e-9))


def is_invariant(forward: Forward, arch: Architecture, policy: RowPolicy) -> bool:
    """Whether generation and losses alone equal those in batches, bit for bit."""
    options = GenerationConfig(max_new_tokens=NEW_TOKENS, log_probs=True)
    prompts = _random_prompts(forward)
    requests = [Request(p, generation=options) for p in prompts]
    items = [Item(p, 2) for p in prompts[1:]]

    def generate(part: Sequence[Request]) -> list[Any]:
        rows = Decoder(forward, arch, policy, max_rows=64).run(part)
        return [(r.ids, r.log_probs) for r in rows]

    with forward.attached():
        single = [generate([r])[0] for r in requests]
        batched = generate(requests[::-1])[::-1]
        crowd = generate(requests[:2] * 8)  # the shortest, many times
        scores = [
            Scorer(forward, arch, policy).map(Prefix(), items, lambda x, _: x.cpu(), chunk)
            for chunk in (1, len(items))
        ]
    equal = all(torch.equal(a, b) for a, b in zip(*scores, strict=True))
    return equal and single == batched and single[:2] * 8 == crowd
