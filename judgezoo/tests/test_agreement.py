"""Agreement statistics against hand-computed values and published formulas."""

from __future__ import annotations

import pytest

from judgezoo.agreement import agreement, wilson


def test_wilson_intervals_match_published_values() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3.
    for hits, total, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        rate = wilson(hits, total)
        assert (rate.low, rate.high) == (
            pytest.approx(low, abs=5e-5),
            pytest.approx(high, abs=5e-5),
        )
    assert wilson(0, 0).value is None


def test_kappa_and_rates_by_hand() -> None:
    # 20 yes-yes, 5 judge-yes, 10 label-yes, 15 no-no: Cohen's kappa is 0.4.
    scores = [0.9] * 20 + [0.9] * 5 + [0.1] * 10 + [0.1] * 15
    labels = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    found = agreement([*scores, None], [*labels, True])
    assert found.kappa == pytest.approx(0.4)
    assert (found.scored, found.unscored) == (50, 1)
    assert found.agree.value == 0.7
    assert found.false_positive.value == 5 / 20 and found.false_negative.value == 10 / 30
    assert found.brier == pytest.approx((35 * 0.01 + 15 * 0.81) / 50)


def test_calibration_bins_hold_their_rows() -> None:
    found = agreement([0.0, 0.05, 0.95, 1.0, 0.5], [False, True, True, True, False], bins=2)
    assert [(b.low, b.high, b.positive.hits, b.positive.total) for b in found.calibration] == [
        (0.0, 0.5, 1, 2),
        (0.5, 1.0, 2, 3),
    ]
    assert found.calibration[1].mean_score == pytest.approx(2.45 / 3)


def test_degenerate_tables() -> None:
    assert agreement([], []).kappa is None
    assert agreement([1.0, 1.0], [True, True]).kappa is None
    assert agreement([1.0], [True], threshold=1.0).agree.value == 1.0
    with pytest.raises(ValueError, match="1 scores for 2 labels"):
        agreement([1.0], [True, False])
