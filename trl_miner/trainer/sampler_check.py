"""Whether the sampler's log-probs are those of the policy: checked on a few rollouts, once per training.

# N rollouts of the global batch, B of this process, T padded completion tokens
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed import World, accumulation_dtype, current_world
from .checkpointing import RunState
from .logits import RAW_LOGPS, changes_of_logits
from .padding import loss_mask

logger = logging.getLogger(__name__)

NUM_ROWS, NUM_TOKENS = 16, 1024  # compared over all processes, if there are as many; every process compares a row
ENOUGH_TOKENS = 50  # fewer may be further apart by chance; those of the next batches are then added
METRIC = "sampling/sampling_logp_difference/mean"  # as TRL calls it where it computes both
# Mean absolute differences in nats per token. Between vLLM and a trainer in bfloat16 it is about 0.035; the table in
# the guide has what else comes to how much, and how much of the credit that moves.
NEGLIGIBLE, SUSPICIOUS, TOO_FAR = 0.005, 0.1, 0.2
_FORWARD = "set reuse_sampling_logps: false, and each batch makes a forward over the rollouts that are scored"


# Settings of vLLM's sampling that change no log-prob.
_HARMLESS = {
    *("seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "max_tokens"),
    *("detokenize", "skip_special_tokens", "spaces_between_special_tokens"),
}


def takes_sampler_logps(trainer: Any) -> bool:
    """Return whether log-probs that come with the rollouts, from vLLM or a `rollout_func`, stand for the policy's.

    One warning says why not, where that costs a method a forward.
    """
    args = trainer.args
    if not args.reuse_sampling_logps or not (trainer.use_vllm or trainer.rollout_func is not None):
        return False
    off = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
    changes = [name for name, values in off.items() if getattr(args, name) not in values]
    changes += [f"generation_kwargs[{name!r}]" for name in args.generation_kwargs or () if name not in _HARMLESS]
    changes += ["vllm_structured_outputs_regex"] if args.vllm_structured_outputs_regex else []
    is_aligned = args.gradient_accumulation_steps % (args.steps_per_generation * trainer.num_iterations) == 0
    has_trls = not is_aligned or (trainer.use_vllm and args.vllm_importance_sampling_correction)
    takers = [method.label for method in args.estimators if method.wants_sampler_logps and not has_trls]
    if changes and takers:
        logger.warning(
            f"reuse_sampling_logps: {takers[0]} makes a forward over the rows that it scores, because the sampler's "
            f"log-probs are changed by {', '.join(changes)}, the policy's are not."
        )
    return not changes


@dataclass(frozen=True)
class Agreement:
    """How far the sampler's log-probs are from the policy's, over all processes.

    Attributes:
        num_tokens: Tokens compared.
        difference: Mean absolute difference, nats per token.
        bias: Mean of the sampler's less the policy's, nats per token.
        raw_difference: The mean absolute difference from the policy's at temperature 1; NaN: not known.
        num_positive: Tokens whose log-prob is above 0, as only a logit can be.
    """

    num_tokens: int
    difference: float
    bias: float
    raw_difference: float
    num_positive: int

    @classmethod
    def of(cls, sums: Tensor) -> "Agreement":
        """Return the means of what `compare` summed up."""
        count, absolute, signed, raw, positive = sums.tolist()
        per_token = 1 / max(count, 1)
        return cls(int(count), absolute * per_token, signed * per_token, raw * per_token, int(positive))


def compare(sampled_BT: Tensor, policy_BT: Tensor, raw_BT: Tensor | None, is_token_BT: Tensor, world: World) -> Tensor:
    """Return sums over the tokens of all processes, in the order of `Agreement`. Every process must call it."""
    sampled = sampled_BT[is_token_BT].to(accumulation_dtype(sampled_BT.device))
    difference = sampled - policy_BT[is_token_BT]
    raw_sum = difference.new_tensor(torch.nan) if raw_BT is None else (sampled - raw_BT[is_token_BT]).abs().sum()
    counts = torch.ones_like(difference).sum(), (sampled > 0.1).sum()
    return world.sum(torch.stack([counts[0], difference.abs().sum(), difference.sum(), raw_sum, counts[1]]))


def check_sampler(trainer: Any, batch: dict[str, Any], sampled_BT: Tensor) -> bool:
    """Return whether the sampler's log-probs stand for the policy's: once a training, a forward over a few rollouts
    finds out, or over those of several batches where they are short. Every process must call it.

    Raises:
        ValueError: They are of another distribution, and a method of this run would be given them. (Where only records
            or an estimator of one's own ask, that is a warning, and they get a forward's.)
    """
    state, world = RunState.of(trainer), current_world()
    if state.sampler_is_checked:
        return True
    is_token_BT = loss_mask(batch).bool() & sampled_BT.isfinite()  # vLLM returns NaN where it could not say
    if not (num_tokens := int(world.sum(is_token_BT.sum()))):
        return True
    is_row_N = _choose_rows(world.size * len(sampled_BT), num_tokens, sampled_BT.device, world)
    policy_BT, raw_BT = _score(trainer, batch, is_row_N)
    is_token_BT &= is_row_N[world.local_slice(len(sampled_BT))].unsqueeze(1)
    sums = compare(sampled_BT, policy_BT, raw_BT, is_token_BT, world) + state.sampler_sums
    state.sampler_sums = sums
    found = Agreement.of(sums)
    if found.num_tokens < ENOUGH_TOKENS and not found.num_positive:
        return True
    state.sampler_is_checked = True
    trainer.log_train_metric(METRIC, found.difference)
    fault = find_fault(found, trainer.temperature)
    if fault is not None and any(method.wants_sampler_logps for method in trainer.args.estimators):
        raise ValueError(fault)
    trainer.uses_sampler_logps = fault is None
    if fault is None and found.difference > SUSPICIOUS:
        fault = (
            f"The sampler's log-probs are {found.difference:.2g} nats per token from the policy's ({found.num_tokens} "
            f"tokens), more than rounding explains, and the credit of tokens follows from them. Look whether the "
            f"sampler is quantized or changes logits; or {_FORWARD}."
        )
    if fault is not None and trainer.is_world_process_zero():
        logger.warning(fault)
    return bool(trainer.uses_sampler_logps)


def _choose_rows(num_rows: int, num_tokens: int, device: torch.device, world: World) -> Tensor:
    """Return (N,) bool, some of the rows, on every process where all are: few where they are long."""
    wanted = max(NUM_ROWS, world.size, -(-NUM_TOKENS * num_rows // num_tokens))
    is_row_N = torch.zeros(num_rows, dtype=torch.bool, device=device)
    is_row_N[:: -(-num_rows // wanted)] = True
    return is_row_N


def _score(trainer: Any, batch: dict[str, Any], is_row_N: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the policy's (B, T) log-probs of some rows, and those at temperature 1 where they differ."""
    is_raw_other = trainer.temperature != 1 and not changes_of_logits(trainer.model)
    with _without_dropout(trainer.model):
        scores = trainer.forwards.of_rows(batch, is_row_N, {RAW_LOGPS} if is_raw_other else set())
    return scores["old_logps"], scores.get(RAW_LOGPS)


def find_fault(found: Agreement, temperature: float) -> str | None:
    """Return the error for log-probs of another distribution, with what explains it; None: they are the policy's."""
    rule = f"The sampler's log-probs must be the policy's at temperature {temperature:g}"
    shown = (
        f"{found.difference:.2g} nats per token away on average (bias {found.bias:+.2g}, {found.num_tokens} tokens)"
    )
    flag = "--logprobs-mode processed_logprobs"
    if found.num_positive:
        return (
            f"{rule}: {found.num_positive} of {found.num_tokens} are above 0, as only logits can be. Start the vLLM "
            f"server with {flag}, as trl-miner launch does; or {_FORWARD}."
        )
    is_raw = found.raw_difference < found.difference / 2  # False for NaN
    if is_raw and found.difference > NEGLIGIBLE:
        return (
            f"{rule}: they are {shown}, but only {found.raw_difference:.2g} from those at temperature 1. Start the "
            f"vLLM server with {flag}, as trl-miner launch does (a rollout_func must return log-probs at "
            f"trainer.temperature); or {_FORWARD}."
        )
    if found.difference > TOO_FAR:
        return (
            f"{rule}: they are {shown}, and rounding explains less than {SUSPICIOUS:g}. Look whether the vLLM server "
            f"runs the model that trains and gets its weights, whether it is quantized or changes logits, and whether "
            f"it was started with {flag}. If they are meant to differ, {_FORWARD}."
        )
    return None


@contextmanager
def _without_dropout(model: Any) -> Iterator[None]:
    """Have a model that trains drop nothing out meanwhile, as the sampler does; it still counts as training itself."""
    parts = [module for module in model.modules() if module.training and module is not model]
    for module in parts:
        module.training = False
    try:
        yield
    finally:
        for module in parts:
            module.training = True
