"""MINER (arXiv 2601.04731): learn from the prompts that are already answered right.

Section 3 of the paper, one function per equation: intrinsic reward, positive part, focal credit,
calibration. `miner_advantages` calls them one after another; `MINER`, at the end, is the record of
the method.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
# T padded completion tokens; PH positive homogeneous, HE heterogeneous, NH negative homogeneous
groups
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .distributed import World, accumulation_dtype
from .groups import GroupKinds, group_kinds, group_mean, grouped
from .grpo import group_relative_advantages as group_relative_advantages
from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts

STATISTICS = ("scale", "tau_ref", "tau_pos", "intrinsic_reward", "credit_weight")
REWARDS = ("nll", "certainty", "constant")  # values of `intrinsic`
CONSTANT_REWARD = 0.05  # of intrinsic="constant", in advantage units: the paper's appendix
# Elements looked at in one go: what stays in a processor's cache, or keeps a GPU busy
CPU_BLOCK, GPU_BLOCK = 2**17, 2**22


def intrinsic_rewards(old_logps_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Return how unsure the policy was of its own rollouts: r_int_i = -(1/T_i) sum_j log
    pi_old(o_ij).

    Args:
        old_logps_NT: (N, T) log-probs of the sampled tokens under the old (tempered) policy, in
            nats.
        mask_NT: (N, T), non-zero where a token counts.

    Returns:
        (N,) mean negative log-likelihood per token, in nats. NaN for a row without tokens: it has
        no likelihood.

    Source: arXiv 2601.04731, section 3.1. An empty completion crashes the published code.
    """
    is_token_NT = mask_NT.bool()
    logps_NT = old_logps_NT.masked_fill(~is_token_NT, 0.0)
    # 0 / 0 is NaN
    return -logps_NT.sum(dim=1, dtype=accumulation_dtype(logps_NT.device)) / is_token_NT.sum(dim=1)


def intrinsic_advantages(intrinsic_N: Tensor, is_ph_N: Tensor, num_generations: int) -> Tensor:
    """Center in the group and keep the positive part: ReLU(r_int_i - mean_k r_int_k), on PH groups
    alone.

    It is not divided by the standard deviation: the gap itself says whether a prompt is fragile or
    merely noisy.

    Args:
        intrinsic_N: (N,) intrinsic rewards; NaN rows (no tokens) are left out of their group's
            mean.
        is_ph_N: (N,) bool.
        num_generations: G, at least 2.

    Returns:
        (N,) at least 0; 0 outside PH groups and for NaN rows.

    Source: arXiv 2601.04731, equation 6 and the positive filter below it.
    """
    centered_N = intrinsic_N - group_mean(intrinsic_N, num_generations)
    return centered_N.clamp(min=0.0).nan_to_num(nan=0.0).masked_fill(~is_ph_N, 0.0)


def focal_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """Return w_ij = (1 - p_ij)^gamma with p = exp(old log-prob): the unsure tokens get the credit.

    Args:
        old_logps_NT: (N, T) log-probs, in nats. A positive one (rounding of a sure token) counts as
            p = 1.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Focus, at least 0; 0 is uniform.

    Returns:
        (N, T) weights in [0, 1], 0 at padding; constants for the gradient.

    Source: arXiv 2601.04731, equation 7; arXiv 1708.02002.
    """
    # -expm1(x) is 1 - exp(x) without the cancellation that eats a sure token's weight.
    weights_NT = torch.expm1(old_logps_NT).neg_().clamp_(min=0.0).pow_(gamma)
    return weights_NT.masked_fill_(~mask_NT.bool(), 0.0)


def calibration_scale(tau_ref: Tensor, tau_pos: Tensor, lambda_max: float | None) -> Tensor:
    """Return min(1, lambda_max * tau_ref / tau_pos): the PH signal never exceeds this share of the
    HE signal.

    Args:
        tau_ref: Scalar, sum of abs(advantage) over the tokens of HE and unscorable groups of the
            global batch.
        tau_pos: Scalar, the same over PH groups, before calibration.
        lambda_max: The share, at least 0; None: no cap (the paper's ablation w/o AC).

    Returns:
        Scalar in [0, 1]. 1 where there is nothing to cap, 0 where no mixed prompt gives a measure.

    Source: arXiv 2601.04731, equation 9.
    """
    if lambda_max is None:
        return torch.ones_like(tau_pos)
    cap = lambda_max * tau_ref
    return torch.where(tau_pos > cap, cap / tau_pos, torch.ones_like(tau_pos))


@dataclass(frozen=True, eq=False)
class MinerAdvantages:
    """The result of `miner_advantages`. Everything but `advantages_NT` speaks of the global
    batch."""

    advantages_NT: Tensor  # token advantages, 0 at padding; with a `world`, this process's rows
    advantages_N: Tensor  # their mean over each rollout's tokens, for the logs
    scale: float  # the calibration's factor, in [0, 1]
    tau_ref: float  # sum of abs(advantage) over the tokens of HE and unscorable groups
    # sum over PH tokens before calibration; NaN where the log-probs were not asked for
    tau_pos: float
    # mean NLL of the PH rollouts, in nats per token; NaN where there is none
    intrinsic_reward: float
    credit_weight: float  # mean weight of the PH tokens; NaN where there is none
    kinds: GroupKinds  # of each rollout's group


def needs_old_logps(
    kinds: GroupKinds,
    advantages_N: Tensor,
    *,
    gamma: float = 2.0,
    lambda_max: float | None = 1.5e-3,
    intrinsic: str = "nll",
) -> bool:
    """Return whether the old log-probs can change anything in this batch. If not, they are not
    worth a forward.

    They cannot without PH groups, under a cap of 0, without a signal from mixed prompts to measure
    the cap by, or where neither reward nor credit reads them. Arguments as in `miner_advantages`;
    they are global, so that every process comes to the same answer.
    """
    if intrinsic == "constant" and gamma == 0:
        return False
    is_open = lambda_max is None or (lambda_max > 0 and bool(advantages_N[kinds.is_grpo_N].any()))
    return is_open and bool(kinds.is_ph_N.any())


@torch.no_grad()
def miner_advantages(
    rewards_N: Tensor,
    old_logps_NT: Tensor | None,
    mask_NT: Tensor,
    *,
    num_generations: int,
    gamma: float = 2.0,
    lambda_max: float | None = 1.5e-3,
    intrinsic: str = "nll",
    std_eps: float = 1e-4,
    correct_threshold: float = 1.0,
    advantages_N: Tensor | None = None,
    base_NT: Tensor | None = None,
    kinds: GroupKinds | None = None,
    world: World | None = None,
) -> MinerAdvantages:
    """Return MINER's token advantages: GRPO's for mixed and all-wrong prompts, and for all-right
    prompts a credit for the completions that the policy was unsure of.

    The paper calls the groups of completions of these prompts heterogeneous (HE), negative
    homogeneous (NH) and positive homogeneous (PH). On PH groups

        A_ij = w_ij * ReLU(r_int_i - mean_k r_int_k) * min(1, lambda_max * tau_ref / tau_pos)

    where r_int_i is the mean negative log-prob of completion i, w_ij = (1 - p_ij)^gamma weighs its
    token j, and tau_ref and tau_pos are the summed abs(A) of mixed and of all-right prompts.

    With a `world`, the NT tensors are this process's rows (T may differ between processes), the N
    tensors are global, and every process must call. The result does not depend on the number of
    processes or on where groups are cut. Only the log-probs of PH rows are read.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        old_logps_NT: (N, T) log-probs of the sampled tokens under the old policy at the sampling
            temperature, in nats. None where `needs_old_logps` is False.
        mask_NT: (N, T), non-zero where a token counts.
        num_generations: G, rollouts per prompt, at least 2.
        gamma: Focus of the credit, at least 0; 0 gives every token the same (w/o FW).
        lambda_max: Cap of the PH signal as a share of the HE signal, at least 0; None: no cap.
        intrinsic: "nll" (the paper), "constant" (w/o IR: 0.05 for every PH rollout; use it with
            lambda_max=None), or "certainty", the other sign: mean_k r_int_k - r_int_i, which
            credits the surest rollouts. Focal weights and cap stay. (arXiv 2509.00125, DACE,
            rewards certainty on easy prompts, in its own way.)
        std_eps: Of GRPO's advantage, in reward units; not used when `advantages_N` is given.
        correct_threshold: A rollout is correct when its reward is at or above this.
        advantages_N: (N,) extrinsic advantages computed elsewhere; default: GRPO's.
        base_NT: (N, T) token advantages of another method for the groups that MINER leaves alone,
            of which `advantages_N` are the means over the rollouts and tau_ref is made.
        kinds: The kinds of the groups, where they are known, or a verifier's reward decides what is
            correct; default: derived from the rewards.
        world: The processes that share the batch; default: this one alone.

    Returns:
        `MinerAdvantages`: `advantages_NT` (N, T), 0 at padding; their means over the tokens of each
        completion, `advantages_N` (N,); and the statistics that are logged.

    Raises:
        ValueError: A parameter is out of range, shapes disagree, groups are not whole, or log-probs
            of a PH row are NaN or infinite. Every process raises.

    Example:
        Two prompts with two completions each. The first prompt is all right, and its second
        completion was the less likely one.

        >>> rewards = torch.tensor([1.0, 1.0, 1.0, 0.0])
        >>> logps = torch.tensor([[-0.1, -0.1], [-0.1, -2.0], [-0.5, -0.5], [-0.5, -0.5]])
        >>> found = miner_advantages(rewards, logps, torch.ones(4, 2), num_generations=2)
        >>> found.advantages_N
        tensor([ 0.0000,  0.0021,  0.7070, -0.7070])
        >>> found.advantages_NT[1]  # the unlikely token gets nearly all of it
        tensor([5.0767e-05, 4.1913e-03])

    Source: arXiv 2601.04731, section 3. The published code lets two other caps replace lambda_max;
        we have none.
    """
    world = world or World()
    knows: dict[str, Any] = dict(gamma=gamma, lambda_max=lambda_max, intrinsic=intrinsic)
    _check_knobs(**knows)
    grouped(rewards_N, num_generations, "rewards_N")
    _check_shapes(rewards_N, old_logps_NT, mask_NT, world)
    rewards_N = rewards_N.float()  # 0 and 1 may come as integers or bools
    if advantages_N is None:
        advantages_N = group_relative_advantages(rewards_N, num_generations, std_eps=std_eps)
    kinds = kinds or group_kinds(
        rewards_N, num_generations, correct_threshold=correct_threshold, advantages_N=advantages_N
    )
    if old_logps_NT is None and needs_old_logps(kinds, advantages_N, **knows):
        raise ValueError(
            "old_logps_NT must be given when a PH group can get a signal: got None. See"
            " needs_old_logps()."
        )

    local = world.local_slice(len(mask_NT))
    base_NT = advantages_N[local].unsqueeze(1) if base_NT is None else base_NT
    tokens_NT, sums_N4 = _look_at_tokens(
        base_NT, old_logps_NT, mask_NT, kinds.is_ph_N[local], gamma
    )
    num_tokens_N, base_N, weight_N, intrinsic_N = world.gather(sums_N4).unbind(dim=1)
    is_ph_N = kinds.is_ph_N & (num_tokens_N > 0)
    # global: every process raises
    if rows := (is_ph_N & ~intrinsic_N.isfinite()).nonzero().flatten().tolist():
        raise ValueError(
            f"old_logps_NT must be finite at the tokens of PH groups: row {rows[0]} of the global"
            f" batch has a mean of {-intrinsic_N[rows[0]].item()} ({len(rows)} such rows). Mask"
            " unknown tokens, or look at the model."
        )

    # The equations, on vectors of N: a rollout's tokens differ by their weights alone.
    mined_N = CONSTANT_REWARD * is_ph_N.to(weight_N.dtype)
    if intrinsic != "constant":
        sign = -1 if intrinsic == "certainty" else 1
        # equation 6
        mined_N = intrinsic_advantages(sign * intrinsic_N, kinds.is_ph_N, num_generations)
    tau_ref, tau_pos = base_N[kinds.is_grpo_N].sum(), (mined_N * weight_N).sum()
    scale = calibration_scale(tau_ref, tau_pos, lambda_max)  # equation 9
    means = intrinsic_N[is_ph_N].mean(), weight_N[is_ph_N].sum() / num_tokens_N[is_ph_N].sum()
    numbers = torch.stack([scale, tau_ref, tau_pos, *means]).tolist()  # from the device in one go
    stats = dict(zip(STATISTICS, numbers, strict=True))
    # not asked for: nothing reads them, or the cap leaves nothing
    if old_logps_NT is None and bool(is_ph_N.any()):
        stats["intrinsic_reward"] = math.nan
        if intrinsic != "constant" or gamma > 0:
            stats |= dict(scale=0.0, tau_pos=math.nan, credit_weight=math.nan)

    # From rollouts to tokens: A_ij = w_ij * A_i.
    mined_N = mined_N * scale
    tokens_NT *= torch.where(kinds.is_ph_N, mined_N, 1.0)[local].unsqueeze(1).to(tokens_NT.dtype)
    means_N = (mined_N * weight_N / num_tokens_N.clamp(min=1)).to(advantages_N.dtype)
    advantages_N = torch.where(kinds.is_ph_N, means_N, advantages_N)
    return MinerAdvantages(tokens_NT, advantages_N, **stats, kinds=kinds)


def _look_at_tokens(
    base_NT: Tensor, old_logps_NT: Tensor | None, mask_NT: Tensor, is_ph_N: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Return (N, T), the credit's weights in PH rows and `base_NT` in the others, and of each row
    (N, 4): its tokens, their summed abs(base), their summed weights, and the intrinsic reward.

    It goes by blocks of rows: at once, the same operations keep four tensors of the batch's size
    alive and take three times as long.
    """
    device = mask_NT.device
    wide = accumulation_dtype(device)
    sums_N4 = torch.zeros(len(mask_NT), 4, dtype=wide, device=device)
    tokens_NT = torch.empty(mask_NT.shape, device=device)
    block = max(1, (CPU_BLOCK if device.type == "cpu" else GPU_BLOCK) // max(1, mask_NT.shape[1]))
    for rows in (~is_ph_N).nonzero().squeeze(1).split(block):
        is_token = mask_NT[rows].bool()
        tokens = base_NT[rows].float().expand(is_token.shape).masked_fill(~is_token, 0.0)
        sums_N4[rows, 0] = is_token.sum(dim=1, dtype=wide)
        sums_N4[rows, 1] = tokens.abs().sum(dim=1, dtype=wide)
        tokens_NT[rows] = tokens
    for rows in is_ph_N.nonzero().squeeze(1).split(block):
        is_token = mask_NT[rows].bool()
        logps = torch.zeros_like(is_token) if old_logps_NT is None else old_logps_NT[rows]
        weights = focal_weights(logps.float(), is_token, gamma)
        sums_N4[rows, 0] = is_token.sum(dim=1, dtype=wide)
        sums_N4[rows, 2] = weights.sum(dim=1, dtype=wide)
        sums_N4[rows, 3] = intrinsic_rewards(logps.float(), is_token)
        tokens_NT[rows] = weights
    return tokens_NT, sums_N4


def _check_knobs(gamma: float, lambda_max: float | None, intrinsic: str) -> None:
    if not gamma >= 0:
        raise ValueError(f"gamma must be at least 0: got {gamma}. The paper's is 2.")
    if lambda_max is not None and not lambda_max >= 0:
        raise ValueError(
            f"lambda_max must be at least 0, or None: got {lambda_max}. The paper's is 1.5e-3."
        )
    if intrinsic not in REWARDS:
        raise ValueError(f"intrinsic must be one of {', '.join(REWARDS)}: got {intrinsic!r}.")


def _check_shapes(
    rewards_N: Tensor, old_logps_NT: Tensor | None, mask_NT: Tensor, world: World
) -> None:
    shapes = [tuple(given_NT.shape) for given_NT in (mask_NT, old_logps_NT) if given_NT is not None]
    if mask_NT.dim() != 2 or shapes[0] != shapes[-1]:
        raise ValueError(
            "mask_NT and old_logps_NT must have one shape (N, T), that of the completions without"
            f" prompts: got {' and '.join(map(str, shapes))}."
        )
    if mask_NT.shape[0] * world.size != rewards_N.shape[0]:
        raise ValueError(
            f"rewards_N must hold the rewards of all {world.size} process(es): got"
            f" {rewards_N.shape[0]} rewards for {mask_NT.shape[0]} local rows. Gather the rewards"
            " first."
        )


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    """Apply MINER to PH groups; the others keep the estimate of another method, or GRPO's."""
    base, advantages_N = rollouts.base, (rollouts.base or rollouts).advantages_N
    scores: Mapping[str, Tensor] = {}
    if needs_old_logps(rollouts.kinds, advantages_N, **knobs):
        scores = rollouts.score(("old_logps",), rollouts.kinds.is_ph_N)
    mined = miner_advantages(
        rollouts.rewards_N,
        scores.get("old_logps"),
        scores.get("mask", rollouts.mask_BT),
        num_generations=rollouts.num_generations,
        advantages_N=advantages_N,
        base_NT=None if base is None else base.advantages_BT,
        kinds=rollouts.kinds,
        world=rollouts.world,
        **knobs,
    )
    stats = {name: getattr(mined, name) for name in STATISTICS} | {
        "cap_binds": float(mined.scale < 1)
    }
    # Of this batch, as the cap is: the ratio of logged means over several batches may exceed it.
    stats["l1_share"] = mined.scale * mined.tau_pos / mined.tau_ref if mined.tau_ref else math.nan
    metrics = {f"miner/{name}": value for name, value in stats.items() if not math.isnan(value)}
    return Estimate(mined.advantages_NT, mined.advantages_N, metrics)


MINER = AdvantageEstimator(
    name="miner",
    label="MINER",
    arxiv="2601.04731",
    estimate=_estimate,
    wants_sampler_logps=True,
    acts_on=frozenset({"all_right"}),
    settings={name: f"miner_{name}" for name in ("gamma", "lambda_max", "intrinsic")},
)
