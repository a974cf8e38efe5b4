"""Pass@k, Maj@k and their intervals, against enumeration and sums by hand."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner.evaluation import bootstrap_interval, maj_at_k, paired_difference, pass_at_k

answer_lists = st.lists(st.integers(-1, 3), min_size=1, max_size=8)


def enumerated(num_samples, num_correct, k):
    """Over all ways to draw k of the samples: how often is a right one among them?"""
    right = [i < num_correct for i in range(num_samples)]
    draws = list(itertools.combinations(right, k))
    return sum(any(draw) for draw in draws) / len(draws)


def test_agrees_with_enumeration():
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, c, k).item() == pytest.approx(enumerated(n, c, k), abs=1e-12)


def test_by_hand_and_over_problems():
    # n = 4, c = 0, 1, 4, k = 2: 1 - C(3,2)/C(4,2) = 1 - 3/6 = .5 for the middle one
    assert pass_at_k(4, torch.tensor([0, 1, 4]), 2).tolist() == pytest.approx([0.0, 0.5, 1.0])


def test_large_counts_stay_exact():
    # 1 - C(511, 1)/C(512, 1) = 1/512
    assert pass_at_k(512, 1, 1).item() == pytest.approx(1 / 512, rel=1e-9)
    assert pass_at_k(512, 1, 512).item() == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_counts_out_of_range_are_errors(n, c, k):
    with pytest.raises(ValueError, match="must be between"):
        pass_at_k(n, c, k)


@given(st.integers(1, 600), st.data())
@settings(deadline=None, max_examples=60)
def test_pass_at_k_is_a_growing_chance_that_starts_at_the_share(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    assert pass_at_k(n, c, 1).item() == pytest.approx(c / n, abs=1e-9)
    now = pass_at_k(n, c, k).item()
    assert 0 <= now <= 1
    assert pass_at_k(n, c, min(n, k + 1)).item() >= now - 1e-9
    assert pass_at_k(n, min(n, c + 1), k).item() >= now - 1e-9
    assert pass_at_k(n, c, n).item() == (c > 0)


def winner(drawn):
    """Of answers in the order of a draw: the most frequent, the first of equals, None without any."""
    votes = Counter(answer for answer in drawn if answer >= 0)  # keeps the order in which they were seen
    return max(votes, key=votes.get) if votes else None


def draws_of(num_problems, n, k, repeats, seed):
    """The draws that maj_at_k makes: the first k places of a random order per draw and problem."""
    keys = torch.rand(repeats * num_problems, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return keys.argsort(1)[:, :k].view(repeats, num_problems, k)


@given(st.integers(1, 4), st.integers(1, 8), st.data())
@settings(deadline=None, max_examples=60)
def test_maj_at_k_agrees_with_counting_the_same_draws(num_problems, n, data):
    rows = st.lists(st.integers(-1, 3), min_size=n, max_size=n)
    answers = [data.draw(rows) for _ in range(num_problems)]
    right = [data.draw(st.integers(0, 3)) for _ in range(num_problems)]
    k, seed = data.draw(st.integers(1, n)), data.draw(st.integers(0, 99))
    correct = torch.tensor(answers) == torch.tensor(right)[:, None]
    found = maj_at_k(torch.tensor(answers), correct, k, repeats=3, seed=seed)
    assert found.shape == (3, num_problems) and found.dtype == torch.float64
    for draw, row in zip(draws_of(num_problems, n, k, 3, seed).tolist(), found.tolist(), strict=True):
        for problem, places in enumerate(draw):
            assert row[problem] == (winner([answers[problem][place] for place in places]) == right[problem])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_maj_at_k_agrees_with_all_draws_on_average(k):
    answers = [[0, 0, 1, 2, -1], [1, 1, 0, 0, 2], [-1, -1, -1, 0, 1]]
    expected = [
        sum(winner(draw) == 0 for draw in orders) / len(orders)
        for orders in (list(itertools.permutations(row, k)) for row in answers)
    ]
    found = maj_at_k(torch.tensor(answers), torch.tensor(answers) == 0, k, repeats=20_000).mean(0)
    # 20,000 draws: a share has a deviation of at most .5/141 = .0035
    assert found.tolist() == pytest.approx(expected, abs=0.02)


def test_maj_at_k_by_hand():
    answers = torch.tensor([[7, 7, 7, 2, 2], [2, 2, 2, 7, 7], [-1, -1, -1, 7, -1], [-1] * 5])
    # all five drawn: 7 wins 3:2; 2 wins 3:2; four do not vote, so that the one answer wins; nobody answers
    assert maj_at_k(answers, answers == 7, 5, repeats=2).tolist() == [[1, 0, 1, 0]] * 2


def test_ties_vary_with_the_draw_even_with_all_samples():
    answers = torch.tensor([[0, 1, 0, 1]])
    share = maj_at_k(answers, answers == 0, 4, repeats=4000).mean().item()
    assert share == pytest.approx(0.5, abs=0.05)  # deviation .5/63 = .008


@given(answer_lists, st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_the_numbers_of_answers_and_chunks_do_not_matter(answers, seed):
    answers_PN = torch.tensor([answers] * 3)
    is_right = answers_PN == 1
    renamed = torch.where(answers_PN >= 0, 10**12 - answers_PN * 10**9, -5)
    for k in range(1, len(answers) + 1):
        found = maj_at_k(answers_PN, is_right, k, seed=seed)
        assert torch.equal(found, maj_at_k(renamed, is_right, k, seed=seed))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trl_miner.evaluation.majority._CHUNK", 1)
            assert torch.equal(found, maj_at_k(answers_PN, is_right, k, seed=seed))


def test_one_vote_is_one_sample_and_draws_repeat():
    answers = torch.arange(50).expand(40, 50)
    is_right = answers < 10
    found = maj_at_k(answers, is_right, 1, repeats=200)
    assert found.mean().item() == pytest.approx(0.2, abs=0.02)  # 8000 draws: deviation .4/89 = .0045
    assert torch.equal(found, maj_at_k(answers, is_right, 1, repeats=200))
    assert not torch.equal(found, maj_at_k(answers, is_right, 1, repeats=200, seed=1))


@pytest.mark.parametrize(
    ("answers", "correct", "options", "message"),
    [
        ([[0, 1]], [[True, False]], {"k": 3}, "k must be between"),
        ([[0, 1]], [[True, False]], {"k": 0}, "k must be between"),
        ([[0, 1]], [[True]], {"k": 1}, "must both be"),
        ([[0, -1]], [[True, True]], {"k": 1}, "must have an answer"),
        ([[0, 1]], [[True, False]], {"k": 1, "repeats": 0}, "repeats must be"),
    ],
)
def test_votes_that_cannot_be_counted_are_errors(answers, correct, options, message):
    with pytest.raises(ValueError, match=message):
        maj_at_k(torch.tensor(answers), torch.tensor(correct), **options)


def test_the_interval_is_the_usual_one_for_many_problems():
    values = torch.tensor([0.0, 1.0] * 200)  # 400 problems: error of the mean .5/20 = .025, times 1.96 = .049
    low, high = bootstrap_interval(values)
    assert (low.item(), high.item()) == pytest.approx((0.451, 0.549), abs=0.006)
    low, high = bootstrap_interval(values, level=0.5)  # .674 * .025 = .0169
    assert (low.item(), high.item()) == pytest.approx((0.483, 0.517), abs=0.004)


def test_the_interval_of_two_problems_by_hand():
    # means of two draws from {0, 1}: 0 and 1 a quarter each, so that 95 % reach over all and 40 % over the middle
    assert [bound.item() for bound in bootstrap_interval(torch.tensor([0.0, 1.0]))] == [0, 1]
    assert [bound.item() for bound in bootstrap_interval(torch.tensor([0.0, 1.0]), level=0.4)] == [0.5, 0.5]


def test_intervals_of_several_metrics_use_the_same_resamples():
    values = torch.rand(30, 3, generator=torch.Generator().manual_seed(0))
    lows, highs = bootstrap_interval(values, resamples=500)
    for metric in range(3):
        low, high = bootstrap_interval(values[:, metric], resamples=500)
        assert (lows[metric].item(), highs[metric].item()) == pytest.approx((low.item(), high.item()))
        assert low <= values[:, metric].mean() <= high
    assert [bound.item() for bound in bootstrap_interval(torch.full((5,), 0.25))] == [0.25, 0.25]


def test_the_interval_covers_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval((torch.rand(60, generator=generator) < 0.4).double(), resamples=400)
        covered += bool(low <= 0.4 <= high)
    assert 175 <= covered <= 199  # 190 expected, deviation 3; the seed is fixed


@pytest.mark.parametrize(
    ("values", "options"),
    [([], {}), ([float("nan")], {}), ([1.0], {"level": 1.0}), ([1.0], {"level": 0}), ([1.0], {"resamples": 0})],
)
def test_intervals_of_nothing_are_errors(values, options):
    with pytest.raises(ValueError, match="must"):
        bootstrap_interval(torch.tensor(values), **options)


def test_a_model_does_not_differ_from_itself():
    scores = torch.rand(50)
    found = paired_difference(scores, scores)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 1, 1], 2 / 8),  # +++ and ---
        ([1, 1, 1] + [0] * 5, 2 / 8),  # problems that do not differ do not count
        ([3, 1, -1], 6 / 8),  # |sum| is 5, 3, 3 and 1, each with two signs: at least 3 in six of eight
    ],
)
def test_p_by_hand(differences, p):
    found = paired_difference(torch.zeros(len(differences)), torch.tensor(differences) / 4)
    signs = itertools.product([1, -1], repeat=len(differences))
    sums = [abs(sum(sign * part for sign, part in zip(row, differences, strict=True))) for row in signs]
    assert found.p_value == pytest.approx(sum(one >= abs(sum(differences)) for one in sums) / len(sums))
    assert found.p_value == pytest.approx(p)
    assert found.difference == pytest.approx(sum(differences) / 4 / len(differences))


def test_p_of_many_problems_agrees_with_the_binomial():
    # 30 problems differ by 1, 21 for b: two-sided sign test, 2 * P(X >= 21)
    expected = 2 * sum(math.comb(30, i) for i in range(21, 31)) / 2**30
    b = torch.tensor([1.0] * 21 + [0.0] * 9 + [0.5] * 20)
    a = torch.tensor([0.0] * 21 + [1.0] * 9 + [0.5] * 20)
    found = paired_difference(a, b)
    assert found.p_value == pytest.approx(expected, abs=0.008)  # .0428; 10,000 swaps: deviation .002
    assert found.difference == pytest.approx(12 / 50)
    assert found.low < 12 / 50 < found.high
    mirrored = paired_difference(b, a)
    assert mirrored.p_value == pytest.approx(expected, abs=0.008) and mirrored.difference == -found.difference


def test_p_is_exact_when_few_of_many_problems_differ():
    assert paired_difference(torch.zeros(60), torch.tensor([1.0] * 3 + [0.0] * 57)).p_value == 2 / 8


def test_p_is_never_zero():
    # (1 + 0) / (1 + 99)
    assert paired_difference(torch.zeros(60), torch.ones(60), resamples=99).p_value == 0.01


def test_only_the_same_problems_can_be_paired():
    with pytest.raises(ValueError, match="same problems"):
        paired_difference(torch.zeros(3), torch.zeros(4))
