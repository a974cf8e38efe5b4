"""Your own data set: its columns of questions and golds, how they become prompts, and who verifies
them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from . import columns as c
from .problems import Problem, accepts_gold
from .prompts import Kind, PromptForm, build_prompt
from .reading import Row

GOLDS = 20  # of a training set are graded before the training
# by the name of the reward
GRADERS = {"math_reward": "math", "choice_reward": "choice", "task_reward": "task"}
_SHOWN = 5  # rows that an error names

# What columns are usually called, the surest name first; compared in lower case.
QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input", "task", "text", "q")
ANSWERS = (
    *(
        "answer",
        "solution",
        "gold",
        "final_answer",
        "expected_answer",
        "correct_answer",
        "expected",
        "ground_truth",
    ),
    *("target", "label", "result", "output", "response", "a"),
)
OPTIONS = ("options", "choices")
MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K


@dataclass(frozen=True)
class Layout:
    """What the columns of a data set are called, and how its questions become prompts."""

    prompt: str = "prompt"
    solution: str = "solution"
    options: str = "options"
    # the gold is its last match in the column `solution`, or that one's first group
    answer_pattern: str | None = None
    form: PromptForm = PromptForm()  # its style does not count

    def __post_init__(self) -> None:
        try:
            re.compile(self.answer_pattern or "")
        except re.error as error:
            raise ValueError(
                f"answer_pattern must be a regular expression: got {self.answer_pattern!r}"
                f" ({error})."
            ) from error

    @property
    def builds_prompts(self) -> bool:
        """Whether the column with the prompts holds questions, from which they are yet to be
        built."""
        return self.prompt != "prompt" or self.form.is_own

    def asked(self) -> dict[str, str]:
        """Return the columns that the data set must have, by setting; none: it stays as it is."""
        columns = {}
        if self.builds_prompts:
            columns["dataset_prompt_column"] = self.prompt
        if self.solution != "solution" or self.answer_pattern is not None:
            columns["dataset_solution_column"] = self.solution
        if self.options != "options":
            columns["dataset_options_column"] = self.options
        return columns


def arrange(data: Any, layout: Layout, rewards: Collection[str]) -> Any:
    """Return a data set with the columns `prompt`, `solution` and, where there are some, `options`.

    Without a setting in `layout` it stays as it is. Without a template, a question with options is
    asked as the benchmarks of choice are, one for `math_reward` as those of mathematics, and any
    other as it stands.
    """
    asked, names = layout.asked(), data.column_names
    if not asked:
        return data
    for setting, name in asked.items():
        if names is not None and name not in names:  # those of a stream may not be known
            raise ValueError(
                f"{setting} must name a column: got {name!r}, and there are {', '.join(names)}."
            )
    # `datasets` would take prompts of an earlier version of this package from its cache.
    afresh = {"load_from_cache_file": False} if hasattr(data, "__len__") else {}
    return data.map(
        lambda row, place: _arranged(row, place, layout, rewards), with_indices=True, **afresh
    )


def _arranged(row: Row, place: int, layout: Layout, rewards: Collection[str]) -> Row:
    """Return the columns of a row that are new."""
    # a row without one gets None: all rows must have the same columns
    new: Row = {name: None for name in ("options", "solution") if getattr(layout, name) in row}
    if row.get(layout.options) is not None:
        new["options"] = list(c.read((layout.options, c.options), row))
    if row.get(layout.solution) is not None:
        new["solution"] = _gold(
            row, place, layout, new.get("options") if "choice_reward" in rewards else None
        )
    if layout.builds_prompts:
        question = row[layout.prompt]
        if not isinstance(question, str) or not question.strip():
            raise ValueError(
                f"The column {layout.prompt} must hold a question as text: row {place}, counted"
                f" from 0, has {str(question)[:80]!r}. Drop the row; messages are prompts already."
            )
        options = new.get("options") or ()
        kind: Kind = "math" if "math_reward" in rewards else "verbatim"
        new["prompt"] = build_prompt(
            "choice" if options else kind, question, options, form=layout.form
        )
    return new


def _gold(row: Row, place: int, layout: Layout, options: Sequence[str] | None) -> str:
    value = row[layout.solution]
    # Arrow makes 2.0 of 2 beside 0.5
    text = c.number(value) if isinstance(value, float) else c.text(value)
    if layout.answer_pattern is None:
        return c.choice(value, options) if options else text
    found = [*re.finditer(layout.answer_pattern, text)]
    gold = (found[-1][1] if found[-1].re.groups else found[-1][0]) if found else None
    if not gold or not gold.strip():
        raise ValueError(
            f"answer_pattern {layout.answer_pattern!r} finds none in row {place} of the column"
            f" {layout.solution}, which ends with {text[-80:]!r}. Correct it, or drop such rows."
        )
    return str(gold).strip()


def guess_settings(name: str, data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that say what a data set holds, by its first rows; those that
    are given stay."""
    found = dict(given) | guess_columns(
        name, data.column_names, given, "Name it with --{setting} COLUMN"
    )
    prompt, solution = found["dataset_prompt_column"], found["dataset_solution_column"]
    if is_marked(row.get(solution) for row in data):
        found.setdefault("answer_pattern", MARKED)
    if "reward_funcs" not in found:
        options = found.get("dataset_options_column")
        rewards = found["reward_funcs"] = ["choice_reward" if options else "math_reward"]
        layout = Layout(prompt, solution, options or "options", found.get("answer_pattern"))
        check_first_golds(rewards[0], arrange(data, layout, rewards), rewards)
        if (
            not options
            and not layout.builds_prompts
            and not any("boxed" in str(row[prompt]) for row in data)
        ):
            found["math_accept_unboxed"] = True  # nothing asks for a box
    return found


def guess_columns(
    name: str, columns: Sequence[str], given: Mapping[str, Any], hint: str
) -> dict[str, str]:
    """Return the settings that name the columns with questions, answers and, where there are some,
    options.

    `hint` is what an error says to do, with {setting} and {what} for what is missing.
    """
    found: dict[str, str] = {}
    has_letters = {"a", "b", "c"} <= {column.lower().strip() for column in columns}
    for what, setting, usual in (
        ("question", "dataset_prompt_column", QUESTIONS),
        ("answer", "dataset_solution_column", ANSWERS),
    ):
        others = [column for column in columns if column not in found.values()]
        if has_letters and found and not given.get(setting):
            raise ValueError(
                f"{name} has options in columns of their own: there are {', '.join(columns)}. Join"
                " them into one column options, a list of texts, in JSONL or Parquet."
            )
        by_name = {column.lower().strip(): column for column in reversed(others)}
        likely = [by_name[name] for name in usual if name in by_name]
        found[setting] = given.get(setting) or next(
            iter(likely or others[:1] * (len(others) == 1)), ""
        )
        if not found[setting]:
            raise ValueError(
                f"No column of {name} looks like the {what}: there are"
                f" {', '.join(others) or 'no others'}. {hint.format(setting=setting, what=what)}."
            )
    options = [
        column for column in columns if column not in found.values() and column.lower() in OPTIONS
    ]
    if options:
        found["dataset_options_column"] = given.get("dataset_options_column") or options[0]
    return found


def is_marked(golds: Iterable[Any]) -> bool:
    """Return whether all of these, which are some, end with #### and the answer."""
    texts = [*map(c.text, golds)]
    return bool(texts) and all("####" in text for text in texts)


def check_questions(rows: Any) -> None:
    """Raise if a row of a data set has a prompt that is neither text nor messages; those of a
    stream are not seen."""
    if "prompt" not in (getattr(rows, "column_names", None) or ()) or not hasattr(rows, "__len__"):
        return
    bad = [place for place, prompt in enumerate(rows["prompt"]) if not _is_prompt(prompt)]
    if bad:
        raise ValueError(
            f"The column prompt must hold text or messages in every row: {len(bad)} of {len(rows)}"
            f" have none, such as row {', '.join(map(str, bad[:_SHOWN]))} (counted from 0). Add it,"
            " or drop the rows."
        )


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(message, dict) for message in prompt)
    )


def check_answers(column: str, rows: Any) -> None:
    """Raise if a row of a data set has no answer; of a stream, whose rows are for the training, if
    a first one has."""
    values = list(
        rows["solution"]
        if hasattr(rows, "__len__")
        else (row["solution"] for row in islice(rows, GOLDS))
    )
    empty = [place for place, value in enumerate(values) if c.text(value).casefold() in ("", "nan")]
    if empty:
        raise ValueError(
            f"The column {column} must hold an answer in every row: {len(empty)} of {len(values)}"
            f" have none, such as row {', '.join(map(str, empty[:_SHOWN]))} (counted from 0, below"
            " the header). Add it, or drop the rows."
        )


def check_first_golds(reward: str, data: Iterable[Row], rewards: Collection[str]) -> str:
    """Grade the first golds of a training set as answers, and return which are rejected, in words;
    empty: none.

    `reward` is one of `GRADERS`; where both `math_reward` and `choice_reward` are among `rewards`,
    each has its own rows.

    Raises:
        ValueError: More than half are rejected: a wrong column, rather than some bad rows.
    """
    grader, rows = GRADERS[reward], list(enumerate(islice(data, GOLDS)))
    if {"math_reward", "choice_reward"} <= {*rewards}:
        rows = [
            (place, row) for place, row in rows if bool(row.get("options")) == (grader == "choice")
        ]
    gold = "answer" if grader == "task" else "solution"
    problems = [
        Problem("", "", c.choice(row[gold], options), options, task=row.get("task") or "")
        for _, row in rows
        for options in [tuple(row.get("options") or ())]
    ]
    bad = [
        f"row {place}: {problem.solution[-60:]!r}"
        for (place, _), problem, is_accepted in zip(
            rows, problems, accepts_gold(grader, problems), strict=True
        )
        if not is_accepted or (grader == "math" and _is_worked(problem.solution))
    ]
    advice = (
        "Make the problems again: the installed reasoning-gym does not make those of the column"
        " task, or their answers are others."
        if grader == "task"
        else "Set dataset_solution_column or answer_pattern, drop these rows, or name a reward"
        " function that can verify such answers: --reward_funcs module.function."
    )
    rejected = (
        f"{reward} must accept every gold as an answer: it rejects {len(bad)} of the first"
        f" {len(rows)} ({', '.join(bad[:_SHOWN])}). {advice}"
    )
    if 2 * len(bad) > len(rows):
        raise ValueError(rejected)
    return rejected if bad else ""


def _is_worked(gold: str) -> bool:
    """Return whether a gold is a worked solution in which nothing marks the answer: the grader
    would accept itself."""
    return "\\boxed" not in gold and ("\n" in gold or "####" in gold)
