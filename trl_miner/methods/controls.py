"""A control for what MINER's credit chooses: the same credit dealt out at random (placebo).

# N = P*G rollouts of the global batch, rows of one prompt adjacent; B of this process
"""

import torch
from torch import Tensor

from .method import AdvantageEstimator
from .miner import MINER
from .rollouts import Estimate, Rollouts


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


PLACEBO = AdvantageEstimator(
    name="placebo",
    label="Placebo: MINER's credit dealt out at random",
    estimate=_estimate_placebo,
    wants_sampler_logps=True,
    acts_on=frozenset({"all_right"}),
    settings={name: MINER.settings[name] for name in ("gamma", "lambda_max")},
)
