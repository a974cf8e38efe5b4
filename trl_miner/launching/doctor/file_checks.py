"""Checks of what a run reads and writes: its folder, the Hub, the data set, the verifier."""

import inspect
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...runs.checkpoints import list_checkpoints
from . import memory
from .context import FAILED, NOT_CHECKED, OK, WARNING, Check, Context, Finding, longest_prompt_allowed
from .machine import GIB

ROWS = 200  # of the data set are looked at
GOLDS = 20  # are judged
_GIVEN = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}


def check_output(context: Context) -> Finding:
    """Can the output folder be written, and is it free of an older run?"""
    about, folder = "output_dir", Path(context.settings.output_dir or "trainer_output")
    if not context.machine.is_here:
        return Finding(NOT_CHECKED, about, f"{folder} on a described machine.")
    parent = _existing(folder)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return Finding(FAILED, about, f"it must be a folder that can be written: got {folder}. Choose another one.")
    checkpoints = list_checkpoints(folder)
    resumes = context.settings.resume_from_checkpoint
    if checkpoints and not resumes:
        return Finding(
            WARNING, about, f"{folder} holds {checkpoints[-1].name}: this run starts anew beside it. To go on, add "
            f"--resume_from_checkpoint latest."
        )  # fmt: skip
    return Finding(OK, about, f"{folder} can be written" + (f"; goes on from {resumes}." if resumes else "."))


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def check_disk(context: Context) -> Finding:
    """The checkpoints that are kept, one more while it is written, and the final model."""
    about, settings = "disk", context.settings
    try:
        one = memory.checkpoint_bytes(context.shape, context.run)
        final = 4 * (context.shape.adapter or context.shape.parameters)
    except OSError as error:
        return Finding(NOT_CHECKED, about, f"{error}.")
    number, every = 0, settings.save_steps
    if str(getattr(settings.save_strategy, "value", settings.save_strategy)) == "steps":
        every = every if every >= 1 else max(every * settings.max_steps, 1)  # a share of the run
        number = int(settings.max_steps // every) if settings.max_steps > 0 else 1
        number = min(number, settings.save_total_limit or number) + 1
    need = number * one + final
    text = f"{need / GIB:.1f} GiB for {number} checkpoint(s) of {one / GIB:.1f} and the model" if number else (
        f"{need / GIB:.1f} GiB for the model; no checkpoints"
    )  # fmt: skip
    free = context.machine.disk_free
    if free is None and context.machine.is_here:
        free = shutil.disk_usage(_existing(Path(settings.output_dir or "trainer_output"))).free
    if free is None:
        return Finding(NOT_CHECKED, about, f"{text}; what is free is not known.")
    if need > free:
        return Finding(
            FAILED, about, f"output_dir must have room: got {free / GIB:.1f} GiB for {text}. Lower save_total_limit, "
            f"or choose another output_dir."
        )  # fmt: skip
    return Finding(OK, about, f"{text}; {free / GIB:.1f} GiB free.")


def check_hub(context: Context) -> Iterator[Finding]:
    """A login, when the model is to be pushed. The token is never shown."""
    if not context.settings.push_to_hub:
        return
    about = "Hub"
    if not context.machine.is_here:
        yield Finding(NOT_CHECKED, about, "the login of a described machine.")
        return
    import huggingface_hub
    from huggingface_hub import constants

    if not (context.settings.hub_token or huggingface_hub.get_token()):
        yield Finding(FAILED, about, "push_to_hub needs a login: got none. Run `hf auth login`.")
    elif constants.HF_HUB_OFFLINE:
        yield Finding(
            WARNING,
            about,
            "a token is there, not checked: the Hub does not answer, or HF_HUB_OFFLINE is set. Pushing fails then.",
        )
    else:
        try:
            name = huggingface_hub.whoami(token=context.settings.hub_token or None)["name"]
        except Exception as error:  # whatever the network or the Hub answers; its text may quote the request
            yield Finding(
                FAILED, about, f"the Hub must accept the token: got {type(error).__name__}. Run `hf auth login` "
                "again, or look at the network."
            )  # fmt: skip
        else:
            yield Finding(OK, about, f"logged in as {name}.")


def check_data(context: Context) -> Iterator[Finding]:
    """The first rows: their columns, their length, and whether the verifier accepts their golds."""
    settings, about = context.settings, "data"
    if settings.datasets:
        yield Finding(NOT_CHECKED, about, "a mixture of data sets is read by the training alone.")
        return
    if not settings.dataset_name:
        yield Finding(FAILED, about, "dataset_name must be given: got none. A Hub id, a folder, or a mixture.")
        return
    try:
        rows = read_rows(settings)
    except Exception as error:  # the loaders of `datasets` raise anything
        status = FAILED if context.machine.is_here else NOT_CHECKED
        text = f"{settings.dataset_name} must be readable: got {type(error).__name__}: {_first_line(error)}"
        if not context.machine.is_here:
            text = f"{settings.dataset_name} is not here"
        yield Finding(status, about, f"{text}.{_how_to_make(settings.dataset_name)}")
        return
    if not rows:
        yield Finding(FAILED, about, f"{settings.dataset_name} must have rows: got none.")
        return
    yield from _look_at(context, rows)


def _look_at(context: Context, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    settings = context.settings
    try:
        functions = _reward_functions(settings)
    except ValueError as error:
        yield Finding(FAILED, "rewards", str(error))
        return
    needed = {"prompt": "every training"} | {name: reward for reward, names in functions.items() for name in names}
    missing = [f"{name} (for {why})" for name, why in needed.items() if name not in rows[0]]
    if missing:
        yield Finding(
            FAILED, "data", f"{settings.dataset_name} must have the columns {', '.join(missing)}: got "
            f"{', '.join(rows[0])}. Rename them, or make the set with `trl-miner data`."
        )  # fmt: skip
        return
    yield Finding(OK, "data", f"{settings.dataset_name} has {', '.join(needed)}.")
    yield _check_prompts(context, rows)
    yield _check_golds(settings, rows)


def read_rows(settings: Any) -> list[dict[str, Any]]:
    """The first rows of the training split."""
    from datasets import load_dataset

    from ...data.worlds import WORLDS

    split = settings.dataset_train_split
    if settings.dataset_name in WORLDS:
        return list(WORLDS[settings.dataset_name].load_dataset(split, size=ROWS))
    data = load_dataset(settings.dataset_name, name=settings.dataset_config, split=split, streaming=True)
    return list(islice(data, ROWS))


def _how_to_make(name: str) -> str:
    made = Path(name).name
    if made in ("deepscaler", "medical"):
        return f" Make it with `trl-miner data {made}`; the recipe's first lines say how."
    return ""


def _reward_functions(settings: Any) -> dict[str, list[str]]:
    """Columns that each reward function cannot do without, by its name."""
    from ...recipe import load_reward_funcs

    found = {}
    for name, function in zip(settings.reward_funcs, load_reward_funcs(settings, settings), strict=True):
        parameters = inspect.signature(function).parameters.values()
        found[name] = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            and parameter.name not in _GIVEN
        ]
    return found


def _check_prompts(context: Context, rows: list[dict[str, Any]]) -> Finding:
    """The longest of the first prompts against what the server takes, and messages against a chat template."""
    from transformers import AutoTokenizer

    from ...data.prompts import guess_style, prompt_text
    from ..plan import served_model

    settings, about = context.settings, "prompts"
    name = served_model(settings)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=settings.model_revision, trust_remote_code=bool(settings.trust_remote_code)
        )
    except Exception as error:  # as with data
        return Finding(NOT_CHECKED, about, f"the tokenizer of {name} is not here ({type(error).__name__}).")
    prompts = [row["prompt"] for row in rows]
    is_chat = not isinstance(prompts[0], str)
    if is_chat and not tokenizer.chat_template:
        return Finding(
            FAILED, about, f"messages need a chat template, which {name} has not. Make the set with --prompt-style "
            "plain."
        )  # fmt: skip
    longest = max(len(tokenizer(prompt_text(prompt, tokenizer))["input_ids"]) for prompt in prompts)
    text = f"{'messages' if is_chat else 'plain text'}, at most {longest} tokens in the first {len(rows)} rows"
    if settings.use_vllm and settings.vllm_max_model_length and longest > longest_prompt_allowed(settings):
        return Finding(
            FAILED, about, f"prompt and completion must fit into vllm_max_model_length="
            f"{settings.vllm_max_model_length}: got {text} and max_completion_length="
            f"{settings.max_completion_length}. Raise the former, or make the set with --max-prompt-tokens."
        )  # fmt: skip
    if not is_chat and guess_style(name, tokenizer) == "chat":
        return Finding(
            WARNING, about, f"{text}, though {name} has a chat template. Make the set with --prompt-style chat, if it "
            f"is no base model."
        )  # fmt: skip
    return Finding(OK, about, f"{text}.")


def _check_golds(settings: Any, rows: list[dict[str, Any]]) -> Finding:
    from ...data.golds import accepts_gold

    about = "verifier"
    graders = {"math_reward": "math", "choice_reward": "choice"}
    grader = graders.get(settings.reward_funcs[0])
    if grader is None:
        return Finding(NOT_CHECKED, about, f"it is not known how an answer to {settings.reward_funcs[0]} looks.")
    problems = [SimpleNamespace(solution=row["solution"], options=row.get("options") or []) for row in rows[:GOLDS]]
    accepted = sum(accepts_gold(grader, problems))  # type: ignore[arg-type]
    if accepted < len(problems):
        return Finding(
            FAILED, about, f"{settings.reward_funcs[0]} must accept every gold as an answer: got {accepted} of "
            f"{len(problems)}. Look at the column solution; `trl-miner data` drops such rows."
        )  # fmt: skip
    return Finding(OK, about, f"{settings.reward_funcs[0]} accepts {accepted} of {len(problems)} golds.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200].rstrip(".")


FILE_CHECKS: tuple[Check, ...] = (check_output, check_disk, check_hub, check_data)
