"""SPO (arXiv 2509.13232): the reward, less what the prompt's earlier rollouts led one to expect.

Of the paper's three parts this has the first two, the memory and the whitening, with a fixed `rho` in the memory. It
has neither the estimate of each prompt before training nor the choice of prompts by their uncertainty.

# N = P*G rollouts of the global batch, rows of one prompt adjacent
"""

from collections.abc import MutableMapping

import torch
from torch import Tensor

from ..distributed import accumulation_dtype
from .method import AdvantageEstimator, Knob
from .rollouts import Estimate, Rollouts


def spo_advantages(rewards_N: Tensor, expected_N: Tensor) -> Tensor:
    """Return r_i - p_i, whitened over the rollouts of the global batch with their mean and sample std.

    Args:
        rewards_N: (N,) total rewards of the global batch; NaN: unscorable, left out.
        expected_N: (N,) the share of right rollouts expected of each prompt, from 0 to 1.

    Returns:
        (N,) advantages; 0 for an unscorable rollout.

    Source: arXiv 2509.13232; recipe/spo of volcengine/verl @ 4b2b364.
    """
    surprise_N = rewards_N.to(accumulation_dtype(rewards_N.device)) - expected_N
    is_scored_N = ~surprise_N.isnan()
    count = is_scored_N.sum()
    centered_N = surprise_N - surprise_N.nansum() / count.clamp(min=1)
    std = (centered_N.square().nansum() / (count - 1).clamp(min=1)).sqrt()
    return (centered_N / (std + 1e-8)).nan_to_num(nan=0.0).float()


def expect(memory: MutableMapping[str, list[float]], keys: list[int], prior: float) -> list[float]:
    """Return the share of right rollouts that the memory expects of each prompt; of a new one, one half.

    Args:
        memory: By prompt, the weights of its right and its wrong rollouts so far.
        keys: A number for each prompt.
        prior: Rollouts of each kind that a prompt has before its first.
    """
    counts = [memory.get(str(key), [prior, prior]) for key in keys]
    return [right / (right + wrong) for right, wrong in counts]


def remember(
    memory: MutableMapping[str, list[float]], keys: list[int], rewards: list[list[float]], prior: float, rho: float
) -> None:
    """Fade what the memory holds of each prompt to a share `rho`, and add its rollouts. NaN is left out.

    Args:
        memory, keys, prior: As in `expect`.
        rewards: Of each prompt's rollouts, from 0 to 1; those outside count as the nearer of the two.
        rho: What remains of a rollout's weight at the next visit of its prompt, from 0 to 1.
    """
    for key, group in zip(keys, rewards, strict=True):
        right, wrong = memory.get(str(key), [prior, prior])
        scored = [min(max(reward, 0.0), 1.0) for reward in group if reward == reward]
        memory[str(key)] = [rho * right + sum(scored), rho * wrong + len(scored) - sum(scored)]


def _estimate(rollouts: Rollouts, *, rho: float = 0.9, prior: float = 1.0) -> Estimate:
    num_generations, memory = rollouts.num_generations, rollouts.memory.setdefault("spo", {})
    keys = rollouts.prompt_keys()[::num_generations].tolist()
    expected_P = torch.tensor(expect(memory, keys, prior), device=rollouts.rewards_N.device)
    advantages_N = spo_advantages(rollouts.rewards_N, expected_P.repeat_interleave(num_generations))
    remember(memory, keys, rollouts.rewards_N.view(-1, num_generations).tolist(), prior, rho)
    metrics = {"spo/expected": expected_P.mean().item(), "spo/prompts": float(len(memory))}
    return Estimate(rollouts.local(advantages_N), advantages_N, metrics)


SPO = AdvantageEstimator(
    name="spo",
    label="SPO",
    arxiv="2509.13232",
    estimate=_estimate,
    from_total_rewards=True,
    reward_range=(0.0, 1.0),
    has_memory=True,
    knobs={
        "rho": Knob(
            "SPO: what remains of a rollout's weight at the next visit of its prompt; in the paper it falls as the "
            "policy moves.",
            at_least=0,
            at_most=1,
        ),
        "prior": Knob(
            "SPO: right rollouts, and as many wrong ones, that a prompt is taken to have had before its first.",
            at_least=1e-3,
        ),
    },
)
