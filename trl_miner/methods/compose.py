"""The advantage estimators that MINER is compared with, and `ESTIMATORS`: all of them by name, in one calling form.

Each method is a function of tensors; the short functions at the end give them that form.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process; T padded completion tokens
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..distributed import World, accumulation_dtype
from .groups import GroupKinds, group_mean, grouped
from .miner import group_relative_advantages, is_mined, miner_advantages, needs_old_logps


def reinforce_pp_advantages(
    rewards_N: Tensor, tokens_N: Tensor, num_generations: int, *, subtract_group_mean: bool = False
) -> Tensor:
    """REINFORCE++'s advantage: the return, whitened over all tokens of the global batch.

    A_i = (R_i - mean) / sqrt(var + 1e-8), R_i = r_i, or r_i less the mean of its group. Mean and unbiased variance
    weigh each rollout by its number of tokens, because every token carries the return of its rollout.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, left out.
        tokens_N: (N,) number of tokens that count in each rollout.
        num_generations: G, at least 2.
        subtract_group_mean: The variant *REINFORCE++-baseline*.

    Returns:
        (N,) advantages, the same at every token of a rollout; 0 for an unscorable one.

    Raises:
        ValueError: Groups that are not whole.

    Source: arXiv 2501.03262, as in verl's code. MINER's paper does not say which variant its "R++" is.
    """
    grouped(rewards_N, num_generations, "rewards_N")
    returns_N = rewards_N.to(accumulation_dtype(rewards_N.device))
    if subtract_group_mean:
        returns_N = returns_N - group_mean(returns_N, num_generations)
    is_scored_N = ~returns_N.isnan()
    weights_N = tokens_N.to(returns_N.dtype) * is_scored_N
    count = weights_N.sum().clamp(min=2)  # a single token: centered 0, so any divisor does
    centered_N = returns_N - (weights_N * returns_N.nan_to_num()).sum() / count
    variance = (weights_N * centered_N.nan_to_num().square()).sum() / (count - 1)
    return (centered_N * torch.rsqrt(variance + 1e-8)).nan_to_num(nan=0.0).to(torch.float32)


def entropy_advantages(
    advantages_B: Tensor, entropies_BT: Tensor, mask_BT: Tensor, *, alpha: float = 0.4, kappa: float = 2.0
) -> Tensor:
    """GRPO's advantage plus a bonus at the tokens where the policy was undecided: A + min(alpha * H, |A| / kappa).

    Args:
        advantages_B: (B,) advantages of this process's rollouts.
        entropies_BT: (B, T) entropy of the old policy at each token, in nats. Read where the advantage is not 0.
        mask_BT: (B, T), non-zero where a token counts.
        alpha: Weight of the entropy, at least 0; 0 is GRPO.
        kappa: The bonus is at most 1/kappa of the advantage; above 1, so that no advantage changes its sign.

    Returns:
        (B, T) token advantages, 0 at padding; constants for the gradient.

    Source: arXiv 2506.14758; MINER's paper, appendix on the exploration baselines, and its published code.
    """
    base_B1 = advantages_B.unsqueeze(1)
    counts_BT = mask_BT.bool() & (base_B1 != 0)
    bonus_BT = torch.minimum(alpha * entropies_BT.detach().masked_fill(~counts_BT, 0.0), base_B1.abs() / kappa)
    return (base_B1 + bonus_BT).masked_fill(~mask_BT.bool(), 0.0)


def ucas_advantages(
    rewards_N: Tensor,
    advantages_N: Tensor,
    token_logits_BT: Tensor,
    self_certainty_BT: Tensor,
    mask_BT: Tensor,
    *,
    num_generations: int,
    beta_pos: float = 0.25,
    beta_neg: float = 0.35,
    token_coef: float = 0.05,
    world: World | None = None,
) -> Tensor:
    """UCAS: reward unsure right answers more, punish sure wrong ones more, and tax every token the model was sure of.

    c_i = sum_t [logsumexp(z_it) - mean(z_it)] is the confidence of a rollout, c^_i its z-score in the group;
    A_i * exp(-beta_pos * c^_i) where r_i is above its group's mean, A_i * exp(beta_neg * c^_i) elsewhere;
    less token_coef * l_it, l_it the sampled token's logit scaled to [0, 1] over the global batch.
    A rollout with a positive advantage stays at 0 or above.

    The tax falls on rollouts of homogeneous groups too, as upstream has it.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, gets 0.
        advantages_N: (N,) GRPO's advantages.
        token_logits_BT: (B, T) logit of the sampled token; only its place between the smallest and the largest counts.
        self_certainty_BT: (B, T) log-sum-exp less mean of the logits at the sampling temperature, in nats.
        mask_BT: (B, T), non-zero where a token counts.
        num_generations: G, at least 2.
        beta_pos, beta_neg, token_coef: At least 0; all 0 is GRPO.
        world: The processes that share the batch; every one must call.

    Returns:
        (B, T) token advantages, 0 at padding.

    Source: arXiv 2510.10649; upstream's code (xvolcano02/UCAS @ b122ff2). The fork in MINER's repository ranks the
        confidence backwards and pairs logits with the wrong rollouts; we follow upstream.
    """
    world = world or World()
    is_token_BT = mask_BT.bool()
    local = world.local_slice(mask_BT.shape[0])
    confidence_B = _sum_tokens(self_certainty_BT, is_token_BT)
    confidence_N = world.gather(torch.where(is_token_BT.any(dim=1), confidence_B, torch.nan))
    # a z-score in the group, which is what GRPO makes of rewards; 0 for a rollout without tokens
    z_N = group_relative_advantages(confidence_N, num_generations, std_eps=1e-6).to(advantages_N.dtype)
    is_above_N = rewards_N > group_mean(rewards_N, num_generations)
    scaled_B = (advantages_N * torch.where(is_above_N, -beta_pos * z_N, beta_neg * z_N).exp())[local]

    lowest = token_logits_BT.masked_fill(~is_token_BT, torch.inf).amin()
    highest = token_logits_BT.masked_fill(~is_token_BT, -torch.inf).amax()
    extremes_W2 = world.gather(torch.stack([lowest, highest]).unsqueeze(0))  # of every process
    lowest, highest = extremes_W2[:, 0].amin(), extremes_W2[:, 1].amax()
    spread = (highest - lowest).clamp(min=1e-8)  # one value everywhere: no token stands out
    level_BT = ((token_logits_BT - lowest) / spread).masked_fill(~is_token_BT, 0.0)
    taxed_BT = scaled_B.unsqueeze(1) - token_coef * level_BT
    taxed_BT = torch.where((scaled_B > 0).unsqueeze(1), taxed_BT.clamp(min=0.0), taxed_BT)
    return taxed_BT.masked_fill(~is_token_BT | rewards_N[local].isnan().unsqueeze(1), 0.0)


def _sum_tokens(values_BT: Tensor, is_token_BT: Tensor) -> Tensor:
    return values_BT.masked_fill(~is_token_BT, 0.0).sum(dim=1, dtype=accumulation_dtype(values_BT.device))


@dataclass(frozen=True, eq=False)
class Rollouts:
    """A generation batch as an estimator sees it.

    Attributes:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        advantages_N: (N,) the extrinsic advantages that TRL has computed from them.
        mask_BT: (B, T), non-zero where a token of this process counts.
        kinds: The kind of each rollout's group.
        num_generations: G.
        score: `score(names, is_row_N)` gives a dict of (B, T) tensors under the old policy, right at least on the
            rows asked for: "old_logps", "entropies", "token_logits", "self_certainty"; and "mask", the tokens that
            have all of them. May cost a forward over those rows, so ask late and for little. Every process must ask.
        world: The processes that share the batch.
    """

    rewards_N: Tensor
    advantages_N: Tensor
    mask_BT: Tensor
    kinds: GroupKinds
    num_generations: int
    score: Callable[[Collection[str], Tensor], Mapping[str, Tensor]]
    world: World = field(default_factory=World)

    def local(self, values_N: Tensor) -> Tensor:
        """This process's rows of a global vector.

        Args:
            values_N: (N,), one value per rollout of the global batch.

        Returns:
            (B,), those of this process.
        """
        return values_N[self.world.local_slice(self.mask_BT.shape[0])]


@dataclass(frozen=True, eq=False)
class Estimate:
    """What an estimator found.

    Attributes:
        advantages: (B, T) or (B,) for this process; None: TRL's own, as they are.
        advantages_N: (N,) their mean over each rollout's tokens: what to show in a log.
        metrics: Numbers to log, by full name.
    """

    advantages: Tensor | None
    advantages_N: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


def _by_token(rollouts: Rollouts, advantages_BT: Tensor) -> Estimate:
    is_token_BT = rollouts.mask_BT.bool()
    means_B = _sum_tokens(advantages_BT, is_token_BT) / is_token_BT.sum(dim=1).clamp(min=1)
    return Estimate(advantages_BT, rollouts.world.gather(means_B.to(rollouts.advantages_N.dtype)))


def _grpo(rollouts: Rollouts) -> Estimate:
    return Estimate(None, rollouts.advantages_N)


def _reinforce_pp(rollouts: Rollouts, *, subtract_group_mean: bool = False) -> Estimate:
    tokens_N = rollouts.world.gather(rollouts.mask_BT.bool().sum(dim=1))
    advantages_N = reinforce_pp_advantages(
        rollouts.rewards_N, tokens_N, rollouts.num_generations, subtract_group_mean=subtract_group_mean
    )
    return Estimate(rollouts.local(advantages_N), advantages_N)


def _reinforce_pp_baseline(rollouts: Rollouts) -> Estimate:
    return _reinforce_pp(rollouts, subtract_group_mean=True)


def _ucas(rollouts: Rollouts, *, beta_pos: float, beta_neg: float, token_coef: float) -> Estimate:
    if beta_pos == beta_neg == token_coef == 0:
        return _grpo(rollouts)
    scores = rollouts.score(("token_logits", "self_certainty"), torch.ones_like(rollouts.kinds.is_he_N))
    advantages_BT = ucas_advantages(
        rollouts.rewards_N,
        rollouts.advantages_N,
        scores["token_logits"],
        scores["self_certainty"],
        rollouts.mask_BT,
        num_generations=rollouts.num_generations,
        beta_pos=beta_pos,
        beta_neg=beta_neg,
        token_coef=token_coef,
        world=rollouts.world,
    )
    return _by_token(rollouts, advantages_BT)


def _entropy_adv(rollouts: Rollouts, *, alpha: float, kappa: float) -> Estimate:
    moves_N = rollouts.advantages_N != 0
    if alpha == 0 or not bool(moves_N.any()):
        return _grpo(rollouts)
    entropies_BT = rollouts.score(("entropies",), moves_N)["entropies"]
    advantages_B = rollouts.local(rollouts.advantages_N)
    return _by_token(
        rollouts, entropy_advantages(advantages_B, entropies_BT, rollouts.mask_BT, alpha=alpha, kappa=kappa)
    )


def _miner(rollouts: Rollouts, *, base: Estimate | None = None, **knobs: Any) -> Estimate:
    """MINER on the groups that it mines; elsewhere `base`, the estimate of another method, or GRPO."""
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
    own = mined.has_signal or (base is not None and base.advantages is not None)
    return Estimate(mined.advantages_NT if own else None, mined.advantages_N, metrics)


def _spread(base: Estimate | None, rollouts: Rollouts) -> Tensor | None:
    """The base's advantages as (B, T); None where they are TRL's own."""
    if base is None or base.advantages is None:
        return None
    advantages = base.advantages
    return advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(rollouts.mask_BT.shape)


ESTIMATORS: dict[str, Callable[..., Estimate]] = {
    "grpo": _grpo,
    "miner": _miner,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "ucas": _ucas,
    "entropy_adv": _entropy_adv,
}
# What an estimator will ask of every row: the trainer then takes it from a forward that TRL makes anyway.
SCORED_BY = {"ucas": {"token_logits", "self_certainty"}, "entropy_adv": {"entropies"}}
# Those whose advantages differ from token to token within a rollout.
TOKEN_LEVEL = {"miner", "ucas", "entropy_adv"}


def parse_estimator(name: Any) -> tuple[str, ...]:
    """("ucas",) for "ucas", ("ucas", "miner") for "ucas+miner" or ["ucas", "miner"]: MINER after another method.

    Args:
        name: As a recipe has it, a name, names joined by "+", or a list.

    Returns:
        One name, or one and "miner".

    Raises:
        ValueError: An unknown name, or a combination other than one method and MINER.
    """
    parts = tuple(name.split("+")) if isinstance(name, str) else tuple(name or ())
    parts = tuple(str(part).strip() for part in parts)
    unknown = [part for part in parts if part not in ESTIMATORS]
    if unknown or not parts:
        raise ValueError(
            f"advantage_estimator must be one of {', '.join(sorted(ESTIMATORS))}, or one of them with MINER, such as "
            f"ucas+miner: got {name!r}."
        )
    if len(parts) > 1 and (len(parts) > 2 or parts[1] != "miner" or parts[0] in ("miner", "grpo")):
        raise ValueError(
            f"advantage_estimator can combine one method other than grpo with miner, the method first: got {name!r}. "
            f"MINER rules the prompts that are all right, the other the rest; grpo and MINER together are plain miner."
        )
    return parts


def estimate(names: tuple[str, ...], rollouts: Rollouts, knobs: Callable[[str], dict[str, Any]]) -> Estimate:
    """The advantages of one method, or of a method with MINER on top.

    Args:
        names: Of `parse_estimator`.
        rollouts: The batch.
        knobs: Gives the settings of a method by its name.

    Returns:
        Token advantages (B, T) and statistics.
    """
    found = ESTIMATORS[names[0]](rollouts, **knobs(names[0]))
    return found if len(names) == 1 else _miner(rollouts, base=found, **knobs("miner"))
