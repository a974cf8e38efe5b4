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

from ..methods.groups import differs_in_correctness
from ..methods.processes import current_world
from .compact_step import Batch, loss_mask, of_all_processes

logger = logging.getLogger(__name__)

ROUNDS = 10  # generations of a batch at most, as in DAPO's code

# (B rows of the data set) -> TRL's scored batch of this process, and (N, F) rewards of all
Generate = Callable[[list[Any]], tuple[Batch, Tensor]]


class PromptStream:
    """The prompts of further rounds: a data set in an order of its own, pass after pass.

    Each process draws the same prompts, and takes its share of their completions.
    """

    def __init__(self, rows: Any, seed: int) -> None:
        if not hasattr(rows, "__len__"):
            raise ValueError(
                "dynamic_sampling draws prompts by their number, which a streaming data set does"
                " not have. Load the data set without streaming, or leave dynamic_sampling out."
            )
        self._rows, self._seed = rows, seed
        self.drawn = 0  # prompts so far; all of the state

    def draw(self, num_prompts: int, num_generations: int) -> list[Any]:
        """Return this process's rows of the next prompts, each as often as it has completions."""
        indices = [self._index(self.drawn + i) for i in range(num_prompts)]
        self.drawn += num_prompts
        world, num_rows = current_world(), num_prompts * num_generations
        places = range(num_rows)[world.local_slice(num_rows // world.size)]
        return [self._rows[indices[place // num_generations]] for place in places]

    def _index(self, place: int) -> int:
        number, place = divmod(place, len(self._rows))
        if getattr(self, "_order", (None,))[0] != number:
            generator = torch.Generator().manual_seed((self._seed * 2**20 + number + 1) % 2**63)
            self._order = number, torch.randperm(len(self._rows), generator=generator).tolist()
        return int(self._order[1][place])


def fill_batch(
    accelerator: Accelerator,
    inputs: list[Any],
    generate: Generate,
    is_correct: Callable[[Tensor], Tensor],
    stream: PromptStream,
    num_generations: int,
) -> tuple[Batch, Tensor, dict[str, float]]:
    """Generate in rounds until the batch is full of mixed prompts.

    The first mixed prompts are kept, in the order of their generation; where `ROUNDS` rounds do not
    have enough, others fill the batch, with a warning, and have no advantage. Advantages are those
    of the round in which a prompt was generated. Every process must call.

    Args:
        accelerator: The trainer's.
        inputs: This process's B rows of the first round.
        generate: Generates and scores a round.
        is_correct: (N, F) rewards to (N,) 1, 0 or NaN.
        stream: The prompts of the others.
        num_generations: G.

    Returns:
        The batch of this process, the (N, F) rewards of all, and metrics.

    Raises:
        ValueError: The batch has images.
    """
    batches: list[Batch] = []
    rewards: list[Tensor] = []
    is_mixed: list[Tensor] = []
    num_prompts = len(inputs) * accelerator.num_processes // num_generations
    while len(batches) < ROUNDS and sum(int(kept.sum()) for kept in is_mixed) < num_prompts:
        if batches:
            inputs = stream.draw(num_prompts, num_generations)
        batch, rewards_NF = generate(inputs)
        if "num_images" in batch:
            raise ValueError(
                "dynamic_sampling works on prompts of text alone: got images. Leave it out."
            )
        batches.append(batch)
        rewards.append(rewards_NF)
        is_mixed.append(differs_in_correctness(is_correct(rewards_NF), num_generations))
    is_mixed_P = torch.cat(is_mixed)
    metrics = {
        "dynamic_sampling/rounds": float(len(batches)),
        "dynamic_sampling/mixed": is_mixed_P.float().mean().item(),
    }
    if len(batches) == 1:
        return batches[0], rewards[0], metrics
    if (missing := num_prompts - int(is_mixed_P.sum())) > 0 and accelerator.is_main_process:
        logger.warning(
            f"dynamic_sampling found {num_prompts - missing} mixed prompts in {ROUNDS} rounds of"
            f" {num_prompts}: others fill the batch. Take easier or harder problems, or a larger"
            " num_generations."
        )
    kept_P = (~is_mixed_P).int().argsort(stable=True)[:num_prompts]
    kept_N = (kept_P[:, None] * num_generations + torch.arange(num_generations, device=kept_P.device)).flatten()  # fmt: skip
    own = kept_N[current_world().local_slice(len(kept_N) // accelerator.num_processes)]
    made = {
        name: _joined([of_all_processes(accelerator, name, each[name]) for each in batches], name)[
            own
        ]
        for name, value in batches[0].items()
        if value.dim()
    }
    made["num_items_in_batch"] = accelerator.reduce(loss_mask(made).sum())
    return made, torch.cat(rewards)[kept_N], metrics


def _joined(columns: list[Tensor], name: str) -> Tensor:
    """Return the rows of several batches, padded to one width."""
    if columns[0].dim() == 1:
        return torch.cat(columns)
    width = max(column.shape[1] for column in columns)
    is_left = name.startswith("prompt_")
    lacking = [width - column.shape[1] for column in columns]
    sides = [(count, 0) if is_left else (0, count) for count in lacking]
    return torch.cat([pad(column, side) for column, side in zip(columns, sides, strict=True)])
