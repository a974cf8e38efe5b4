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

from .replaced import replaced

logger = logging.getLogger(__name__)

# Settings of a generation config that leave logits alone, or act after `SampledLogps`.
_HARMLESS = {
    *("transformers_version", "_from_model_config", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache"),
    *("max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p"),
    "repetition_penalty",  # TRL sets its own
}
# Settings of vLLM's sampling that change no log-prob.
_VLLM_HARMLESS = {
    *("seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "max_tokens"),
    *("detokenize", "skip_special_tokens", "spaces_between_special_tokens"),
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
    generate = model.generate

    def generating(*args: Any, **kwargs: Any) -> Tensor:
        collector = SampledLogps(temperature)
        tokens = generate(*args, **kwargs, logits_processor=LogitsProcessorList([collector]))
        collected.append(collector.finish(tokens[:, -1]))
        return tokens

    with replaced(model, "generate", generating):
        yield collected


def choose_source(trainer: Any) -> tuple[bool, bool]:
    """Return whether the sampler's log-probs are used for the policy's, and whether to collect them while sampling.

    One warning says why not, where that costs a method a forward.
    """
    args = trainer.args
    if not args.reuse_sampling_logps:
        return False, False
    is_external = trainer.use_vllm or trainer.rollout_func is not None  # theirs come with the rollouts
    reason = _why_external_logps_differ(trainer) if is_external else _why_collected_logps_differ(trainer)
    is_aligned = args.gradient_accumulation_steps % (args.steps_per_generation * trainer.num_iterations) == 0
    has_trls = not is_aligned or (trainer.use_vllm and args.vllm_importance_sampling_correction)
    takers = [method.label for method in args.estimators if method.wants_sampler_logps and not has_trls]
    if reason and takers:
        logger.warning(
            f"reuse_sampling_logps: {takers[0]} makes a forward over the rows that it scores, because {reason}."
        )
    return reason is None and is_external, reason is None and not is_external and bool(takers)


def _why_external_logps_differ(trainer: Any) -> str | None:
    """Return why the log-probs of vLLM or a `rollout_func` cannot be the policy's; None: they can."""
    args = trainer.args
    off = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
    changes = [name for name, values in off.items() if getattr(args, name) not in values]
    changes += [f"generation_kwargs[{name!r}]" for name in args.generation_kwargs or () if name not in _VLLM_HARMLESS]
    changes += ["vllm_structured_outputs_regex"] if getattr(args, "vllm_structured_outputs_regex", None) else []
    return f"the sampler's are changed by {', '.join(changes)}, the policy's are not" if changes else None


def _why_collected_logps_differ(trainer: Any) -> str | None:
    """Return why log-probs collected while transformers samples differ from a forward's; None: they do not."""
    args = trainer.args
    dtypes = {parameter.dtype for parameter in trainer.model.parameters()}
    settings = trainer.accelerator.unwrap_model(trainer.model).generation_config.to_diff_dict()
    changes = sorted(name for name, value in settings.items() if value and name not in _HARMLESS)
    changes += ["generation_kwargs"] if args.generation_kwargs else []
    changes += ["repetition_penalty"] if args.repetition_penalty != 1.0 else []
    if getattr(trainer, "use_transformers_continuous_batching", False):
        return "continuous batching does not return them"
    if trainer.tools or getattr(trainer, "environment_factories", None):
        return "rollouts with tools are sampled in turns"
    if not dtypes <= {torch.float32, torch.float64} or trainer.accelerator.mixed_precision != "no":
        return "below float32 the sampler's differ from those of a forward"
    return f"the sampler's logits may be changed by {', '.join(changes)}" if changes else None


def by_row(collected: Sequence[Tensor], completion_ids: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probs of one generation as lists, each as long as its row's completion."""
    rows = [row for logps in collected for row in logps.tolist()]
    if len(rows) != len(completion_ids) or any(len(row) < len(ids) for row, ids in zip(rows, completion_ids)):  # noqa: B905
        raise RuntimeError(
            f"The log-probs collected while sampling must be of its completions: got {len(rows)} rows for "
            f"{len(completion_ids)} completions. Set reuse_sampling_logps to false for this generation."
        )
    return [row[: len(ids)] for row, ids in zip(rows, completion_ids, strict=True)]
