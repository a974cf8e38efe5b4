"""Whether the sampler's log-probs are those of the policy: checked on a few rollouts, once per training.

# N rollouts of the global batch, B of this process, T padded completion tokens
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ..distributed import accumulation_dtype, current_world
from ..launching.server import LOGPROBS_FLAG

logger = logging.getLogger(__name__)

NUM_ROWS, NUM_TOKENS = 16, 1024  # compared over all processes, if there are as many; every process compares a row
ENOUGH_TOKENS = 50  # fewer may be further apart by chance; those of the next batches are then added
METRIC = "sampling/sampling_logp_difference/mean"  # as TRL calls it where it computes both
# Mean absolute differences in nats per token. Between vLLM and a trainer in bfloat16 it is about 0.035; what else
# comes to how much, and how much of the credit that moves, is in tests/bench/results/sampler_logps.md.
SUSPICIOUS, TOO_FAR = 0.1, 0.2


def takes_sampler_logps(trainer: Any) -> bool:
    """Return whether log-probs that come with the rollouts, from vLLM or a `rollout_func`, stand for the policy's.

    One warning says why not, where that costs a method a forward.
    """
    args = trainer.args
    if not args.reuse_sampling_logps or not (trainer.use_vllm or trainer.rollout_func is not None):
        return False
    off: dict[str, tuple[Any, ...]] = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}
    off |= {
        "repetition_penalty": (None, 1.0),
        "generation_kwargs": (None, {}),
        "vllm_structured_outputs_regex": (None,),
    }
    changes = [name for name, values in off.items() if getattr(args, name) not in values]
    is_aligned = args.gradient_accumulation_steps % (args.steps_per_generation * trainer.num_iterations) == 0
    has_trls = not is_aligned or (trainer.use_vllm and args.vllm_importance_sampling_correction)
    takers = [method.label for method in args.estimators if method.wants_sampler_logps and not has_trls]
    if changes and takers:
        logger.warning(
            f"reuse_sampling_logps: {takers[0]} makes a forward over the rows that it scores, because the sampler's "
            f"log-probs may be changed by {', '.join(changes)}, the policy's are not."
        )
    return not changes


def compare(sampled_BT: Tensor, policy_BT: Tensor, is_token_BT: Tensor) -> Tensor:
    """Return (3,) of this process's tokens: their number, the sum of the absolute differences in nats, and how many of
    the sampler's log-probs are above 0, as only logits can be."""
    sampled = sampled_BT[is_token_BT].to(accumulation_dtype(sampled_BT.device))
    difference = (sampled - policy_BT[is_token_BT]).abs()
    return torch.stack([torch.ones_like(sampled), difference, (sampled > 0.1).to(sampled)]).sum(dim=1)


class SamplerCheck(TrainerCallback):
    """Compares the sampler's log-probs with the policy's, anew in each training.

    One forward over a few rollouts does, or over those of several batches where they are short.
    """

    def __init__(self, temperature: float, *, is_needed: bool, log: Callable[[str, float], None]) -> None:
        self._temperature, self._is_needed, self.log = temperature, is_needed, log
        self._sums: Tensor | float = 0.0
        self._is_done, self._is_trusted = False, True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._sums, self._is_done = 0.0, False

    def trusts(self, sampled_BT: Tensor, mask_BT: Tensor, score: Callable[[Tensor], Tensor]) -> bool:
        """Return whether the sampler's log-probs stand for the policy's. Every process must call it.

        Args:
            sampled_BT: The sampler's log-probs; NaN where it could not say.
            mask_BT: The tokens that count.
            score: Returns the policy's (B, T) log-probs of some rows, (N,) bool.

        Raises:
            ValueError: They are of another distribution, and a method of this run would be given them. (Where only
                records or an estimator of one's own ask, that is a warning.)
        """
        if self._is_done or not self._is_trusted:
            return self._is_trusted
        world, is_token_BT = current_world(), mask_BT.bool() & sampled_BT.isfinite()
        num_rows, num_tokens = world.size * len(sampled_BT), int(world.sum(is_token_BT.sum()))
        if not num_tokens:
            return True
        wanted = max(NUM_ROWS, world.size, -(-NUM_TOKENS * num_rows // num_tokens))  # on every process where all are
        is_row_N = torch.arange(num_rows, device=sampled_BT.device) % -(-num_rows // wanted) == 0
        is_token_BT &= is_row_N[world.local_slice(len(sampled_BT))].unsqueeze(1)
        self._sums = world.sum(compare(sampled_BT, score(is_row_N), is_token_BT)) + self._sums
        count, total, num_positive = self._sums.tolist()
        if count >= ENOUGH_TOKENS or num_positive:
            self._judge(int(count), total / count, int(num_positive))
        return self._is_trusted

    def _judge(self, num_tokens: int, difference: float, num_positive: int) -> None:
        self._is_done = True
        self.log(METRIC, difference)
        problem = find_problem(num_tokens, difference, num_positive, self._temperature)
        is_fault = num_positive > 0 or difference > TOO_FAR
        if is_fault and self._is_needed:
            raise ValueError(problem)
        self._is_trusted = not is_fault
        if problem is not None and current_world().rank == 0:
            logger.warning(problem)


def find_problem(num_tokens: int, difference: float, num_positive: int, temperature: float) -> str | None:
    """Return what is wrong with the sampler's log-probs, and what may explain it; None: they are the policy's."""
    if not num_positive and difference <= SUSPICIOUS:
        return None
    logits = f", and {num_positive} are above 0, as only logits can be" if num_positive else ""
    return (
        f"The sampler's log-probs must be the policy's at temperature {temperature:g}: they are {difference:.2g} nats "
        f"per token away on average ({num_tokens} tokens){logits}; rounding explains less than {SUSPICIOUS:g}. Look "
        f"whether the vLLM server was started with {LOGPROBS_FLAG}, as trl-miner launch does, whether it runs the "
        f"model that trains and gets its weights, and whether it is quantized or changes logits. A rollout_func must "
        f"return log-probs at trainer.temperature. If they are meant to differ, set reuse_sampling_logps: false: each "
        f"batch then makes a forward over the rollouts that are scored."
    )
