"""Checks of the memory estimates: does it fit?"""

from collections.abc import Iterator

from . import memory, model_shape
from .context import Check, Context, Finding, failed, not_checked, ok, warning
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
    need = estimate.total
    if context.plan.train_gpus:
        have, where = context.gpu_bytes or 0, "on each training GPU"
    elif context.machine.cpu_memory is None:
        return not_checked(f"{need / GIB:.1f} GiB per process; the machine's memory is not known.")
    else:
        have, where = context.machine.cpu_memory, "in all processes"
        need *= max(context.plan.num_processes, 1)
    text = f"{need / GIB:.1f} of {have / GIB:.1f} GiB {where}"
    if need > have:
        return failed(f"the training must fit: got {text}. {_advice(context, estimate)}")
    if need > TIGHT * have:
        return warning(f"{text}: tight for an estimate. {_advice(context, estimate)}")
    return ok(f"{text}; activations are a bound.")


def _advice(context: Context, estimate: memory.Estimate) -> str:
    """Return what would lower the training's memory."""
    settings, run = context.settings, context.run
    if estimate.total > estimate.training:
        largest = max(estimate.phases, key=lambda name: estimate.phases[name])
        key = {memory.GENERATING: "vllm_gpu_memory_utilization", memory.SCORING: "score_batch_size"}.get(largest)
        if key is not None:
            return f"It needs most {largest}: lower {key}."
    advice = []
    if settings.max_tokens_per_micro_batch is not None:
        advice += ["lower max_tokens_per_micro_batch"] if run.rows > 1 else []
    elif settings.per_device_train_batch_size > 1:
        advice.append("lower per_device_train_batch_size")
    if not settings.gradient_checkpointing:
        advice.append("set gradient_checkpointing: true")
    if run.sharding in ("none", "ddp", "zero1", "zero2") and not settings.use_peft and context.plan.train_gpus:
        advice += ["use recipes/accelerate/zero3.yaml"] if len(context.plan.train_gpus) > 1 else []
    if context.is_colocated and not settings.vllm_enable_sleep_mode:
        advice.append("set vllm_enable_sleep_mode: true, or lower vllm_gpu_memory_utilization")
    if not settings.use_peft:
        advice.append("train on more GPUs, or with a LoRA recipe")
    elif run.quantized_bytes is None and context.plan.train_gpus:
        advice.append("set load_in_4bit: true")
    text = "; ".join(advice) or "use larger GPUs"
    return f"{text[0].upper()}{text[1:]}."


def check_token_budget(context: Context) -> Iterator[Finding]:
    """Check that `max_tokens_per_micro_batch` holds the longest rollout."""
    budget, longest = context.settings.max_tokens_per_micro_batch, context.run.tokens
    if budget is not None and budget < longest:
        yield warning(
            f"max_tokens_per_micro_batch should hold the longest rollout: got {budget}, but prompt and completion may "
            f"have {longest} tokens, and a longer rollout ends the run. Set it to {longest}."
        )
    elif budget is not None:
        yield ok(f"micro-batches of {budget} tokens hold the longest rollout, {longest}.")


def check_cpu_memory(context: Context) -> Iterator[Finding]:
    """Check that an offloaded optimizer fits into CPU memory."""
    if not context.run.offloads_optimizer:
        return
    need = memory.optimizer_in_cpu_memory(context.shape) // context.plan.num_machines
    have = context.machine.cpu_memory
    if have is None:
        yield not_checked(f"the optimizer needs {need / GIB:.0f} GiB; the machine's memory is not known.")
    elif need > have:
        yield failed(
            f"the optimizer's states must fit: got {need / GIB:.0f} of {have / GIB:.0f} GiB. Use a larger machine, or "
            f"more GPUs without offload."
        )
    else:
        yield ok(f"{need / GIB:.0f} of {have / GIB:.0f} GiB for the optimizer's states.")


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


MEMORY_CHECKS: dict[str, Check] = {
    "memory": check_training_memory,
    "token budget": check_token_budget,
    "CPU memory": check_cpu_memory,
    "vLLM memory": check_server_memory,
}
