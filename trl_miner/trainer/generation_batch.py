"""The record of a generation batch, and the old policy's scores of its tokens.

# N rollouts of the global generation batch, B of this process, F reward functions, T padded completion tokens
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed import current_world
from .padding import loss_mask
from .prompt_log import PromptOutcomes
from .sampler_check import check_sampler

# Where in the tuple of TRL's `_generate` these stand.
COMPLETION_IDS, TOOL_MASK, COMPLETIONS, SAMPLER_LOGPS, EXTRA_FIELDS = range(1, 6)
_SAMPLER_LOGPS = "sampling_per_token_logps"


class GeneratedRound(NamedTuple):
    """Rollouts of this process, with the rewards of all processes."""

    rows: list[Any]  # rows of the data set
    generated: tuple[Any, ...]  # what TRL's `_generate` returned; what is as long as `rows` holds a value for each
    rewards_NF: Tensor  # (N, F) rewards of all processes, by reward function
    extra: dict[str, list[Any]]  # further columns to be logged, by name


@dataclass
class GenerationBatch:
    """A generation batch under way, until TRL returns it."""

    num_generated: int  # rollouts generated for it on all processes, dropped ones included
    prepared: GeneratedRound | None = None  # what dynamic sampling has generated and scored; None: TRL does both
    num_tokens: int = 0  # tokens that the model has generated for it on this process
    rewards_NF: Tensor | None = None  # (N, F) gathered rewards, by reward function
    outcomes: PromptOutcomes = field(default_factory=PromptOutcomes)  # how its prompts came out


def num_sampled_tokens(generated: tuple[Any, ...]) -> int:
    """Return how many tokens the model has sampled, by what TRL's `_generate` returned: not those of tools."""
    masks = generated[TOOL_MASK]
    if masks is None:
        return sum(map(len, generated[COMPLETION_IDS]))
    return sum(int(torch.as_tensor(mask).count_nonzero()) for mask in masks)


def total_rewards(rewards_NF: Tensor, weights_F: Tensor) -> Tensor:
    """Return (N,) weighted sums of rewards; NaN: unscorable, as TRL defines it."""
    rewards_N = (rewards_NF * weights_F.to(rewards_NF)).nansum(dim=1)
    rewards_N[rewards_NF.isnan().all(dim=1)] = torch.nan
    return rewards_N


def prompt_keys(batch: dict[str, Any]) -> Tensor:
    """Return (N,), a number for each row's prompt: a hash of its tokens, unpadded. Every process must call it."""
    device = batch["prompt_ids"].device
    if not current_world().all("pixel_values" not in batch, device):  # or the others would wait for this one
        raise ValueError(
            "A method that tells prompts apart needs prompts of text alone: got images. Choose another "
            "advantage_estimator, all_right or all_wrong."
        )
    keys = []
    for ids, mask in zip(batch["prompt_ids"].cpu(), batch["prompt_mask"].cpu(), strict=True):
        tokens = ids[mask.bool()].numpy().astype("<i8").tobytes()
        keys.append(int.from_bytes(hashlib.blake2b(tokens, digest_size=8).digest(), "little") >> 1)
    return current_world().gather(torch.tensor(keys, device=device))


def completion_texts(batch: dict[str, Any], processing_class: Any) -> list[str]:
    """Return the text of each of this process's rollouts: that of the tokens that count, without special ones."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)  # a processor has one
    rows = zip(batch["completion_ids"].cpu(), loss_mask(batch).bool().cpu(), strict=True)
    texts: list[str] = tokenizer.batch_decode([ids[mask].tolist() for ids, mask in rows], skip_special_tokens=True)
    return texts


class PolicyScores:
    """The old policy's scores of a batch, found late and for few rows: `Rollouts.score`.

    The source is TRL's own forward, else the sampler's log-probs, else a forward over the rows asked for. It is the
    same on every process.
    """

    def __init__(self, trainer: Any, batch: dict[str, Any], known: dict[str, Tensor]) -> None:
        self._trainer, self._batch, self._mask_BT = trainer, batch, loss_mask(batch)
        num_rows = current_world().size * len(self._mask_BT)
        self._every_row_N = torch.ones(num_rows, dtype=torch.bool, device=self._mask_BT.device)
        self._is_unknown_BT: Tensor | None = None  # tokens without a log-prob, where those are the sampler's
        self._known = {
            name: (score_BT, self._every_row_N) for name, score_BT in known.items()
        }  # and where it is known

    def __call__(self, names: Collection[str], is_row_N: Tensor) -> dict[str, Tensor]:
        """Return (B, T) scores by name, valid at least on those rows, and "mask". Every process must call it."""
        missing = {name for name in names if name not in self._known or bool((is_row_N & ~self._known[name][1]).any())}
        # A rollout_func may have none for the rollouts of some process.
        may_use_sampler = self._trainer.uses_sampler_logps and "old_logps" in missing
        is_there = may_use_sampler and current_world().all(_SAMPLER_LOGPS in self._batch, self._mask_BT.device)
        if is_there and check_sampler(self._trainer, self._batch, self._batch[_SAMPLER_LOGPS]):
            missing.remove("old_logps")
            self._use_sampler_logps(self._batch[_SAMPLER_LOGPS])
        if missing:
            for name, score_BT in self._trainer.forwards.of_rows(self._batch, is_row_N, missing).items():
                if name in missing or self._is_unknown_BT is None:  # else the sampler's of every row are known
                    self._known[name] = (score_BT, is_row_N)
        mask_BT = self._mask_BT
        if self._is_unknown_BT is not None and "old_logps" in names:
            is_row_B = is_row_N[current_world().local_slice(len(mask_BT))]
            mask_BT = mask_BT * ~(self._is_unknown_BT & is_row_B.unsqueeze(1))
        return {"mask": mask_BT, **{name: self._known[name][0] for name in names}}

    def _use_sampler_logps(self, logps_BT: Tensor) -> None:
        """Take them for the policy's, but where vLLM returns NaN, because it could not say."""
        self._is_unknown_BT = self._mask_BT.bool() & ~logps_BT.isfinite()
        self._known["old_logps"] = (logps_BT, self._every_row_N)
        num_unknown = current_world().sum(self._is_unknown_BT.sum()).item()
        self._trainer.log_train_metric("miner/unscored_tokens", float(num_unknown))
