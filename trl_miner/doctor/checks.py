"""Checks of what a recipe needs: settings, packages, GPUs, memory, model, folder, disk and reward
functions."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..recipe.parsing import load_reward_funcs
from ..runs.checkpoints import choose
from ..runs.run_folder import must_clear
from ..tools import load_environments, load_tools
from ..trainer import rules
from . import memory
from .context import Context, Finding, failed, not_checked, ok, said, warning
from .memory import GIB

LESS = (
    "The table of trl-miner doctor shows what needs most. Lower max_tokens_per_micro_batch,"
    " per_device_train_batch_size, score_batch_size or vllm_gpu_memory_utilization; set use_vllm,"
    " gradient_checkpointing or vllm_enable_sleep_mode; or train with"
    " recipes/accelerate/zero3.yaml, a LoRA recipe, load_in_4bit, or more GPUs."
)
FEW_SEQUENCES = 8  # a server that holds fewer is slow with long completions


def check_settings(context: Context) -> Iterator[Finding]:
    """Parse the settings as the training does."""
    try:
        yield from (warning(remark) for remark in context.parsed[1])
    except Exception as error:  # of the configurations of TRL and transformers
        yield failed(said(error))


def check_packages(context: Context) -> Iterator[Finding]:
    """Check that the packages that only some trainings need are installed."""
    settings = context.settings
    needed = {
        "vllm": context.plan.server is not None or context.is_colocated,
        "deepspeed": context.distribution == "DEEPSPEED",
        "bitsandbytes": (
            settings.load_in_4bit or settings.load_in_8bit or "bnb" in str(settings.optim)
        ),
    }
    for name, is_needed in needed.items() if context.machine.is_here else ():
        if is_needed and find_spec(name) is None:
            extra = f"'trl_miner[{name}]'" if name != "bitsandbytes" else name
            yield failed(
                f"{name} must be installed, as the recipe uses it. Run pip install {extra}."
            )


def check_rules(context: Context) -> Iterator[Finding]:
    """Check the rules for which the launch must be known: of measured gradients, and of quantized
    weights."""
    settings, config = context.settings, context.parsed[0][1]
    try:
        precision = "fp16" if config.fp16 else "no"
        rules.gradients_can_be_measured(
            config, distribution=context.distribution, precision=precision
        )
        if settings.use_vllm and (settings.load_in_4bit or settings.load_in_8bit):
            bits, is_sharded = (
                8 if settings.load_in_8bit else 4,
                context.sharding
                in (
                    "zero3",
                    "fsdp",
                ),
            )
            rules.vllm_gets_quantized_weights(
                bits=bits, is_sharded=is_sharded, has_dora=bool(settings.use_dora)
            )
    except ValueError as error:
        yield failed(str(error))


def check_gpus(context: Context) -> Finding:
    """Check that there are GPUs for the plan."""
    plan, gpus = context.plan, context.machine.gpus
    if context.settings.use_cpu and context.settings.use_vllm:
        return failed(
            "use_vllm needs a GPU: vLLM's CPU build takes no weights from a training. Leave"
            " use_vllm out."
        )
    if context.settings.use_cpu:
        return ok(f"the recipe trains on the CPU, in {plan.num_processes} process(es).")
    if not gpus:
        return failed(
            "the recipe is for GPUs: got none. Use a machine that has some, or set use_cpu: true."
        )
    return ok(
        f"{len(gpus)}: {len(plan.server_gpus)} for vLLM, {len(plan.train_gpus)} for training, at"
        f" least {min(gpus) / GIB:.1f} GiB free on each."
    )


def check_training_memory(context: Context) -> Finding:
    """Check that a training process fits into the memory of its GPU."""
    need = sum(memory.estimate_training(context.shape, context.run).values())
    have, where = min(context.free(context.plan.train_gpus), default=None), "on each training GPU"
    if have is None:
        need, have, where = need * context.processes, context.machine.cpu_memory, "in all processes"
    if have is None:
        return not_checked(f"{need / GIB:.1f} GiB {where}; the machine's memory is not known.")
    text = f"{need / GIB:.1f} of {have / GIB:.1f} GiB {where}"
    if need > have:
        return failed(f"the training must fit: got {text}. {LESS}")
    return ok(f"{text}; activations are a bound.")


def check_server_memory(context: Context) -> Iterator[Finding]:
    """Check that vLLM's weights and a useful KV cache fit on its GPUs, or into its share of the
    training's."""
    estimate, parallel = context.server_estimate(), context.settings.vllm_tensor_parallel_size
    if estimate is None:
        return
    weights, cache, sequences = estimate
    where = "in vLLM's share of each GPU" if context.is_colocated else "on each server GPU"
    text = (
        f"{weights / GIB:.1f} GiB of weights and {cache / GIB:.1f} GiB of KV cache {where}, besides"
        f" {memory.SERVER_BYTES / GIB:.0f} by rule of thumb: {sequences:.0f} rollouts of"
        f" {context.run.tokens} tokens"
    )
    advice = (
        f"Raise vllm_{'gpu_memory_utilization' if context.is_colocated else 'tensor_parallel_size'}"
    )
    if sequences < 1:
        yield failed(
            f"at least one completion must fit: got {text}. {advice}, or lower max_completion_length."
        )
    elif (heads := context.shape.config.num_attention_heads) % parallel:
        yield failed(
            f"vllm_tensor_parallel_size must divide the model's {heads} attention heads: got"
            f" {parallel}."
        )
    else:
        few = f": few, so generation is slow. {advice}" if sequences < FEW_SEQUENCES else ""
        yield (warning if few else ok)(f"{text}{few}.")


def check_model(context: Context) -> Finding:
    """Check that the model is there and can be adapted, as far as that can be known here."""
    name = context.settings.model_name_or_path
    if not name:
        return failed(
            "model_name_or_path must be given: got none. Name a model's folder, or one on the Hub."
        )
    try:
        shape = context.shape
    except OSError as error:
        return not_checked(str(error))
    except ValueError as error:
        is_elsewhere = memory.is_local(name) and not context.machine.is_here
        return (
            not_checked(f"{name} on a described machine.") if is_elsewhere else failed(str(error))
        )
    trained = f", {shape.adapter / 1e6:.1f} M trained" if shape.adapter else ""
    return ok(
        f"{name} is a {shape.config.model_type} of {shape.parameters / 1e9:.2f} B"
        f" parameters{trained}."
    )


def check_output(context: Context) -> Finding:
    """Check that the output folder can be written, and holds no other run."""
    # without one, transformers names it
    settings, folder = context.settings, str(context.parsed[0][1].output_dir)
    if not context.machine.is_here:
        return not_checked(f"{folder} on a described machine.")
    parent = next(
        path
        for path in (Path(folder).absolute(), *Path(folder).absolute().parents)
        if path.exists()
    )
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return failed(f"it must be a folder that can be written: got {folder}. Choose another one.")
    resumes = settings.resume_from_checkpoint
    try:
        checkpoint = choose(resumes, Path(folder))
        must_clear(
            settings,
            {},
            wanted=resumes,
            checkpoint=checkpoint,
            model=str(settings.model_name_or_path or ""),
        )
    except (ValueError, OSError) as error:
        return failed(str(error))
    return ok(f"{folder} can be written" + (f"; resumes from {resumes}." if resumes else "."))


def check_rewards(context: Context) -> Iterator[Finding]:
    """Check that reward functions, tools and environments can be imported."""
    settings = context.settings
    try:
        load_reward_funcs(settings, settings)
        load_tools(settings.tools or (), settings.tool_seconds)
        if settings.environment_factory:
            load_environments(settings.environment_factory, settings.tool_seconds)
    except ValueError as error:
        yield failed(str(error))
