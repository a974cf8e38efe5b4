"""DAPO's dynamic sampling (arXiv 2503.14476): a batch of mixed prompts alone, refilled in rounds of
a whole batch.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import pad

from ..methods.processes import current_world
from .compact_step import Batch, gathered, loss_mask

logger = logging.getLogger(__name__)

ROUNDS = 10  # generations of a batch at most, as in DAPO's code


class PromptStream:
    """The prompts of further rounds, drawn from a data set at random.

    Each process draws the same prompts, and takes its share of their completions.
    """

    def __init__(self, rows: Any, seed: int) -> None:
        if not hasattr(rows, "__len__"):
            raise ValueError(
                "dynamic_sampling draws prompts by their number, which a streaming data set does"
                " not have. Load the data set without streaming, or leave dynamic_sampling out."
            )
        self.rows, self.seed = rows, seed
        self.drawn = 0  # rounds so far; all of the state

    def draw(self, num_prompts: int, num_generations: int) -> list[Any]:
        """Return this process's rows of the next round, each as often as it has completions."""
        self.drawn += 1
        generator = torch.Generator().manual_seed(self.seed + 2**32 * self.drawn)
        order = torch.randperm(len(self.rows), generator=generator).tolist()
        world, places = current_world(), range(num_prompts * num_generations)
        own = places[world.local_slice(len(places) // world.size)]
        return [self.rows[order[place // num_generations % len(order)]] for place in own]


def fill_batch(
    accelerator: Accelerator,
    inputs: list[Any],
    generate: Callable[[list[Any]], tuple[Batch, Tensor]],
    is_mixed: Callable[[Tensor], Tensor],
    stream: PromptStream,
    num_generations: int,
) -> tuple[Batch, Tensor, dict[str, float]]:
    """Generate in rounds until the batch is full of mixed prompts.

    The first mixed prompts are kept, in the order of their generation; where `ROUNDS` rounds do not
    have enough, others fill the batch, with a warning. Advantages are those of the round in which a
    prompt was generated. Every process must call.

    Args:
        accelerator: The trainer's.
        inputs: This process's B rows of the data set in the first round.
        generate: Returns TRL's scored batch of B rows, and the (N, F) rewards of all processes.
        is_mixed: Returns (P,) bool of (N, F) rewards.
        stream: The prompts of the other rounds.
        num_generations: G.

    Returns:
        The batch of this process, the (N, F) rewards of all, and metrics.

    Raises:
        ValueError: The batch has images.
    """
    G, num_prompts = num_generations, len(inputs) * accelerator.num_processes // num_generations
    mixed = torch.empty(0, dtype=torch.bool, device=accelerator.device)
    batches: list[Batch] = []
    rewards: list[Tensor] = []
    while len(batches) < ROUNDS and int(mixed.sum()) < num_prompts:
        batch, rewards_NF = generate(stream.draw(num_prompts, G) if batches else inputs)
        if "num_images" in batch:
            raise ValueError("dynamic_sampling takes prompts of text alone: got images.")
        batches.append(gathered(accelerator, batch))
        rewards.append(rewards_NF)
        mixed = torch.cat([mixed, is_mixed(rewards_NF)])
    if (missing := num_prompts - int(mixed.sum())) > 0 and accelerator.is_main_process:
        logger.warning(
            f"dynamic_sampling found {num_prompts - missing} mixed prompts in {ROUNDS} rounds of"
            f" {num_prompts}: others fill the batch. Take easier or harder problems, or a larger"
            " num_generations."
        )
    metrics = {
        "dynamic_sampling/rounds": len(batches),
        "dynamic_sampling/mixed": mixed.float().mean().item(),
    }
    if len(batches) == 1:
        return batch, rewards_NF, metrics
    # mixed prompts first, in the order of their generation
    kept_P = (~mixed).int().argsort(stable=True)[:num_prompts, None]
    kept_N = (kept_P * G + torch.arange(G, device=kept_P.device)).flatten()
    own = kept_N[current_world().local_slice(len(inputs))]
    made = {
        name: _joined([each[name] for each in batches], name)[own] if value.dim() else value
        for name, value in batch.items()
    }
    made["num_items_in_batch"] = accelerator.reduce(loss_mask(made).sum())
    return made, torch.cat(rewards)[kept_N], metrics


def _joined(columns: list[Tensor], name: str) -> Tensor:
    """Return the rows of several batches, padded to one width."""
    if columns[0].dim() > 1:
        width, is_left = max(column.shape[1] for column in columns), name.startswith("prompt_")
        lacking = [width - column.shape[1] for column in columns]
        sides = [(count, 0) if is_left else (0, count) for count in lacking]
        columns = [pad(column, side) for column, side in zip(columns, sides, strict=True)]
    return torch.cat(columns)
