"""Kinds of prompt: all right, mixed and all wrong, and what makes a group none of them."""

import pytest
import torch
from methods.batches import NAN

from trl_miner.methods.groups import (
    correctness,
    differs_in_correctness,
    group_kinds,
    group_mean,
    grouped,
)


def kinds_of(rewards, num_generations=2, **given):
    """One letter per group: P all right, H mixed, N all wrong, U unscorable."""
    given = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in given.items()}
    kinds = group_kinds(torch.tensor(rewards), num_generations, **given)
    kinds = torch.stack(kinds)[:, ::num_generations].int()
    assert (kinds.sum(dim=0) == 1).all()
    return "".join("PHNU"[place] for place in kinds.argmax(dim=0).tolist())


KINDS = {
    "correctness decides": ("PHN", [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], {}),
    # the published code asks "std 0 and mean not 0", which takes -1, -1 for a success
    "-1 is wrong": ("NPH", [-1.0, -1.0, 1.0, 1.0, -1.0, 1.0], {}),
    "a second reward differs": ("HP", [1.1, 1, 1.1, 1.1], dict(verifier_rewards_N=[1.0] * 4)),
    "a second reward is constant": ("NP", [1.0, 1, 2, 2], dict(verifier_rewards_N=[0.0, 0, 1, 1])),
    "advantages that differ": ("HP", [1.0] * 4, dict(advantages_N=[0.5, -0.5, 0.0, 0.0])),
    "unscorable": ("UUU", [1.0, NAN, 0.0, NAN, NAN, NAN], {}),
    "a format reward is no verdict": ("U", [1.0, 1.0], dict(verifier_rewards_N=[NAN, NAN])),
    "mixed, whatever the third is": ("H", [1.0, NAN, 0.0], dict(num_generations=3)),
    "part marks": ("HN", [0.5, 0.25, 0.5, 0.5], {}),
    # the float32 std of six 0.3 is 3e-8, which the published code takes for a difference
    "equal with a std above 0": ("N", [0.3] * 6, dict(num_generations=6)),
    "equal and right": ("P", [0.3] * 6, dict(num_generations=6, correct_threshold=0.3)),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_groups(name):
    letters, rewards, given = KINDS[name]
    assert kinds_of(rewards, **given) == letters


def test_group_mean_leaves_nan_out():
    # (1 + 3) / 2 = 2; a whole group of NaN has no mean
    mean = group_mean(torch.tensor([1.0, 3.0, NAN, NAN, NAN, NAN]), 3)
    assert mean[:3].tolist() == [2.0, 2.0, 2.0] and mean[3:].isnan().all()


def test_correctness_and_what_dynamic_sampling_keeps():
    is_correct = correctness(torch.tensor([0.5, 1.0, 2.0, NAN, 0.0, 0.5, 1.0, NAN]), 1.0)
    assert is_correct.nan_to_num(-1).tolist() == [0.0, 1.0, 1.0, -1.0, 0.0, 0.0, 1.0, -1.0]
    assert differs_in_correctness(is_correct, 2).tolist() == [True, False, False, False]
    assert differs_in_correctness(is_correct, 4).tolist() == [True, True]


@pytest.mark.parametrize(
    ("values", "num_generations", "named"),
    [
        (torch.zeros(7), 4, r"shape \(7,\).*num_generations=4"),
        (torch.zeros(4), 1, r"num_generations=1 \(at least 2\)"),
    ],
)
def test_bad_groups_are_named(values, num_generations, named):
    with pytest.raises(ValueError, match=named):
        grouped(values, num_generations)
