"""The data of a training: the problems to train on, those held out to score, and the form of their
prompts."""

import warnings
from argparse import Namespace
from collections.abc import Sequence, Sized
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from datasets import Dataset
from trl import DatasetMixtureConfig, ModelConfig, get_dataset

from ..data import reasoning_gym
from ..data.benchmarks import find_benchmark, load, read_entry
from ..data.layout import arrange, check_answers, check_questions, decided
from ..data.prompt_form import QUESTION, form_of_rows, style_of
from ..data.prompts import PromptForm, build_prompt
from ..data.reading import load_data_set
from ..data.worlds import WORLDS
from ..runs.held_out import TRAINED
from ..trainer.config import RunConfig
from ..trainer.prompt_keys import prompt_key
from ..trainer.reward_functions import NEED_SOLUTION, OWN_REWARDS, TRL_REWARDS
from .parsing import (
    MinerScriptArguments,
    data_settings,
    layout_of,
    load_reward_func,
    prompt_form,
    reward_names,
)

if TYPE_CHECKING:
    from ..training import RunTrainer

TEST = "test"  # the split that `held_out` makes where a data set has none


def load_data(
    args: MinerScriptArguments,
    mixture: DatasetMixtureConfig,
    model_args: ModelConfig,
    *,
    trusts: bool = False,
) -> Any:
    """Return the recipe's data set by split, with the columns `prompt`, `solution` and, where it
    has some, `options`.

    The model decides on the style of prompts that are built here.
    """
    form = prompt_form(args, model_args, trusts=trusts)
    data = _read(args, mixture, form)
    if is_made(args):
        return hold_out(data, args)
    layout, names = layout_of(args, form), reward_names(args)
    used = (args.dataset_train_split, args.dataset_test_split)
    if "choice_reward" in names:
        layout = decided(layout, [rows for split, rows in data.items() if split in used])
    arranged = {
        split: arrange(rows, layout, names) if split in used else rows
        for split, rows in data.items()
    }
    return hold_out(arranged, args)


def is_made(args: MinerScriptArguments) -> bool:
    """Whether this package makes the problems."""
    return args.dataset_name in WORLDS or reasoning_gym.is_task(args.dataset_name)


def _read(args: MinerScriptArguments, mixture: DatasetMixtureConfig, form: PromptForm) -> Any:
    name = args.dataset_name
    if mixture.datasets and name:
        raise ValueError(
            f"datasets must be given without dataset_name: got {name!r}, too. Leave one of them"
            " out."
        )
    if mixture.datasets:
        return get_dataset(mixture)
    if not name:
        raise ValueError(
            f"dataset_name must be given: a Hub id, a file, a folder, {' or '.join(WORLDS)} for"
            " embedded problems, or reasoning_gym/FAMILY. Or give a mixture with `datasets`."
        )
    if name in WORLDS:
        if ignored := [
            each for each in ("prompt_template", "system_prompt") if getattr(args, each)
        ]:
            raise ValueError(f"{name} has prompts of its own: got {ignored[0]}. Leave it out.")
        return {
            "train": WORLDS[name].load_dataset("train", args.task_size),
            "test": WORLDS[name].load_dataset("test"),
        }
    if not reasoning_gym.is_task(name):
        settings = args.dataset_config, args.dataset_revision
        return load_data_set(name, *settings, streaming=args.dataset_streaming)
    parts = reasoning_gym.read_parts(name, args.task_config, args.tasks)
    held_out = number_of(args.held_out_size or reasoning_gym.TEST_SIZE, reasoning_gym.TEST_SIZE)
    sizes = {"train": args.task_size or reasoning_gym.TRAIN_SIZE, "test": held_out}
    args.held_out = held_out if args.held_out_size else args.held_out  # as in `hold_out`
    return {
        split: reasoning_gym.load_dataset(parts, split, size, args.task_seed, form)
        for split, size in sizes.items()
    }


def hold_out(data: Any, args: MinerScriptArguments) -> Any:
    """Return a data set with a test split: where it has none, the rows that `held_out` asks for,
    the same every time. A share becomes their number.

    No problem is on both sides: of one that stands in the data several times, one row is held out,
    and the others leave.

    Raises:
        ValueError: The data set has none and is streamed, or nothing would be left to train on.
    """
    if not args.held_out_size or args.dataset_test_split in data:
        return data
    if args.dataset_test_split != TEST:
        rows_of(data, args, "dataset_test_split")  # raises: the user has named one
    rows = rows_of(data, args)
    if not isinstance(rows, Dataset):
        raise ValueError(
            f"held_out needs a test split where dataset_streaming is true: got {', '.join(data)}."
            " Set it to false, or leave held_out out."
        )
    size = number_of(args.held_out_size, len(rows))
    places: dict[Any, list[int]] = {}
    for place, key in enumerate(problem_keys(rows)):
        places.setdefault(key or place, []).append(place)
    if size >= len(places):
        raise ValueError(
            f"No problems are left to train on: there are {len(places)}, and held_out takes"
            f" {args.held_out} of them. Lower it, or add problems."
        )
    args.held_out = size  # all of what is split off is scored, not a share of it again
    train, test = _split([*places.values()], size)
    return {**data, args.dataset_train_split: rows.select(train), TEST: rows.select(test)}


def _split(places: Sequence[Sequence[int]], size: int) -> tuple[list[int], list[int]]:
    """Return the places to train on and those to hold out, of problems by the places of their
    rows."""
    copies = {copies_of_problem[0]: copies_of_problem[1:] for copies_of_problem in places}
    parts = Dataset.from_dict({"place": [*copies]}).train_test_split(size, seed=0)
    train, test = ([*part["place"]] for part in (parts["train"], parts["test"]))
    return [*train, *(copy for first in train for copy in copies[first])], test


def problem_keys(rows: Dataset) -> list[str]:
    """Return for each row a text that two rows share where they are one problem: prompt and
    options; empty where there is no prompt."""
    if "prompt" not in rows.column_names:
        return [""] * len(rows)
    options = rows["options"] if "options" in rows.column_names else [None] * len(rows)
    pairs = zip(rows["prompt"], options, strict=True)
    return [" ".join(str(pair).split()) if pair[0] else "" for pair in pairs]


def number_of(held_out: float, rows: int) -> int:
    """Return the number of problems that `held_out` means, below 1 as a share of that many rows."""
    return int(held_out) if held_out >= 1 else max(1, round(held_out * rows))


def rows_of(data: Any, args: MinerScriptArguments, setting: str = "dataset_train_split") -> Any:
    """Return the rows of the split that a setting names. Raise ValueError if there are none."""
    name = getattr(args, setting)
    if name not in data:
        advice = (
            " Name one that the run does not train on." if setting == "dataset_test_split" else ""
        )
        raise ValueError(
            f"{setting} must be a split of the data set: got {name!r}. There are"
            f" {', '.join(data)}.{advice}"
        )
    if isinstance(data[name], Sized) and not len(data[name]):
        raise ValueError(
            f"{setting} must have rows: {name!r} has none. Choose another split, or other data."
        )
    return data[name]


def check_rows(args: MinerScriptArguments, data: Any) -> None:
    """Raise if a row has no prompt, or no answer where a reward function needs one."""
    names, rows = reward_names(args), rows_of(data, args)
    if args.dataset_name in WORLDS:
        return
    parts = (rows, rows_of(data, args, "dataset_test_split")) if args.held_out_size else (rows,)
    if not args.environment_factory and not args.rollout_func:  # which may bring the prompts
        for part in parts:
            check_questions(part)
    # a reward function of the user's may score a row without an answer
    if not NEED_SOLUTION.isdisjoint(names) and {*names} <= {*OWN_REWARDS, *TRL_REWARDS}:
        for part in parts:
            if "solution" in next(iter(part)):
                check_answers(args.dataset_solution_column, part)


def training_form(args: MinerScriptArguments, config: RunConfig, rows: Any) -> PromptForm | None:
    """Return the form of the prompts of a training: that in which they are built here, or else that
    of some rows."""
    form = form_of_rows(rows, config.chat_template_kwargs)
    if form is None:
        return None
    if args.dataset_name in WORLDS:
        return PromptForm(template=QUESTION)
    is_task = reasoning_gym.is_task(args.dataset_name)
    built = PromptForm(form.style, args.system_prompt, args.prompt_template, form.template_kwargs)
    if not is_task and not layout_of(args, built).builds_prompts:
        return form
    has_words = is_task or "math_reward" in reward_names(args) or next(iter(rows)).get("options")
    return built if has_words or built.template else replace(built, template=QUESTION)


def held_out_problems(
    args: MinerScriptArguments, data: Any, trainer: "RunTrainer"
) -> tuple[Any, Any]:
    """Return the problems to score, and the reward function that verifies them; None: none, or the
    trainer's.

    A benchmark is asked in the form of the trainer's prompts.
    """
    if not args.held_out:
        return None, None
    problems, verifier = (
        _benchmark(args, trainer) if args.held_out_benchmark else (_held_out_rows(args, data), None)
    )
    _warn_of_trained(problems, rows_of(data, args))
    return problems, verifier


def _held_out_rows(args: MinerScriptArguments, data: Any) -> Dataset:
    rows, size = rows_of(data, args, "dataset_test_split"), args.held_out_size
    is_stream = not isinstance(rows, Sized)
    if size < 1 and is_stream:
        raise ValueError(f"held_out must be a number of problems for a stream: got {size}.")
    if not is_stream:
        return rows.select(range(min(number_of(size, len(rows)), len(rows))))
    return Dataset.from_list([*islice(rows, int(size))])


def _benchmark(args: MinerScriptArguments, trainer: "RunTrainer") -> tuple[Any, Any]:
    entry = read_entry(args.held_out_benchmark)
    benchmark = find_benchmark(entry.name, entry.path, data_settings(args))
    loaded = load(benchmark, entry.path or None)[0][: entry.number]
    form = trainer.prompt_form or PromptForm(
        style_of(trainer.model.config.name_or_path, trainer.processing_class),
        args.system_prompt,
        args.prompt_template,
    )
    rows = [
        {
            "prompt": build_prompt(benchmark.kind, p.question, p.options, p.context, form=form),
            "solution": p.solution,
            "options": list(p.options),
            "task": p.task,
            **({"level": p.level} if all(other.level is not None for other in loaded) else {}),
        }
        for p in loaded
    ]
    settings = Namespace(**vars(args))
    settings.decimal_comma = args.decimal_comma or benchmark.decimal_comma
    return Dataset.from_list(rows), load_reward_func(f"{benchmark.grader}_reward", settings)


def _warn_of_trained(problems: Dataset, rows: Any) -> None:
    """Warn of held-out problems whose prompts the run trains on too; those of a stream are not
    known in advance."""
    # an environment may bring the prompts
    is_known = isinstance(rows, Dataset) and "prompt" in rows.column_names
    if not is_known or not PartialState().is_main_process:
        return
    held_out, trained = (
        {prompt_key({"prompt": each}): str(each) for each in data["prompt"]}
        for data in (problems, rows)
    )
    if both := [text for key, text in held_out.items() if key in trained]:
        warnings.warn(
            f"{len(both)} of {len(held_out)} {TRAINED}: their"
            # the question stands behind the words that all prompts have
            f" scores are not of new problems. The first ends with {min(both)[-120:]!r}. Drop them"
            " from one of the two.",
            stacklevel=2,
        )
