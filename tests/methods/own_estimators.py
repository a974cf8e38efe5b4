"""Advantage estimators of a user's own, as the tests name them."""

import torch

from trl_miner.methods import AdvantageEstimator, Estimate


def by_length(rollouts, *, bonus: float = 0.25):
    """GRPO's advantages and a bonus for completions shorter than the mean, NaN at padding."""
    lengths_N = rollouts.token_counts_N.float()
    gains_N = bonus * (lengths_N.mean() - lengths_N).sign()
    advantages_BT = rollouts.to_tokens(rollouts.advantages_N + gains_N)
    return advantages_BT.masked_fill(rollouts.mask_BT == 0, float("nan"))


def by_rollout(rollouts, bonus=1.0):
    return rollouts.advantages_N + bonus


def of_both_signs(rollouts):
    advantages_BT = torch.ones(rollouts.mask_BT.shape)
    advantages_BT[:, ::2] = -1.0
    return advantages_BT


def with_metric(rollouts, *, weight):
    advantages_BT = rollouts.to_tokens(rollouts.advantages_N) * weight
    return Estimate(advantages_BT, rollouts.advantages_N, {"own/weight": weight})


def of_one_token(rollouts):
    return torch.ones(3)


def with_nan(rollouts):
    return rollouts.rewards_N


NUMBER = 3
SURPRISE = AdvantageEstimator(
    name="surprise",
    label="Surprise",
    function=lambda rollouts: -rollouts.score("old_logps", rollouts.kinds.is_ph_N),
    acts_on=("all_right",),
)
