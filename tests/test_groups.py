"""Kinds of prompt: all right, mixed and all wrong, and what makes a group none of them."""

import pytest
import torch

from trl_miner.methods.groups import group_kinds, group_mean, grouped, homogeneous


def kinds_of(rewards, num_generations=2, **kwargs):
    """One letter per group: P all right, H mixed, N all wrong, U unscorable."""
    kinds = group_kinds(torch.tensor(rewards), num_generations, **kwargs)
    assert torch.equal(sum(kind.int() for kind in kinds), torch.ones(len(rewards), dtype=torch.int))
    first = slice(None, None, num_generations)
    return "".join("PHNU"[kind] for kind in torch.stack([k[first] for k in kinds]).float().argmax(dim=0).tolist())


def test_kinds_follow_correctness():
    assert kinds_of([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]) == "PHN"


def test_rewards_of_minus_one_are_wrong_not_a_homogeneous_success():
    # the published code asks "std 0 and mean not 0", which takes -1, -1 for a success
    assert kinds_of([-1.0, -1.0, 1.0, 1.0, -1.0, 1.0]) == "NPH"


def test_equal_rewards_are_homogeneous_even_where_their_float_std_is_not_zero():
    rewards = torch.full((6,), 0.3)
    assert rewards.std() > 0  # 3e-8: the mean of six 0.3 is not 0.3 in float32
    assert homogeneous(rewards, 6).all()
    assert kinds_of([0.3] * 6, 6) == "N"
    assert kinds_of([0.3] * 6, 6, correct_threshold=0.3) == "P"


def test_a_second_reward_that_still_differs_leaves_the_group_to_grpo():
    verifier = torch.tensor([1.0, 1.0, 1.0, 1.0])
    assert kinds_of([1.1, 1.0, 1.1, 1.1], verifier_rewards_N=verifier) == "HP"


def test_a_constant_second_reward_does_not_make_wrong_answers_right():
    verifier = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert kinds_of([1.0, 1.0, 2.0, 2.0], verifier_rewards_N=verifier) == "NP"


def test_equal_totals_with_different_advantages_are_heterogeneous():
    advantages = torch.tensor([0.5, -0.5, 0.0, 0.0])
    assert kinds_of([1.0, 1.0, 1.0, 1.0], advantages_N=advantages) == "HP"


def test_an_unscorable_rollout_makes_its_group_neither_all_right_nor_all_wrong():
    nan = float("nan")
    assert kinds_of([1.0, nan, 0.0, nan, nan, nan]) == "UUU"
    assert kinds_of([1.0, nan, 0.0], 3) == "H"  # whatever the third is
    # a format reward cannot say what the verifier did not
    assert kinds_of([1.0, 1.0], verifier_rewards_N=torch.tensor([nan, nan])) == "U"


def test_group_mean_leaves_nan_out():
    nan = float("nan")
    # (1 + 3) / 2 = 2; a whole group of NaN has no mean
    mean = group_mean(torch.tensor([1.0, 3.0, nan, nan, nan, nan]), 3)
    assert mean[:3].tolist() == [2.0, 2.0, 2.0] and mean[3:].isnan().all()


@pytest.mark.parametrize(
    ("values", "num_generations", "named"),
    [
        (torch.zeros(7), 4, "7 values for num_generations=4"),
        (torch.zeros(4), 1, "at least 2.*got 1"),
        (torch.zeros(4, 2), 2, r"shape \(N,\): got \(4, 2\)"),
    ],
)
def test_bad_groups_are_named(values, num_generations, named):
    with pytest.raises(ValueError, match=named):
        grouped(values, num_generations)


def test_an_empty_batch_has_no_groups():
    assert grouped(torch.zeros(0), 4).shape == (0, 4)
