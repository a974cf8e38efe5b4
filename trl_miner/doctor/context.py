"""What a check is given, the plan of a run and the machine that it is for, and what it finds."""

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import psutil

from ..launching.plan import Plan
from ..recipe.parsing import PARSED_TYPES, as_parsed
from ..trainer.config import RunConfig
from . import memory

OK, WARNING, FAILED, NOT_CHECKED = "ok", "warning", "FAILED", "not checked"
# The share of its memory that a GPU has for us. The driver keeps some, and cards up to 48 GB may
# have less: an L4 has 22.0 GiB of 24, an L40 44.4 of 48.
USABLE, USABLE_OF_SMALL = 0.985, 0.917


@dataclass(frozen=True)
class Finding:
    """One line of the table: the outcome, an explanation with what to do, and the subject (default:
    the check's)."""

    status: str
    text: str
    about: str = ""


ok, warning, failed, not_checked = (
    partial(Finding, status) for status in (OK, WARNING, FAILED, NOT_CHECKED)
)


@dataclass(frozen=True)
class Machine:
    """The resources of a machine."""

    name: str
    gpus: tuple[int, ...]  # free bytes of each that is visible
    cpu_memory: int | None  # free bytes; None: not known
    is_here: bool = True  # files and packages of a described machine cannot be checked


def this_machine() -> Machine:
    """Return this machine, with its GPUs and its memory."""
    import torch

    gpus = tuple(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    return Machine("this machine", gpus, psutil.virtual_memory().available)


def described_machine(text: str) -> Machine:
    """Return a machine by its description: `8x80GB`, or `0` for no GPU. The smallest GPU sold with
    so much counts."""
    match = re.fullmatch(
        r"0|(\d+)\s*[x×*]\s*(\d+(?:\.\d+)?)\s*(?:gb|gib|g)?", text.strip(), re.IGNORECASE
    )
    if not match:
        raise ValueError(
            f"--machine {text!r} is not COUNTxMEMORY. Write 8x80GB, for example, or 0 for no GPU."
        )
    count, size = int(match[1] or 0), float(match[2] or 0)
    name = f"{count} x {size:g} GB" if count else "no GPU"
    usable = int(size * memory.GIB * (USABLE if size > 48 else USABLE_OF_SMALL))
    return Machine(f"{name} (described, not here)", (usable,) * count, None, is_here=False)


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
    def shape(self) -> memory.Shape:
        """The model's sizes. Raises OSError if they cannot be known here, ValueError if it cannot
        train like this."""
        return memory.measure(memory.find_config(self.settings), self.settings)

    @cached_property
    def run(self) -> memory.Run:
        """The settings that decide about memory."""
        settings, is_gpu = self.settings, bool(self.plan.train_gpus)
        tokens, budget = (
            settings.max_completion_length + self.longest_prompt,
            settings.max_tokens_per_micro_batch,
        )
        share = settings.vllm_gpu_memory_utilization if self.is_colocated else 0
        return memory.Run(
            sharding=self.sharding,
            processes=self.processes,
            rows=(
                settings.per_device_train_batch_size
                if budget is None
                else max(1, -(-budget // tokens))
            ),
            tokens=tokens,
            is_checkpointed=bool(settings.gradient_checkpointing),
            has_reference=bool(settings.beta) and not settings.use_peft,
            weight_bytes={"bfloat16": 2, "float16": 2, "auto": 2}.get(settings.dtype, 4),
            quantized_bytes=(
                memory.NF4
                if settings.load_in_4bit
                else memory.INT8
                if settings.load_in_8bit
                else None
            ),
            is_mixed=is_gpu and (settings.bf16 is not False or bool(settings.fp16)),
            is_gpu=is_gpu,
            optimizer_bytes=2 if "8bit" in str(settings.optim) else memory.ADAM,
            offloads_optimizer=str(self._zero.get("offload_optimizer_device", "none")) != "none",
            colocated=int(min(self.free(self.plan.train_gpus), default=0) * share),
            is_sleeping=self.is_colocated and bool(settings.vllm_enable_sleep_mode),
            sampled=self.sampled,
        )

    @property
    def sampled(self) -> int:
        """The most rollouts that transformers samples at once on a process: of held-out problems,
        or to train on."""
        args, config, *_ = self.parsed[0]
        scored = args.score_batch_size if args.held_out_size or args.held_out_benchmark else 0
        if args.held_out_size >= 1:
            samples = int(args.held_out_size) * max(
                args.score_samples, args.score_final_samples or 0
            )
            scored = min(scored, -(-samples // self.processes))
        others_generate = self.settings.use_vllm or args.asynchronous or args.rollout_func
        return max(scored, 0 if others_generate else config.generation_batch_size // self.processes)

    @property
    def longest_prompt(self) -> int:
        """The tokens that the server's limit leaves for a prompt; without a limit the paper's 1000
        at most."""
        settings = self.settings
        limit = settings.vllm_max_model_length if settings.use_vllm else None
        completion = settings.max_completion_length
        return max(limit - completion, 0) if limit else min(1000, completion)

    @property
    def is_colocated(self) -> bool:
        """Whether vLLM shares the GPUs of the training."""
        settings = self.settings
        return bool(settings.use_vllm and settings.vllm_mode == "colocate" and self.plan.train_gpus)

    def server_estimate(self) -> tuple[int, int, float] | None:
        """Return `estimate_server` of one GPU of vLLM, its server's or shared with the training;
        None: none here."""
        free = self.free(self.plan.train_gpus if self.is_colocated else self.plan.server_gpus)
        if not free:
            return None
        if self.is_colocated:
            share, parallel = (
                self.settings.vllm_gpu_memory_utilization,
                self.settings.vllm_tensor_parallel_size,
            )
        else:
            flag, command = "--gpu-memory-utilization", self.plan.server or []
            share, parallel = (
                (float(command[command.index(flag) + 1]) if flag in command else 0.9),
                len(free),
            )
        return memory.estimate_server(
            self.shape,
            min(free),
            tensor_parallel=parallel,
            utilization=share,
            length=self.run.tokens,
        )

    def free(self, gpus: Iterable[int]) -> list[int]:
        """Return the free bytes of GPUs of the plan."""
        return [self.machine.gpus[index] for index in gpus if index < len(self.machine.gpus)]


Check = Callable[[Context], Finding | Iterable[Finding]]


def parse(settings: Any, processes: int) -> tuple[tuple[Any, ...], list[str]]:
    """Return the settings of `PARSED_TYPES`, as each of the launched processes makes them, and the
    warnings of that.

    Nothing looks at a GPU. Raises what the training raises.
    """
    trained: Any = RunConfig
    if settings.asynchronous:
        from ..trainer.async_config import RecipeConfig as trained

    class PlannedConfig(trained):
        num_processes = world_size = property(lambda self: processes)

    given = vars(settings) | {"use_cpu": True, "tf32": None}
    kinds = [PlannedConfig if kind is RunConfig else kind for kind in PARSED_TYPES]
    with listening() as notes:
        parsed = tuple(as_parsed(kind, given) for kind in kinds)
    return parsed, notes


def said(error: Exception) -> str:
    """Return what an exception says, in one line."""
    text = " ".join(str(error).split()) or "no reason"
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the warnings of the settings meanwhile, and silence those of other code."""
    notes: list[str] = []
    listener, ours = logging.Handler(), logging.getLogger("trl_miner")
    listener.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    propagates, ours.propagate = ours.propagate, False
    ours.addHandler(listener)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield notes
    finally:
        ours.removeHandler(listener)
        ours.propagate = propagates
