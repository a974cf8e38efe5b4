"""Checks of what a recipe needs: settings, packages, GPUs, model, folder, disk and reward functions."""

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from .. import rules
from ..recipe import load_reward_funcs
from ..runs.checkpoints import agree_on
from ..runs.run_folder import must_clear
from ..tools import load_environments, load_tools
from ..trackers import check_trackers as check_usable
from . import memory
from .context import Context, Finding, failed, not_checked, ok, warning
from .machine import GIB
from .model_shape import UnusableModel, find_config, is_local
from .parsing import said


def check_settings(context: Context) -> Iterator[Finding]:
    """Parse the settings as the training does."""
    try:
        yield from (warning(remark) for remark in context.parsed[1])
    except Exception as error:  # of the configurations of TRL and transformers
        yield failed(said(error))


def check_versions(context: Context) -> Iterator[Finding]:
    """Compare each package that the run needs with the ranges in this package's metadata."""
    if not context.machine.is_here:
        yield not_checked("the packages of a described machine are not known.")
        return
    extras = ["", *(["vllm"] if context.settings.use_vllm else [])]
    needed = [Requirement(text) for text in metadata.requires("trl_miner") or []]
    needed = [one for one in needed if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    versions = {one.name: _version(one.name) or "none" for one in needed}
    wrong = [one for one in needed if not _is_right(one, versions[one.name])]
    for one in wrong:
        yield failed(
            f"{one.name} must be {one.specifier or 'installed'}: got {versions[one.name]}. `pip install "
            f"'trl_miner{'[vllm]' * (len(extras) > 1)}'` installs versions that fit together."
        )
    if not wrong:
        shown = [name for name in ("trl", "transformers", "torch", "vllm") if name in versions]
        yield ok(", ".join(f"{name} {versions[name]}" for name in shown) + ".")


def _is_right(requirement: Requirement, version: str) -> bool:
    return version != "none" and requirement.specifier.contains(version, prereleases=True)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages(context: Context) -> Iterator[Finding]:
    """Check that the packages that only some trainings need are installed."""
    settings = context.settings
    needed = {
        "deepspeed": context.distribution == "DEEPSPEED",
        "bitsandbytes": settings.load_in_4bit or settings.load_in_8bit or "bnb" in str(settings.optim),
    }
    for name, is_needed in needed.items() if context.machine.is_here else ():
        if is_needed and _version(name) is None:
            yield failed(f"{name} must be installed, as the recipe uses it. Run pip install {name}.")


def check_rules(context: Context) -> Iterator[Finding]:
    """Check the rules for which the launch must be known: of measured gradients, and of quantized weights."""
    settings, config = context.settings, context.parsed[0][1]
    try:
        precision = "fp16" if config.fp16 else "no"
        rules.gradients_can_be_measured(config, distribution=context.distribution, precision=precision)
        if settings.use_vllm and (settings.load_in_4bit or settings.load_in_8bit):
            bits, is_sharded = 8 if settings.load_in_8bit else 4, context.sharding in ("zero3", "fsdp")
            rules.vllm_gets_quantized_weights(bits=bits, is_sharded=is_sharded, has_dora=bool(settings.use_dora))
    except ValueError as error:
        yield failed(str(error))


def check_gpus(context: Context) -> Finding:
    """Check that there are enough GPUs for the plan, all alike."""
    plan, gpus = context.plan, context.machine.gpus
    if context.settings.use_cpu and context.settings.use_vllm:
        return failed("use_vllm needs a GPU: vLLM's CPU build takes no weights from a training. Leave use_vllm out.")
    if context.settings.use_cpu:
        return ok(f"the recipe trains on the CPU, in {plan.num_processes} process(es).")
    if not gpus:
        return failed("the recipe is for GPUs: got none. Use a machine that has some, or set use_cpu: true.")
    text = f"{len(gpus)}: {len(plan.server_gpus)} for vLLM, {len(plan.train_gpus)} for training"
    sizes = {round(free / GIB) for free in gpus}
    if max(sizes) > 1.1 * min(sizes):
        return warning(
            f"{text}. They should have equal free memory, because the smallest one sets the limit: got "
            f"{', '.join(map(str, sorted(sizes)))} GiB. Choose equal ones with CUDA_VISIBLE_DEVICES."
        )
    return ok(f"{text}, {gpus[0] / GIB:.1f} GiB free on each.")


def check_batch(context: Context) -> Finding:
    """Say how many rollouts make up a batch, and how far off-policy the training is."""
    config, processes = context.parsed[0][1], context.processes
    per_device, group = config.per_device_train_batch_size, config.num_generations
    accumulation, generation = config.gradient_accumulation_steps, config.generation_batch_size
    steps = config.optimizer_steps_per_generation
    text = f"{generation} rollouts ({generation // group} prompts x {group}) for each generation, "
    if steps > 1:
        text += f"off-policy: {steps:g} optimizer steps of {per_device * processes * accumulation}"
    else:
        text += "strictly on-policy: one optimizer step" + (f" for {1 / steps:g} generations" if steps < 1 else "")
    text += f"; {accumulation} micro-batches of {per_device} on {processes} process(es)"
    if config.max_steps > 0:
        text += f"; {config.max_steps / steps:g} generations in all"
    return ok(f"{text}.")


def check_trackers(context: Context) -> Iterator[Finding]:
    """Check that the trackers in `report_to` are installed, and that wandb has its key."""
    trackers, is_here = context.settings.report_to, context.machine.is_here
    names = [trackers] if isinstance(trackers, str) else trackers or []
    names = [name for name in names if name not in ("none", "all")]
    try:
        check_usable(names, is_here=is_here)
    except ValueError as error:
        yield failed(str(error))
        return
    if names:
        yield ok(f"{', '.join(names)}: installed.") if is_here else not_checked(f"{', '.join(names)}, not here.")


def check_model(context: Context) -> Iterator[Finding]:
    """Check that the model is there, as far as that can be known here."""
    name = context.settings.model_name_or_path
    if not name:
        return  # the trainer says so
    try:
        config, source = find_config(context.settings)
    except UnusableModel as error:
        is_elsewhere = is_local(name) and not context.machine.is_here
        yield not_checked(f"{name} on a described machine.") if is_elsewhere else failed(str(error))
        return
    folder = Path(name)
    if folder.is_dir() and not any(any(folder.glob(f"*.{end}")) for end in ("safetensors", "bin")):
        yield failed(f"model_name_or_path must be a folder with weights: got {folder}, which has none. Give another.")
    else:
        yield ok(f"{name} is a {config.model_type}, by {source}.")


def check_output(context: Context) -> Finding:
    """Check that the output folder can be written, and holds no other run."""
    settings, folder = context.settings, _output(context)
    if not context.machine.is_here:
        return not_checked(f"{folder} on a described machine.")
    parent = _existing(folder)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return failed(f"it must be a folder that can be written: got {folder}. Choose another one.")
    resumes = settings.resume_from_checkpoint
    try:
        checkpoint = agree_on(resumes, folder)
        place = None if checkpoint is None else Path(checkpoint)
        must_clear(settings, {}, wanted=resumes, checkpoint=place, model=str(settings.model_name_or_path or ""))
    except (ValueError, OSError) as error:
        return failed(str(error))
    return ok(f"{folder} can be written" + (f"; resumes from {resumes}." if resumes else "."))


def _output(context: Context) -> Path:
    return Path(context.settings.output_dir or "trainer_output")


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_disk(context: Context) -> Finding:
    """Check the space for the checkpoints that are kept, one more while it is written, and the final model."""
    settings, shape = context.settings, context.shape
    size = memory.checkpoint_bytes(shape, context.run)
    number = 0
    if str(getattr(settings.save_strategy, "value", settings.save_strategy)) == "steps":
        # below 1: a share of the run
        every = settings.save_steps if settings.save_steps >= 1 else max(settings.save_steps * settings.max_steps, 1)
        number = int(settings.max_steps // every) if settings.max_steps > 0 else 1
        number = min(number, settings.save_total_limit or number) + 1
    need = number * size + 4 * shape.trainable
    text = f"{need / GIB:.1f} GiB for {number} checkpoint(s) of {size / GIB:.1f} and the model"
    if not context.machine.is_here:
        return not_checked(f"{text}; the free space is not known.")
    free = shutil.disk_usage(_existing(_output(context))).free
    if need > free:
        return failed(
            f"output_dir must have room: got {free / GIB:.1f} GiB for {text}. Lower save_total_limit, or choose "
            f"another output_dir."
        )
    return ok(f"{text}; {free / GIB:.1f} GiB free.")


def check_rewards(context: Context) -> Iterator[Finding]:
    """Check that reward functions, tools and environments can be imported."""
    settings = context.settings
    try:
        load_reward_funcs(settings, settings)
        tools = load_tools(settings.tools or (), settings.tool_seconds)
        if settings.environment_factory:
            load_environments(settings.environment_factory, settings.tool_seconds, tools)
    except ValueError as error:
        yield failed(str(error))
