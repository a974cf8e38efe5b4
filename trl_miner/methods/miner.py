"""MINER (arXiv 2601.04731): learn from the prompts that are already answered right.

Intrinsic reward -> focal credit -> calibration: one function per equation of section 3, and `miner_advantages`, which
composes them.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; T padded completion tokens
# K rollouts of positive homogeneous (PH) groups; HE heterogeneous, NH negative homogeneous groups
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed import World, accumulation_dtype
from .groups import GroupKinds, group_kinds, group_mean, grouped
from .grpo import group_relative_advantages as group_relative_advantages
from .method import AdvantageEstimator, Knob
from .rollouts import CreditExplanation, Estimate, Rollouts


def intrinsic_rewards(old_logps_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """How unsure the policy was of its own rollout: r_int_i = -(1/T_i) sum_j log pi_old(o_ij).

    Args:
        old_logps_NT: (N, T) log-probs of the sampled tokens under the old (tempered) policy, in nats.
        mask_NT: (N, T), non-zero where a token counts.

    Returns:
        (N,) mean negative log-likelihood per token, in nats. NaN for a row without tokens: it has no likelihood.

    Source: arXiv 2601.04731, section 3.1. An empty completion crashes the published code.
    """
    is_token_NT = mask_NT.bool()
    nll_sum_N = _masked_nll_sum(old_logps_NT.masked_fill(~is_token_NT, 0.0))
    return nll_sum_N / is_token_NT.sum(dim=1)  # 0 / 0 is NaN


def intrinsic_advantages(intrinsic_N: Tensor, is_ph_N: Tensor, num_generations: int) -> Tensor:
    """Center in the group, keep the positive part: ReLU(r_int_i - mean_k r_int_k), on PH groups alone.

    Not divided by the standard deviation: the absolute gap says whether a prompt is fragile or merely noisy.

    Args:
        intrinsic_N: (N,) intrinsic rewards; NaN rows (no tokens) are left out of their group's mean.
        is_ph_N: (N,) bool.
        num_generations: G, at least 2.

    Returns:
        (N,) non-negative; 0 outside PH groups and for NaN rows.

    Source: arXiv 2601.04731, equation 6 and the positive filter below it.
    """
    centered_N = intrinsic_N - group_mean(intrinsic_N, num_generations)
    return centered_N.clamp(min=0.0).nan_to_num(nan=0.0).masked_fill(~is_ph_N, 0.0)


def focal_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """w_ij = (1 - p_ij)^gamma with p = exp(old log-prob): the unsure tokens get the credit.

    Args:
        old_logps_NT: (N, T) log-probs, in nats. A positive one (rounding of a sure token) counts as p = 1.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Focus, at least 0; 0 is uniform.

    Returns:
        (N, T) weights in [0, 1], 0 at padding; constants for the gradient.

    Source: arXiv 2601.04731, equation 7; arXiv 1708.02002.
    """
    # -expm1(x) is 1 - exp(x) without the cancellation that eats a sure token's weight.
    weights_NT = torch.expm1(old_logps_NT).neg_().clamp_(min=0.0).pow_(gamma)
    return weights_NT.masked_fill_(~mask_NT.bool(), 0.0)


def uniform_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """w_ij = 1 at every token (the paper's ablation w/o FW).

    Args:
        old_logps_NT: (N, T) log-probs, in nats.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Not used.

    Returns:
        (N, T) weights, 0 at padding.
    """
    return mask_NT.bool().to(old_logps_NT.dtype)


def rank_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """w_ij = (n_i - rank_ij) / n_i, rank 0 the row's least likely token, n_i its tokens.

    Args:
        old_logps_NT: (N, T) log-probs, in nats.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Not used.

    Returns:
        (N, T) weights, 0 at padding.

    Source: the published code's `credit_method=rank`; the paper has no such variant.
    """
    is_token_NT = mask_NT.bool()
    order_NT = old_logps_NT.masked_fill(~is_token_NT, torch.inf).argsort(dim=1, stable=True)
    ranks_NT = torch.arange(order_NT.shape[1], device=order_NT.device).expand_as(order_NT)
    rank_of_NT = torch.empty_like(order_NT).scatter_(1, order_NT, ranks_NT)
    count_N1 = is_token_NT.sum(dim=1, keepdim=True)
    weights_NT = (count_N1 - rank_of_NT) / count_N1.clamp(min=1)
    return weights_NT.to(old_logps_NT.dtype).masked_fill_(~is_token_NT, 0.0)


def inverse_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """w_ij = softmax_j(-gamma * old log-prob) over the row's tokens: a row's weights sum to 1.

    Args:
        old_logps_NT: (N, T) log-probs, in nats.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Sharpness, at least 0; 0 is uniform.

    Returns:
        (N, T) weights, 0 at padding.

    Source: the published code's `credit_method=inverse`; the paper has no such variant.
    """
    scores_NT = (old_logps_NT * -gamma).masked_fill_(~mask_NT.bool(), -torch.inf)
    return torch.softmax(scores_NT, dim=1).nan_to_num_(nan=0.0)  # a row without tokens is all -inf


CREDITS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "focal": focal_weights,
    "uniform": uniform_weights,
    "rank": rank_weights,
    "inverse": inverse_weights,
}
INTRINSICS = ("nll", "constant")
# Elements looked at in one go: what stays in a processor's cache, or what keeps a GPU busy (tests/bench/advantage.py).
CPU_BLOCK, GPU_BLOCK = 2**17, 2**22


def calibration_scale(tau_ref: Tensor, tau_pos: Tensor, lambda_max: float | None) -> Tensor:
    """min(1, lambda_max * tau_ref / tau_pos): PH signal never exceeds this share of the signal from mixed prompts.

    Args:
        tau_ref: Scalar, sum of abs(advantage) over the tokens of HE groups of the global batch.
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
    """What `miner_advantages` found. Everything but `advantages_NT` speaks of the global batch.

    Attributes:
        advantages_NT: (N, T) token advantages, 0 at padding; with a `world`, this process's rows.
        advantages_N: (N,) their mean over each rollout's tokens: what to show in a log.
        scale: The calibration's factor, in [0, 1].
        tau_ref: Sum of abs(advantage) over HE tokens.
        tau_pos: Sum over PH tokens (and NH, with `nh_scale`) before calibration. NaN where the log-probs were not
            asked for.
        intrinsic_reward: Mean NLL of the PH rollouts, in nats per token; NaN where there is none.
        credit_weight: Mean weight of the PH tokens; NaN where there is none.
        has_signal: Does MINER give any rollout an advantage? Where not, the batch is plain GRPO.
        is_ph_N, is_he_N, is_nh_N: (N,) bools, the kind of each rollout's group.
    """

    advantages_NT: Tensor
    advantages_N: Tensor
    scale: float
    tau_ref: float
    tau_pos: float
    intrinsic_reward: float
    credit_weight: float
    has_signal: bool
    is_ph_N: Tensor
    is_he_N: Tensor
    is_nh_N: Tensor


def is_mined(kinds: GroupKinds, nh_scale: float = 0.0) -> Tensor:
    """Which rollouts MINER rules: those of PH groups, and with `nh_scale` of NH groups.

    Args:
        kinds: Of `group_kinds`.
        nh_scale: As of `miner_advantages`.

    Returns:
        (N,) bool.
    """
    return kinds.is_ph_N | (kinds.is_nh_N & (nh_scale > 0))


def needs_old_logps(
    kinds: GroupKinds,
    advantages_N: Tensor,
    *,
    lambda_max: float | None = 1.5e-3,
    credit: str = "focal",
    intrinsic: str = "nll",
    nh_scale: float = 0.0,
) -> bool:
    """Can the old log-probs change anything in this batch? If not, no forward needs to be spent on them.

    They cannot without PH (or, with `nh_scale`, NH) groups, under a cap of 0, without any signal from mixed prompts to
    measure the cap by, or when neither the reward nor the credit looks at them. Global inputs, so every process comes
    to the same answer.

    Args:
        kinds: Of `group_kinds`.
        advantages_N: (N,) extrinsic advantages of the global batch.
        lambda_max, credit, intrinsic, nh_scale: Those of `miner_advantages`.

    Returns:
        Whether `miner_advantages` must be given the log-probs.
    """
    if lambda_max is not None and (lambda_max == 0 or not bool((advantages_N != 0)[kinds.is_he_N].any())):
        return False
    if nh_scale > 0 and bool(kinds.is_nh_N.any()):
        return True
    return not (intrinsic == "constant" and credit == "uniform") and bool(kinds.is_ph_N.any())


@torch.no_grad()
def miner_advantages(
    rewards_N: Tensor,
    old_logps_NT: Tensor | None,
    mask_NT: Tensor,
    *,
    num_generations: int,
    gamma: float = 2.0,
    lambda_max: float | None = 1.5e-3,
    credit: str = "focal",
    intrinsic: str = "nll",
    constant_reward: float = 0.05,
    nh_scale: float = 0.0,
    std_eps: float = 1e-4,
    correct_threshold: float = 1.0,
    verifier_rewards_N: Tensor | None = None,
    advantages_N: Tensor | None = None,
    base_NT: Tensor | None = None,
    kinds: GroupKinds | None = None,
    world: World | None = None,
) -> MinerAdvantages:
    """MINER's token advantages: GRPO's on mixed and all-wrong groups, calibrated intrinsic credit on all-right ones.

    A_ij = (r_i - mean) / (std + eps) outside PH groups; on PH groups
    A_ij = w_ij * ReLU(r_int_i - mean_k r_int_k) * min(1, lambda_max * tau_ref / tau_pos).

    With a `world`, the NT tensors are this process's rows (T may differ between processes), the N tensors are global,
    and every process must call. One collective of four numbers per rollout is all that is exchanged, so the result
    does not depend on the number of processes or on where groups are cut. Only the log-probs of PH rows (and of NH
    rows with `nh_scale`) are read.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        old_logps_NT: (N, T) log-probs of the sampled tokens under the old policy at the sampling temperature, in nats.
            None where `needs_old_logps` is False.
        mask_NT: (N, T), non-zero where a token counts.
        num_generations: G, rollouts per prompt, at least 2.
        gamma: Focus of the credit, at least 0.
        lambda_max: Cap of the PH signal as a share of the HE signal, at least 0; None: no cap.
        credit: "focal" (the paper), "uniform" (w/o FW), "rank" or "inverse" (the published code).
        intrinsic: "nll" (the paper) or "constant": every PH rollout gets `constant_reward` instead (w/o IR, which the
            paper does not calibrate: combine it with lambda_max=None).
        constant_reward: In advantage units; the paper's appendix uses 0.05.
        nh_scale: Punish confidence in all-wrong (NH) groups: their rollouts get
            -nh_scale * w_ij * ReLU(mean_k r_int_k - r_int_i), which counts in tau_pos and falls under the cap. At
            least 0, and 0 (none) in the paper; the published code's `incorrect_scale`.
        std_eps: Of GRPO's advantage, in reward units; not used when `advantages_N` is given.
        correct_threshold: In units of the verifier's reward.
        verifier_rewards_N: (N,) the verifier's reward alone, which decides what is correct; default: `rewards_N`.
        advantages_N: (N,) extrinsic advantages computed elsewhere; default: GRPO's.
        base_NT: (N, T) token advantages of another method for the groups that MINER leaves alone, whose means over
            the rollouts are `advantages_N`. tau_ref is then theirs.
        kinds: The kinds of the groups, where they are already known; default: found from the rewards.
        world: The processes that share the batch; default: this one alone.

    Returns:
        `MinerAdvantages`.

    Raises:
        ValueError: A knob out of range, shapes that disagree, groups that are not whole, or a log-prob of a PH token
            that is NaN or infinite (the row is named; every process raises).

    Source: arXiv 2601.04731, section 3. The published code lets two other caps replace lambda_max; we have none.
    """
    world = world or World()
    knobs: dict[str, Any] = dict(lambda_max=lambda_max, credit=credit, intrinsic=intrinsic, nh_scale=nh_scale)
    MINER.check({**knobs, "gamma": gamma, "constant_reward": constant_reward})
    _check(rewards_N, old_logps_NT, mask_NT, world, num_generations)
    rewards_N = rewards_N.float()  # 0 and 1 may come as integers or bools
    if advantages_N is None:
        advantages_N = group_relative_advantages(rewards_N, num_generations, std_eps=std_eps)
    kinds = kinds or group_kinds(
        rewards_N,
        num_generations,
        correct_threshold=correct_threshold,
        verifier_rewards_N=verifier_rewards_N,
        advantages_N=advantages_N,
    )
    if old_logps_NT is None and needs_old_logps(kinds, advantages_N, **knobs):
        raise ValueError(
            "old_logps_NT must be given when a homogeneous group can get a signal: got None. Compute the "
            "log-probs of those rows under the old policy; needs_old_logps() says when they may be left out."
        )

    # What each row contributes, gathered once: tokens, summed NLL, summed credit weight, summed abs(base).
    local = world.local_slice(mask_NT.shape[0])
    looks_away = old_logps_NT is None and not (intrinsic == "constant" and credit == "uniform")
    is_mined_N = is_mined(kinds, nh_scale) & (not looks_away)
    advantages_NT, row_sums_N4 = _first_pass(
        advantages_N[local], base_NT, old_logps_NT, mask_NT, is_mined_N[local], CREDITS[credit], gamma
    )
    tokens_N, nll_sum_N, weight_sum_N, base_sum_N = world.gather(row_sums_N4).unbind(dim=1)
    _check_finite(nll_sum_N)

    # The global batch as vectors of N: the paper's sums over all tokens become sums over rows.
    intrinsic_N = torch.where(tokens_N > 0, nll_sum_N / tokens_N.clamp(min=1), torch.nan)
    is_ph_N = kinds.is_ph_N & is_mined_N
    if intrinsic == "constant":
        mined_N = constant_reward * (is_ph_N & (tokens_N > 0))
    else:
        mined_N = intrinsic_advantages(intrinsic_N, is_ph_N, num_generations)
    if nh_scale > 0:  # the wrong answers that the policy was surest of: the same centered NLL, from below
        mined_N = mined_N - nh_scale * intrinsic_advantages(-intrinsic_N, kinds.is_nh_N & is_mined_N, num_generations)
    tau_ref = base_sum_N[kinds.is_he_N].sum()
    tau_pos = (mined_N.abs() * weight_sum_N).sum()
    scale = calibration_scale(tau_ref, tau_pos, lambda_max)
    stats = _scalars(
        scale=scale,
        tau_ref=tau_ref,
        tau_pos=tau_pos,
        intrinsic_reward=intrinsic_N[is_ph_N].nanmean(),
        credit_weight=weight_sum_N[is_ph_N].sum() / tokens_N[is_ph_N].sum(),
    )
    if old_logps_NT is None:
        stats["intrinsic_reward"] = math.nan
    if looks_away and kinds.is_ph_N.any():  # left out because nothing could come of them
        stats |= dict(scale=0.0, tau_pos=math.nan)
    has_signal = stats["scale"] > 0 and stats["tau_pos"] > 0
    if not has_signal and base_NT is None:  # mined rows keep GRPO's zero, bit for bit
        rows = is_mined_N[local].nonzero().squeeze(1)
        advantages_NT[rows] = advantages_N[local][rows].unsqueeze(1) * mask_NT[rows].bool()
        return MinerAdvantages(advantages_NT, advantages_N, **stats, has_signal=False, **kinds._asdict())

    # Mined rows hold their weights so far, the others their advantage. Without a signal the other method's advantages
    # of all-right rollouts go all the same: they are MINER's, and MINER has nothing to say.
    mined_N = mined_N * scale
    is_mined_N = is_mined_N | (kinds.is_ph_N & (base_NT is not None))
    factors_N = torch.where(is_mined_N, mined_N, 1.0).to(advantages_NT.dtype)
    advantages_NT.mul_(factors_N[local].unsqueeze(1))
    means_N = (mined_N * weight_sum_N / tokens_N.clamp(min=1)).to(advantages_N.dtype)
    means_N = torch.where(is_mined_N, means_N, advantages_N)
    return MinerAdvantages(advantages_NT, means_N, **stats, has_signal=has_signal, **kinds._asdict())


def _first_pass(
    advantages_N: Tensor,
    base_NT: Tensor | None,
    old_logps_NT: Tensor | None,
    mask_NT: Tensor,
    is_mined_N: Tensor,
    credit: Callable[[Tensor, Tensor, float], Tensor],
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """One look at every token of this process, in blocks of rows.

    As operations on the whole batch the same lines keep four tensors of its size alive and take three times as long.

    Returns:
        (N, T): the credit weights in mined rows, the advantage in the others, 0 at padding.
        (N, 4): each row's number of tokens; in mined rows its summed NLL and summed weight; in the others its summed
            abs(advantage).
    """
    num_rows, num_tokens = mask_NT.shape
    row_sums_N4 = torch.zeros(num_rows, 4, dtype=accumulation_dtype(mask_NT.device), device=mask_NT.device)
    out_NT = torch.empty(num_rows, num_tokens, dtype=torch.float32, device=mask_NT.device)
    block = max(1, (CPU_BLOCK if mask_NT.device.type == "cpu" else GPU_BLOCK) // max(1, num_tokens))
    for rows in (~is_mined_N).nonzero().squeeze(1).split(block):
        is_token = mask_NT[rows].bool()
        row_sums_N4[rows, 0] = is_token.sum(dim=1).to(row_sums_N4.dtype)
        if base_NT is None:
            out_NT[rows] = advantages_N[rows].unsqueeze(1) * is_token
            row_sums_N4[rows, 3] = advantages_N[rows].abs() * row_sums_N4[rows, 0]
        else:
            advantages = base_NT[rows].float().masked_fill_(~is_token, 0.0)
            out_NT[rows] = advantages
            row_sums_N4[rows, 3] = advantages.abs().sum(dim=1, dtype=row_sums_N4.dtype)
    for rows in is_mined_N.nonzero().squeeze(1).split(block):
        is_token = mask_NT[rows].bool()
        row_sums_N4[rows, 0] = is_token.sum(dim=1).to(row_sums_N4.dtype)
        if old_logps_NT is not None:
            logps = old_logps_NT[rows].float().masked_fill_(~is_token, 0.0)
            row_sums_N4[rows, 1] = _masked_nll_sum(logps)
            weights = credit(logps, is_token, gamma)
        else:  # a constant reward, spread evenly
            weights = is_token.float()
        row_sums_N4[rows, 2] = weights.sum(dim=1, dtype=row_sums_N4.dtype)
        out_NT[rows] = weights
    return out_NT, row_sums_N4


def _masked_nll_sum(masked_logps_NT: Tensor) -> Tensor:
    return -masked_logps_NT.sum(dim=1, dtype=accumulation_dtype(masked_logps_NT.device))


def _scalars(**values: Tensor) -> dict[str, Any]:
    """Read from the device in one go."""
    return dict(zip(values, torch.stack([*values.values()]).tolist(), strict=True))


def _check_finite(nll_sum_N: Tensor) -> None:
    """Raised on every process alike, since the sums are global: no process is left waiting for the others."""
    bad_rows = (~nll_sum_N.isfinite()).nonzero().flatten().tolist()
    if bad_rows:
        raise ValueError(
            f"old_logps_NT must be finite at the tokens of positive homogeneous groups: row {bad_rows[0]} of the "
            f"global batch sums to {nll_sum_N[bad_rows[0]].item()} ({len(bad_rows)} such rows). Mask the tokens whose "
            f"log-prob is unknown, or look for a model that has diverged."
        )


def _check(
    rewards_N: Tensor,
    old_logps_NT: Tensor | None,
    mask_NT: Tensor,
    world: World,
    num_generations: int,
) -> None:
    grouped(rewards_N, num_generations, "rewards_N")
    if mask_NT.dim() != 2:
        raise ValueError(f"mask_NT must have shape (N, T): got {tuple(mask_NT.shape)}.")
    if old_logps_NT is not None and old_logps_NT.shape != mask_NT.shape:
        raise ValueError(
            f"old_logps_NT and mask_NT must have one shape: got {tuple(old_logps_NT.shape)} and "
            f"{tuple(mask_NT.shape)}. Both cover the completion alone, without the prompt."
        )
    if mask_NT.shape[0] * world.size != rewards_N.shape[0]:
        raise ValueError(
            f"rewards_N must hold the rewards of all {world.size} process(es): got {rewards_N.shape[0]} rewards for "
            f"{mask_NT.shape[0]} local rows. Gather the rewards first."
        )


def explain_credit(
    rewards_N: Tensor,
    old_logps_NT: Tensor,
    mask_NT: Tensor,
    advantages_NT: Tensor,
    *,
    kinds: GroupKinds,
    advantages_N: Tensor,
    num_generations: int,
    **knobs: Any,
) -> CreditExplanation:
    """Compute the credit weights and the advantages before calibration of some rollouts anew, for the token records.

    Args:
        rewards_N: (N,) total rewards of whole groups.
        old_logps_NT: (N, T) log-probs under the old policy, in nats.
        mask_NT: (N, T), non-zero where a token counts and its log-prob is known.
        advantages_NT: (N, T) the advantages that the loss was given.
        kinds: The kind of each rollout's group.
        advantages_N: (N,) the extrinsic advantages.
        num_generations: G.
        **knobs: Those of `miner_advantages`.

    Returns:
        `CreditExplanation`; rollouts that MINER does not rule keep `advantages_NT`.
    """
    is_ruled_N = is_mined(kinds, knobs["nh_scale"])
    weights_NT = CREDITS[knobs["credit"]](old_logps_NT.masked_fill(~mask_NT.bool(), 0.0), mask_NT, knobs["gamma"])
    uncapped = miner_advantages(
        rewards_N,
        old_logps_NT,
        mask_NT,
        num_generations=num_generations,
        kinds=kinds,
        advantages_N=advantages_N,
        **{**knobs, "lambda_max": None},
    )
    before_NT = torch.where(is_ruled_N.unsqueeze(1), uncapped.advantages_NT, advantages_NT)
    return CreditExplanation(is_ruled_N, weights_NT, before_NT)


def _estimate(rollouts: Rollouts, *, base: Estimate | None = None, **knobs: Any) -> Estimate:
    """Apply MINER to the groups that it mines; the others keep `base`, the estimate of another method, or GRPO's."""
    advantages_N = rollouts.advantages_N if base is None else base.advantages_N
    knows = {name: knobs[name] for name in ("lambda_max", "credit", "intrinsic", "nh_scale")}
    old_logps_BT, mask_BT = None, rollouts.mask_BT
    if needs_old_logps(rollouts.kinds, advantages_N, **knows):
        scores = rollouts.score(("old_logps",), is_mined(rollouts.kinds, knobs["nh_scale"]))
        old_logps_BT, mask_BT = scores["old_logps"], scores["mask"]
    mined = miner_advantages(
        rollouts.rewards_N,
        old_logps_BT,
        mask_BT,
        num_generations=rollouts.num_generations,
        advantages_N=advantages_N,
        base_NT=_spread(base, rollouts),
        kinds=rollouts.kinds,
        world=rollouts.world,
        **knobs,
    )
    metrics = {
        "miner/tau_ref": mined.tau_ref,
        "miner/tau_pos": mined.tau_pos,
        "miner/scale": mined.scale,
        "miner/cap_binds": float(mined.scale < 1),
        "miner/intrinsic_reward": mined.intrinsic_reward,
        "miner/credit_weight": mined.credit_weight,
    }
    # A number that this batch does not define stays out: older TRL would average it to NaN.
    metrics = {name: value for name, value in metrics.items() if not math.isnan(value)}
    is_own = mined.has_signal or (base is not None and base.advantages is not None)
    return Estimate(mined.advantages_NT if is_own else None, mined.advantages_N, metrics)


def _spread(base: Estimate | None, rollouts: Rollouts) -> Tensor | None:
    """Return the base's advantages as (B, T); None where they are TRL's own."""
    if base is None or base.advantages is None:
        return None
    advantages = base.advantages
    return advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(rollouts.mask_BT.shape)


MINER = AdvantageEstimator(
    name="miner",
    label="MINER",
    arxiv="2601.04731",
    function=miner_advantages,
    estimate=_estimate,
    wants_sampler_logps=True,
    per_token=True,
    uniform_when={"credit": "uniform"},
    rules=frozenset({"all_right"}),
    explain_credit=explain_credit,
    recorded_knobs=("credit", "gamma", "lambda_max"),
    recorded_metrics=("scale", "tau_ref", "tau_pos"),
    knobs={
        "gamma": Knob(
            "Focus of MINER's token credit (1 - p)^gamma, at least 0; 0 is uniform.",
            at_least=0,
            hint="0 is uniform credit, the paper uses 2.",
        ),
        "lambda_max": Knob(
            "Cap of the signal from all-right prompts, as a share of the signal from mixed prompts. 0: plain GRPO; "
            "inf (or null in a recipe): no cap.",
            "Both signals are of the same generation batch. No cap is the paper's ablation w/o AC.",
            at_least=0,
            hint="None is no cap, the paper uses 1.5e-3.",
        ),
        "credit": Knob(
            f"MINER's token credit: {', '.join(CREDITS)}.",
            "`uniform` is the paper's ablation w/o FW.",
            one_of=tuple(CREDITS),
        ),
        "intrinsic": Knob(
            f"MINER's intrinsic reward: {', '.join(INTRINSICS)}.",
            "With `constant`, every rollout of an all-right prompt gets `miner_constant_reward` (the paper's ablation "
            "w/o IR, which it does not calibrate: set `miner_lambda_max: null` with it).",
            one_of=INTRINSICS,
        ),
        "constant_reward": Knob(
            "Reward of miner_intrinsic=constant, in advantage units.", at_least=0, hint="The paper uses 0.05."
        ),
        "nh_scale": Knob(
            "Weight of MINER's punishment of sure all-wrong prompts, under the cap; 0: none.",
            "The paper leaves them alone; the published code can punish them.",
            at_least=0,
            hint="0, the paper's, leaves all-wrong prompts alone.",
        ),
    },
)
