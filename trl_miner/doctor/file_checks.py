"""Checks of what a run reads and writes: its folder, the Hub, the data set, the verifier."""

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.own import GOLDS, GRADERS, arrange, check_first_golds, file_arguments, why_unreadable
from ..data.prompts import PromptForm
from ..data.reasoning_gym import TEST_SIZE, TRAIN_SIZE, is_task, read_parts
from ..data.reasoning_gym import load_dataset as load_tasks
from ..recipe import layout_of, load_reward_funcs, prompt_form, reward_names
from ..reward_functions import Verifier, find_verifier, required_columns
from ..runs.checkpoints import agree_on
from ..runs.prompt_ledger import needs_ledger, read_beginning
from ..runs.run_folder import what_to_clear
from ..runs.trainer_state import batches_before
from ..tools import load_environments, load_tools
from . import memory
from .context import Check, Context, Finding, failed, longest_prompt_allowed, not_checked, ok, warning
from .machine import GIB
from .model_shape import UnusableModel, find_config, is_local, readable_model

ROWS = 200  # of the data set are read


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
        what_to_clear(context.settings, {}, wanted=resumes, checkpoint=place, model=model)
    except (ValueError, OSError) as error:
        return failed(str(error))
    return ok(f"{folder} can be written" + (f"; resumes from {resumes}." if resumes else "."))


def _check_ledger(context: Context, checkpoint: str) -> None:
    """Raise ValueError if prompts are to be selected by a ledger that does not go with the checkpoint."""
    selection = context.settings.prompt_selection
    if selection == "none":
        return
    try:
        read_beginning(Path(checkpoint).parent, None, batches_before(Path(checkpoint)))
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
    free = context.machine.disk_free
    if free is None and context.machine.is_here:
        free = shutil.disk_usage(_existing(_output(context))).free
    if free is None:
        return not_checked(f"{text}; the free space is not known.")
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

    if not (context.settings.hub_token or huggingface_hub.get_token()):
        yield failed("push_to_hub needs a login: got none. Run `hf auth login`.")
    elif constants.HF_HUB_OFFLINE:
        yield warning(
            "there is a token, which was not checked: the Hub does not answer, or HF_HUB_OFFLINE is set. As long as "
            "that is so, pushing fails."
        )
    else:
        try:
            name = huggingface_hub.whoami(token=context.settings.hub_token or None)["name"]
        except Exception as error:  # anything that network or Hub may answer; its text may quote the request
            yield failed(
                f"the Hub must accept the token: got {type(error).__name__}. Run `hf auth login` again, or check the "
                f"network."
            )
        else:
            yield ok(f"logged in as {name}.")


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
    """Check that the reward functions can be imported, and say which of them decide what is correct."""
    try:
        functions = load_reward_funcs(context.settings, context.settings)
        if context.settings.environment_factory:
            return ok("which of them decides, the environment's own among them, is known once it is built.")
        verifier = _find_verifier(context.settings, functions)
    except ValueError as error:
        return failed(str(error))
    return (warning if verifier.is_guess else ok)(verifier.reason)


def check_tools(context: Context) -> Iterator[Finding]:
    """Check that the tools and environments can be imported, and that a model can be told of them."""
    settings = context.settings
    try:
        tools = load_tools(settings.tools or (), settings.tool_seconds)
        if settings.environment_factory:
            load_environments(settings.environment_factory, settings.tool_seconds, None, tools)
    except ValueError as error:
        yield failed(str(error))
        return
    if tools:
        yield ok(f"{', '.join(tool.__name__ for tool in tools)}, {settings.tool_seconds:g} seconds for a call.")


def _find_verifier(settings: Any, functions: Sequence[Any]) -> Verifier:
    names, weights = _names(functions), settings.reward_weights
    if weights is not None and len(weights) != len(names):
        raise ValueError(
            f"reward_weights must have a number for each reward function: got {len(weights)} for {', '.join(names)}."
        )
    chosen = settings.correct_reward_func
    return find_verifier(names, "+".join(chosen) if isinstance(chosen, list) else chosen, weights)


def _names(functions: Sequence[Any]) -> list[str]:
    """Return the names under which TRL logs reward functions."""
    from trl.trainer.utils import get_callable_name

    return [get_callable_name(function) for function in functions]


def check_data(context: Context) -> Iterator[Finding]:
    """Check the first rows: their columns, their length, and that the verifier accepts their golds."""
    settings = context.settings
    if settings.datasets:
        yield not_checked("only the training reads a mixture of data sets.")
        return
    if not settings.dataset_name:
        yield failed("dataset_name must be given: got none. Give a Hub id, a folder, or a mixture.")
        return
    if is_task(settings.dataset_name):
        try:
            rows = _make_rows(settings)
        except (ValueError, ImportError) as error:
            yield failed(str(error))
        else:
            yield from _check_rows(context, rows)
        return
    try:
        rows = _read_rows(settings)
    except Exception as error:  # the loaders of `datasets` may raise anything
        made = Path(settings.dataset_name).name
        advice = f" Make it with `trl-miner data {made}`; the recipe's first lines show how."
        hint = advice if made in ("deepscaler", "medical") else ""
        if context.machine.is_here:
            yield failed(why_unreadable(settings.dataset_name, error) + hint)
        else:
            yield not_checked(f"{settings.dataset_name} is not here.{hint}")
        return
    if not rows:
        yield failed(f"{settings.dataset_name} must have rows: got none. Choose another split or data set.")
        return
    try:
        rows = _arrange(settings, rows)
    except ValueError as error:
        yield failed(str(error))
    else:
        yield from _check_rows(context, rows)


def _read_rows(settings: Any) -> list[dict[str, Any]]:
    """Return the first rows of the training split, as they are."""
    from datasets import load_dataset

    from ..data.worlds import WORLDS

    split = settings.dataset_train_split
    if settings.dataset_name in WORLDS:
        return list(WORLDS[settings.dataset_name].load_dataset(split, settings.task_size or ROWS))[:ROWS]
    data = load_dataset(
        **file_arguments(settings.dataset_name),
        name=settings.dataset_config,
        revision=settings.dataset_revision,
        split=split,
        streaming=True,
    )
    return list(islice(data, ROWS))


def _arrange(settings: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as the training sees them."""
    from datasets import Dataset

    from ..data.worlds import WORLDS

    if settings.dataset_name in WORLDS:
        return rows
    data = Dataset.from_list(rows)
    return list(arrange(data, layout_of(settings, _form(settings)), reward_names(settings)))


def _make_rows(settings: Any) -> list[dict[str, Any]]:
    """Return the first problems of reasoning-gym, having made all that the training makes: families may run out."""
    parts = read_parts(settings.dataset_name, settings.task_config, settings.tasks)
    load_tasks(parts, "test", settings.score_problems or TEST_SIZE, settings.task_seed, _form(settings))
    size = settings.task_size or TRAIN_SIZE
    return list(load_tasks(parts, "train", size, settings.task_seed, _form(settings)))[:GOLDS]


def _form(settings: Any) -> PromptForm:
    try:
        return prompt_form(settings, settings, trusts=bool(settings.trust_remote_code))
    except OSError:  # the tokenizer is not here, as another check says
        return PromptForm("plain", settings.system_prompt, settings.prompt_template)


def _check_rows(context: Context, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    settings = context.settings
    try:
        functions = load_reward_funcs(settings, settings)
        verifiers = () if settings.environment_factory else _find_verifier(settings, functions).names
    except ValueError:
        yield not_checked("the columns, without reward functions: see rewards.")
        return
    needed = {"prompt": "every training"}
    for name, function in zip(_names(functions), functions, strict=True):
        needed |= dict.fromkeys(required_columns(function), name)
    missing = [f"{name} (for {reason})" for name, reason in needed.items() if name not in rows[0]]
    if missing:
        yield failed(
            f"{settings.dataset_name} must have the columns {', '.join(missing)}: got {', '.join(rows[0])}. Say "
            f"with dataset_prompt_column and dataset_solution_column which they are, or make the data set with "
            f"`trl-miner data`."
        )
        return
    yield ok(f"{settings.dataset_name} has {', '.join(needed)}.")
    yield _check_prompts(context, rows)
    for name in verifiers:
        yield _check_golds(name, verifiers, rows)


def _check_prompts(context: Context, rows: list[dict[str, Any]]) -> Finding:
    """Check the longest of the first prompts against the server's limit, and messages against a chat template."""
    from transformers import AutoTokenizer

    from ..data.prompt_form import style_of
    from ..data.prompts import prompt_text

    settings, about = context.settings, "prompts"
    model = readable_model(settings)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model, revision=settings.model_revision, trust_remote_code=bool(settings.trust_remote_code)
        )
    except Exception as error:  # as with the data set
        return not_checked(f"the tokenizer of {model} is not here ({type(error).__name__}).", about)
    prompts = [row["prompt"] for row in rows]
    is_chat = not isinstance(prompts[0], str)
    if is_chat and not tokenizer.chat_template:
        hint = "Make the data set with --prompt-style plain."
        return failed(f"messages need a chat template: {model} has none. {hint}", about)
    kwargs = settings.chat_template_kwargs or {}
    longest = max(len(tokenizer(prompt_text(prompt, tokenizer, **kwargs))["input_ids"]) for prompt in prompts)
    text = f"{'messages' if is_chat else 'plain text'}, at most {longest} tokens in the first {len(rows)} rows"
    if settings.use_vllm and settings.vllm_max_model_length and longest > longest_prompt_allowed(settings):
        return failed(
            f"prompt and completion must fit into vllm_max_model_length={settings.vllm_max_model_length}: got {text} "
            f"and max_completion_length={settings.max_completion_length}. Raise the former, or make the data set with "
            f"--max-prompt-tokens.",
            about,
        )
    style = style_of(model, tokenizer, settings.model_revision)
    if not is_chat and settings.prompt_style != "plain" and style == "chat":
        hint = "Set prompt_style to say which is meant; a data set with prompts must be made with --prompt-style chat."
        return warning(f"{text}, although {model} has a chat template. {hint}", about)
    return ok(f"{text}.", about)


def _check_golds(reward: str, verifiers: Sequence[str], rows: list[dict[str, Any]]) -> Finding:
    """Check that a reward function that decides accepts the first gold answers as answers."""
    about = "verifier"
    if reward not in GRADERS:
        return not_checked(f"the form of an answer to {reward} is not known.", about)
    check = check_first_golds(reward, rows, verifiers)
    if check.accepted < check.graded:
        return (failed if check.is_bad else warning)(check.rejected, about)
    return ok(f"{reward} accepts {check.accepted} of {check.graded} golds.", about)


FILE_CHECKS: dict[str, Check] = {
    "model": check_model,
    "output_dir": check_output,
    "disk": check_disk,
    "Hub": check_hub,
    "rewards": check_rewards,
    "tools": check_tools,
    "data": check_data,
}
