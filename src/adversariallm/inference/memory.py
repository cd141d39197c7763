"""How many rows fit: an estimate before running on the CPU, halving after an error on a device.

On the CPU an allocation beyond memory succeeds and the kernel kills later, so the bound must come
first (DESIGN 12.8). Neither changes any result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import torch

SHARE = 0.7
_CGROUP = Path("/sys/fs/cgroup")

Item = TypeVar("Item")
Out = TypeVar("Out")


def available_bytes(device: torch.device) -> int:
    """Bytes that may be allocated now on `device`."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    return min(int(psutil.virtual_memory().available), *_cgroup_headroom())


def _cgroup_headroom() -> list[int]:
    """What a control group of version 2 or 1 leaves, if one limits us."""
    pairs = (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    )
    out = [1 << 62]
    for limit, used in pairs:
        try:
            out.append(int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):
            continue
    return out


def rows_that_fit(bytes_per_row: int, device: torch.device, most: int) -> int:
    """How many rows of that size may run together: at least 1, at most `most`."""
    budget = int(available_bytes(device) * SHARE)
    return max(1, min(most, budget // max(1, bytes_per_row)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


class Retreat:
    """Runs items in chunks, and halves the chunk when memory runs out; remembers the size."""

    def __init__(self, most: int) -> None:
        """Start with chunks of `most` items."""
        self.size = max(1, most)
        self.failures = 0

    def map(
        self, items: Sequence[Item], run: Callable[[Sequence[Item]], Sequence[Out]]
    ) -> list[Out]:
        """`run` over all items, chunk by chunk; the same items again after a failure."""
        out: list[Out] = []
        while len(out) < len(items):
            chunk = items[len(out) : len(out) + self.size]
            try:
                out.extend(run(chunk))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or len(chunk) == 1:
                    raise
                failed = True
            else:
                failed = False
            if failed:  # outside the handler, so that the traceback frees its tensors
                self.size = max(1, len(chunk) // 2)
                self.failures += 1
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        return out
