"""Checks of the memory estimates: does it fit?"""

from collections.abc import Iterator

from . import memory, model_shape
from .context import Context, Finding, failed, not_checked, ok, warning
from .machine import GIB

TIGHT = 0.92  # warn above this share of the memory: the sum was never measured on a GPU
FEW_SEQUENCES = 8  # a server that holds fewer is slow with long completions


def check_training_memory(context: Context) -> Finding:
    """Check that a training process fits into the memory of its GPU."""
    shape = context.shape
    if shape.model_type not in model_shape.DENSE:
        known = ", ".join(sorted(model_shape.DENSE))
        return not_checked(f"the estimate covers {known}: got a {shape.model_type}.")
    estimate = memory.estimate_training(shape, context.run)
    need, have, where = estimate.total, context.gpu_bytes, "on each training GPU"
    if have is None:
        need, have, where = need * context.processes, context.machine.cpu_memory, "in all processes"
    if have is None:
        return not_checked(f"{need / GIB:.1f} GiB {where}; the machine's memory is not known.")
    text = f"{need / GIB:.1f} of {have / GIB:.1f} GiB {where}"
    if need > have:
        return failed(f"the training must fit: got {text}. {_advice(context, estimate)}")
    if need > TIGHT * have:
        return warning(f"{text}: tight for an estimate. {_advice(context, estimate)}")
    return ok(f"{text}; activations are a bound.")


def _advice(context: Context, estimate: memory.Estimate) -> str:
    """Return what would lower the training's memory."""
    settings, run = context.settings, context.run
    largest = max(estimate.phases, key=lambda name: estimate.phases[name], default="")
    key = {memory.GENERATING: "vllm_gpu_memory_utilization", memory.SCORING: "score_batch_size"}.get(largest)
    if key is not None and estimate.total > estimate.training:
        return f"It needs most {largest}: lower {key}."
    has_gpus = bool(context.plan.train_gpus)
    is_whole = run.sharding in ("none", "ddp", "zero1", "zero2") and not settings.use_peft
    budget = settings.max_tokens_per_micro_batch
    advice = {
        "lower max_tokens_per_micro_batch": budget is not None and run.rows > 1,
        "lower per_device_train_batch_size": budget is None and run.rows > 1,
        "set gradient_checkpointing: true": not settings.gradient_checkpointing,
        "use recipes/accelerate/zero3.yaml": is_whole and len(context.plan.train_gpus) > 1,
        "set vllm_enable_sleep_mode: true, or lower vllm_gpu_memory_utilization": run.colocated
        and not run.is_sleeping,
        "train on more GPUs, or with a LoRA recipe": not settings.use_peft,
        "set load_in_4bit: true": settings.use_peft and run.quantized_bytes is None and has_gpus,
    }
    text = "; ".join(words for words, applies in advice.items() if applies) or "use larger GPUs"
    return f"{text[0].upper()}{text[1:]}."


def check_token_budget(context: Context) -> Iterator[Finding]:
    """Check that `max_tokens_per_micro_batch` holds the longest rollout."""
    budget, longest = context.settings.max_tokens_per_micro_batch, context.run.tokens
    if budget is not None and budget < longest:
        yield warning(
            f"max_tokens_per_micro_batch should hold the longest rollout: got {budget}, but prompt and completion may "
            f"have {longest} tokens, and a longer rollout ends the run. Set it to {longest}."
        )


def check_server_memory(context: Context) -> Iterator[Finding]:
    """Check that vLLM's weights and a useful KV cache fit on its GPUs, or into its share of the training's."""
    estimate, parallel = context.server_estimate, context.settings.vllm_tensor_parallel_size
    if estimate is None:
        return
    where = "in vLLM's share of each GPU" if context.is_colocated else "on each server GPU"
    text = (
        f"{estimate.weights / GIB:.1f} GiB of weights and {estimate.cache / GIB:.1f} GiB of KV cache {where}: "
        f"{estimate.sequences:.0f} rollouts of {context.run.tokens} tokens at once"
    )
    advice = f"Raise vllm_{'gpu_memory_utilization' if context.is_colocated else 'tensor_parallel_size'}"
    if estimate.sequences < 1:
        yield failed(f"at least one rollout must fit: got {text}. {advice}, or lower max_completion_length.")
    elif context.shape.heads % parallel:
        yield failed(
            f"vllm_tensor_parallel_size must divide the model's {context.shape.heads} attention heads: got {parallel}."
        )
    elif estimate.sequences < FEW_SEQUENCES:
        yield warning(f"{text}: few, so generation is slow. {advice}.")
    else:
        yield ok(f"{text}.")
