"""MINER (arXiv 2601.04731): learn from the prompts that are already answered right.

Intrinsic reward, focal credit, calibration: one function per equation of section 3, which `miner_advantages` calls one
after another. `miner_tokens.py` has those that look at single tokens; `MINER`, at the end, says what MINER needs.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded completion tokens
# PH positive homogeneous, HE heterogeneous, NH negative homogeneous groups
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed import World
from .groups import GroupKinds, group_kinds, group_mean, grouped
from .grpo import group_relative_advantages as group_relative_advantages
from .method import AdvantageEstimator, Knob
from .miner_tokens import CREDITS, RowSums, look_at_tokens
from .miner_tokens import focal_weights as focal_weights
from .miner_tokens import intrinsic_rewards as intrinsic_rewards
from .rollouts import CreditExplanation, Estimate, Rollouts

INTRINSICS = ("nll", "constant")


def intrinsic_advantages(intrinsic_N: Tensor, is_ph_N: Tensor, num_generations: int) -> Tensor:
    """Center in the group and keep the positive part: ReLU(r_int_i - mean_k r_int_k), on PH groups alone.

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


def calibration_scale(tau_ref: Tensor, tau_pos: Tensor, lambda_max: float | None) -> Tensor:
    """Return min(1, lambda_max * tau_ref / tau_pos): the PH signal never exceeds this share of the HE signal.

    Args:
        tau_ref: Scalar, sum of abs(advantage) over the tokens of HE and unscorable groups of the global batch.
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
    """The result of `miner_advantages`. Everything but `advantages_NT` speaks of the global batch.

    Attributes:
        advantages_NT: (N, T) token advantages, 0 at padding; with a `world`, this process's rows.
        advantages_N: (N,) their mean over each rollout's tokens, for the logs.
        scale: The calibration's factor, in [0, 1].
        tau_ref: Sum of abs(advantage) over HE tokens, and those of unscorable groups.
        tau_pos: Sum over PH tokens (and NH, with `nh_scale`) before calibration. NaN where the log-probs were not
            asked for.
        intrinsic_reward: Mean NLL of the PH rollouts, in nats per token; NaN where there is none.
        credit_weight: Mean weight of the PH tokens; NaN where there is none.
        has_signal: Whether MINER gives any rollout an advantage. Where not, the batch is plain GRPO.
        is_ph_N, is_he_N, is_nh_N, is_unscorable_N: (N,) bools, the kind of each rollout's group.
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
    is_unscorable_N: Tensor


def is_mined(kinds: GroupKinds, nh_scale: float = 0.0) -> Tensor:
    """Return (N,) bool, the rollouts of `kinds` that MINER rules: PH groups, and with `nh_scale` NH groups."""
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
    """Return whether the old log-probs can change anything in this batch. If not, they are not worth a forward.

    They cannot without PH (or, with `nh_scale`, NH) groups, under a cap of 0, without any signal from mixed prompts to
    measure the cap by, or when neither the reward nor the credit looks at them. The arguments are global, so every
    process comes to the same answer.

    Args:
        kinds: Of `group_kinds`.
        advantages_N: (N,) extrinsic advantages of the global batch.
        lambda_max, credit, intrinsic, nh_scale: Those of `miner_advantages`.
    """
    if lambda_max is not None and (lambda_max == 0 or not bool((advantages_N != 0)[kinds.is_grpo_N].any())):
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
    """Return MINER's token advantages: GRPO's on HE and NH groups, calibrated intrinsic credit on PH groups.

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
        nh_scale: Punish confidence in NH groups: their rollouts get -nh_scale * w_ij * ReLU(mean_k r_int_k - r_int_i),
            which counts in tau_pos and falls under the cap. At least 0, and 0 (none) in the paper; the published
            code's `incorrect_scale`.
        std_eps: Of GRPO's advantage, in reward units; not used when `advantages_N` is given.
        correct_threshold: In units of the verifier's reward.
        verifier_rewards_N: (N,) the verifier's reward alone, which decides what is correct; default: `rewards_N`.
        advantages_N: (N,) extrinsic advantages computed elsewhere; default: GRPO's.
        base_NT: (N, T) token advantages of another method for the groups that MINER leaves alone, whose means over
            the rollouts are `advantages_N`. tau_ref is then theirs.
        kinds: The kinds of the groups, where they are already known; default: derived from the rewards.
        world: The processes that share the batch; default: this one alone.

    Returns:
        `MinerAdvantages`.

    Raises:
        ValueError: A knob out of range, shapes that disagree, groups that are not whole, or a log-prob of a PH token
            that is NaN or infinite (the row is named; every process raises).

    Source: arXiv 2601.04731, section 3. The published code lets two other caps replace lambda_max; we have none.
    """
    world = world or World()
    knows: dict[str, Any] = dict(lambda_max=lambda_max, credit=credit, intrinsic=intrinsic, nh_scale=nh_scale)
    MINER.check({**knows, "gamma": gamma, "constant_reward": constant_reward})
    _check_shapes(rewards_N, old_logps_NT, mask_NT, world, num_generations)
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
    is_blind = old_logps_NT is None and _check_blindness(kinds, advantages_N, **knows)
    is_mined_N = is_mined(kinds, nh_scale) & (not is_blind)

    # From tokens to rollouts: the sums over the tokens of each row.
    local = world.local_slice(mask_NT.shape[0])
    tokens_NT, sums_N4 = look_at_tokens(
        advantages_N[local], base_NT, old_logps_NT, mask_NT, is_mined_N[local], credit, gamma
    )
    sums = RowSums(*world.gather(sums_N4).unbind(dim=1))
    if old_logps_NT is not None:
        _check_finite(sums, is_mined_N)

    # The equations, on vectors of N. A rollout's tokens differ by their weights alone, so that tau_ref and tau_pos,
    # which are sums over tokens, become sums over rollouts.
    is_ph_N, is_nh_N = kinds.is_ph_N & is_mined_N, kinds.is_nh_N & is_mined_N
    if intrinsic == "constant":
        mined_N = constant_reward * (is_ph_N & (sums.tokens_N > 0))
    else:
        mined_N = intrinsic_advantages(sums.intrinsic_N, is_ph_N, num_generations)  # equation 6
    if nh_scale > 0:  # the wrong answers that the policy was surest of: the same centered NLL, from below
        mined_N = mined_N - nh_scale * intrinsic_advantages(-sums.intrinsic_N, is_nh_N, num_generations)
    tau_ref = sums.base_N[kinds.is_grpo_N].sum()
    tau_pos = (mined_N.abs() * sums.weight_N).sum()
    scale = calibration_scale(tau_ref, tau_pos, lambda_max)  # equation 9

    # From rollouts to tokens: the mined rows hold their weights so far, the others their advantage.
    stats = _statistics(sums, is_ph_N, scale=scale, tau_ref=tau_ref, tau_pos=tau_pos)
    if is_blind and kinds.is_ph_N.any():
        stats |= dict(scale=0.0, tau_pos=math.nan)
    has_signal = stats["scale"] > 0 and stats["tau_pos"] > 0
    if has_signal or base_NT is not None:
        # Even without a signal, the other method's advantages of PH rollouts go: those rollouts are MINER's.
        is_ruled_N = is_mined_N | (kinds.is_ph_N & (base_NT is not None))
        factors_N = torch.where(is_ruled_N, mined_N * scale, 1.0)
        tokens_NT.mul_(factors_N.to(tokens_NT.dtype)[local].unsqueeze(1))
        means_N = (factors_N * sums.weight_N / sums.tokens_N.clamp(min=1)).to(advantages_N.dtype)
        advantages_N = torch.where(is_ruled_N, means_N, advantages_N)
    else:  # mined rows keep GRPO's zero, bit for bit
        rows = is_mined_N[local].nonzero().squeeze(1)
        tokens_NT[rows] = advantages_N[local][rows].unsqueeze(1) * mask_NT[rows].bool()
    return MinerAdvantages(tokens_NT, advantages_N, **stats, has_signal=has_signal, **kinds._asdict())


def _check_blindness(kinds: GroupKinds, advantages_N: Tensor, *, credit: str, intrinsic: str, **knows: Any) -> bool:
    """Return whether log-probs that are left out leave PH groups without a signal; raise where they may not be."""
    if needs_old_logps(kinds, advantages_N, credit=credit, intrinsic=intrinsic, **knows):
        raise ValueError(
            "old_logps_NT must be given when a homogeneous group can get a signal: got None. Compute the log-probs of "
            "those rows under the old policy; needs_old_logps() says when they may be left out."
        )
    return not (intrinsic == "constant" and credit == "uniform")


def _statistics(sums: RowSums, is_ph_N: Tensor, **values: Tensor) -> dict[str, Any]:
    """Return scalars and the means over PH rollouts as floats, read from the device in one go."""
    values["intrinsic_reward"] = sums.intrinsic_N[is_ph_N].nanmean()
    values["credit_weight"] = sums.weight_N[is_ph_N].sum() / sums.tokens_N[is_ph_N].sum()
    return dict(zip(values, torch.stack([*values.values()]).tolist(), strict=True))


def _check_finite(sums: RowSums, is_mined_N: Tensor) -> None:
    """Raise on every process alike, since the sums are global: no process is left waiting for the others."""
    is_bad_N = is_mined_N & (sums.tokens_N > 0) & ~sums.intrinsic_N.isfinite()
    if rows := is_bad_N.nonzero().flatten().tolist():
        raise ValueError(
            f"old_logps_NT must be finite at the tokens of positive homogeneous groups: row {rows[0]} of the global "
            f"batch has a mean of {-sums.intrinsic_N[rows[0]].item()} ({len(rows)} such rows). Mask the tokens whose "
            f"log-prob is unknown, or look for a model that has diverged."
        )


def _check_shapes(
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
    rewards_N: Tensor, old_logps_NT: Tensor, mask_NT: Tensor, advantages_NT: Tensor, *, kinds: GroupKinds, **knobs: Any
) -> CreditExplanation:
    """Compute credit weights and uncalibrated advantages of some rollouts again: see `AdvantageEstimator`."""
    is_ruled_N = is_mined(kinds, knobs["nh_scale"])
    weights_NT = CREDITS[knobs["credit"]](old_logps_NT.masked_fill(~mask_NT.bool(), 0.0), mask_NT, knobs["gamma"])
    uncapped = miner_advantages(rewards_N, old_logps_NT, mask_NT, kinds=kinds, **{**knobs, "lambda_max": None})
    before_NT = torch.where(is_ruled_N.unsqueeze(1), uncapped.advantages_NT, advantages_NT)
    return CreditExplanation(is_ruled_N, weights_NT, before_NT)


def _estimate(rollouts: Rollouts, **knobs: Any) -> Estimate:
    """Apply MINER to the groups that it mines; the others keep the estimate of another method, or GRPO's."""
    base = rollouts.base
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
        # Of this batch, as the cap is: the ratio of logged means over several batches may exceed it.
        "miner/l1_share": mined.scale * mined.tau_pos / mined.tau_ref if mined.tau_ref else math.nan,
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
    acts_on=frozenset({"all_right"}),
    acts_when={"nh_scale": "all_wrong"},
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
            "inf (or null in a recipe): no cap, the paper's ablation w/o AC. Both are of the same generation batch.",
            at_least=0,
            hint="None is no cap, the paper uses 1.5e-3.",
        ),
        "credit": Knob(
            f"MINER's token credit: {', '.join(CREDITS)}. uniform is the paper's ablation w/o FW.",
            one_of=tuple(CREDITS),
        ),
        "intrinsic": Knob(
            f"MINER's intrinsic reward: {', '.join(INTRINSICS)}. With constant, every rollout of an all-right prompt "
            "gets miner_constant_reward (the paper's ablation w/o IR, which it does not calibrate: set "
            "miner_lambda_max: null with it).",
            one_of=INTRINSICS,
        ),
        "constant_reward": Knob(
            "Reward of miner_intrinsic=constant, in advantage units.", at_least=0, hint="The paper uses 0.05."
        ),
        "nh_scale": Knob(
            "Weight of MINER's penalty on confident all-wrong rollouts, under the cap. 0, as in the paper: none; "
            "the published code can penalize them.",
            at_least=0,
            hint="0, the paper's, leaves all-wrong prompts alone.",
        ),
    },
)
