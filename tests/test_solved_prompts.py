"""The methods for prompts that are solved, or not at all: numbers by hand, and those of published functions.

Padding, the order of prompts and what each asks for are tested for every method in test_estimators.py.
"""

import pytest
import torch
from test_estimators import batch, run

from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.maxrl import maxrl_advantages
from trl_miner.methods.ngrpo import ngrpo_advantages
from trl_miner.methods.quantile import quantile_advantages
from trl_miner.methods.w_reinforce import signed_advantages

NAN = float("nan")
RIGHT, MIXED, WRONG = [1.0] * 4, [1.0, 0.0, 0.0, 1.0], [0.0] * 4


def values(advantages):
    return pytest.approx(advantages, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    # compute_ngrpo_outcome_advantage of nangongrui-ngr/NGRPO @ e7a3804
    [
        (MIXED, [0.7302953, -1.0954431, -1.0954431, 0.7302953]),  # mean .6, std .5477
        (WRONG, [-0.4472126] * 4),  # mean .2, std .4472
        (RIGHT, [0.0] * 4),
        ([1.0, NAN, NAN, 1.0], [0.0] * 4),
    ],
)
def test_ngrpo_adds_a_rollout_of_the_largest_reward(rewards, expected):
    assert ngrpo_advantages(torch.tensor(rewards), 4).tolist() == values(expected)


def test_ngrpo_without_a_virtual_rollout_is_grpo():
    rewards = torch.tensor(MIXED + WRONG)
    expected = group_relative_advantages(rewards, 4, std_eps=1e-6)
    assert torch.equal(ngrpo_advantages(rewards, 4, virtual=0), expected)
    assert torch.equal(run("ngrpo", *batch(), ngrpo_virtual=0), run("grpo", *batch()))


def test_maxrl_divides_by_the_mean_reward():
    # mean .25: (1 - .25) / .25 = 3, -1; mean 1: 0; mean 0: no signal
    found = maxrl_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0] + RIGHT + WRONG), 4)
    assert found.tolist() == values([3.0, -1.0, -1.0, -1.0] + [0.0] * 8)


def test_maxrl_times_the_mean_is_the_centered_reward():
    rewards = torch.tensor([1.0, 0.0, NAN, 1.0])  # mean 2/3, without the unscorable one
    assert (maxrl_advantages(rewards, 4) * 2 / 3).tolist() == values([1 / 3, -2 / 3, 0.0, 1 / 3])


@pytest.mark.parametrize(
    ("rewards", "k", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], 0.4, [2.3094011, 0.0, 0.0, 0.0]),  # p .25 <= .6: b 0, std .4330
        ([1.0, 1.0, 1.0, 0.0], 0.4, [0.0, 0.0, 0.0, -2.3094011]),  # p .75 > .6: b 1
        (MIXED, 0.5, [2.0, 0.0, 0.0, 2.0]),  # p .5 <= .5: b 0, std .5
        (RIGHT, 0.4, [0.0] * 4),
        (WRONG, 0.4, [0.0] * 4),
        ([NAN, 0.0, 0.0, 1.0], 0.7, [0.0, -2.1213203, -2.1213203, 0.0]),  # three: .7 * 3 = 2.1, the third; std .4714
        ([NAN] * 4, 0.4, [0.0] * 4),
    ],
)
def test_the_quantile_pays_rare_successes_and_fines_rare_failures(rewards, k, expected):
    assert quantile_advantages(torch.tensor(rewards), 4, k=k).tolist() == values(expected)


def test_the_quantile_s_place_is_not_moved_by_rounding():
    rewards = torch.tensor([0.0] * 7 + [1.0] * 3)  # a share of .7 is 0: b 0, although .7 * 10 > 7 in floats
    assert (quantile_advantages(rewards, 10, k=0.7)[:7] == 0).all()


def test_w_reinforce_by_hand():
    # compute_psr_nsr_outcome_advantage: .1 for a right one, -1 for a wrong one; PSR r; NSR r - 1
    rewards = torch.tensor([1.0, 0.0, NAN, 0.5])
    assert signed_advantages(rewards).tolist() == values([0.1, -1.0, 0.0, -0.45])
    assert signed_advantages(rewards, positive=1.0, negative=0.0).tolist() == values([1.0, 0.0, 0.0, 0.5])
    assert signed_advantages(rewards, positive=0.0).tolist() == values([0.0, -1.0, 0.0, -0.5])


def test_sign_is_w_reinforce_with_equal_weights():
    rewards, mask, scores = batch()
    found = run("sign", rewards, mask, scores)
    assert torch.equal(found, (2 * rewards - 1).nan_to_num().unsqueeze(1) * mask)
    assert torch.equal(run("w_reinforce", rewards, mask, scores, w_reinforce_positive=1.0), found)
