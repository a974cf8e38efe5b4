"""The record of a generation batch.

# N rollouts of the global generation batch, B of this process, F reward functions
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..methods import Rollouts
from .micro_batches import loss_mask
from .outcomes import PromptOutcomes

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
    outcomes: PromptOutcomes  # how its prompts came out
    # what was generated and scored in rounds; None: TRL does both
    prepared: GeneratedRound | None = None
    num_tokens: int = 0  # tokens that the model has generated for it on this process
    # `PromptStatistics` of adaptive sampling; None: those of the batch's own rollouts decide
    statistics: Any = None
    rewards_NF: Tensor | None = None  # (N, F) gathered rewards, by reward function
    completions: Sequence[Any] = ()  # of this process, as reward functions get them


def steps_of_batch(
    done: int, under_way: int, cycle: int, *, accumulation: int, max_steps: int
) -> range:
    """Return the optimizer steps in which a generation batch is the first to be trained.

    Args:
        done: Optimizer steps so far.
        under_way: Micro-steps that batches before it had of the next one.
        cycle: Micro-steps that train on a batch.
        accumulation: Micro-steps of an optimizer step.
        max_steps: Of the training.
    """
    last = done + math.ceil((under_way + cycle) / accumulation)
    return range(done + 1 + (under_way > 0), min(last, max_steps) + 1)


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


def token_rows(
    batch: dict[str, Any], rollouts: Rollouts, advantages_BT: Tensor, is_chosen_N: Tensor
) -> list[dict[str, Any]]:
    """Return the chosen rollouts of all processes without padding, on the main process; on the others
    none. Log-probs that are not known are NaN. Every process must call it."""
    scores = rollouts.score(("old_logps",), is_chosen_N)
    columns = {
        "token_ids": batch["completion_ids"].int(),
        "counts": rollouts.mask_BT.bool(),
        "old_logps": scores["old_logps"].masked_fill(~scores["mask"].bool(), torch.nan).float(),
        "advantages": advantages_BT.float(),
    }
    first_row, rows = rollouts.world.local_slice(len(rollouts.mask_BT)).start, []
    for row in rollouts.local(is_chosen_N).nonzero().squeeze(1).tolist():
        is_generated_T = batch["completion_mask"][row].bool()
        generated = {
            name: column[row][is_generated_T].cpu().numpy() for name, column in columns.items()
        }
        prompt_ids = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
        rows.append({"row": first_row + row, "prompt_ids": prompt_ids, **generated})
    others: list[list[Any]] = [[] for _ in range(rollouts.world.size - 1)]
    return rollouts.world.exchange([rows, *others], advantages_BT.device)
