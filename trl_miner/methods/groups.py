"""Groups: the completions of one prompt, (N,) as (P, G) and back, and the kinds of groups.

# N = P*G completions of the global batch, those of one prompt adjacent; P prompts
"""

from typing import NamedTuple

import torch
from torch import Tensor


class GroupKinds(NamedTuple):
    """The kind of each completion's group. Four (N,) bools; exactly one is true for each row."""

    is_ph_N: Tensor  # positive homogeneous: all right
    is_he_N: Tensor  # heterogeneous: mixed
    is_nh_N: Tensor  # negative homogeneous: all wrong
    is_unscorable_N: Tensor  # a reward is NaN, and the others do not make the group mixed


def grouped(values_N: Tensor, num_generations: int) -> Tensor:
    """View (N,) as (P, G).

    Raises:
        ValueError: G is below 2, or the values do not fill whole groups.
    """
    if num_generations < 2 or values_N.dim() != 1 or len(values_N) % num_generations:
        raise ValueError(
            f"Values of shape {tuple(values_N.shape)} do not hold whole groups of"
            f" num_generations={num_generations} (at least 2). Pass one value for each completion"
            " of the global batch, gathered from all processes."
        )
    return values_N.view(-1, num_generations)


def group_mean(values_N: Tensor, num_generations: int) -> Tensor:
    """Return (N,) the mean of each completion's group, NaN left out; NaN if the group has nothing
    else."""
    means_P = grouped(values_N, num_generations).nanmean(dim=1)
    return means_P.repeat_interleave(num_generations)


def differ(values_N: Tensor, num_generations: int) -> Tensor:
    """Return (P,) bool: whether the values of a group differ; False where one is NaN (unscorable).

    Compared by value, not by standard deviation: six rewards of 0.3 can have a float32 std of 3e-8,
    and the published code (pixas/Miner @ 4d2a76c) then takes them for heterogeneous.
    """
    values_PG = grouped(values_N, num_generations)
    return values_PG.amax(dim=1) > values_PG.amin(dim=1)


def differs_in_correctness(is_correct_N: Tensor, num_generations: int) -> Tensor:
    """Return (P,) bool: whether a group holds a correct and a wrong completion.

    Args:
        is_correct_N: (N,) 1 or 0; NaN (unscorable) is neither.
        num_generations: G, at least 2.

    Source: arXiv 2503.14476 (DAPO), section 3.2, which keeps these groups alone. Its published
        code goes by the standard deviation of a metric, and so keeps groups of wrong completions with
        unequal part marks.
    """
    is_correct_PG = grouped(is_correct_N, num_generations)
    return (is_correct_PG == 1).any(dim=1) & (is_correct_PG == 0).any(dim=1)


def correctness(verifier_rewards_N: Tensor, correct_threshold: float = 1.0) -> Tensor:
    """Return (N,) 1 where the verifier's reward is at or above the threshold, 0 below it, NaN where
    there is none."""
    is_correct_N = (verifier_rewards_N >= correct_threshold).float()
    return is_correct_N.masked_fill(verifier_rewards_N.isnan(), torch.nan)


def group_kinds(
    rewards_N: Tensor,
    num_generations: int,
    *,
    correct_threshold: float = 1.0,
    verifier_rewards_N: Tensor | None = None,
    advantages_N: Tensor | None = None,
) -> GroupKinds:
    """Sort the groups into all right (PH), mixed (HE), all wrong (NH) and unscorable.

    PH: every completion is correct, and nothing else tells them apart: their total rewards are
    equal, and so are their advantages, where given. NH: none is correct, likewise. A group whose
    format or length rewards differ is HE, and belongs to GRPO.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        num_generations: G, at least 2.
        correct_threshold: A completion is correct when its verifier's reward is at or above this.
        verifier_rewards_N: (N,) rewards of the verifier alone; default: the total rewards.
        advantages_N: (N,) GRPO's advantages, where equal totals do not imply equal advantages
            (several rewards, normalized one by one).

    Raises:
        ValueError: The values do not fill whole groups.

    Source: arXiv 2601.04731, equation 4. The published code decides by "std is 0 and the mean is
        not", so that with rewards of -1 and 1 an all-wrong group counts as PH. We follow the paper.
    """
    if verifier_rewards_N is None:
        verifier_rewards_N = rewards_N
    is_correct_N = correctness(verifier_rewards_N, correct_threshold)
    is_correct_PG = grouped(is_correct_N, num_generations)
    is_equal_P = ~differ(rewards_N, num_generations)
    if advantages_N is not None:
        is_equal_P &= ~differ(advantages_N, num_generations)
    is_ph_P = (is_correct_PG == 1).all(dim=1) & is_equal_P
    is_nh_P = (is_correct_PG == 0).all(dim=1) & is_equal_P
    is_mixed_P = differs_in_correctness(is_correct_N, num_generations)
    is_unscorable_P = is_correct_PG.isnan().any(dim=1) & ~is_mixed_P
    kinds = is_ph_P, ~(is_ph_P | is_nh_P | is_unscorable_P), is_nh_P, is_unscorable_P
    return GroupKinds(*(is_kind_P.repeat_interleave(num_generations) for is_kind_P in kinds))
