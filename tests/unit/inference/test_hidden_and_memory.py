"""The residual stream, and how many rows fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from adversariallm.inference import Engine, Prefix, memory, without_direction

from .conftest import random_ids

Engines = Callable[..., Engine]


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral"])
def test_the_residual_stream_is_the_librarys(engines: Engines, name: str) -> None:
    engine = engines(name)
    inputs = random_ids([11, 30])
    found = engine.hidden_states(inputs, [0, -1, -3])
    assert found.shape == (2, 3, 3, 48)
    for row, ids in zip(found, inputs, strict=True):
        with torch.no_grad():
            states = engine.forward.model(torch.tensor([ids]), output_hidden_states=True)
        for layer in range(2):  # the library normalizes the last one
            expected = states.hidden_states[layer][0, [0, -1, -3]]
            torch.testing.assert_close(row[layer], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "mixtral"])
def test_an_ablated_direction_is_gone_from_every_layer(engines: Engines, name: str) -> None:
    engine = engines(name)
    direction = torch.randn(48, generator=torch.Generator().manual_seed(0))
    inputs = random_ids([9])
    plain = engine.next_logits(Prefix(), inputs).logits
    with engine.editing(without_direction(direction)):
        edited = engine.next_logits(Prefix(), inputs).logits
        stream = engine.hidden_states(inputs, [-1])
    assert not torch.equal(plain, edited)
    assert torch.equal(engine.next_logits(Prefix(), inputs).logits, plain)
    along = (stream @ (direction / direction.norm())).abs() / stream.norm(dim=-1)
    assert float(along[0, 1:].max()) < 1e-4


def test_rows_that_fit_are_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(memory, "available_bytes", lambda _: 1000)
    assert memory.rows_that_fit(100, cpu, 50) == 7
    assert memory.rows_that_fit(100, cpu, 5) == 5
    assert memory.rows_that_fit(10_000, cpu, 5) == 1


def test_a_control_group_limits_what_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available_bytes(torch.device("cpu")) == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes(torch.device("cpu")) > 10**7


def test_retreat_runs_the_same_items_again_in_smaller_chunks() -> None:
    tried = []

    def run(part: Sequence[int]) -> list[int]:
        tried.append(len(part))
        if len(part) > 3:
            raise MemoryError
        return [2 * i for i in part]

    retreat = memory.Retreat(10)
    assert retreat.map(range(11), run) == [2 * i for i in range(11)]
    assert tried[:3] == [10, 5, 2] and retreat.size == 2
    with pytest.raises(ValueError, match="other"):
        retreat.map([1], lambda _: (_ for _ in ()).throw(ValueError("other")))
    with pytest.raises(MemoryError):
        memory.Retreat(1).map([1], lambda _: (_ for _ in ()).throw(MemoryError()))
