"""DAPO's dynamic sampling (arXiv 2503.14476): a batch of mixed prompts alone, refilled in rounds of
a whole batch.

# N = P*G completions of the global batch, those of one prompt adjacent; B of this process
"""

from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..methods.groups import differs_in_correctness
from ..methods.processes import current_world
from .compact_step import Batch, gathered, loss_mask

if TYPE_CHECKING:
    from .trainer import MinerGRPOTrainer

logger = get_logger(__name__)

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
        self.rounds = 0  # drawn so far; all of the state

    def draw(self, num_prompts: int, num_generations: int) -> list[Any]:
        """Return this process's rows of the next round, each as often as it has completions."""
        self.rounds += 1
        generator = torch.Generator().manual_seed(self.seed + self.rounds)
        order = torch.randperm(len(self.rows), generator=generator).tolist()
        world, places = current_world(), range(num_prompts * num_generations)
        own = places[world.local_slice(len(places) // world.size)]
        return [self.rows[order[place // num_generations % len(order)]] for place in own]


def fill_batch(
    trainer: "MinerGRPOTrainer", stream: PromptStream, inputs: list[Any]
) -> tuple[Batch, Tensor, dict[str, float]]:
    """Generate in rounds until the batch is full of prompts with correct and wrong completions.

    The first such prompts are kept, in the order of their generation; where `ROUNDS` rounds do not
    have enough, others fill the batch, with a warning. Advantages are those of the round in which a
    prompt was generated. Every process must call.

    Args:
        trainer: A `MinerGRPOTrainer`.
        stream: The prompts of the other rounds.
        inputs: This process's B rows of the data set in the first round.

    Returns:
        The batch of this process, the (N, F) rewards of all, and metrics.

    Raises:
        ValueError: The batch has images.
    """
    G, accelerator = trainer.num_generations, trainer.accelerator
    num_prompts = len(inputs) * accelerator.num_processes // G
    is_mixed_P = torch.empty(0, dtype=torch.bool, device=accelerator.device)
    batches: list[Batch] = []
    rewards: list[Tensor] = []
    while len(batches) < ROUNDS and int(is_mixed_P.sum()) < num_prompts:
        rows = stream.draw(num_prompts, G) if batches else inputs
        batch, rewards_NF = trainer.generate_and_reward(rows)
        if "num_images" in batch:
            raise ValueError("dynamic_sampling takes prompts of text alone: got images.")
        batches.append(gathered(accelerator, [batch]))
        rewards.append(rewards_NF)
        is_mixed = differs_in_correctness(trainer.verifier.is_correct(rewards_NF), G)
        is_mixed_P = torch.cat([is_mixed_P, is_mixed])
    if (found := int(is_mixed_P.sum())) < num_prompts:
        logger.warning(
            f"dynamic_sampling found {found} of {num_prompts} mixed prompts in {ROUNDS} rounds:"
            " others fill the batch. Take easier or harder problems, or a larger num_generations."
        )
    # the mixed ones first, in the order of their generation
    kept_P = (~is_mixed_P).int().argsort(stable=True)[:num_prompts, None]
    kept_N = (kept_P * G + torch.arange(G, device=kept_P.device)).flatten()
    own = kept_N[current_world().local_slice(len(inputs))]
    made = {
        name: _joined([each[name] for each in batches], name)[own] if value.dim() else value
        for name, value in batch.items()
    }
    made["num_items_in_batch"] = accelerator.reduce(loss_mask(made).sum())
    metrics = {"dynamic_sampling/rounds": float(len(batches))}
    return made, torch.cat(rewards)[kept_N], metrics


def _joined(columns: list[Tensor], name: str) -> Tensor:
    """Return the rows of several batches, padded to one width."""
    if columns[0].dim() == 1:
        return torch.cat(columns)
    side = "left" if name.startswith("prompt_") else "right"
    rows = [row for column in columns for row in column]
    return pad_sequence(rows, batch_first=True, padding_side=side)
