"""MINER (arXiv 2601.04731): learn from the prompts that are already answered correctly.

Section 3 of the paper, in its order, one function for each equation. `miner` puts them together,
and `miner_advantages` does it for plain tensors.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
# T padded completion tokens; PH: all right, HE: mixed
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .groups import GroupKinds, correctness, group_kinds, group_mean
from .grpo import group_relative_advantages
from .method import AdvantageEstimator
from .processes import World
from .rollouts import Estimate, Rollouts, block_size, merge, not_finite, sum_tokens

REWARDS = ("nll", "certainty", "constant")  # values of `intrinsic`
CONSTANT_REWARD = 0.05  # of intrinsic="constant", in advantage units: the paper's appendix


def intrinsic_rewards(old_logps_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Return how unsure the policy was: r_int_i = -(1/T_i) sum_j log pi_old(o_ij).

    Args:
        old_logps_NT: (N, T) log-probs of the sampled tokens, in nats, at the sampling temperature.
        mask_NT: (N, T), non-zero where a token counts.

    Returns:
        (N,) mean negative log-likelihood, in nats per token; NaN for a completion without tokens.

    Source: arXiv 2601.04731, equation 5. An empty completion crashes the published code.
    """
    is_token_NT = mask_NT.bool()
    return -sum_tokens(old_logps_NT, is_token_NT) / is_token_NT.float().sum(dim=1)


def intrinsic_advantages(intrinsic_N: Tensor, is_ph_N: Tensor, num_generations: int) -> Tensor:
    """Return ReLU(r_int_i - mean_k r_int_k) in PH groups, 0 elsewhere.

    There is no division by the standard deviation: the gap itself says whether a completion is
    fragile or merely a little less likely.

    Args:
        intrinsic_N: (N,) intrinsic rewards; NaN (no tokens) is left out of the mean and gets 0.
        is_ph_N: (N,) bool.
        num_generations: G, at least 2.

    Returns:
        (N,) at least 0, so that no correct completion is made less likely.

    Source: arXiv 2601.04731, equations 6 and 7.
    """
    centered_N = intrinsic_N - group_mean(intrinsic_N, num_generations)
    return centered_N.clamp(min=0.0).nan_to_num(nan=0.0).masked_fill(~is_ph_N, 0.0)


def focal_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """Return w_ij = (1 - p_ij)^gamma: the tokens that the policy was unsure of get the credit.

    Args:
        old_logps_NT: (N, T) log-probs, in nats. A positive one (rounding of a sure token) counts as
            p = 1.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Focus, at least 0; 0 gives every token the same.

    Returns:
        (N, T) weights in [0, 1], 0 at padding; constants for the gradient.

    Source: arXiv 2601.04731, equation 8; arXiv 1708.02002.
    """
    # -expm1(x) is 1 - exp(x) without the cancellation that eats a sure token's weight
    weights_NT = torch.expm1(old_logps_NT).neg_().clamp_(min=0.0).pow_(gamma)
    return weights_NT.masked_fill_(~mask_NT.bool(), 0.0)


def calibration_scale(tau_ref: Tensor, tau_pos: Tensor, lambda_max: float | None) -> Tensor:
    """Return min(1, lambda_max * tau_ref / tau_pos): the PH signal is at most that share of the HE
    signal.

    Args:
        tau_ref: Sum of abs(advantage) over the tokens of all HE groups (equation 10).
        tau_pos: The same over all PH groups, before calibration.
        lambda_max: The share, at least 0; None: no cap.

    Returns:
        In [0, 1]; 1 where there is nothing to cap.

    Source: arXiv 2601.04731, equation 11.
    """
    cap = tau_ref * (torch.inf if lambda_max is None else lambda_max)
    return torch.where(tau_pos > cap, cap / tau_pos, 1.0)


@torch.no_grad()
def miner(
    rollouts: Rollouts,
    *,
    gamma: float = 2.0,
    lambda_max: float | None = 1.5e-3,
    intrinsic: str = "nll",
) -> Estimate:
    """Return MINER's advantages of all-right prompts; other rows are 0.

    A_ij = w_ij * ReLU(r_int_i - mean_k r_int_k) * min(1, lambda_max * tau_ref / tau_pos), with all
    sums over the global batch. The log-probs of PH rows alone are read. Without mixed prompts the
    cap is 0, and so are the advantages.

    Args:
        rollouts: The batch; `base` has the advantages of mixed prompts, by default GRPO's.
        gamma: Focus of the credit, at least 0; 0 gives every token the same (w/o FW).
        lambda_max: Cap of the PH signal as a share of the HE signal, at least 0; None: no cap (w/o
            AC).
        intrinsic: "nll" (the paper); "constant", 0.05 for every PH completion (w/o IR, with
            gamma=0 and lambda_max=None); "certainty", the other sign, which credits the surest
            completions (arXiv 2509.00125, DACE, rewards certainty in its own way).

    Raises:
        ValueError: A log-prob of a PH completion is not finite. Every process raises.

    Source: arXiv 2601.04731, section 3. The published code lets two other caps replace lambda_max;
        we have none.
    """
    if not gamma >= 0 or not (lambda_max is None or lambda_max >= 0) or intrinsic not in REWARDS:
        raise ValueError(
            f"MINER has gamma={gamma}, lambda_max={lambda_max} and intrinsic={intrinsic!r}. The"
            f" first two must be at least 0, and the last one of {', '.join(REWARDS)}."
        )
    kinds, tokens_N = rollouts.kinds, rollouts.token_counts_N
    is_ph_N = kinds.is_ph_N & (tokens_N > 0)
    weights_BT, weight_N, intrinsic_N = look_at_tokens(rollouts, is_ph_N, gamma)
    if intrinsic == "constant":
        mined_N = CONSTANT_REWARD * is_ph_N.to(weight_N)
    else:
        sign = -1 if intrinsic == "certainty" else 1
        mined_N = intrinsic_advantages(sign * intrinsic_N, is_ph_N, rollouts.num_generations)
    # Unscorable groups keep GRPO's advantages and count as mixed.
    tau_ref = signal_sums(rollouts)[kinds.is_he_N | kinds.is_unscorable_N].sum()
    tau_pos = (mined_N * weight_N).sum()  # a completion has sum_j w_ij A_i
    scale = calibration_scale(tau_ref, tau_pos, lambda_max)
    mined_N = mined_N * scale
    statistics = {
        "scale": scale,
        "tau_ref": tau_ref,
        "tau_pos": tau_pos,
        "l1_share": scale * tau_pos / tau_ref,
        "intrinsic_reward": intrinsic_N[is_ph_N].mean(),
    }
    mined_B1 = rollouts.local(mined_N)[:, None].to(weights_BT)
    return Estimate(
        weights_BT.mul_(mined_B1),  # equation 9, with the scale of 11
        (mined_N * weight_N / tokens_N.clamp(min=1)).to(rollouts.advantages_N),
        {f"miner/{name}": float(x) for name, x in statistics.items() if x.isfinite()},
    )


def look_at_tokens(
    rollouts: Rollouts, is_ph_N: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the focal weights (B, T) of PH rows, their sums (N,), and the intrinsic rewards (N,):
    0 in other rows, but for the reward of a completion without tokens, which is NaN.

    It goes by blocks of rows: at once, the same operations keep four tensors of the batch's size
    alive, and take three times as long.

    Raises:
        ValueError: A log-prob is not finite. Every process raises.
    """
    old_logps_BT = rollouts.score("old_logps", is_ph_N)
    weights_BT = torch.zeros(old_logps_BT.shape, device=old_logps_BT.device)
    sums_B2 = torch.zeros(len(weights_BT), 2).to(rollouts.token_counts_N)
    rows_of_ph = rollouts.local(is_ph_N).nonzero().squeeze(1)
    for rows in rows_of_ph.split(block_size(weights_BT)):
        old_logps, is_token = old_logps_BT[rows].float(), rollouts.is_token_BT[rows]
        weights_BT[rows] = weights = focal_weights(old_logps, is_token, gamma)
        sums_B2[rows, 0] = weights.to(sums_B2).sum(dim=1)
        sums_B2[rows, 1] = intrinsic_rewards(old_logps, is_token)
    weight_N, intrinsic_N = rollouts.world.gather(sums_B2).unbind(dim=1)
    if rows := not_finite(intrinsic_N):
        raise ValueError(
            f"The log-probs of completion {rows[0]} of the batch are not all finite. Mask the"
            " tokens that have none, or look at the model."
        )
    return weights_BT, weight_N, intrinsic_N.masked_fill(rollouts.token_counts_N == 0, torch.nan)


def signal_sums(rollouts: Rollouts) -> Tensor:
    """Return (N,) the sums of abs(advantage) over the tokens of each completion, of the method of
    mixed prompts."""
    base = rollouts.base
    if base is not None and base.is_token_level:
        return rollouts.token_sums(base.advantages_BT.abs())
    return (base or rollouts).advantages_N.abs() * rollouts.token_counts_N


MINER = AdvantageEstimator(
    name="miner",
    label="MINER",
    arxiv="2601.04731",
    function=miner,
    acts_on=("all_right",),
    settings={
        "gamma": "miner_gamma",
        "lambda_max": "miner_lambda_max",
        "intrinsic": "miner_intrinsic",
    },
)


class MinerAdvantages(NamedTuple):
    """The result of `miner_advantages`. All but `advantages_NT` speaks of the global batch."""

    advantages_NT: Tensor  # 0 at padding; with a `world`, this process's rows
    advantages_N: Tensor  # their means over each completion's tokens
    kinds: GroupKinds  # of each completion's group
    scale: float  # the calibration's factor, in [0, 1]
    tau_ref: float  # sum of abs(advantage) over the tokens of mixed prompts
    tau_pos: float  # the same of all-right prompts before calibration


def miner_advantages(
    rewards_N: Tensor,
    old_logps_NT: Tensor,
    mask_NT: Tensor,
    *,
    num_generations: int,
    gamma: float = 2.0,
    lambda_max: float | None = 1.5e-3,
    intrinsic: str = "nll",
    correct_threshold: float = 1.0,
    std_eps: float = 1e-4,
    world: World | None = None,
) -> MinerAdvantages:
    """Return MINER's token advantages: `miner` for all-right prompts, GRPO's for the others.

    With a `world`, the NT tensors are this process's rows (T may differ between processes),
    `rewards_N` is global, and every process must call. The result does not depend on the number of
    processes or on where groups are cut.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        old_logps_NT: (N, T) log-probs of the sampled tokens under the old policy at the sampling
            temperature, in nats. Those of all-right prompts alone are read.
        mask_NT: (N, T), non-zero where a token counts.
        num_generations: G, completions of each prompt, at least 2.
        gamma, lambda_max, intrinsic: As in `miner`.
        correct_threshold: A completion is correct when its reward is at or above this.
        std_eps: Added to the standard deviation in GRPO's advantages, in reward units.
        world: The processes that share the batch; default: this one alone.

    Returns:
        `MinerAdvantages`.

    Raises:
        ValueError: A parameter is out of its range, shapes disagree, groups are not whole, or a
            log-prob of an all-right prompt is not finite. Every process raises.

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

    Source: arXiv 2601.04731, section 3.
    """
    world = world or World()
    shapes = [(len(rewards_N) // world.size, mask_NT.shape[-1]), mask_NT.shape, old_logps_NT.shape]
    if len({*shapes}) > 1:
        raise ValueError(
            f"The rewards, mask_NT and old_logps_NT must be of the same completions: got {shapes}."
        )
    rewards_N = rewards_N.float()  # 0 and 1 may come as integers or bools
    advantages_N = group_relative_advantages(rewards_N, num_generations, std_eps=std_eps)
    is_correct_N = correctness(rewards_N, correct_threshold)
    kinds = group_kinds(
        rewards_N, num_generations, correct_threshold=correct_threshold, advantages_N=advantages_N
    )
    rollouts = Rollouts(
        rewards_N,
        advantages_N,
        is_correct_N,
        mask_NT,
        kinds,
        num_generations,
        score=lambda name, is_row_N: old_logps_NT,
        world=world,
    )
    mined = miner(rollouts, gamma=gamma, lambda_max=lambda_max, intrinsic=intrinsic)
    grpo_NT = rollouts.local(advantages_N)[:, None].expand(mask_NT.shape)
    found = merge(Estimate(grpo_NT, advantages_N), mined, rollouts)
    statistics = (mined.metrics[f"miner/{name}"] for name in ("scale", "tau_ref", "tau_pos"))
    return MinerAdvantages(found.advantages_BT, found.advantages_N, kinds, *statistics)
