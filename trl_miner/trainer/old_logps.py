"""What the old policy, the one that sampled a batch, says of its tokens.

# N completions of the global batch, B of this process, T padded completion tokens
"""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from ..methods.processes import current_world
from .compact_step import Batch, loss_mask
from .logit_statistics import STATISTICS, logit_statistics

if TYPE_CHECKING:
    from .trainer import MinerGRPOTrainer

# Values with which a sampler draws from the policy itself.
_UNCHANGED: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "generation_kwargs": (None, {}),
    "vllm_structured_outputs_regex": (None,),
}


class OldPolicy:
    """Finds the old policy's scores of a batch: TRL's own where it has some, else the sampler's,
    else those of one forward over the rows that are asked for."""

    def __init__(self, trainer: "MinerGRPOTrainer") -> None:
        self._trainer = trainer
        # whether log-probs that come with the completions can stand for the policy's
        self._draws_from_policy = all(
            getattr(trainer.args, name, values[0]) in values for name, values in _UNCHANGED.items()
        )

    def score(self, output: Batch, name: str, is_row_N: Tensor) -> Tensor:
        """Return (B, T), valid at the tokens of the rows asked for. Every process must ask.

        Args:
            output: A scored batch as TRL returns it.
            name: "old_logps", "entropies", "token_logits" or "self_certainty", as in
                `methods.rollouts.Rollouts`.
            is_row_N: (N,) bool, the rows.
        """
        if name == "old_logps":
            known: Tensor | None = output.get("old_per_token_logps")
            if known is None:
                known = self._of_sampler(output, is_row_N)
            if known is not None:
                return known
        return self._forward(output, name, is_row_N)

    def _of_sampler(self, output: Batch, is_row_N: Tensor) -> Tensor | None:
        """Return the sampler's log-probs, if it has them for all tokens asked for."""
        sampled_BT = output.get("sampling_per_token_logps")
        if sampled_BT is None or not self._draws_from_policy:
            return None
        world, mask_BT = current_world(), loss_mask(output).bool()
        is_row_B = is_row_N[world.local_slice(len(sampled_BT))]
        is_unknown = ~sampled_BT.isfinite() & mask_BT & is_row_B[:, None]
        if int(world.sum(is_unknown.sum())):
            return None
        return sampled_BT.masked_fill(~mask_BT, 0.0)

    @torch.no_grad()
    def _forward(self, output: Batch, name: str, is_row_N: Tensor) -> Tensor:
        """Return (B, T) scores of one forward. Each process takes as many rows, others filling up:
        with sharded weights all must take part."""
        trainer, world = self._trainer, current_world()
        B, T = output["completion_ids"].shape
        wanted_B = is_row_N[world.local_slice(B)]
        num_rows = int(is_row_N.view(-1, B).sum(1).max())
        rows = torch.argsort(~wanted_B, stable=True)[:num_rows]
        found = torch.zeros(B, T, device=rows.device)
        if not num_rows:
            return found
        ids, mask = (
            torch.cat([output[f"prompt_{part}"], output[f"completion_{part}"]], dim=1)[rows]
            for part in ("ids", "mask")
        )
        size, model = trainer.args.per_device_train_batch_size, trainer.model
        with ExitStack() as stack:
            stack.enter_context(
                disable_gradient_checkpointing(model, trainer.args.gradient_checkpointing_kwargs)
            )
            if name in STATISTICS:
                longest = int(world.gather(torch.tensor([T], device=rows.device)).max())
                watched = stack.enter_context(
                    logit_statistics(
                        trainer.accelerator.unwrap_model(model),
                        output["completion_ids"][rows],
                        trainer.temperature,
                        min(size, num_rows) * longest,
                    )
                )
                # TRL's own, which keeps the rows in order
                GRPOTrainer._get_per_token_logps_and_entropies(trainer, model, ids, mask, T, size)
                scores = watched[name]
            else:
                wants = name == "entropies"
                scores = trainer._get_per_token_logps_and_entropies(
                    model, ids, mask, T, size, wants
                )[wants]
        return found.index_copy(0, rows, scores.float())
