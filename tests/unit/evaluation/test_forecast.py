"""The power-law forecast: exact on exact data, close on simulated behaviors, strict on none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adversariallm.evaluation.forecast import fit_power_law, rates_by_samples

NUMBERS = [1, 2, 4, 8, 16, 32, 64]


def test_an_exact_power_law_is_found_again() -> None:
    rates = [math.exp(-3.0 * n**-0.4) for n in NUMBERS]
    found = fit_power_law(NUMBERS, rates)
    assert (found.a, found.b, found.largest) == (pytest.approx(3.0), pytest.approx(0.4), 64)
    assert found.rate(10_000) == pytest.approx(math.exp(-3.0 * 10_000**-0.4))


def test_rates_are_those_of_drawing_without_replacement() -> None:
    # 2 hits of 4: one draw 1/2, two draws 1 - 1/6, three or more 1
    found = rates_by_samples([2, 0], [4, 4], [1, 2, 3])
    assert found == pytest.approx([0.25, (5 / 6) / 2, 0.5])


def test_a_forecast_from_few_samples_is_close_to_what_many_give() -> None:
    generator = np.random.default_rng(3)
    chances = generator.beta(0.4, 20.0, 400)
    hits = generator.binomial(1000, chances)
    few = [*range(1, 6), 10, 20, 50]
    law = fit_power_law(few, rates_by_samples(list(hits), [1000] * 400, few))
    truth = rates_by_samples(list(hits), [1000] * 400, [300])[0]
    assert law.rate(300) == pytest.approx(truth, abs=0.08)


def test_rates_of_0_and_1_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="0 rates strictly between"):
        fit_power_law([1, 2, 4], [0.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="1 rates"):
        fit_power_law([1, 2], [0.0, 0.5])
