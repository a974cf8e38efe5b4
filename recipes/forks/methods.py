"""The methods that this study alone compares. A recipe names one by its import path, such as
`all_right: trl_miner.data.forks_methods.placebo`.

F-GRPO (arXiv 2602.06717), Pass@k training (arXiv 2503.19595) and the boundary gate (arXiv
2606.15455) push less, or not at all, at prompts that are solved or nearly so. The unlikeliness
reward (arXiv 2506.02355) rewards the rarer right rollouts of a prompt more. The placebo is a
control for what MINER's credit chooses: the same credit, dealt out at random.

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process
"""

from typing import Any

import torch
from torch import Tensor

from trl_miner.methods import MINER, AdvantageEstimator, Estimate, Rollouts
from trl_miner.methods.groups import group_mean, grouped
from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.method import NonNegative, Share
from trl_miner.methods.rollouts import sum_tokens


def f_grpo_advantages(
    advantages_N: Tensor, correct_N: Tensor, num_generations: int, *, gamma: NonNegative = 1.0
) -> Tensor:
    """Return (1 - p)^gamma * A, with p the share of correct rollouts of the prompt.

    Args:
        advantages_N: (N,) GRPO's advantages of the global batch.
        correct_N: (N,) 1 for a correct rollout, 0 for a wrong one; NaN: unscorable, left out of p.
        num_generations: G, at least 2.
        gamma: Focus on hard prompts, at least 0; 0 is GRPO.

    Returns:
        (N,) advantages.

    Source: arXiv 2602.06717, the focal weight of its section 4. No code is published. The default
        of gamma is ours.
    """
    rates_N = group_mean(correct_N, num_generations).nan_to_num(nan=0.0)
    return advantages_N * (1 - rates_N).pow(gamma)


def _estimate_f_grpo(rollouts: Rollouts, **knobs: Any) -> Estimate:
    advantages_N = f_grpo_advantages(
        rollouts.advantages_N, rollouts.correct(), rollouts.num_generations, **knobs
    )
    return Estimate.of_rollouts(rollouts, advantages_N)


f_grpo = AdvantageEstimator(
    name="f_grpo",
    label="F-GRPO",
    arxiv="2602.06717",
    function=f_grpo_advantages,
    estimate=_estimate_f_grpo,
    acts_on=frozenset({"mixed"}),
    needs_whole_groups=True,
    knobs=("gamma",),
)


def passk_advantages(rewards_N: Tensor, num_generations: int, *, std_eps: float = 1e-6) -> Tensor:
    """Return (largest - second largest reward) / (std + eps) for the best rollout of each prompt, 0
    for all others.

    With rewards of 0 and 1 only a prompt's single correct rollout gets an advantage: k is G here,
    and what is right twice is sure to be found.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        num_generations: G, at least 2.
        std_eps: Added to the sample standard deviation of the group, in reward units.

    Returns:
        (N,) advantages, at least 0; 0 for an unscorable rollout.

    Source: arXiv 2503.19595; `compute_grpo_passk_outcome_advantage` of volcengine/verl @ b178a3cd5.
    """
    rewards_PG = grouped(rewards_N.float(), num_generations, "rewards_N")
    is_scored_PG = ~rewards_PG.isnan()
    best_P2, places_P2 = rewards_PG.masked_fill(~is_scored_PG, -torch.inf).topk(2, dim=1)
    centered_PG = rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)
    count_P = is_scored_PG.sum(dim=1).clamp(min=2)
    std_P = (centered_PG.square().nansum(dim=1) / (count_P - 1)).sqrt()
    # of one scored rollout: none
    margin_P = (best_P2[:, 0] - best_P2[:, 1]).nan_to_num(nan=0.0, posinf=0.0)
    best_alone_PG = torch.zeros_like(rewards_PG).scatter(
        1, places_P2[:, :1], (margin_P / (std_P + std_eps)).unsqueeze(1)
    )
    return best_alone_PG.flatten()


def _estimate_passk(rollouts: Rollouts) -> Estimate:
    return Estimate.of_rollouts(
        rollouts, passk_advantages(rollouts.rewards_N, rollouts.num_generations)
    )


passk = AdvantageEstimator(
    name="passk",
    label="Pass@k training",
    arxiv="2503.19595",
    estimate=_estimate_passk,
    from_total_rewards=True,
    acts_on=frozenset({"mixed"}),
)


def _estimate_boundary_gate(rollouts: Rollouts) -> Estimate:
    """Keep GRPO's advantages of prompts without a correct rollout in any earlier generation batch;
    0 elsewhere.

    One success among few rollouts means that Pass@k with a high k has nothing left to gain there,
    while updates go on to concentrate the policy. In a prompt's first batch with a success it still
    learns.

    Source: arXiv 2606.15455, its experiment that updates only problems without an observed success.
        The paper's own method, Bayesian Boundary Gating, gates by a posterior; no code of it is
        published, and this is not it.
    """
    is_new_N = rollouts.past_correct() == 0
    advantages_N = torch.where(is_new_N, rollouts.advantages_N, 0.0)
    return Estimate.of_rollouts(
        rollouts, advantages_N, {"boundary_gate/closed": (~is_new_N).float().mean().item()}
    )


boundary_gate = AdvantageEstimator(
    name="boundary_gate",
    label="Boundary gate",
    arxiv="2606.15455",
    estimate=_estimate_boundary_gate,
    reads_past=True,
    acts_on=frozenset({"mixed"}),
)


def unlikeliness_advantages(
    rewards_N: Tensor,
    logps_N: Tensor,
    num_generations: int,
    *,
    beta: Share = 0.25,
    std_eps: float = 1e-6,
) -> Tensor:
    """Return GRPO's advantages of the rewards r_i * (1 - beta * rank_i / G), rank 0 the least
    likely of the prompt.

    In an all-right prompt only the ranks differ. The z-score there is as large as in a mixed one,
    whatever beta is.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable.
        logps_N: (N,) mean log-prob of each rollout's tokens under the old policy, in nats.
        num_generations: G, at least 2.
        beta: Share of the reward that the likeliest rollouts lose, from 0 (GRPO) to 1.
        std_eps: Added to the standard deviation, in reward units.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2506.02355; `_compute_advantages` of AndreHe02/rewarding-unlikely-release @
        3e26ddd, whose configuration has beta 0.
    """
    order_PG = grouped(logps_N, num_generations, "logps_N").argsort(dim=1, stable=True)
    ranks_N = order_PG.argsort(dim=1).flatten()
    shaped_N = rewards_N.float() * (1 - beta * ranks_N / num_generations)
    return group_relative_advantages(shaped_N, num_generations, std_eps=std_eps)


def _estimate_unlikeliness(rollouts: Rollouts, **knobs: Any) -> Estimate:
    is_ranked_N = ~rollouts.kinds.is_nh_N
    if (rollouts.rewards_N < 0).any():
        raise ValueError(
            "unlikeliness needs total rewards of at least 0, because a likelier rollout would lose"
            f" less of one below: got {rollouts.rewards_N.nan_to_num().min().item():.7g}. Change"
            " the rewards, or the method."
        )
    scores = rollouts.score(("old_logps",), is_ranked_N)
    is_token_BT = scores["mask"].bool() & rollouts.local(is_ranked_N).unsqueeze(1)
    means_B = sum_tokens(scores["old_logps"], is_token_BT) / is_token_BT.sum(dim=1).clamp(min=1)
    # one without tokens ranks last
    logps_N = rollouts.world.gather(means_B.to(rollouts.advantages_N.dtype))
    advantages_N = unlikeliness_advantages(
        rollouts.rewards_N, logps_N, rollouts.num_generations, **knobs
    )
    advantages_N = advantages_N.masked_fill(~is_ranked_N, 0.0)
    return Estimate.of_rollouts(rollouts, advantages_N)


unlikeliness = AdvantageEstimator(
    name="unlikeliness",
    label="Unlikeliness reward",
    arxiv="2506.02355",
    function=unlikeliness_advantages,
    estimate=_estimate_unlikeliness,
    from_total_rewards=True,
    wants_sampler_logps=True,
    acts_on=frozenset({"mixed", "all_right"}),
    knobs=("beta",),
)


def deal_credit(
    mass_N: Tensor, has_tokens_N: Tensor, keys_N: Tensor, num_generations: int, seed: int
) -> Tensor:
    """Return the credit of each rollout, permuted at random within its group.

    Args:
        mass_N: (N,) credit of each rollout.
        has_tokens_N: (N,) bool, the rollouts that may get some.
        keys_N: (N,) integers, a number for each prompt. With the seed, it decides the permutation.
        num_generations: G.
        seed: Of this batch. Every process must give the same.

    Returns:
        (N,) the same credits; every group keeps its own.
    """
    dealt_PG = mass_N.view(-1, num_generations).clone()
    has_tokens_PG = has_tokens_N.view(-1, num_generations)
    for group, key in enumerate(keys_N[::num_generations].tolist()):
        generator = torch.Generator().manual_seed((key + seed) % 2**63)
        order_G = torch.randperm(num_generations, generator=generator).to(mass_N.device)
        takes_G = has_tokens_PG[group]
        dealt_PG[group, takes_G] = dealt_PG[group][order_G[takes_G[order_G]]]
    return dealt_PG.flatten()


def _estimate_placebo(
    rollouts: Rollouts, *, gamma: float = 2.0, lambda_max: float | None = 1.5e-3
) -> Estimate:
    mined = MINER.estimate(rollouts, gamma=gamma, lambda_max=lambda_max, intrinsic="nll")
    metrics = {
        name.replace(MINER.name, "placebo", 1): value for name, value in mined.metrics.items()
    }
    tokens_N = rollouts.world.gather(rollouts.mask_BT.bool().sum(dim=1))
    mass_N = deal_credit(
        mined.advantages_N * tokens_N,
        tokens_N > 0,
        rollouts.prompt_keys(),
        rollouts.num_generations,
        rollouts.seed,
    )
    advantages_N = torch.where(tokens_N > 0, mass_N / tokens_N.clamp(min=1), 0.0)
    return Estimate.of_rollouts(rollouts, advantages_N, metrics)


placebo = AdvantageEstimator(
    name="placebo",
    label="Placebo: MINER's credit dealt out at random",
    estimate=_estimate_placebo,
    wants_sampler_logps=True,
    acts_on=frozenset({"all_right"}),
    settings={name: MINER.settings[name] for name in ("gamma", "lambda_max")},
)
