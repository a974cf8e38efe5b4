"""Differences between methods: hand-computed tables, planted effects that are found, null effects
that are not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trl_miner.viewing.effects import crossed_difference, holm


def studies(count, *, effect=0.0, seeds=5, problems=100, of_seeds=0.02, of_problems=0.1, rest=0.2):
    """Differences of `count` simulated studies, and what the test says of each."""
    random = np.random.default_rng(7)
    found = []
    for _ in range(count):
        noise = of_seeds * random.standard_normal(
            (seeds, 1)
        ) + of_problems * random.standard_normal((1, problems))
        difference = effect + noise + rest * random.standard_normal((seeds, problems))
        found.append(crossed_difference(difference, np.zeros_like(difference)))
    return found


def test_a_table_by_hand():
    # d = [[4, 2], [2, 0]]: mean 2; means of seeds 3, 1 and of problems 3, 1, and nothing is left
    # over MS_S = 2 * (1 + 1) / 1 = 4, MS_P = 4, MS_E = 0 -> variance (4 + 4 - 0) / 4 = 2, degrees
    # 8^2 / (4^2 + 4^2) = 2 t = 2 / sqrt(2); with 2 degrees p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(2)
    # / 2
    found = crossed_difference([[5, 3], [4, 2]], [[1, 1], [2, 2]])
    assert (found.difference, found.degrees, found.num_seeds, found.num_problems) == pytest.approx(
        (2, 2, 2, 2)
    )
    assert found.p_value == pytest.approx(1 - math.sqrt(2) / 2)
    assert (found.low, found.high) == pytest.approx(
        (2 - 4.302653 * math.sqrt(2), 2 + 4.302653 * math.sqrt(2))
    )


def test_a_variance_below_0_counts_as_0():
    # d = [[1, 0, 2], [0, 2, 1]]: means of seeds 1, 1 and of problems .5, 1, 1.5; left over +-[.5,
    # -1, .5] MS_S = 0, MS_P = 2 * .5 / 2 = .5, MS_E = 3 / 2 = 1.5; 0 + .5 - 1.5 is below 1.5, which
    # counts degrees 1.5^2 / (0 / 1 + .5^2 / 2 + 1.5^2 / 2) = 2.25 / 1.25
    found = crossed_difference([[1, 0, 2], [0, 2, 1]], np.zeros((2, 3)))
    assert found.degrees == pytest.approx(1.8)
    assert found.high - found.difference == pytest.approx(
        stats.t.ppf(0.975, 1.8) * math.sqrt(1.5 / 6)
    )


def test_one_seed_leaves_the_problems():
    # d = 1, 2, 3: variance of the mean 1 / 3, 2 degrees, t = 2 * sqrt(3), p = 1 - t / sqrt(2 + t^2)
    found = crossed_difference([[1, 2, 3]], [[0, 0, 0]])
    assert (found.difference, found.degrees) == (2, 2) and found.p_value == pytest.approx(
        1 - math.sqrt(12 / 14)
    )
    assert crossed_difference([[1], [2], [3]], np.zeros((3, 1))).p_value == pytest.approx(
        found.p_value
    )
    nothing = crossed_difference([[1]], [[0]])
    assert (nothing.low, nothing.high, nothing.p_value) == (-math.inf, math.inf, 1)


def test_no_difference_and_the_same_everywhere():
    scores = np.random.default_rng(0).random((3, 20)).round(2)
    same = crossed_difference(scores, scores)
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    shifted = crossed_difference(np.full((3, 20), 0.75), np.full((3, 20), 0.5))
    assert (shifted.difference, shifted.low, shifted.high, shifted.p_value) == (0.25, 0.25, 0.25, 0)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((3,), (3,)), ((0, 3), (0, 3))])
def test_scores_that_do_not_pair_are_refused(shapes):
    with pytest.raises(ValueError, match=r"must both be \(seeds, problems\)"):
        crossed_difference(*map(np.zeros, shapes))


def test_a_planted_effect_is_found_and_covered():
    # standard error sqrt(.02^2 / 5 + .1^2 / 100 + .2^2 / 500) = .016, a fifth of the effect
    found = studies(1000, effect=0.08)
    covered = np.mean([one.low <= 0.08 <= one.high for one in found])
    assert 0.92 < covered < 0.98
    assert np.mean([one.p_value < 0.05 for one in found]) > 0.95
    assert np.mean([one.difference for one in found]) == pytest.approx(0.08, abs=0.003)


@pytest.mark.parametrize("of_seeds", [0.0, 0.05])
def test_a_null_effect_is_not_found(of_seeds):
    # a t-test over all 500 differences as if they were independent rejects 14 and 44 %
    rejected = np.mean([one.p_value < 0.05 for one in studies(1000, of_seeds=of_seeds)])
    assert 0.015 < rejected < 0.09


def test_holm_by_hand():
    # ascending .005 * 4, .01 * 3, .03 * 2, .04 * 1, and none below the one before it: .02, .03,
    # .06, .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1] and holm([]) == []
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, math.nan])


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_lies_between_p_and_bonferroni_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    assert all(p <= q <= min(1, len(p_values) * p) for p, q in zip(p_values, adjusted, strict=True))
    in_order = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert in_order == sorted(in_order)
