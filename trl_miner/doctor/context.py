"""The input and the output of every check."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ..launching.plan import Plan
from . import memory, model_shape
from .machine import Machine
from .parsing import parse

OK, WARNING, FAILED, NOT_CHECKED = "ok", "warning", "FAILED", "not checked"


@dataclass(frozen=True)
class Finding:
    """One line of the table: the outcome, an explanation with what to do, and the subject (default: the check's)."""

    status: str
    text: str
    about: str = ""


ok, warning, failed, not_checked = (partial(Finding, status) for status in (OK, WARNING, FAILED, NOT_CHECKED))


@dataclass(frozen=True)
class Context:
    """The plan of a run and the machine that it is for."""

    plan: Plan
    machine: Machine

    @property
    def settings(self) -> Any:
        return self.plan.settings

    @property
    def processes(self) -> int:
        return max(self.plan.num_processes, 1)

    @cached_property
    def parsed(self) -> tuple[tuple[Any, ...], list[str]]:
        """The settings as the training parses them, and the warnings of that."""
        return parse(self.settings, self.processes)

    @property
    def distribution(self) -> str:
        """accelerate's `distributed_type`."""
        return str(self.plan.accelerate.get("distributed_type", "NO")).upper()

    @property
    def sharding(self) -> str:
        """How model and optimizer are divided: "none", "ddp", "fsdp" or "zero" with its stage."""
        if self.distribution == "DEEPSPEED":
            return f"zero{self._zero.get('zero_stage', 2)}"
        if self.distribution == "FSDP":
            return "fsdp"
        return "ddp" if self.plan.num_processes > 1 else "none"

    @property
    def _zero(self) -> dict[str, Any]:
        return self.plan.accelerate.get("deepspeed_config") or {}

    @cached_property
    def shape(self) -> model_shape.Shape:
        """The model's sizes. Raises `UnknownModel` if it is not here, `UnusableModel` if it cannot train like this."""
        config, source = model_shape.find_config(self.settings)
        return model_shape.measure(config, self.settings, source)

    @cached_property
    def run(self) -> memory.Run:
        """The settings that decide about memory."""
        settings = self.settings
        tokens = settings.max_completion_length + self.longest_prompt
        budget = settings.max_tokens_per_micro_batch
        is_gpu = bool(self.plan.train_gpus)
        share = settings.vllm_gpu_memory_utilization if self.is_colocated else 0
        return memory.Run(
            sharding=self.sharding,
            processes=self.processes,
            rows=settings.per_device_train_batch_size if budget is None else max(1, -(-budget // tokens)),
            tokens=tokens,
            is_checkpointed=bool(settings.gradient_checkpointing),
            has_reference=bool(settings.beta) and not settings.use_peft,
            weight_bytes={"bfloat16": 2, "float16": 2, "auto": 2}.get(settings.dtype, 4),
            quantized_bytes=memory.NF4 if settings.load_in_4bit else memory.INT8 if settings.load_in_8bit else None,
            is_mixed=is_gpu and (settings.bf16 is not False or bool(settings.fp16)),
            is_gpu=is_gpu,
            optimizer_bytes=2 if "8bit" in str(settings.optim) else memory.ADAM,
            offloads_optimizer=str(self._zero.get("offload_optimizer_device", "none")) != "none",
            colocated=int((self.gpu_bytes or 0) * share),
            is_sleeping=self.is_colocated and bool(settings.vllm_enable_sleep_mode),
            scored=settings.score_batch_size if settings.held_out else 0,
        )

    @property
    def longest_prompt(self) -> int:
        """The tokens that the server's limit leaves for a prompt; without a limit the paper's 1000 at most."""
        settings = self.settings
        limit = settings.vllm_max_model_length if settings.use_vllm else None
        completion = settings.max_completion_length
        return max(limit - completion, 0) if limit else min(1000, completion)

    @cached_property
    def gpu_bytes(self) -> int | None:
        """The free memory of the smallest training GPU; None on a CPU."""
        return min(self._free(self.plan.train_gpus), default=None)

    @property
    def is_colocated(self) -> bool:
        """Whether vLLM shares the GPUs of the training."""
        settings = self.settings
        return bool(settings.use_vllm and settings.vllm_mode == "colocate" and self.plan.train_gpus)

    @cached_property
    def server_estimate(self) -> memory.ServerEstimate | None:
        """The estimate for vLLM on one GPU, of its server or shared with the training; None if it uses none here."""
        free = self._free(self.plan.train_gpus if self.is_colocated else self.plan.server_gpus)
        if not free:
            return None
        if self.is_colocated:
            share, parallel = self.settings.vllm_gpu_memory_utilization, self.settings.vllm_tensor_parallel_size
        else:
            flag, command = "--gpu-memory-utilization", self.plan.server or []
            share, parallel = float(command[command.index(flag) + 1]) if flag in command else 0.9, len(free)
        return memory.estimate_server(
            self.shape, min(free), tensor_parallel=parallel, utilization=share, length=self.run.tokens
        )

    def _free(self, indices: Iterable[int]) -> list[int]:
        return [self.machine.gpus[index] for index in indices if index < len(self.machine.gpus)]


Check = Callable[[Context], Finding | Iterable[Finding]]
