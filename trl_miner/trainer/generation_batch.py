"""The record of a generation batch.

# N rollouts of the global generation batch, B of this process, F reward functions
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..distributed import current_world
from .batch_fill import GeneratedRound
from .padding import loss_mask

# Where in the tuple of TRL's `_generate` these stand.
COMPLETION_IDS, TOOL_MASK, COMPLETIONS, SAMPLER_LOGPS, EXTRA_FIELDS = range(1, 6)


@dataclass
class Visits:
    """What a generation batch has found out about its prompts so far, round by round."""

    keys: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # of prompts that the run had not seen before
    correct: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    reward: list[float | None] = field(default_factory=list)
    spread: list[float | None] = field(default_factory=list)
    dropped: Sequence[int] = ()  # places in `keys`

    def add(
        self, keys: Sequence[str], rewards_PG: Tensor, verifier_rewards_PG: Tensor, correct_threshold: float
    ) -> None:
        """Add prompts with the total rewards of their rollouts, and those of the verifier; NaN: not scored."""
        self.keys += keys
        self.correct += (verifier_rewards_PG >= correct_threshold).sum(dim=1).tolist()
        self.scored += (~verifier_rewards_PG.isnan()).sum(dim=1).tolist()
        is_known_PG = ~rewards_PG.isnan()
        lowest_P = rewards_PG.masked_fill(~is_known_PG, torch.inf).amin(dim=1)
        highest_P = rewards_PG.masked_fill(~is_known_PG, -torch.inf).amax(dim=1)
        self.reward += _numbers(rewards_PG.nanmean(dim=1))
        self.spread += _numbers(highest_P - lowest_P)


def _numbers(values_P: Tensor) -> list[float | None]:
    """Return numbers to six digits, which is what the file has; None for those that are not finite."""
    is_finite = values_P.isfinite().tolist()
    return [float(f"{value:.6g}") if ok else None for value, ok in zip(values_P.tolist(), is_finite, strict=True)]


@dataclass
class GenerationBatch:
    """A generation batch under way, until TRL returns it."""

    num_generated: int  # rollouts generated for it on all processes, dropped ones included
    prepared: GeneratedRound | None = None  # what dynamic sampling has generated and scored; None: TRL does both
    num_tokens: int = 0  # tokens that the model has generated for it on this process
    rewards_NF: Tensor | None = None  # (N, F) gathered rewards, by reward function
    visits: Visits = field(default_factory=Visits)  # how its prompts came out


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
