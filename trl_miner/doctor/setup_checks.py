"""Checks of the machine, the installed packages and the batch sizes."""

from collections.abc import Iterator
from importlib import metadata

from .. import rules
from ..config import MinerGRPOConfig
from ..launching.server import ANSWER_SECONDS as SERVER_SECONDS
from ..launching.server import LOGPROBS_FLAG, ask, is_port_free, logprobs_mode, wrong_logprobs
from ..methods import ESTIMATORS
from ..precision import is_bf16_slow, slow_bf16
from ..trackers import why_unusable
from .context import Check, Context, Finding, failed, not_checked, ok, sharding_of, warning
from .machine import GIB
from .parsing import said

_NO_NAMES = ("none", "all")  # of trackers


def check_settings(context: Context) -> Iterator[Finding]:
    """Parse the settings as the training does."""
    try:
        yield from (warning(remark) for remark in context.remarks)
    except Exception as error:  # of the configurations of TRL and transformers
        yield failed(said(error))


def check_versions(context: Context) -> Iterator[Finding]:
    """Compare each package that the run needs with the ranges in this package's metadata."""
    from packaging.requirements import Requirement

    machine = context.machine
    if not machine.is_here:
        yield not_checked("the packages of a described machine are not known.")
        return
    kind = str(context.plan.accelerate.get("distributed_type", "")).upper()
    needed = {"vllm": context.settings.use_vllm, "deepspeed": kind == "DEEPSPEED"}
    extras = [name for name, is_needed in needed.items() if is_needed]
    wrong, right = [], {}
    for text in metadata.requires("trl_miner") or []:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in [*extras, ""]):
            continue
        version = machine.version(requirement.name)
        if version is None and requirement.name == "deepspeed":
            continue  # the next check says so
        if version is None:
            wrong.append(f"{requirement.name} must be installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} must be {requirement.specifier}: got {version}")
        else:
            right[requirement.name] = version
    brackets = f"[{','.join(extras)}]" if extras else ""
    for rule in wrong:
        yield failed(f"{rule}. `pip install 'trl_miner{brackets}'` installs versions that fit together.")
    if not wrong:
        shown = [name for name in right if name in ("trl", "transformers", "torch", "vllm", "deepspeed")]
        yield ok(", ".join(f"{name} {right[name]}" for name in shown) + ".")


def check_packages(context: Context) -> Iterator[Finding]:
    """Check that the packages that only some trainings need are installed."""
    settings, machine = context.settings, context.machine
    needed = {
        "deepspeed": str(context.plan.accelerate.get("distributed_type", "")).upper() == "DEEPSPEED",
        "peft": settings.use_peft,
        "bitsandbytes": settings.load_in_4bit or settings.load_in_8bit or "bnb" in str(settings.optim),
    }
    for name, is_needed in needed.items() if machine.is_here else ():
        if is_needed and machine.version(name) is None:
            yield failed(f"{name} must be installed, as the recipe uses it. Run pip install {name}.")


def check_measuring(context: Context) -> Iterator[Finding]:
    """Check that launch and precision leave every process the gradients that the training measures."""
    config, kind = context.parsed[1], str(context.plan.accelerate.get("distributed_type", ""))
    try:
        rules.gradients_can_be_measured(config, distribution=kind, precision="fp16" if config.fp16 else "no")
    except ValueError as error:
        yield failed(str(error))


def check_quantization(context: Context) -> Iterator[Finding]:
    """Check that vLLM can get the weights of a quantized model."""
    settings = context.settings
    if settings.use_vllm and (settings.load_in_4bit or settings.load_in_8bit):
        try:
            is_sharded = sharding_of(context.plan) in ("zero3", "fsdp")
            bits = 8 if settings.load_in_8bit else 4
            rules.vllm_gets_quantized_weights(bits=bits, is_sharded=is_sharded, has_dora=bool(settings.use_dora))
        except ValueError as error:
            yield failed(str(error))


def check_gpus(context: Context) -> Finding:
    """Check that there are enough GPUs for the plan, all alike."""
    plan, machine = context.plan, context.machine
    number = len(machine.gpus)
    if context.settings.use_cpu and context.settings.tf32:
        return failed("tf32 needs a GPU: got tf32=True with use_cpu=True. Leave tf32 out.")
    if context.settings.use_cpu and context.settings.use_vllm:
        return failed("use_vllm needs a GPU: vLLM's CPU build takes no weights from a training. Leave use_vllm out.")
    if context.settings.use_cpu:
        return ok(f"the recipe trains on the CPU, in {plan.num_processes} process(es).")
    if not number:
        return failed("the recipe is for GPUs: got none. Use a machine that has some, or set use_cpu: true.")
    sizes = {round(gpu.total / GIB) for gpu in machine.gpus}
    text = f"{number}: {len(plan.server_gpus)} for vLLM, {len(plan.train_gpus)} for training"
    unused = number - len(plan.server_gpus) - len(plan.train_gpus)
    if len(sizes) > 1:
        return warning(
            f"{text}. They should be equal, because the smallest one sets the limit: got "
            f"{', '.join(map(str, sorted(sizes)))} GiB. Choose equal ones with CUDA_VISIBLE_DEVICES."
        )
    if unused:
        return warning(f"{text}, {unused} unused: see `trl-miner launch --dry-run`.")
    return ok(f"{text}, {machine.gpus[0].free / GIB:.1f} GiB free on each.")


def check_precision(context: Context) -> Iterator[Finding]:
    """Warn of a training on a CPU that is slow in bf16."""
    config, model = context.parsed[1:3]
    wanted = ["bf16: false"] * bool(config.bf16) + ["dtype: float32"] * (model.dtype == "bfloat16")
    if wanted and context.settings.use_cpu and context.machine.is_here and is_bf16_slow():
        yield warning(slow_bf16(*wanted))


def check_batch(context: Context) -> Finding:
    """Say how many rollouts make up a batch, and how far off-policy the training is."""
    config, processes = context.parsed[1], max(context.plan.num_processes, 1)
    per_device, group = config.per_device_train_batch_size, config.num_generations
    accumulation, generation = config.gradient_accumulation_steps, config.generation_batch_size
    optimizer_batch, steps = per_device * processes * accumulation, config.optimizer_steps_per_generation
    text = f"{generation} rollouts ({generation // group} prompts x {group}) for each generation, "
    if steps > 1:
        text += f"off-policy: {steps:g} optimizer steps of {optimizer_batch}"
    else:
        text += "strictly on-policy: one optimizer step" + (f" for {1 / steps:g} generations" if steps < 1 else "")
    text += f"; {accumulation} micro-batches of {per_device} on {processes} process(es)"
    if generation // processes % group:
        text += "; groups are split over processes, which changes nothing"
    if config.max_steps > 0:
        text += f"; {config.max_steps / steps:g} generations in all"
    return ok(f"{text}.")


def check_ports(context: Context) -> Iterator[Finding]:
    """Check the ports of the vLLM server and of its group with the training."""
    if not context.uses_server:
        return
    listens = context.plan.server_listens
    ports = {"vllm_server_port": listens[1]} if listens else {}
    if context.settings.vllm_group_port != MinerGRPOConfig.vllm_group_port:  # else the trainer chooses a free one
        ports["vllm_group_port"] = int(context.settings.vllm_group_port)
    if not context.machine.is_here:
        yield not_checked(f"{', '.join(map(str, ports.values()))} on a described machine.")
        return
    for name, port in ports.items():
        if is_port_free(port):
            yield ok(f"{port} ({name}) is free.")
        else:
            yield failed(f"{name} must be free: got {port}, which is in use. Choose another port with --{name}.")


def check_server(context: Context) -> Finding | tuple[()]:
    """Ask a vLLM server that runs already which log-probs it returns."""
    plan, settings = context.plan, context.settings
    if not context.uses_server or not context.machine.is_here or plan.server_url is None:
        return ()
    url, flag = plan.server_url, LOGPROBS_FLAG
    mode = logprobs_mode(url, SERVER_SECONDS)
    if mode is None and ask(url, "health", SERVER_SECONDS) is None:
        if plan.server_listens:  # trl-miner launch starts it, with the flag
            return ()
        return not_checked(f"no vLLM server answers at {url}. Start it before the training, with {flag}.")
    if mode is None:
        return warning(
            f"the vLLM server at {url} does not say which log-probs it returns. Start it with VLLM_SERVER_DEV_MODE=1, "
            f"which TRL needs from 1.16 on, and {flag}."
        )
    takers = [name for name, method in ESTIMATORS.items() if method.wants_sampler_logps]
    is_taken = settings.reuse_sampling_logps and any(
        name in f"{settings.advantage_estimator} {settings.all_right} {settings.all_wrong}" for name in takers
    )
    why = wrong_logprobs(url, mode, settings.temperature)
    if why is None or not (is_taken or settings.vllm_importance_sampling_correction):
        return ok(f"the vLLM server at {url} returns {mode}.")
    return failed(why)


def check_trackers(context: Context) -> Iterator[Finding]:
    """Check that the trackers in `report_to` are installed, and that wandb has its key."""
    trackers = context.settings.report_to
    names = [name for name in ([trackers] if isinstance(trackers, str) else trackers or []) if name not in _NO_NAMES]
    if why := why_unusable(names, is_here=context.machine.is_here):
        yield failed(why)
    elif names:
        shown = ", ".join(names)
        yield (
            ok(f"{shown}: installed.") if context.machine.is_here else not_checked(f"{shown} on a described machine.")
        )


SETUP_CHECKS: dict[str, Check] = {
    "versions": check_versions,
    "packages": check_packages,
    "measuring": check_measuring,
    "quantization": check_quantization,
    "GPUs": check_gpus,
    "precision": check_precision,
    "batch": check_batch,
    "ports": check_ports,
    "vLLM server": check_server,
    "tracker": check_trackers,
}
