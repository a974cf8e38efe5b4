"""What every check is given, and what it gives back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..plan import Plan
from . import memory, model_shape
from .machine import Machine

OK, WARNING, FAILED, NOT_CHECKED = "ok", "warning", "FAILED", "not checked"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what came of it, and what to do."""

    status: str
    about: str
    text: str


@dataclass(frozen=True)
class Context:
    """What every check is given."""

    plan: Plan
    machine: Machine

    @property
    def settings(self) -> Any:
        return self.plan.settings

    @property
    def wants_server(self) -> bool:
        return bool(self.settings.use_vllm and self.settings.vllm_mode == "server")

    @cached_property
    def shape(self) -> model_shape.Shape:
        """Raises OSError where the model's configuration cannot be found."""
        return model_shape.measure(*self._config)

    @cached_property
    def _config(self) -> tuple[Any, Any, str]:
        config, known = model_shape.find_config(self.settings)
        return config, self.settings, known

    @cached_property
    def run(self) -> memory.Run:
        return read_run(self)

    @cached_property
    def gpu_bytes(self) -> int | None:
        """Of the smallest GPU that trains; None on a CPU."""
        sizes = [self.machine.gpus[index].free for index in self.plan.train_gpus if index < len(self.machine.gpus)]
        return min(sizes, default=None)


def read_run(context: Context) -> memory.Run:
    """What of a plan decides about memory."""
    settings, plan = context.settings, context.plan
    tokens = settings.max_completion_length + longest_prompt_allowed(settings)
    budget = settings.max_tokens_per_micro_batch
    is_gpu = bool(plan.train_gpus)
    dtype = {"bfloat16": 2, "float16": 2, "auto": 2}.get(settings.dtype, 4)
    sharding = sharding_of(plan)
    zero = plan.accelerate.get("deepspeed_config") or {}
    colocated = 0
    if settings.use_vllm and settings.vllm_mode == "colocate" and not settings.vllm_enable_sleep_mode and is_gpu:
        colocated = int((context.gpu_bytes or 0) * settings.vllm_gpu_memory_utilization)
    return memory.Run(
        sharding=sharding,
        processes=max(plan.num_processes, 1),
        rows=settings.per_device_train_batch_size if budget is None else max(1, -(-budget // tokens)),
        tokens=tokens,
        is_checkpointed=bool(settings.gradient_checkpointing),
        has_reference=bool(settings.beta) and not settings.use_peft,
        weight_bytes=dtype,
        is_mixed=is_gpu and (settings.bf16 is not False or bool(settings.fp16)),
        is_gpu=is_gpu,
        optimizer_bytes=2 if "8bit" in str(settings.optim) else memory.ADAM,
        offloads_optimizer=str(zero.get("offload_optimizer_device", "none")) != "none",
        colocated=colocated,
    )


def sharding_of(plan: Plan) -> str:
    """How the plan divides model and optimizer: "none", "ddp", "fsdp" or "zero" with its stage."""
    kind = str(plan.accelerate.get("distributed_type", "NO")).upper()
    if kind == "DEEPSPEED":
        return f"zero{(plan.accelerate.get('deepspeed_config') or {}).get('zero_stage', 2)}"
    if kind == "FSDP":
        return "fsdp"
    return "ddp" if plan.num_processes > 1 else "none"


def longest_prompt_allowed(settings: Any) -> int:
    """Tokens that the server's limit leaves for a prompt; 1000, the paper's limit, where it says nothing."""
    limit = settings.vllm_max_model_length if settings.use_vllm else None
    return max(limit - settings.max_completion_length, 0) if limit else min(1000, settings.max_completion_length)


Check = Callable[[Context], Finding | Iterator[Finding]]
