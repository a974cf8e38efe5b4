"""Problems: questions with their reference answers, read from rows of any form."""

import re
import warnings
from dataclasses import dataclass
from typing import Any

from .columns import Row, as_text, flatten, option_letter, read_messages, read_options
from .prompts import Kind, Prompt
from .settings import DataArguments

MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K
ADVICE = (
    "Name other columns with --dataset_prompt_column, --dataset_solution_column or"
    " --dataset_options_column, or set --answer_pattern; --first_option where answers are numbers of"
    " options."
)
TRUE_OR_FALSE = {"A": "True", "B": "False"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its reference answer."""

    id: str  # unique within its benchmark
    question: Prompt  # without options; messages are prompts already
    solution: str  # a value or LaTeX for the grader "math", a letter for "choice"; "": none is read
    options: tuple[str, ...] = ()  # texts of the choices A, B, ...
    place: int = 0  # of its row


def read_rows(
    rows: Any, columns: Row, args: DataArguments, name: str = "", needs_answers: bool = True
) -> tuple[Kind, list[Problem]]:
    """Return the problems of rows, NAME-0, NAME-1 and so on, and their grader: "choice" where the
    rows have options, or all answers are True or False, else "math".

    Numbers are places of options, as 2 of the third of `["1", "2", "0"]`; numbers as text only
    where `first_option` is set.

    Args:
        rows: As they are in their source.
        columns: What `find_columns` returns.
        args: The form of answers and prompts.
        name: Of the benchmark.
        needs_answers: Whether rows without a question or a reference answer are left out.

    Raises:
        ValueError: Answers are numbers of options, of which nothing tells the first; or more than a
            tenth of the rows are left out.
    """
    read = [_read(flatten(row), columns, args) for row in rows]
    said = {as_text(answer).casefold() for _, answer, _ in read} - {""}
    if not columns["options"] and said and said <= {"true", "false"}:
        read = [(question, answer, TRUE_OR_FALSE) for question, answer, _ in read]
    kind: Kind = "choice" if columns["options"] or read[0][2] else "math"
    first, numbers = args.first_option, {type(answer) for _, answer, _ in read} & {int, float}
    if kind == "choice" and first is None and numbers:
        if "0" not in said:
            raise ValueError("Answers are numbers of options, and none is 0: set --first_option.")
        first = 0
    problems = []
    for place, (question, gold, options) in enumerate(read):
        answer = as_text(gold)
        if kind == "choice":
            answer = option_letter(answer, options, first)
        elif re.fullmatch(r"(?i)\(?[a-j][).]?", answer) and not args.answer_pattern:
            # the letter of an option, if the question lists them
            letter = rf"(?i)\b{answer.strip('().')}\b"
            answer = answer if re.search(letter, str(question)) else ""
        if not "".join(map(str, question)).strip():
            answer = ""
        one = Problem(f"{name}-{place}", question, answer, tuple(options.values()), place)
        problems.append(one)
    unfit = [one.place for one in problems if needs_answers and not one.solution]
    if unfit:
        told = (
            f"{len(unfit)} of {len(rows)} rows have no question, or no reference answer that can be"
            f" read (a letter needs options), such as row {unfit[0]}: {rows[unfit[0]]!s:.300}"
        )
        if 10 * len(unfit) > len(rows):
            raise ValueError(f"{told}. {ADVICE}")
        warnings.warn(f"They are left out: {told}", stacklevel=3)
    return kind, [one for one in problems if one.solution or not needs_answers]


def _read(row: Row, columns: Row, args: DataArguments) -> Any:
    """Return the question of a row behind its context, its reference answer (text, or a number) and
    its options by label. One message is a question, several are a prompt."""
    question, answer, options, context = (
        [*map(row.get, name)] if isinstance(name, tuple) else row.get(name)
        for name in columns.values()
    )
    if not isinstance(question, str):
        question = read_messages(question) or as_text(question)
    if args.prompt_style != "verbatim":
        if isinstance(question, list) and len(question) == 1:
            question = question[0]["content"]
        if isinstance(question, str):
            question = "\n\n".join(filter(None, (as_text(context), question)))
    if type(answer) not in (int, float):
        text = as_text(answer)
        none = "" if args.answer_pattern else text
        *_, answer = [none, *re.findall(args.answer_pattern or MARKED, text)]
    return question, answer, read_options(options)
