"""Checks of the model, the output folder, the disk, the Hub's login, the reward functions and the tools."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..recipe import load_reward_funcs
from ..reward_functions import Verifier, find_verifier
from ..runs.checkpoints import agree_on
from ..runs.prompt_ledger import needs_ledger, read_beginning
from ..runs.run_folder import must_clear
from ..runs.trainer_state import run_state
from ..tools import load_environments, load_tools
from . import memory
from .context import Check, Context, Finding, failed, not_checked, ok, warning
from .machine import GIB
from .model_shape import UnusableModel, find_config, is_local


def check_output(context: Context) -> Finding:
    """Check that the output folder can be written, and holds no other run."""
    folder = _output(context)
    if not context.machine.is_here:
        return not_checked(f"{folder} on a described machine.")
    parent = _existing(folder)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return failed(f"it must be a folder that can be written: got {folder}. Choose another one.")
    resumes = context.settings.resume_from_checkpoint
    try:
        checkpoint = agree_on(resumes, folder, only_model=bool(context.settings.save_only_model))
        if checkpoint is not None:
            _check_ledger(context, checkpoint)
        place = None if checkpoint is None else Path(checkpoint)
        model = str(context.settings.model_name_or_path or "")
        must_clear(context.settings, {}, wanted=resumes, checkpoint=place, model=model)
    except (ValueError, OSError) as error:
        return failed(str(error))
    return ok(f"{folder} can be written" + (f"; resumes from {resumes}." if resumes else "."))


def _check_ledger(context: Context, checkpoint: str) -> None:
    """Raise ValueError if prompts are to be selected by a ledger that does not go with the checkpoint."""
    selection = context.settings.prompt_selection
    if selection == "none":
        return
    try:
        batches = run_state(Path(checkpoint)).get("prompts", {}).get("batches", 0)
        read_beginning(Path(checkpoint).parent, None, batches)
    except (ValueError, OSError) as error:
        raise ValueError(needs_ledger(selection, str(error))) from error


def _output(context: Context) -> Path:
    return Path(context.settings.output_dir or "trainer_output")


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_disk(context: Context) -> Finding:
    """Check the space for the checkpoints that are kept, one more while it is written, and the final model."""
    settings, shape = context.settings, context.shape
    size = memory.checkpoint_bytes(shape, context.run)
    final = 4 * (shape.adapter or shape.parameters)
    number, every = 0, settings.save_steps
    if str(getattr(settings.save_strategy, "value", settings.save_strategy)) == "steps":
        every = every if every >= 1 else max(every * settings.max_steps, 1)  # a share of the run
        number = int(settings.max_steps // every) if settings.max_steps > 0 else 1
        number = min(number, settings.save_total_limit or number) + 1
    need = number * size + final
    parts = f"{number} checkpoint(s) of {size / GIB:.1f} and the model" if number else "the model; no checkpoints"
    text = f"{need / GIB:.1f} GiB for {parts}"
    if not context.machine.is_here:
        return not_checked(f"{text}; the free space is not known.")
    free = shutil.disk_usage(_existing(_output(context))).free
    if need > free:
        return failed(
            f"output_dir must have room: got {free / GIB:.1f} GiB for {text}. Lower save_total_limit, or choose "
            f"another output_dir."
        )
    return ok(f"{text}; {free / GIB:.1f} GiB free.")


def check_hub(context: Context) -> Iterator[Finding]:
    """Check the login if the model is to be pushed. The token is never shown."""
    if not context.settings.push_to_hub:
        return
    if not context.machine.is_here:
        yield not_checked("the login of a described machine.")
        return
    import huggingface_hub
    from huggingface_hub import constants

    token = context.settings.hub_token or huggingface_hub.get_token()
    if not token:
        yield failed("push_to_hub needs a login: got none. Run `hf auth login`.")
    elif constants.HF_HUB_OFFLINE:
        yield warning("the token was not checked: the Hub does not answer, or HF_HUB_OFFLINE is set.")
    else:
        try:
            yield ok(f"logged in as {huggingface_hub.whoami(token=token)['name']}.")
        except Exception as error:  # anything that network or Hub may answer; its text may quote the request
            yield failed(f"the Hub rejected the token ({type(error).__name__}). Run `hf auth login` again.")


def check_model(context: Context) -> Iterator[Finding]:
    """Check that the model is there, as far as that can be known here."""
    name = context.settings.model_name_or_path
    if not name:
        return  # the trainer says so
    try:
        config, source = find_config(context.settings)
    except UnusableModel as error:
        if context.machine.is_here or not is_local(name):
            yield failed(str(error))
        else:
            yield not_checked(f"{name} on a described machine.")
        return
    folder = Path(name)
    if folder.is_dir() and not any(any(folder.glob(f"*.{end}")) for end in ("safetensors", "bin")):
        yield failed(f"model_name_or_path must be a folder with weights: got {folder}, which has none. Give another.")
    else:
        yield ok(f"{name} is a {config.model_type}, by {source}.")


def check_rewards(context: Context) -> Finding:
    """Check that reward functions and tools can be imported, and say which functions decide what is correct."""
    settings = context.settings
    try:
        functions = load_reward_funcs(settings, settings)
        tools = load_tools(settings.tools or (), settings.tool_seconds)
        if settings.environment_factory:
            load_environments(settings.environment_factory, settings.tool_seconds, None, tools)
            return ok("which of them decides, the environment's own among them, is known once it is built.")
        verifier = _find_verifier(settings, functions)
    except ValueError as error:
        return failed(str(error))
    return (warning if verifier.is_guess else ok)(verifier.reason)


def _find_verifier(settings: Any, functions: list[Any]) -> Verifier:
    from trl.trainer.utils import get_callable_name  # under which TRL logs them

    names, weights = [get_callable_name(function) for function in functions], settings.reward_weights
    if weights is not None and len(weights) != len(names):
        raise ValueError(
            f"reward_weights must have a number for each reward function: got {len(weights)} for {', '.join(names)}."
        )
    chosen = settings.correct_reward_func
    return find_verifier(names, "+".join(chosen) if isinstance(chosen, list) else chosen, weights)


FILE_CHECKS: dict[str, Check] = {
    "model": check_model,
    "output_dir": check_output,
    "disk": check_disk,
    "Hub": check_hub,
    "rewards": check_rewards,
}
