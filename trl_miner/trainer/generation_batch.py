"""The record of a generation batch.

# N rollouts of the global generation batch, B of this process, F reward functions
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .micro_batches import loss_mask
from .prompt_log import PromptOutcomes

# Where in the tuple of TRL's `_generate` these stand.
COMPLETION_IDS, TOOL_MASK, COMPLETIONS, SAMPLER_LOGPS, EXTRA_FIELDS = range(1, 6)


class GeneratedRound(NamedTuple):
    """Rollouts of this process, with the rewards of all processes."""

    rows: list[Any]  # rows of the data set
    # what TRL's `_generate` returned; what is as long as `rows` holds a value for each
    generated: tuple[Any, ...]
    rewards_NF: Tensor  # (N, F) rewards of all processes, by reward function


@dataclass
class GenerationBatch:
    """A generation batch under way, until TRL returns it."""

    num_generated: int  # rollouts generated for it on all processes, dropped ones included
    # what was generated and scored in rounds; None: TRL does both
    prepared: GeneratedRound | None = None
    num_tokens: int = 0  # tokens that the model has generated for it on this process
    # `PromptStatistics` of adaptive sampling; None: those of the batch's own rollouts decide
    statistics: Any = None
    rewards_NF: Tensor | None = None  # (N, F) gathered rewards, by reward function
    outcomes: PromptOutcomes = field(default_factory=PromptOutcomes)  # how its prompts came out


def num_sampled_tokens(generated: tuple[Any, ...]) -> int:
    """Return how many tokens the model has sampled, by what TRL's `_generate` returned: not those
    of tools."""
    masks = generated[TOOL_MASK]
    if masks is None:
        return sum(map(len, generated[COMPLETION_IDS]))
    return sum(int(torch.as_tensor(mask).count_nonzero()) for mask in masks)


def total_rewards(rewards_NF: Tensor, weights_F: Tensor) -> Tensor:
    """Return (N,) weighted sums of rewards; NaN: unscorable, as TRL defines it."""
    rewards_N = (rewards_NF * weights_F.to(rewards_NF)).nansum(dim=1)
    rewards_N[rewards_NF.isnan().all(dim=1)] = torch.nan
    return rewards_N


def correct_rollouts(verifier_rewards_N: Tensor, correct_threshold: float) -> Tensor:
    """Return (N,), 1 for a correct rollout and 0 for a wrong one; NaN: unscorable."""
    correct_N = (verifier_rewards_N >= correct_threshold).float()
    return correct_N.masked_fill(verifier_rewards_N.isnan(), torch.nan)


def completion_texts(batch: dict[str, Any], processing_class: Any) -> list[str]:
    """Return the text of each of this process's rollouts: that of the tokens that count, without
    special ones."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)  # a processor has one
    rows = zip(batch["completion_ids"].cpu(), loss_mask(batch).bool().cpu(), strict=True)
    texts: list[str] = tokenizer.batch_decode(
        [ids[mask].tolist() for ids, mask in rows], skip_special_tokens=True
    )
    return texts
