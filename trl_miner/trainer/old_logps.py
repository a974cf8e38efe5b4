"""What the old policy, the one that sampled a batch, says of its tokens.

# N completions of the global batch, B of this process, T padded completion tokens
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing

from ..methods.processes import current_world
from .compact_step import Batch, loss_mask
from .config import MinerGRPOConfig

if TYPE_CHECKING:
    from .trainer import MinerGRPOTrainer

LOGITS_BLOCK = 1024  # tokens whose logits are held in float32 in one go


@torch.no_grad()
def score(trainer: "MinerGRPOTrainer", output: Batch, name: str, is_row_N: Tensor) -> Tensor:
    """Return (B, T) of the old policy, valid at the tokens of the rows asked for: log-probs that
    TRL or the sampler have found, else those of one forward over these rows. Every process must
    ask.

    Args:
        trainer: A `MinerGRPOTrainer`.
        output: A scored batch as TRL returns it.
        name: "old_logps", "entropies", "token_logits" or "self_certainty", as in
            `methods.rollouts.Rollouts`.
        is_row_N: (N,) bool, the rows.
    """
    (B, T), world = output["completion_ids"].shape, current_world()
    is_row_B = is_row_N[world.local_slice(B)]
    if name == "old_logps":
        found = output.get("old_per_token_logps", _of_sampler(trainer.args, output))
        if found is not None:
            is_lost = ~found.isfinite() & loss_mask(output).bool() & is_row_B[:, None]
            if not int(world.sum(is_lost.sum())):
                return found.nan_to_num()
    # each process takes as many rows, others filling up: with sharded weights all take part
    num_rows = int(is_row_N.view(-1, B).sum(1).max())
    rows = torch.argsort(~is_row_B, stable=True)[:num_rows]
    scores = torch.zeros(B, T, device=rows.device)
    if num_rows == 0:
        return scores
    ids, mask = (
        torch.cat([output[f"prompt_{part}"], output[f"completion_{part}"]], dim=1)[rows]
        for part in ("ids", "mask")
    )
    model, args = trainer.model, trainer.args
    # dropout must not move the training's draws, and reentrant checkpoints fail without a gradient
    forked = torch.random.fork_rng([ids.device] if ids.is_cuda else [])
    with forked, disable_gradient_checkpointing(model, args.gradient_checkpointing_kwargs):
        if name in ("token_logits", "self_certainty"):
            of_rows = _of_logits(trainer, ids, mask, name)[:, -T:]
        else:
            size, wants = args.per_device_train_batch_size, name == "entropies"
            found = trainer._get_per_token_logps_and_entropies(model, ids, mask, T, size, wants)
            of_rows = found[wants]
    return scores.index_copy(0, rows, of_rows.float())


def _of_sampler(args: MinerGRPOConfig, output: Batch) -> Tensor | None:
    """Return the log-probs that came with the completions, from vLLM or a `rollout_func`, if they
    are drawn from the policy itself."""
    changed = (
        args.generation_kwargs or args.vllm_structured_outputs_regex or args.top_k not in (0, None)
    )
    if changed or (args.top_p, args.repetition_penalty, args.min_p or 0) != (1, 1, 0):
        return None
    return output.get("sampling_per_token_logps")


def _of_logits(trainer: "MinerGRPOTrainer", ids: Tensor, mask: Tensor, name: str) -> Tensor:
    """Return, at the place of each token, a number of the logits from which it was sampled, over
    the temperature: its own, or how far the log-sum-exp of all lies above their mean.

    Row by row, as all logits of a batch would not fit.
    """
    scores = torch.zeros(ids.shape, device=ids.device)
    for row, is_token in enumerate(mask.bool()):
        tokens = ids[row, is_token]
        with trainer.accelerator.autocast():
            logits = trainer.model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        found = []
        for part, next_ids in zip(
            logits.split(LOGITS_BLOCK), tokens[1:].split(LOGITS_BLOCK), strict=True
        ):
            part = part.float() / trainer.temperature
            own = part.gather(1, next_ids[:, None])[:, 0]
            found.append(own if name == "token_logits" else part.logsumexp(1) - part.mean(1))
        scores[row, is_token] = torch.cat([scores.new_zeros(1), *found])
    return scores
