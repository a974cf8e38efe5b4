"""Whether the sampler's log-probs are those of the policy: checked on a few rollouts.

# N rollouts of the global batch, B of this process, T padded completion tokens
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..methods.distributed import accumulation_dtype, current_world
from .core import Core

NUM_ROWS = 16  # compared over all processes, if there are as many; every process compares a row
ENOUGH_TOKENS = 50  # fewer may be further apart by chance; those of the next batches are then added
METRIC = "sampling/sampling_logp_difference/mean"  # as TRL calls it where it computes both
# Mean absolute difference in nats per token. Between vLLM and a trainer in bfloat16 it is about
# 0.035; what else comes to how much, and how much of the credit that moves, is in
# tests/bench/results/sampler_logps.md.
TOO_FAR = 0.2
# values with which a sampler draws from the policy itself
_UNCHANGED: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "generation_kwargs": (None, {}),
    "vllm_structured_outputs_regex": (None,),
}


def takes_sampler_logps(trainer: Core) -> bool:
    """Return whether log-probs that come with the rollouts, from vLLM or a `rollout_func`, stand
    for the policy's."""
    args = trainer.args
    is_aligned = (
        args.gradient_accumulation_steps % (args.steps_per_generation * trainer.num_iterations) == 0
    )
    has_trls = not is_aligned or (trainer.use_vllm and args.vllm_importance_sampling_correction)
    is_wanted = any(method.wants_sampler_logps for method in args.estimators) and not has_trls
    has_sampler = trainer.use_vllm or trainer.rollout_func is not None
    return is_wanted and has_sampler and draws_from_policy(args)


def draws_from_policy(args: Any) -> bool:
    """Return whether the settings draw rollouts from the policy itself."""
    return all(getattr(args, name) in values for name, values in _UNCHANGED.items())


class SamplerCheck:
    """Compares the sampler's log-probs with the policy's, once.

    One forward over a few rollouts does, or over those of several batches where they are short.
    """

    def __init__(self, temperature: float, log: Callable[[str, float], None]) -> None:
        self._temperature, self.log = temperature, log
        self._sums: Tensor | float = 0.0
        self._is_done = False

    def check(self, sampled_BT: Tensor, mask_BT: Tensor, score: Callable[[Tensor], Tensor]) -> None:
        """Raise ValueError if the sampler's log-probs are of another distribution. Every process
        must call it.

        Args:
            sampled_BT: The sampler's log-probs; NaN where it could not say.
            mask_BT: The tokens that count.
            score: Returns the policy's (B, T) log-probs of some rows, (N,) bool.
        """
        world, is_token_BT = current_world(), mask_BT.bool() & sampled_BT.isfinite()
        if self._is_done or not int(world.sum(is_token_BT.sum())):
            return
        num_rows = world.size * len(sampled_BT)
        is_row_N = (
            torch.arange(num_rows, device=sampled_BT.device)
            % -(-num_rows // max(NUM_ROWS, world.size))
            == 0
        )
        is_token_BT &= is_row_N[world.local_slice(len(sampled_BT))].unsqueeze(1)
        differences = (
            (sampled_BT - score(is_row_N))[is_token_BT]
            .abs()
            .to(accumulation_dtype(sampled_BT.device))
        )
        self._sums = (
            world.sum(torch.stack([torch.ones_like(differences), differences]).sum(dim=1))
            + self._sums
        )
        count, total = self._sums.tolist()
        if count < ENOUGH_TOKENS:
            return
        self._is_done, difference = True, total / count
        self.log(METRIC, difference)
        if difference > TOO_FAR:
            raise ValueError(
                "The sampler's log-probs must be the policy's at temperature"
                f" {self._temperature:g}: they are {difference:.2g} nats per token away on average;"
                f" rounding explains less than {TOO_FAR / 2:g}. Look whether the vLLM server was"
                " started with --logprobs-mode processed_logprobs, as trl-miner launch does, and"
                " runs the model that trains. A rollout_func must return log-probs at"
                " trainer.temperature, or None. If vLLM's are meant to differ, leave out"
                " vllm_importance_sampling_correction: false."
            )
