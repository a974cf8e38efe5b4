"""Advantage estimators of a user's own, as tests/test_own_estimators.py and
distributed/train_worker.py name them."""

import torch

from trl_miner.methods import AdvantageEstimator, Estimate


def by_length(rollouts, *, bonus: float = 0.25, cap: float | None = None, side: str = "short"):
    """GRPO's advantages, and a bonus for each token of the rollouts that are shorter than the
    batch's mean; at padding what counts for nothing."""
    lengths_N = rollouts.world.gather(rollouts.mask_BT.sum(dim=1)).float()
    gains_N = bonus * (lengths_N - lengths_N.mean()).sign() * (-1 if side == "short" else 1)
    gains_N = gains_N if cap is None else gains_N.clamp(-cap, cap)
    return rollouts.to_tokens(rollouts.advantages_N + gains_N).masked_fill(
        rollouts.mask_BT == 0, float("nan")
    )


def by_token(rollouts, bonus=1.0):
    """The same bonus everywhere but at the first token, with a metric."""
    advantages_BT = rollouts.local(rollouts.advantages_N).unsqueeze(1) + bonus * rollouts.mask_BT
    advantages_BT[:, 0] -= bonus
    means_N = rollouts.token_means(advantages_BT)
    by_token.texts = rollouts.texts()
    return Estimate(advantages_BT, means_N, {"by_token/largest": means_N.max().item()})


def required(rollouts, *, weight: float):
    return rollouts.to_tokens(rollouts.advantages_N) * weight


def nothing():
    """A function that takes no rollouts."""


def typed_for_checkers(rollouts: "NotImportedHere", *, bonus: "float" = 1.0):  # noqa: F821
    return rollouts.to_tokens(rollouts.advantages_N + bonus)


def as_list(rollouts):
    return rollouts.advantages_N.tolist()


def of_all_processes(rollouts):
    return torch.cat([rollouts.to_tokens(rollouts.advantages_N)] * 2)


def with_nan(rollouts):
    advantages_BT = rollouts.to_tokens(rollouts.rewards_N)
    advantages_BT[1] = float("nan")
    return advantages_BT


NUMBER = 3


def asks_late_for_logits(rollouts):
    """A plain function: that it reads logits shows when it asks for them."""
    logits_BT = rollouts.score(("token_logits",), torch.ones_like(rollouts.kinds.is_he_N))[
        "token_logits"
    ]
    return rollouts.local(rollouts.advantages_N).unsqueeze(1) + logits_BT


def _by_logps(rollouts, *, weight: float = 1.0):
    logps_BT = rollouts.score(("old_logps",), rollouts.kinds.is_ph_N)["old_logps"]
    advantages_BT = -weight * logps_BT * rollouts.mask_BT
    return Estimate(advantages_BT, rollouts.token_means(advantages_BT), {})


BY_LOGPS = AdvantageEstimator(
    name="by_logps",
    label="By log-probs",
    function=_by_logps,
    estimate=_by_logps,
    scores=frozenset({"old_logps"}),
    acts_on=frozenset({"all_right"}),
    knobs=("weight",),
)
