"""The rows to train on, and those held out: of a file, a folder, a data set, a benchmark."""

import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .benchmarks import read_problems
from .files import load_splits
from .problems import Layout, Problem, find_layout, iterate, read_problem
from .prompts import Kind, PromptForm, build_prompt, form_asked_for, guess_style, load_form
from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset

ADVICE = (
    "Name other columns with --dataset_prompt_column, --dataset_solution_column or"
    " --dataset_options_column, or set --answer_pattern; --first_option where answers are numbers of"
    " options."
)


@dataclass
class TrainingData:
    """What a run trains on, and what it scores.

    Attributes:
        train: Rows with `prompt` (text or messages), `solution` (text), `options` and `level`
            where there are some, and the other columns of the source, which reach reward functions.
        problems: The rows held out, with the same; None: none.
        form: How questions become prompts, for `save_form`.
        kind: "choice" where the rows have options, else "math": which reward suits them.
        about: What was read, in words.
        answer_form: What an answer must look like, `The answer is %s.`; None: each prompt says it.
    """

    train: "Dataset"
    problems: "Dataset | None"
    form: PromptForm
    kind: Kind
    about: str
    answer_form: str | None


def load_training_data(
    args: DataArguments,
    model: str,
    tokenizer: Any,
    held_out: float | str | None = 0,
    mixture: Any = None,
    *,
    needs_answers: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
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
    from datasets import Dataset
    from trl import get_dataset

    splits = dict(get_dataset(mixture)) if mixture is not None else load_splits(args)
    name = args.dataset_train_split
    if name not in splits:
        raise ValueError(
            f"There is no split {name}, but {', '.join(splits)}: set --dataset_train_split."
        )
    form = _find_form(args, model, tokenizer, needs_answers)
    first = splits[name].select(range(min(len(splits[name]), 1000))).to_list()
    layout = find_layout(first, replace(args, prompt_style=form.style), needs_answers)
    train = _arrange(splits[name], layout, form, needs_answers)
    problems = None
    try:
        size = float(held_out or 0)
    except ValueError:
        benchmark, found, _ = read_problems(str(held_out), args)
        problems = Dataset.from_list([to_row(each, benchmark.kind, form) for each in found])
    else:
        test = splits.get(args.dataset_test_split)
        pool = train if test is None else _arrange(test, layout, form, needs_answers)
        count = round(size * len(pool)) if size < 1 else int(size)
        problems = _draw(pool, max(1, count)) if size > 0 else None
    if problems is not None:
        held = {*_keys(problems)}
        train = train.select([place for place, key in enumerate(_keys(train)) if key not in held])
    if not len(train):
        raise ValueError(f"held_out: {held_out} leaves no problem to train on.")
    used = [f"{what} {value}" for what, value in vars(layout).items() if value]
    words = form_asked_for(build_prompt(layout.kind, "", form=form))
    return TrainingData(
        train,
        problems,
        form=replace(form, template_kwargs=dict(template_kwargs or form.template_kwargs)),
        kind=layout.kind,
        about=f"{args.dataset_name}: {len(train)} problems to train on, {len(problems or ())} held"
        f" out. Read: {', '.join(used)}. Prompts: {form.style}.",
        answer_form=None if layout.prompts else words,
    )


def _find_form(args: DataArguments, model: str, tokenizer: Any, needs_answers: bool) -> PromptForm:
    """Return the form of prompts: that of the settings, or of the model's training, or the paper's
    in the style that suits the model."""
    saved, words = load_form(model), (args.system_prompt, args.prompt_template)
    if args.prompt_style is None and words == (None, None):
        if saved or not needs_answers:
            return saved or PromptForm("verbatim")
    style: Any = args.prompt_style or guess_style(model, tokenizer)
    return PromptForm(style, *words)


def _arrange(rows: "Dataset", layout: Layout, form: PromptForm, needs_answers: bool) -> "Dataset":
    """Return rows as `TrainingData.train` has them, without those that have no question or no
    reference answer.

    Raises:
        ValueError: They are more than a tenth.
    """
    from datasets import Dataset, concatenate_datasets, disable_progress_bars
    from datasets.fingerprint import get_temporary_cache_files_directory

    def arranged_rows() -> Iterator[dict[str, Any]]:
        for row in iterate(rows):
            yield to_row(read_problem(row, layout), layout.kind, form)

    disable_progress_bars()
    folder = get_temporary_cache_files_directory()  # which goes when the process ends
    new = Dataset.from_generator(arranged_rows, cache_dir=folder, fingerprint=uuid4().hex)
    others = rows.select_columns([name for name in rows.column_names if name not in new.features])
    arranged = concatenate_datasets([others, new], axis=1) if others.features else new
    golds = arranged["solution"][:]
    unfit = [place for place, gold in enumerate(golds) if needs_answers and not gold]
    if not unfit:
        return arranged
    told = (
        f"{len(unfit)} of {len(rows)} rows have no question, or no reference answer that can be"
        f" read, such as row {unfit[0]}: {str(rows[unfit[0]])[:300]}"
    )
    if 10 * len(unfit) > len(rows):
        raise ValueError(f"{told}. {ADVICE}")
    warnings.warn(f"They are left out: {told}", stacklevel=3)
    return arranged.select(sorted({*range(len(rows))}.difference(unfit)))


def to_row(problem: Problem, kind: Kind, form: PromptForm) -> dict[str, Any]:
    """Return a problem as a row to train on or to score."""
    asked = build_prompt(kind, problem.question, problem.options, problem.context, form=form)
    row: dict[str, Any] = {"prompt": asked, "solution": problem.solution}
    row |= {"options": [*problem.options]} if kind == "choice" else {}
    return row | ({} if problem.level is None else {"level": problem.level})


def _keys(rows: "Dataset") -> list[int]:
    """Return a number for each problem, the same for the same one."""
    prompts = (row["prompt"] for row in iterate(rows.select_columns("prompt")))
    return [hash(" ".join(str(prompt).split())) for prompt in prompts]


def _draw(rows: "Dataset", count: int) -> "Dataset":
    """Return different problems, drawn the same way each time; all, where there are fewer."""
    first = {key: place for place, key in reversed([*enumerate(_keys(rows))])}
    places = random.Random(0).sample(sorted(first.values()), min(count, len(first)))
    return rows.select(sorted(places))
