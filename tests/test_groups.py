"""Kinds of prompt: all right, mixed and all wrong, and what makes a group none of them."""

import pytest
import torch

from trl_miner.methods.groups import gate_on_correctness, group_kinds, group_mean, grouped


def kinds_of(rewards, num_generations=2, **kwargs):
    """One letter per group: P all right, H mixed, N all wrong, U unscorable."""
    kinds = group_kinds(torch.tensor(rewards), num_generations, **kwargs)
    assert torch.equal(sum(kind.int() for kind in kinds), torch.ones(len(rewards), dtype=torch.int))
    first = slice(None, None, num_generations)
    return "".join(
        "PHNU"[kind]
        for kind in torch.stack([k[first] for k in kinds]).float().argmax(dim=0).tolist()
    )


NAN = float("nan")
KINDS = {
    "correctness decides": ("PHN", [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], {}),
    # the published code asks "std 0 and mean not 0", which takes -1, -1 for a success
    "-1 is wrong": ("NPH", [-1.0, -1.0, 1.0, 1.0, -1.0, 1.0], {}),
    "a second reward that differs": (
        "HP",
        [1.1, 1.0, 1.1, 1.1],
        dict(verifier_rewards_N=[1.0] * 4),
    ),
    "a constant second reward": (
        "NP",
        [1.0, 1.0, 2.0, 2.0],
        dict(verifier_rewards_N=[0.0, 0.0, 1.0, 1.0]),
    ),
    "advantages that differ": ("HP", [1.0] * 4, dict(advantages_N=[0.5, -0.5, 0.0, 0.0])),
    "unscorable": ("UUU", [1.0, NAN, 0.0, NAN, NAN, NAN], {}),
    "a format reward says not what the verifier did not": (
        "U",
        [1.0, 1.0],
        dict(verifier_rewards_N=[NAN, NAN]),
    ),
    "mixed, whatever the third is": ("H", [1.0, NAN, 0.0], dict(num_generations=3)),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_groups(name):
    letters, rewards, given = KINDS[name]
    given = {
        key: torch.tensor(value) if isinstance(value, list) else value
        for key, value in given.items()
    }
    assert kinds_of(rewards, **given) == letters


def test_equal_rewards_are_homogeneous_even_where_their_float_std_is_not_zero():
    rewards = torch.full((6,), 0.3)
    assert rewards.std() > 0  # 3e-8: the mean of six 0.3 is not 0.3 in float32
    assert kinds_of([0.3] * 6, 6) == "N"
    assert kinds_of([0.3] * 6, 6, correct_threshold=0.3) == "P"


def test_behind_the_gate_only_correctness_tells_rollouts_apart():
    verifier = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, NAN, 1.0, 1.0, 0.0, 0.0])
    totals = torch.tensor([1.25, 1.75, 0.0, 0.5, 1.5, 0.5, 1.0, 0.5, 0.3, 0.3, 0.5, NAN])
    advantages = torch.tensor([-0.7, 0.7, -0.7, 0.7, 0.7, -0.7, 0.7, -0.7, 1e-4, 1e-4, 0.0, 0.0])
    gated, cut, is_gated = gate_on_correctness(totals, advantages, 2, verifier_rewards_N=verifier)
    # all right: (1.25 + 1.75) / 2; all wrong: (0 + .5) / 2; mixed stays; unscorable: (1 + .5) / 2;
    # equal ones stay
    expected = torch.tensor([1.5, 1.5, 0.25, 0.25, 1.5, 0.5, 0.75, 0.75, 0.3, 0.3, 0.5, NAN])
    assert torch.equal(gated.nan_to_num(-1), expected.nan_to_num(-1))
    assert is_gated.tolist() == [True] * 4 + [False] * 2 + [True] * 2 + [False] * 4
    assert torch.equal(cut, advantages.masked_fill(is_gated, 0.0))
    assert kinds_of(gated.tolist(), verifier_rewards_N=verifier, advantages_N=cut) == "PNHUPH"
    # advantages that differ where total rewards do not
    gated, cut, _ = gate_on_correctness(
        torch.ones(2), torch.tensor([0.5, -0.5]), 2, verifier_rewards_N=torch.ones(2)
    )
    assert cut.tolist() == [0.0, 0.0] and gated.tolist() == [1.0, 1.0]


def test_group_mean_leaves_nan_out():
    # (1 + 3) / 2 = 2; a whole group of NaN has no mean
    mean = group_mean(torch.tensor([1.0, 3.0, NAN, NAN, NAN, NAN]), 3)
    assert mean[:3].tolist() == [2.0, 2.0, 2.0] and mean[3:].isnan().all()


@pytest.mark.parametrize(
    ("values", "num_generations", "named"),
    [
        (torch.zeros(7), 4, r"got shape \(7,\) for num_generations=4"),
        (torch.zeros(4), 1, "at least 2.*num_generations=1"),
        (torch.zeros(4, 2), 2, r"got shape \(4, 2\)"),
    ],
)
def test_bad_groups_are_named(values, num_generations, named):
    with pytest.raises(ValueError, match=named):
        grouped(values, num_generations)
