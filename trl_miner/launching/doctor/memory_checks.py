"""Does it fit? Checks of the estimates in `memory`."""

from collections.abc import Iterator

from ..plan import Plan
from . import memory, model_shape
from .context import FAILED, NOT_CHECKED, OK, WARNING, Check, Context, Finding
from .machine import GIB

TIGHT = 0.92  # above this share of the memory, an estimate that was never measured on a GPU is a warning
FEW_SEQUENCES = 8  # below this a server is slow with long completions


def check_training_memory(context: Context) -> Finding:
    """Does a training process fit into the memory of its GPU, by the estimate?"""
    about = "memory"
    try:
        shape = context.shape
    except OSError as error:
        return Finding(NOT_CHECKED, about, f"{error}. Download the model first, or name a folder.")
    if shape.model_type not in model_shape.DENSE:
        return Finding(NOT_CHECKED, about, f"the estimate knows {', '.join(sorted(model_shape.DENSE))}: got a "
                       f"{shape.model_type}.")  # fmt: skip
    need = memory.estimate_training(shape, context.run).total
    if context.plan.train_gpus:
        have, where = context.gpu_bytes or 0, "on each training GPU"
    elif context.machine.cpu_memory is None:
        return Finding(NOT_CHECKED, about, f"{need / GIB:.1f} GiB per process, and the memory is not known.")
    else:
        have, where = context.machine.cpu_memory, "in all processes"
        need *= max(context.plan.num_processes, 1)
    text = f"{need / GIB:.1f} of {have / GIB:.1f} GiB {where}"
    if need > have:
        return Finding(FAILED, about, f"the training must fit: got {text}. {_less_memory(context)}")
    if need > TIGHT * have:
        return Finding(WARNING, about, f"{text}: tight for an estimate. {_less_memory(context)}")
    return Finding(OK, about, f"{text} (an estimate; measured on a CPU only).")


def _less_memory(context: Context) -> str:
    settings, run = context.settings, context.run
    advice = []
    if settings.max_tokens_per_micro_batch is not None:
        advice += ["lower max_tokens_per_micro_batch"] if run.rows > 1 else []
    elif settings.per_device_train_batch_size > 1:
        advice.append("lower per_device_train_batch_size")
    if not settings.gradient_checkpointing:
        advice.append("set gradient_checkpointing: true")
    if run.sharding in ("none", "ddp", "zero1", "zero2") and not settings.use_peft and context.plan.train_gpus:
        advice.append("use recipes/accelerate/zero3.yaml")
    if not settings.use_peft:
        advice.append("train more GPUs, or a LoRA recipe")
    text = "; ".join(advice) or "use larger GPUs"
    return f"{text[0].upper()}{text[1:]}."


def check_token_budget(context: Context) -> Iterator[Finding]:
    """Does `max_tokens_per_micro_batch` hold the longest rollout?"""
    budget, longest = context.settings.max_tokens_per_micro_batch, context.run.tokens
    if budget is None:
        return
    about = "token budget"
    if budget < longest:
        yield Finding(WARNING, about, f"max_tokens_per_micro_batch should hold the longest rollout: got {budget}, and "
                      f"prompt and completion may have {longest} tokens. The run ends where one is longer. Set it to "
                      f"{longest}.")  # fmt: skip
    else:
        yield Finding(OK, about, f"micro-batches of {budget} tokens hold the longest rollout, {longest}.")


def check_cpu_memory(context: Context) -> Iterator[Finding]:
    """Does an optimizer that is kept in CPU memory fit there?"""
    if not context.run.offloads_optimizer:
        return
    about = "CPU memory"
    try:
        need = memory.optimizer_in_cpu_memory(context.shape) // context.plan.num_machines
    except OSError as error:
        yield Finding(NOT_CHECKED, about, f"{error}.")
        return
    have = context.machine.cpu_memory
    if have is None:
        yield Finding(NOT_CHECKED, about, f"the optimizer needs {need / GIB:.0f} GiB; what there is is not known.")
    elif need > have:
        yield Finding(FAILED, about, f"the optimizer's states must fit: got {need / GIB:.0f} of {have / GIB:.0f} GiB. "
                      "Use a larger machine, or more GPUs without offload.")  # fmt: skip
    else:
        yield Finding(OK, about, f"{need / GIB:.0f} of {have / GIB:.0f} GiB for the optimizer's states.")


def check_server_memory(context: Context) -> Iterator[Finding]:
    """Do the vLLM server's weights and a useful KV cache fit on its GPUs?"""
    server = [context.machine.gpus[i].free for i in context.plan.server_gpus if i < len(context.machine.gpus)]
    if not server:
        return
    about, settings = "vLLM memory", context.settings
    try:
        found = memory.estimate_server(
            context.shape, min(server), tensor_parallel=len(server), utilization=utilization_of(context.plan),
            length=context.run.tokens,
        )  # fmt: skip
    except OSError as error:
        yield Finding(NOT_CHECKED, about, f"{error}.")
        return
    text = f"{found.weights / GIB:.1f} GiB of weights and {found.cache / GIB:.1f} GiB of KV cache on each server GPU: "
    text += f"{found.sequences:.0f} rollouts of {context.run.tokens} tokens at once"
    if found.sequences < 1:
        yield Finding(FAILED, about, f"at least one rollout must fit: got {text}. Raise vllm_tensor_parallel_size, or "
                      "lower max_completion_length.")  # fmt: skip
    elif shape_error := _bad_split(context.shape, settings.vllm_tensor_parallel_size):
        yield Finding(FAILED, about, shape_error)
    elif found.sequences < FEW_SEQUENCES:
        yield Finding(WARNING, about, f"{text}: few, so that generation is slow. Raise vllm_tensor_parallel_size.")
    else:
        yield Finding(OK, about, f"{text}.")


def utilization_of(plan: Plan) -> float:
    """The share of the memory that the server is started with."""
    flag = "--gpu-memory-utilization"
    command = plan.server or []
    return float(command[command.index(flag) + 1]) if flag in command else 0.9


def _bad_split(shape: model_shape.Shape, parallel: int) -> str | None:
    if shape.heads % parallel:
        return f"vllm_tensor_parallel_size must divide the model's {shape.heads} attention heads: got {parallel}."
    return None


MEMORY_CHECKS: tuple[Check, ...] = (
    check_training_memory,
    check_token_budget,
    check_cpu_memory,
    check_server_memory,
)
