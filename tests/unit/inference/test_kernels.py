"""The oneDNN product: the values of the library's, its gradient, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from adversariallm.inference import kernels, selfcheck
from adversariallm.inference.kernels import Kernel
from adversariallm.inference.numerics import Products, RowInvariant

pytestmark = pytest.mark.skipif(
    "onednn" not in kernels.available(torch.float32, torch.device("cpu")),
    reason="torch was built without oneDNN",
)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernel", [Kernel.filling("onednn"), Kernel.decoding("onednn")])
@pytest.mark.parametrize("width", [48, 700])
def test_it_computes_the_product_and_its_gradient(kernel: Kernel, width: int) -> None:
    x = _random(2, 5, width).requires_grad_(True)
    weight, bias = _random(33, width, seed=1), _random(33, seed=2)
    ours, theirs = kernel(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(kernel(x, weight, bias), ours)
    seed = _random(*ours.shape, seed=3)
    (mine,) = torch.autograd.grad((ours * seed).sum(), x)
    (library,) = torch.autograd.grad((theirs * seed).sum(), x)
    torch.testing.assert_close(mine, library, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_many_outputs_is_summed_in_parts() -> None:
    x, weight = _random(3, 16).requires_grad_(True), _random(5000, 16, seed=1)
    (mine,) = torch.autograd.grad(Kernel("onednn")(x, weight, None).square().sum(), x)
    wanted = 2 * (x.detach().double() @ weight.double().T) @ weight.double()
    torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-2)


def test_short_chains_of_additions_round_less() -> None:
    x, weight = _random(64, 1536), _random(64, 1536, seed=1)
    exact = x.double() @ weight.double().T

    def error(kernel: Kernel) -> float:
        return float((kernel(x, weight, None) - exact).square().mean())

    library = float((F.linear(x, weight) - exact).square().mean())
    assert error(Kernel.filling("onednn")) < 2 * library
    # where oneDNN itself adds in blocks there is nothing to gain, and little to lose
    assert error(Kernel.filling("onednn")) <= 1.5 * error(Kernel.decoding("onednn"))


def test_other_types_quantized_and_trainable_weights_stay_with_the_library() -> None:
    kernel, x, weight = Kernel.filling("onednn"), _random(4, 8), _random(6, 8)
    assert kernel.takes(x, weight)
    assert not kernel.takes(x, weight.bfloat16())
    assert not kernel.takes(x, weight.clone().requires_grad_(True))
    assert not kernel.takes(x, weight.to_sparse())
    assert not Kernel().takes(x, weight)
    assert kernels.available(torch.bfloat16, torch.device("cpu")) == ("torch",)


@pytest.mark.parametrize(
    "capability,name,first",
    [
        ("AVX512", "AMD EPYC", "onednn"),
        ("AVX512", "", "onednn"),
        ("AVX512", "Intel Xeon", "torch"),
        ("AVX2", "AMD EPYC", "torch"),
        ("DEFAULT", "ARM Neoverse", "torch"),
    ],
)
def test_the_order_is_a_fact_of_the_processor(
    capability: str, name: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name})
    assert kernels.available(torch.float32, torch.device("cpu"))[0] == first


@pytest.mark.parametrize("form", ["linear", "addmm", "matmul"])
def test_every_form_of_product_takes_the_kernel(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = kernels._onednn

    def counted(*args: torch.Tensor) -> torch.Tensor:
        calls.append(args[0].shape[0])
        return plain(*args)

    monkeypatch.setattr(kernels, "_onednn", counted)
    x, weight, bias = _random(5, 8), _random(6, 8), _random(6)
    with RowInvariant(Products((4, 8), Kernel.filling("onednn"))):
        if form == "linear":
            out, wanted = F.linear(x, weight, bias=bias), x @ weight.T + bias
        elif form == "addmm":
            out, wanted = torch.addmm(bias, x, weight.T), x @ weight.T + bias
        else:
            out, wanted = torch.matmul(x, weight.T), x @ weight.T
    assert calls and set(calls) <= {4, 8}
    torch.testing.assert_close(out, wanted)


def test_a_kernel_that_is_far_slower_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = _random(6, 8)
    found = [selfcheck._Found(_random(1, 8), weight, None, lambda x: F.linear(x, weight))]
    monkeypatch.setattr(selfcheck, "VETO", 0.0)
    assert selfcheck._far_slower(found, "onednn")
    monkeypatch.setattr(selfcheck, "VETO", 1e9)
    assert not selfcheck._far_slower(found, "onednn")
