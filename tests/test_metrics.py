import itertools

import pytest
import torch

from trl_miner.evaluation import pass_at_k


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
