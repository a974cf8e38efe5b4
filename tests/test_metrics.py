"""Pass@k, Maj@k and their intervals, against enumeration, scipy and sums by hand."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner.evaluation import bootstrap_interval, maj_at_k, paired_difference, pass_at_k


def enumerated(num_samples, num_correct, k):
    """Over all ways to draw k of the samples: how often is a right one among them?"""
    right = [i < num_correct for i in range(num_samples)]
    draws = list(itertools.combinations(right, k))
    return sum(any(draw) for draw in draws) / len(draws)


def test_pass_at_k_agrees_with_enumeration():
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, c, k).item() == pytest.approx(enumerated(n, c, k), abs=1e-12)


def test_pass_at_k_by_hand_and_over_problems():
    # n = 4, c = 0, 1, 4, k = 2: 1 - C(3,2)/C(4,2) = 1 - 3/6 = .5 for the middle one
    assert pass_at_k(4, torch.tensor([0, 1, 4]), 2).tolist() == pytest.approx([0.0, 0.5, 1.0])
    # 1 - C(511, 1)/C(512, 1) = 1/512
    assert (
        pass_at_k(512, 1, 1).item() == pytest.approx(1 / 512, rel=1e-9)
        and pass_at_k(512, 1, 512).item() == 1.0
    )


def winner(drawn):
    """Of answers in the order of a draw: the most frequent, the first of equals, None without
    any."""
    # keeps the order in which they were seen
    votes = Counter(answer for answer in drawn if answer >= 0)
    return max(votes, key=votes.get) if votes else None


@given(st.integers(1, 4), st.integers(1, 8), st.data())
@settings(deadline=None, max_examples=100)
def test_maj_at_k_agrees_with_counting_the_same_draws(num_problems, n, data):
    """A draw is the first k places of a random order per problem; answers are equal or not,
    whatever their numbers."""
    rows = st.lists(st.integers(-1, 3), min_size=n, max_size=n)
    answers = np.array([data.draw(rows) for _ in range(num_problems)])
    right = np.array([data.draw(st.integers(0, 3)) for _ in range(num_problems)])
    k, seed = data.draw(st.integers(1, n)), data.draw(st.integers(0, 99))
    correct = answers == right[:, None]
    found = maj_at_k(answers, correct, k, repeats=3, seed=seed)
    assert found.shape == (3, num_problems) and found.dtype == np.float64
    rng = np.random.default_rng(seed)
    for row in found.tolist():
        for problem, places in enumerate(rng.random((num_problems, n)).argsort(1)[:, :k].tolist()):
            assert row[problem] == (winner(answers[problem, places].tolist()) == right[problem])
    renamed = np.where(answers >= 0, 2**60 - answers, -5)
    assert (found == maj_at_k(renamed, correct, k, repeats=3, seed=seed)).all()


@pytest.mark.parametrize(
    ("shape", "resamples"), [((2,), 10_000), ((30,), 500), ((30, 3), 500), ((3000, 2), 1000)]
)
def test_the_interval_is_that_of_scipy(shape, resamples):
    """All metrics share the resamples; 3,000 problems are resampled in two batches."""
    values = np.random.default_rng(1).random(shape)
    expected = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=resamples, rng=3
    )
    low, high = bootstrap_interval(values, resamples=resamples, seed=3)
    assert low == pytest.approx(expected.confidence_interval.low) and (low <= values.mean(0)).all()
    assert (
        high == pytest.approx(expected.confidence_interval.high) and (values.mean(0) <= high).all()
    )


VOTES = torch.tensor([[0, 1]]), torch.tensor([[True, False]])
NO_NUMBERS = [
    (pass_at_k, (4, 5, 1), {}, "must be between"),
    (pass_at_k, (4, 1, 5), {}, "must be between"),
    (pass_at_k, (4, 1, 0), {}, "must be between"),
    (maj_at_k, VOTES, {"k": 3}, "k must be between"),
    (maj_at_k, VOTES, {"k": 0}, "k must be between"),
    (bootstrap_interval, ([],), {}, "must"),
    (bootstrap_interval, ([float("nan")],), {}, "must"),
    (paired_difference, (torch.zeros(3), torch.zeros(4)), {}, "same problems"),
]


@pytest.mark.parametrize(("function", "given", "options", "message"), NO_NUMBERS)
def test_what_cannot_be_counted_is_an_error(function, given, options, message):
    with pytest.raises(ValueError, match=message):
        function(*given, **options)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0] * 50, 1),  # a model does not differ from itself
        ([1], 1),
        ([1, 1, 1], 2 / 8),  # +++ and ---
        ([1, 1, 1] + [0] * 57, 2 / 8),  # problems that do not differ do not count
        # |sum| is 5, 3, 3 and 1, each with two signs: at least 3 in six of eight
        ([3, 1, -1], 6 / 8),
    ],
)
def test_p_of_few_differences(differences, p):
    found = paired_difference(torch.zeros(len(differences)), torch.tensor(differences) / 4)
    assert found.p_value == pytest.approx(p, abs=0.015)  # 10,000 swaps: a deviation of at most .005
    assert found.difference == pytest.approx(sum(differences) / 4 / len(differences))


def test_p_of_many_problems_agrees_with_the_binomial():
    # 30 problems differ by 1, 21 for b: two-sided sign test, 2 * P(X >= 21)
    expected = 2 * sum(math.comb(30, i) for i in range(21, 31)) / 2**30
    b = torch.tensor([1.0] * 21 + [0.0] * 9 + [0.5] * 20)
    a = torch.tensor([0.0] * 21 + [1.0] * 9 + [0.5] * 20)
    found, mirrored = paired_difference(a, b), paired_difference(b, a)
    # .0428; 10,000 swaps: deviation .002
    assert found.p_value == pytest.approx(expected, abs=0.008)
    assert found.difference == pytest.approx(12 / 50) and found.low < 12 / 50 < found.high
    assert (
        mirrored.p_value == pytest.approx(expected, abs=0.008)
        and mirrored.difference == -found.difference
    )
    # (1 + 0) / (1 + 99): never 0
    assert paired_difference(torch.zeros(60), torch.ones(60), resamples=99).p_value == 0.01
