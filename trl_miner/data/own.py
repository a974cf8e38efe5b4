"""The rows to train on, and those held out: of a file, a folder, a data set, a benchmark."""

import random
import warnings
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from datasets import Dataset, concatenate_datasets
from trl import get_dataset

from .benchmarks import read_problems
from .columns import Row, find_columns
from .files import load_splits
from .problems import Problem, read_rows
from .prompts import Kind, Kwargs, PromptForm, build_prompt, choose_form
from .settings import DataArguments

ADVICE = (
    "Name other columns with --dataset_prompt_column, --dataset_solution_column or"
    " --dataset_options_column, or set --answer_pattern; --first_option where answers are numbers of"
    " options."
)


@dataclass
class TrainingData:
    """What a run trains on, and what it scores.

    Attributes:
        train: Rows with `prompt` (text or messages), `solution` (text), `options` where there are
            some, and the other columns of the source, which reach reward functions.
        problems: The rows held out, with the same; None: none.
        form: How questions become prompts, for `save_form`.
        kind: "choice" where the rows have options, else "math": which reward suits them.
        about: What was read, in words.
    """

    train: Dataset
    problems: Dataset | None
    form: PromptForm
    kind: Kind
    about: str


def load_training_data(
    args: DataArguments,
    model: str,
    tokenizer: Any,
    held_out: float | str | None = 0,
    mixture: Any = None,
    *,
    needs_answers: bool = True,
    template_kwargs: Kwargs | None = None,
) -> TrainingData:
    """Load what a recipe trains on.

    Args:
        args: The data's settings.
        model: Name or folder of the model, whose form of prompts is used.
        tokenizer: The model's.
        held_out: A number of problems, a share below 1, or a benchmark (`aime24`, `mine=PATH`).
        mixture: TRL's `DatasetMixtureConfig`, in place of `dataset_name`.
        needs_answers: Whether a reward function grades against reference answers. Without one
            the rows may lack them, and prompts stand as they are.
        template_kwargs: `chat_template_kwargs` of the run, kept in the form.

    Raises:
        ValueError: The source cannot be read, no usual name says which column holds what, or more
            than a tenth of the rows have no question or reference answer.
    """
    splits = dict(get_dataset(mixture)) if mixture is not None else load_splits(args)
    name = args.dataset_train_split
    if name not in splits:
        raise ValueError(
            f"There is no split {name}, but {', '.join(splits)}: set --dataset_train_split."
        )
    form = PromptForm("verbatim")
    if needs_answers:
        form = choose_form(args, model, tokenizer)
    args = replace(args, prompt_style=form.style)
    try:
        size, benchmark = float(held_out or 0), ""
    except ValueError:
        size, benchmark = 0.0, str(held_out)
    parts = [
        splits[each] for each in (name, args.dataset_test_split)[: 1 + (size > 0)] if each in splits
    ]
    columns = find_columns(parts[0], args, needs_answers)
    kind, problems = read_rows(chain(*parts), columns, args)
    rows = [_to_row(each, kind, form) for each in problems]
    train = _arrange(parts[0], rows[: len(parts[0])], needs_answers)
    held = None
    if benchmark:
        its, problems = read_problems(benchmark, args)
        held = Dataset.from_list([_to_row(each, its.grader, form) for each in problems])
    elif size:
        pool = train
        if len(parts) > 1:
            pool = _arrange(parts[1], rows[len(parts[0]) :], needs_answers)
        held = _draw(pool, max(1, round(size * len(pool)) if size < 1 else int(size)))
    keys = {*_keys(held)} if held else ()
    train = train.select([place for place, key in enumerate(_keys(train)) if key not in keys])
    if not len(train):
        raise ValueError(f"held_out: {held_out} leaves no problem to train on.")
    used = [f"{what} {column}" for what, column in columns.items() if column]
    return TrainingData(
        train,
        held,
        form=replace(form, template_kwargs=dict(template_kwargs or form.template_kwargs)),
        kind=kind,
        about=f"{args.dataset_name}: {len(train)} problems to train on, {len(held or ())} held"
        f" out. Read: {', '.join(used)}. Prompts: {form.style}.",
    )


def _arrange(source: Dataset, rows: list[Row], needs_answers: bool) -> Dataset:
    """Return rows with the other columns of their source, without those that have no question or no
    reference answer.

    Raises:
        ValueError: They are more than a tenth.
    """
    unfit = [place for place, row in enumerate(rows) if needs_answers and not row["solution"]]
    if unfit:
        told = (
            f"{len(unfit)} of {len(rows)} rows have no question, or no reference answer that can be"
            f" read, such as row {unfit[0]}: {str(source[unfit[0]])[:300]}"
        )
        if 10 * len(unfit) > len(rows):
            raise ValueError(f"{told}. {ADVICE}")
        warnings.warn(f"They are left out: {told}", stacklevel=3)
    arranged = Dataset.from_list(rows)
    others = source.select_columns([*{*source.column_names}.difference(arranged.column_names)])
    if others.column_names:
        arranged = concatenate_datasets([others, arranged], axis=1)
    return arranged.select(sorted({*range(len(rows))}.difference(unfit)))


def _to_row(problem: Problem, kind: Kind, form: PromptForm) -> Row:
    """Return a problem as a row to train on or to score."""
    asked = build_prompt(kind, problem.question, problem.options, form=form)
    options = {"options": [*problem.options]} if kind == "choice" else {}
    return {"prompt": asked, "solution": problem.solution, **options}


def _keys(rows: Dataset) -> list[int]:
    """Return a number for each problem, the same for the same one."""
    return [hash(" ".join(str(prompt).split())) for prompt in rows["prompt"]]


def _draw(rows: Dataset, count: int) -> Dataset:
    """Return different problems, drawn the same way each time; all, where there are fewer."""
    last = {key: place for place, key in enumerate(_keys(rows))}
    places = random.Random(0).sample(sorted(last.values()), min(count, len(last)))
    return rows.select(sorted(places))
