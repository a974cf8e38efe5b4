"""Checks of the settings and of the machine: one small function per question."""

from collections.abc import Iterator
from importlib import metadata, util

from ...config import accumulation_steps
from ...methods import POLICY_LOSSES
from ..health import is_port_free
from .context import FAILED, NOT_CHECKED, OK, WARNING, Check, Context, Finding
from .machine import GIB
from .memory_checks import MEMORY_CHECKS


def check_gpus(context: Context) -> Finding:
    """Are there as many GPUs as the plan needs, alike, and free?"""
    plan, machine = context.plan, context.machine
    number, about = len(machine.gpus), "GPUs"
    if not number or context.settings.use_cpu:
        if context.settings.use_cpu:
            return Finding(OK, about, f"the recipe trains on the CPU, in {plan.num_processes} process(es).")
        return Finding(
            FAILED, about, "the recipe is for GPUs: got none. Use a machine that has some, or set use_cpu: true."
        )
    sizes = {round(gpu.total / GIB) for gpu in machine.gpus}
    text = f"{number}: {len(plan.server_gpus)} for vLLM, {len(plan.train_gpus)} for training"
    unused = number - len(plan.server_gpus) - len(plan.train_gpus)
    if len(sizes) > 1:
        return Finding(
            WARNING, about, f"{text}. They should be equal, because the smallest one sets the limit: got "
            f"{', '.join(map(str, sorted(sizes)))} GiB. Choose equal ones with CUDA_VISIBLE_DEVICES."
        )  # fmt: skip
    if unused:
        return Finding(WARNING, about, f"{text}, {unused} unused: see `trl-miner launch --dry-run`.")
    return Finding(OK, about, f"{text}, {machine.gpus[0].free / GIB:.1f} GiB free on each.")


def check_versions(context: Context) -> Iterator[Finding]:
    """Each package that the run needs, against the ranges of this package's metadata."""
    from packaging.requirements import Requirement

    machine, about = context.machine, "versions"
    if not machine.is_here and machine.versions is None:
        yield Finding(NOT_CHECKED, about, "they are not known of a described machine.")
        return
    kind = str(context.plan.accelerate.get("distributed_type", "")).upper()
    wanted = {"vllm": context.settings.use_vllm, "deepspeed": kind == "DEEPSPEED"}
    extras = [name for name, is_wanted in wanted.items() if is_wanted]
    wrong, found = [], []
    for text in metadata.requires("trl_miner") or []:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in [*extras, ""]):
            continue
        version = machine.version(requirement.name)
        if version is None:
            wrong.append(f"{requirement.name} must be installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} must be {requirement.specifier}: got {version}")
        else:
            found.append(f"{requirement.name} {version}")
    brackets = f"[{','.join(extras)}]" if extras else ""
    command = f"pip install 'trl_miner{brackets}'"
    for rule in wrong:
        yield Finding(FAILED, about, f"{rule}. `{command}` brings what fits together.")
    if not wrong:
        keep = ("trl ", "transformers ", "torch ", "vllm ", "deepspeed ")
        yield Finding(OK, about, ", ".join(dict.fromkeys(name for name in found if name.startswith(keep))) + ".")


def check_batch(context: Context) -> Finding:
    """Whole groups, whole micro-batches, and how far off-policy the training is."""
    settings, processes, about = context.settings, max(context.plan.num_processes, 1), "batch"
    together = settings.per_device_train_batch_size * processes
    group = settings.num_generations
    try:
        accumulation = settings.gradient_accumulation_steps
        if settings.optimizer_batch_size is not None:
            accumulation = accumulation_steps(
                settings.optimizer_batch_size, settings.per_device_train_batch_size, processes
            )
    except ValueError as error:
        return Finding(FAILED, about, str(error))
    generation = settings.generation_batch_size or together * (settings.steps_per_generation or accumulation)
    if generation % together:
        return Finding(
            FAILED, about, f"generation_batch_size must be a multiple of per_device_train_batch_size times the "
            f"processes: got {generation} for {settings.per_device_train_batch_size} x {processes}. Change the batch "
            f"per device."
        )  # fmt: skip
    if generation % group:
        return Finding(
            FAILED, about, f"a generation must hold whole groups: got {generation} rollouts for num_generations="
            f"{group}. Make it a multiple."
        )  # fmt: skip
    steps = generation * settings.num_iterations / (together * accumulation)
    text = f"{generation} rollouts ({generation // group} prompts x {group}) for each generation, " + _cut(
        steps, together * accumulation
    )
    text += f"; {accumulation} micro-batches of {settings.per_device_train_batch_size} on {processes} process(es)"
    if generation // processes % group:
        text += "; groups are split over processes, which changes nothing"
    loss = POLICY_LOSSES.get(settings.policy_loss)
    if loss is not None and loss.off_policy_only and steps <= 1:
        return Finding(WARNING, about, f"{text}. policy_loss={settings.policy_loss} does nothing on-policy.")
    if settings.max_steps > 0 and steps:
        text += f"; {settings.max_steps / steps:g} generations in all"
    return Finding(OK, about, f"{text}.")


def _cut(steps: float, size: int) -> str:
    if steps <= 1:
        return "strictly on-policy: one optimizer step" + (f" for {1 / steps:g} generations" if steps < 1 else "")
    return f"off-policy: {steps:g} optimizer steps of {size}"


def check_ports(context: Context) -> Iterator[Finding]:
    """Is a port of the vLLM server, or of its group with the training, taken?"""
    if not context.wants_server:
        return
    listens, group = context.plan.server_listens, int(context.settings.vllm_group_port)
    wanted = {"vllm_server_port": listens[1]} if listens else {}
    wanted["vllm_group_port"] = group
    if not context.machine.is_here:
        yield Finding(NOT_CHECKED, "ports", f"{', '.join(map(str, wanted.values()))} on a described machine.")
        return
    for name, port in wanted.items():
        if is_port_free(port):
            yield Finding(OK, "ports", f"{port} ({name}) is free.")
        else:
            yield Finding(FAILED, "ports", f"{name} must be free: got {port}, which is in use. Choose another with "
                          f"--{name}.")  # fmt: skip


def check_trackers(context: Context) -> Iterator[Finding]:
    """The packages that `report_to` names, and whether one that needs a key has it."""
    wanted = context.settings.report_to
    wanted = [wanted] if isinstance(wanted, str) else list(wanted or [])
    for name in wanted:
        if name in ("none", "all"):
            continue
        if not context.machine.is_here:
            yield Finding(NOT_CHECKED, "tracker", f"{name} on a described machine.")
        elif util.find_spec(_MODULES.get(name, name)) is None:
            yield Finding(FAILED, "tracker", f"report_to: {name} must be installed: it is not. pip install {name}")
        elif name == "wandb" and not _is_logged_in_to_wandb():
            yield Finding(FAILED, "tracker", "wandb must have a key: got none. Run `wandb login`, or set "
                          "WANDB_MODE=offline.")  # fmt: skip
        else:
            yield Finding(OK, "tracker", f"{name} is installed.")


_MODULES = {"tensorboard": "tensorboard", "comet_ml": "comet_ml", "azure_ml": "azureml"}


def _is_logged_in_to_wandb() -> bool:
    import netrc
    import os

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE", "online") in ("offline", "disabled"):
        return True
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False


def check_trust(context: Context) -> Iterator[Finding]:
    """Is code of the model's repository allowed to run?"""
    if context.settings.trust_remote_code:
        yield Finding(WARNING, "remote code", "trust_remote_code is on: code of the model's repository runs here.")


CHECKS: tuple[Check, ...] = (
    check_versions, check_gpus, check_batch, *MEMORY_CHECKS, check_ports, check_trackers, check_trust,
)  # fmt: skip
