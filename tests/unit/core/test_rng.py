from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from adversariallm.core.rng import Rng


def test_a_child_depends_on_its_name_not_on_earlier_draws() -> None:
    root = Rng.root(7)
    before = root.child("init").uniform(0)
    for k in range(100):
        root.child("other", k).uniform(k)
        root.uniform(k)
    assert root.child("init").uniform(0) == before


def test_equal_paths_give_equal_generators_and_different_paths_do_not() -> None:
    a, b = Rng.root(1).child("x", 2), Rng.root(1).child("x").child(2)
    assert torch.equal(torch.rand(5, generator=a.torch()), torch.rand(5, generator=b.torch()))
    assert a.python().random() == b.python().random()
    assert a.numpy().random() == b.numpy().random()
    assert a.seed != Rng.root(1).child("x", 3).seed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 23), (12, 3)),
        (("1",), (1,)),
        (("a", "b"), ("a\x1fsb",)),
        (("a",), ("a", "")),
    ],
)
def test_different_names_never_share_a_stream(one: tuple, other: tuple) -> None:
    assert Rng.root(0).child(*one).uniform() != Rng.root(0).child(*other).uniform()


def test_counters_are_not_names() -> None:
    root = Rng.root(0)
    assert root.child(5).uniform() != root.uniform(5)


def test_uniform_is_uniform() -> None:
    stream = Rng.root(3).child("u")
    values = torch.tensor([stream.uniform(k) for k in range(20_000)], dtype=torch.float64)
    assert 0 <= values.min() and values.max() < 1
    counts = torch.histc(values, bins=20, min=0, max=1)
    chi2 = ((counts - 1000) ** 2 / 1000).sum()
    assert chi2 < 43.8  # 0.1 % point of chi-square with 19 degrees of freedom


def test_a_stream_is_the_same_in_another_process() -> None:
    code = (
        "from adversariallm.core.rng import Rng; print(repr(Rng.root(5).child('a', 1).uniform(2)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == repr(Rng.root(5).child("a", 1).uniform(2))


@pytest.mark.parametrize("name", [True, 1.5, None])
def test_names_of_other_types_are_refused(name: object) -> None:
    with pytest.raises(TypeError, match="expected str or int"):
        Rng.root(0).child(name)  # type: ignore[arg-type]
