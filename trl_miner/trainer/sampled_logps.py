"""The log-probs of sampled tokens, collected while transformers samples them.

# B rows, V vocabulary size
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

logger = logging.getLogger(__name__)

# Settings of a generation config that leave logits alone, or act after `SampledLogps`.
_HARMLESS = {
    *("transformers_version", "_from_model_config", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache"),
    *("max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p"),
    "repetition_penalty",  # TRL sets its own
}


class SampledLogps(LogitsProcessor):
    """Reads the logits before temperature, top-p and their like, and a step later the token that was drawn.

    It changes nothing. The logits of one step, (B, V), live one step longer for it.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self._logits_BV: Tensor | None = None
        self._logps: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._take(input_ids[:, -1])
        self._logits_BV = scores
        return scores

    def _take(self, tokens_B: Tensor) -> None:
        if self._logits_BV is None:
            return
        logits_BV, self._logits_BV = self._logits_BV.float() / self.temperature, None
        chosen_B = logits_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)
        self._logps.append(chosen_B - logits_BV.logsumexp(dim=1))

    def finish(self, tokens_B: Tensor) -> Tensor:
        """Return (B, steps), the log-probs in nats of all sampled tokens, given the last of them."""
        self._take(tokens_B)
        logps, self._logps = self._logps, []
        return torch.stack(logps, dim=1)


@contextmanager
def collect_logps(model: Any, temperature: float) -> Iterator[list[Tensor]]:
    """Yield a list that gets the (B, steps) log-probs of each `model.generate`, padding after a row's end included."""
    collected: list[Tensor] = []
    generate, own = model.generate, vars(model).get("generate")

    def generating(*args: Any, **kwargs: Any) -> Tensor:
        collector = SampledLogps(temperature)
        tokens = generate(*args, **kwargs, logits_processor=LogitsProcessorList([collector]))
        collected.append(collector.finish(tokens[:, -1]))
        return tokens

    model.generate = generating
    try:
        yield collected
    finally:
        del model.generate
        if own is not None:
            model.generate = own


def can_collect_logps(trainer: Any) -> bool:
    """Return whether the log-probs found while sampling are those that a forward would give, and are wanted."""
    args = trainer.args
    is_aligned = args.gradient_accumulation_steps % (args.steps_per_generation * trainer.num_iterations) == 0
    takers = [method.label for method in args.estimators if method.wants_sampler_logps]
    if not args.reuse_sampling_logps or not takers or not is_aligned:
        return False
    if trainer.use_vllm or trainer.rollout_func is not None:  # theirs are used where they come with the rollouts
        return False
    dtypes = {parameter.dtype for parameter in trainer.model.parameters()}
    settings = trainer.accelerator.unwrap_model(trainer.model).generation_config.to_diff_dict()
    changes = sorted(name for name, value in settings.items() if value and name not in _HARMLESS)
    changes += ["generation_kwargs"] if args.generation_kwargs else []
    changes += ["repetition_penalty"] if args.repetition_penalty != 1.0 else []
    reason = None
    if getattr(trainer, "use_transformers_continuous_batching", False):
        reason = "continuous batching does not return them"
    elif trainer.tools or getattr(trainer, "environment_factories", None):
        reason = "rollouts with tools are sampled in turns"
    elif not dtypes <= {torch.float32, torch.float64} or trainer.accelerator.mixed_precision != "no":
        reason = "below float32 the sampler's differ from those of a forward"
    elif changes:
        reason = f"the sampler's logits may be changed by {', '.join(changes)}"
    if reason:
        logger.warning(
            f"reuse_sampling_logps: {takers[0]} makes a forward over the rows that it scores, because {reason}."
        )
    return reason is None


def by_row(collected: Sequence[Tensor], completion_ids: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probs of one generation as lists, each as long as its row's completion."""
    rows = [row for logps in collected for row in logps.tolist()]
    if len(rows) != len(completion_ids) or any(len(row) < len(ids) for row, ids in zip(rows, completion_ids)):  # noqa: B905
        raise RuntimeError(
            f"The log-probs collected while sampling must be of its completions: got {len(rows)} rows for "
            f"{len(completion_ids)} completions. Set reuse_sampling_logps to false for this generation."
        )
    return [row[: len(ids)] for row, ids in zip(rows, completion_ids, strict=True)]
