from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from adversariallm.attacks._kit import projections
from adversariallm.core.rng import Rng


def rows(n: int, d: int, seed: int, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(n, d, generator=Rng.root(seed).torch(), dtype=torch.float64) * scale


def nearest(point: torch.Tensor, constraints: list[dict], start: torch.Tensor) -> torch.Tensor:
    """The nearest point by a general solver: knows nothing of sorting."""
    x = point.numpy()
    found = minimize(
        lambda y: ((y - x) ** 2).sum(),
        start.numpy(),
        jac=lambda y: 2 * (y - x),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return torch.tensor(found.x)


@pytest.mark.parametrize("seed", range(40))
def test_the_simplex_projection_is_the_nearest_point(seed: int) -> None:
    (x,) = rows(1, 6, seed)
    constraints = [
        {"type": "eq", "fun": lambda y: y.sum() - 1},
        {"type": "ineq", "fun": lambda y: y},
    ]
    expected = nearest(x, constraints, torch.full((6,), 1 / 6, dtype=torch.float64))
    assert torch.allclose(projections.simplex(x[None])[0], expected, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.03, 1.0])  # every entry stays, down to a few
def test_ranking_a_part_of_a_row_first_changes_no_bit(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rows(3, 4000, 0, scale).float()
    found = projections.simplex(x)
    few = bool((found > 0).sum() < 3 * projections.RANKED)
    assert few == (scale > 1e-3)
    monkeypatch.setattr(projections, "RANKED", 4000)
    assert torch.equal(found, projections.simplex(x))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_ball_projection_is_the_nearest_point(seed: int, norm: projections.Norm) -> None:
    (x,) = rows(1, 5, seed)
    radius = 1.5
    # as a sum of positive and negative parts every constraint is smooth
    inside = {
        "l1": lambda z: radius - z.sum(),
        "l2": lambda z: radius**2 - ((z[:5] - z[5:]) ** 2).sum(),
        "linf": lambda z: radius - z,
    }[norm]
    found = minimize(
        lambda z: (((z[:5] - z[5:]) - x.numpy()) ** 2).sum(),
        [0.05] * 10,
        jac=lambda z: 2 * torch.cat([d := torch.tensor(z[:5] - z[5:]) - x, -d]).numpy(),
        constraints=[{"type": "ineq", "fun": lambda z: z}, {"type": "ineq", "fun": inside}],
        method="SLSQP",
        options={"ftol": 1e-18, "maxiter": 2000},
    )
    expected = torch.tensor(found.x[:5] - found.x[5:])
    assert torch.allclose(projections.ball(x[None], norm, radius)[0], expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("size", [2, 7, 400])
def test_sorted_projections_meet_their_threshold_equation(seed: int, size: int) -> None:
    """Both are soft thresholds; the threshold is found by bisection, without sorting."""
    (x,) = rows(1, size, seed)
    for total in (0.5, 1.0, 3.0):

        def excess(theta: float, total: float = total) -> float:
            return float((x - theta).clamp_min(0).sum()) - total

        theta = brentq(excess, float(x.min()) - total, float(x.max()), xtol=1e-14)
        expected = (x - theta).clamp_min(0)
        assert torch.allclose(projections.simplex(x[None], total)[0], expected, atol=1e-9)
        found = projections.l1_ball(x[None], total)[0]
        if float(x.abs().sum()) <= total:
            assert torch.equal(found, x)
            continue

        def beyond(theta: float, total: float = total) -> float:
            return float((x.abs() - theta).clamp_min(0).sum()) - total

        theta = brentq(beyond, 0.0, float(x.abs().max()), xtol=1e-14)
        assert torch.allclose(found, x.sign() * (x.abs() - theta).clamp_min(0), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["l2", "linf", "l1"]),
    st.sampled_from([0.0, 0.3, 1.0, 50.0]),
    st.booleans(),
)
def test_balls_hold_their_points_and_leave_inner_points_alone(
    seed: int, norm: projections.Norm, radius: float, whole: bool
) -> None:
    x = rows(3, 7, seed)
    y = projections.ball(x, norm, radius, whole=whole)
    assert (projections.norm_of(y, norm, whole=whole) <= radius + 1e-9).all()
    assert torch.allclose(projections.ball(y, norm, radius, whole=whole), y, atol=1e-12)
    inside = projections.norm_of(x, norm, whole=whole) <= radius
    if whole:
        assert not inside.all() or torch.equal(x, y)
    else:
        assert torch.equal(x[inside], y[inside])
    assert torch.equal(projections.ball(x, "none", 0.0), x)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_the_entropy_projection_meets_its_target_unless_it_leaves_the_simplex(
    seed: int, factor: float
) -> None:
    x = projections.simplex(rows(4, 8, seed, 0.3))
    y = projections.entropy_projection(x, factor)
    assert torch.allclose(y.sum(-1), torch.ones(4, dtype=torch.float64))
    assert (y >= 0).all()
    before, after = projections.tsallis2(x), projections.tsallis2(y)
    assert (after <= before + 1e-9).all()
    d = (x > 0).sum(-1).double()
    target = (1 - factor) * (d - 1) / d
    for i in range(4):
        if before[i] <= target[i]:
            assert torch.equal(x[i], y[i])
        elif ((y[i] > 0) == (x[i] > 0)).all():  # the sphere was met inside the simplex
            assert float(after[i]) == pytest.approx(float(target[i]), abs=1e-9)


def test_the_entropy_projection_by_hand() -> None:
    # d = 2, center (.5, .5); factor .5: target entropy .25, so |x - c|^2 = 1 - .25 - .5 = .25
    x = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64)
    y = projections.entropy_projection(x, 0.5)
    offset = 0.5 / 2**0.5
    assert torch.allclose(y, torch.tensor([[0.5 + offset, 0.5 - offset, 0.0]], dtype=torch.float64))
    assert float(projections.tsallis2(y)[0]) == pytest.approx(0.25)
    assert torch.equal(projections.entropy_projection(x, 0.0), x)
    corner = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    assert torch.equal(projections.entropy_projection(corner, 1.0), corner)


def test_lp_spheres_have_unit_norm_even_from_nothing() -> None:
    x = torch.tensor([[3.0, 4.0, -1.0], [0.0, -2.0, 0.0]])
    y = projections.lp_sphere(x, 2)
    assert y[0].tolist() == pytest.approx([0.6, 0.8, 0.0])
    assert y[1].tolist() == pytest.approx([3**-0.5] * 3)
