"""Prompt groups: (N,) rollouts as (P, G) groups and back, and the paper's three kinds of group.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; P prompts, G = num_generations
rollouts each
"""

from typing import NamedTuple

import torch
from torch import Tensor


class GroupKinds(NamedTuple):
    """The kind of each rollout's group: positive homogeneous, heterogeneous, negative homogeneous,
    or unscorable. Four (N,) bools, of which exactly one is true for each rollout."""

    is_ph_N: Tensor
    is_he_N: Tensor
    is_nh_N: Tensor
    is_unscorable_N: Tensor

    @property
    def is_grpo_N(self) -> Tensor:
        """(N,) bool: neither PH nor NH, so that the advantages of GRPO stay."""
        return self.is_he_N | self.is_unscorable_N


def grouped(values_N: Tensor, num_generations: int, name: str = "values_N") -> Tensor:
    """View (N,) as (P, G); the errors call the values by `name`.

    Raises:
        ValueError: G below 2, a shape other than (N,), or an N that does not fill whole groups.
    """
    if num_generations < 2 or values_N.dim() != 1 or values_N.numel() % num_generations:
        raise ValueError(
            f"{name} must hold whole groups of at least 2, one value per rollout: got shape"
            f" {tuple(values_N.shape)} for num_generations={num_generations}. Pass the gathered"
            " values, before they are sliced per process."
        )
    return values_N.view(-1, num_generations)


def differ(values_N: Tensor, num_generations: int) -> Tensor:
    """Return (P,) bool: whether the values of a group differ, NaN (unscorable) left out.

    Compared by value, not by standard deviation: six rewards of 0.3 can have a float32 std of 3e-8,
    and the published code (pixas/Miner @ 4d2a76c) then takes them for heterogeneous.
    """
    values_PG = grouped(values_N, num_generations)
    return values_PG.nan_to_num(nan=-torch.inf).amax(dim=1) > values_PG.nan_to_num(
        nan=torch.inf
    ).amin(dim=1)


def differs_in_correctness(
    verifier_rewards_N: Tensor, num_generations: int, *, correct_threshold: float = 1.0
) -> Tensor:
    """Return (P,) bool: whether a group holds a correct and an incorrect rollout. An unscorable one
    (NaN) is neither.

    Source: arXiv 2503.14476, section 3.2: 0 < number of correct rollouts < G. The published code
        decides by whether the standard deviation of a metric is above 0, which keeps groups of
        wrong answers with unequal part marks.
    """
    rewards_PG = grouped(verifier_rewards_N, num_generations, "verifier_rewards_N")
    return (rewards_PG >= correct_threshold).any(dim=1) & (rewards_PG < correct_threshold).any(
        dim=1
    )


def group_kinds(
    rewards_N: Tensor,
    num_generations: int,
    *,
    correct_threshold: float = 1.0,
    verifier_rewards_N: Tensor | None = None,
    advantages_N: Tensor | None = None,
) -> GroupKinds:
    """Split the global batch into positive homogeneous (PH), heterogeneous (HE), negative
    homogeneous (NH) and unscorable groups.

    PH: every rollout is correct, and no extrinsic signal differs between them. NH: none is correct,
    likewise. HE: the rest, but for unscorable groups: a verifier reward is NaN, and the others are
    not both right and wrong.

    "No extrinsic signal" means equal total rewards and, where given, equal extrinsic advantages: a
    group whose format or length reward still differs belongs to GRPO, unless `gate_on_correctness`
    has cut that difference.

    Args:
        rewards_N: (N,) total rewards of the global batch.
        num_generations: G, at least 2.
        correct_threshold: A rollout is correct when its verifier reward is at or above this, in
            reward units.
        verifier_rewards_N: (N,) rewards of the verifier alone; default: the total rewards.
        advantages_N: (N,) extrinsic advantages, where equal totals do not imply equal advantages
            (several rewards that are normalized one by one).

    Returns:
        Four (N,) bools, of which each row has exactly one.

    Source: arXiv 2601.04731, section 2, equation 4. The published code decides by "std is 0 and the
        mean is not", so with rewards of -1 and 1 an all-wrong group counts as PH; we follow the
        paper.
    """
    verifier_rewards_N = rewards_N if verifier_rewards_N is None else verifier_rewards_N
    verifier_PG = grouped(verifier_rewards_N, num_generations, "verifier_rewards_N")
    is_homogeneous_P = ~differ(rewards_N, num_generations) & ~grouped(
        rewards_N, num_generations
    ).isnan().any(dim=1)
    if advantages_N is not None:
        is_homogeneous_P &= ~differ(advantages_N, num_generations)
    # Both comparisons are False for NaN, so an unscorable rollout makes its group neither all right
    # nor all wrong.
    is_right_PG, is_wrong_PG = verifier_PG >= correct_threshold, verifier_PG < correct_threshold
    is_mixed_P = differs_in_correctness(
        verifier_rewards_N, num_generations, correct_threshold=correct_threshold
    )
    is_ph_P, is_nh_P = (
        is_right_PG.all(dim=1) & is_homogeneous_P,
        is_wrong_PG.all(dim=1) & is_homogeneous_P,
    )
    is_unscorable_P = verifier_PG.isnan().any(dim=1) & ~is_mixed_P
    kinds = is_ph_P, ~(is_ph_P | is_nh_P | is_unscorable_P), is_nh_P, is_unscorable_P
    return GroupKinds(*(is_kind_P.repeat_interleave(num_generations) for is_kind_P in kinds))


def group_mean(values_N: Tensor, num_generations: int) -> Tensor:
    """Return (N,) the mean of each rollout's group, NaN left out; NaN where the whole group is
    NaN."""
    return torch.nanmean(grouped(values_N, num_generations), dim=1).repeat_interleave(
        num_generations
    )


def gate_on_correctness(
    rewards_N: Tensor,
    advantages_N: Tensor,
    num_generations: int,
    *,
    verifier_rewards_N: Tensor,
    correct_threshold: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Remove every other difference between the rollouts of groups that do not differ in
    correctness.

    Such a group is all right, all wrong, or unscorable, and its rewards of format or length, or its
    part marks, differ. Its advantages become 0, and its total rewards their mean, so that every
    method treats it as a group of equal rewards: PH where it is all right, NH where it is all
    wrong.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, and stays so.
        advantages_N: (N,) extrinsic advantages.
        num_generations: G, at least 2.
        verifier_rewards_N: (N,) rewards of the verifier alone.
        correct_threshold: A rollout is correct when its verifier reward is at or above this, in
            reward units.

    Returns:
        (N,) each: rewards, advantages, and the rollouts that changed. All other groups keep their
        numbers bit for bit.

    Source: volcengine/verl-recipe, pull request 125, for a reward that contains length.
    """
    is_mixed_P = differs_in_correctness(
        verifier_rewards_N, num_generations, correct_threshold=correct_threshold
    )
    differs_P = differ(rewards_N, num_generations) | differ(advantages_N, num_generations)
    is_gated_N = (differs_P & ~is_mixed_P).repeat_interleave(num_generations)
    means_N = group_mean(rewards_N, num_generations)
    rewards_N = torch.where(is_gated_N & ~rewards_N.isnan(), means_N, rewards_N)
    return rewards_N, advantages_N.masked_fill(is_gated_N, 0.0), is_gated_N
