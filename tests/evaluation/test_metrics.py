"""Pass@k, Maj@k, intervals and the paired test, against enumeration and sums by hand."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner.evaluation import maj_at_k, pass_at_k
from trl_miner.evaluation.metrics import bootstrap_interval


@pytest.mark.parametrize("n", [8, 512, 1024])
@pytest.mark.parametrize("k", [1, 2, 5, 8, 64, 511, 512])
def test_pass_at_k_is_exact_up_to_512(n, k):
    """Against whole numbers: 1 - C(n-c, k) / C(n, k)."""
    for c in (0, 1, 3, 100, n - 513, n - 512, n - 1, n):
        if 0 <= c <= n and k <= n:
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert pass_at_k(n, c, k).item() == pytest.approx(float(exact), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1),
                                           (4, math.nan, 1), ([4, 2], 1, 3)])  # fmt: skip
def test_pass_at_k_refuses_what_cannot_be(n, c, k):
    with pytest.raises(ValueError, match=f"got k={k}"):
        pass_at_k(n, c, k)


@given(st.integers(1, 4), st.integers(1, 8), st.data())
@settings(deadline=None, max_examples=100)
def test_maj_at_k_counts_the_votes_of_each_draw(num_problems, n, data):
    """A draw is the first k places of a random order for each problem; without answers it is wrong,
    and of equally many votes those first drawn win."""
    rows = st.lists(st.integers(-1, 3), min_size=n, max_size=n)
    answers = np.array([data.draw(rows) for _ in range(num_problems)])
    right = np.array([data.draw(st.integers(0, 3)) for _ in range(num_problems)])
    k, seed = data.draw(st.integers(1, n)), data.draw(st.integers(0, 99))
    found = maj_at_k(answers, answers == right[:, None], k, repeats=3, seed=seed)
    rng = np.random.default_rng(seed)
    for row in found:
        order = rng.random(answers.shape).argsort(1)
        for problem in range(num_problems):
            drawn = [answer for answer in answers[problem, order[problem, :k]] if answer >= 0]
            votes = Counter(drawn)
            winner = max(votes, key=votes.get) if votes else None
            assert row[problem] == (winner == right[problem])


def test_maj_at_k_by_hand():
    # two votes for 7, one for 8, whatever the order; -1 does not vote
    assert maj_at_k([[7, 8, 7, -1]], [[True, False, True, False]], 4).mean() == 1
    assert maj_at_k([[-1, -1]], [[False, False]], 2).mean() == 0
    with pytest.raises(ValueError, match="k=3, num_samples=2"):
        maj_at_k([[1, 1]], [[True, True]], 3)


@pytest.mark.parametrize("values", [[0.5], [0.25, 0.25, 0.25]])
def test_an_interval_of_equal_scores_has_no_width(values):
    assert bootstrap_interval(values) == (values[0], values[0])


def test_the_interval_of_fifty_right_and_fifty_wrong():
    # of 100 coins 40 are the 2.5th and 60 the 97.5th percentile
    assert bootstrap_interval([0.0, 1.0] * 50) == pytest.approx((0.4, 0.6), abs=0.005)
