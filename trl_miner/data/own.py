"""The rows to train on, and those held out: of a file, a folder, a data set, a benchmark."""

import random
from dataclasses import dataclass, replace
from typing import Any

from datasets import Dataset
from trl import get_dataset

from .benchmarks import read_problems
from .columns import find_columns
from .files import load_splits
from .problems import Problem, read_rows
from .prompts import Kind, PromptForm, build_prompt, choose_form
from .settings import DataArguments


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
    template_kwargs: Any = None,
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
    form = choose_form(args, model, tokenizer) if needs_answers else PromptForm("verbatim")
    form = replace(form, template_kwargs=dict(template_kwargs or form.template_kwargs))
    args = replace(args, prompt_style=form.style)
    columns = find_columns(splits[name], args, needs_answers)

    def to_rows(kind: Kind, problems: list[Problem], source: Any) -> Dataset:
        """Return problems with a prompt, and with the other columns of their source."""
        rows = []
        for one, row in zip(problems, source, strict=True):
            asked = build_prompt(kind, one.question, one.options, form=form)
            options = {"options": [*one.options]} if kind == "choice" else {}
            rows.append({**row, "prompt": asked, "solution": one.solution, **options})
        return Dataset.from_list(rows, on_mixed_types="use_json")

    def read(split: Dataset) -> tuple[Kind, Dataset]:
        kind, problems = read_rows(split, columns, args, needs_answers=needs_answers)
        return kind, to_rows(kind, problems, split.select([each.place for each in problems]))

    (kind, train), held = read(splits[name]), None
    if not str(held_out or 0).replace(".", "").isdecimal():
        its, problems = read_problems(str(held_out), args)
        held = to_rows(its.grader, problems, [{}] * len(problems))
    elif size := float(held_out or 0):
        test = args.dataset_test_split
        pool = read(splits[test])[1] if test in splits else train
        count = min(len(pool), max(1, round(size * len(pool)) if size < 1 else int(size)))
        # the same each time
        held = pool.select(sorted(random.Random(0).sample(range(len(pool)), count)))
    keys = {*map(_key, held or ())}
    train = train.select([place for place, row in enumerate(train) if _key(row) not in keys])
    if not len(train):
        raise ValueError(f"held_out: {held_out} leaves no problem to train on.")
    used = [f"{what} {column}" for what, column in columns.items() if column]
    return TrainingData(
        train,
        held,
        form,
        kind,
        f"{args.dataset_name}: {len(train)} problems to train on, {len(held or ())} held"
        f" out. Read: {', '.join(used)}. Prompts: {form.style}.",
    )


def _key(row: Any) -> str:
    """Return the same for the same problem."""
    return " ".join(str(row["prompt"]).split())
