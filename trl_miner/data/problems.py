"""Problems: questions with their reference answers, read from rows of any form."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .columns import Row, as_text, flatten, is_messages, option_letter, read_options
from .prompts import Kind, Prompt, form_asked_for
from .settings import DataArguments

MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K
TRUE_OR_FALSE = {"A": "True", "B": "False"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its reference answer."""

    id: str  # unique within its benchmark
    question: Prompt  # without options; messages are prompts already
    solution: str  # a value or LaTeX for the grader "math", a letter for "choice"; "": none is read
    options: tuple[str, ...] = ()  # texts of the choices A, B, ...


def read_rows(
    rows: Iterable[Row], columns: Row, args: DataArguments, name: str = ""
) -> tuple[Kind, list[Problem]]:
    """Return the problems of rows, NAME-0, NAME-1 and so on, and their grader: "choice" where the
    rows have options, or all answers are True or False, else "math".

    Numbers are places of options, as 2 of the third of `["1", "2", "0"]`; numbers as text only
    where `first_option` is set. Questions that say how an answer must look are messages.

    Args:
        rows: As they are in their source.
        columns: What `find_columns` returns.
        args: The form of answers and prompts.
        name: Of the benchmark.

    Raises:
        ValueError: A pattern that is no regular expression; numbers of options of which nothing
            tells the first.
    """
    try:
        re.compile(args.answer_pattern or MARKED)
    except re.error as error:
        raise ValueError(f"answer_pattern {args.answer_pattern!r}: {error}.") from error
    read = [_read(flatten(row), columns, args) for row in rows]
    said = {as_text(answer).casefold() for _, answer, _ in read} - {""}
    if not columns["options"] and said and said <= {"true", "false"}:
        read = [(question, answer, TRUE_OR_FALSE) for question, answer, _ in read]
    kind: Kind = "choice" if columns["options"] or any(read[0][2]) else "math"
    first = args.first_option
    if (
        kind == "choice"
        and first is None
        and any(type(answer) in (int, float) for _, answer, _ in read)
    ):
        if "0" not in said:
            raise ValueError("Answers are numbers of options, and none is 0: set --first_option.")
        first = 0
    silent = [form_asked_for(question) for question, *_ in read].count(None)
    is_asking = 10 * silent < len(read) and args.prompt_style != "verbatim"
    problems = []
    for place, (question, gold, options) in enumerate(read):
        answer = as_text(gold)
        if kind == "choice":
            answer = option_letter(answer, options, first)
        if not "".join(map(str, question)).strip():
            answer = ""
        if is_asking and isinstance(question, str):
            question = [{"role": "user", "content": question}]
        problems.append(Problem(f"{name}-{place}", question, answer, tuple(options.values())))
    return kind, problems


def _read(row: Row, columns: Row, args: DataArguments) -> Any:
    """Return the question of a row behind its context, its reference answer (text, or a number) and
    its options by label. One message is a question, several are a prompt."""
    cells: list[Any] = [
        [row.get(each) for each in name] if isinstance(name, tuple) else row.get(name)
        for name in columns.values()
    ]
    question, answer, options, context = cells
    is_question = args.prompt_style != "verbatim"
    if not is_messages(question):
        question = question if isinstance(question, str) else as_text(question)
    elif len(question) == 1 and is_question:
        question = question[0]["content"]
    if isinstance(question, str) and is_question:
        question = "\n\n".join(filter(None, (as_text(context), question)))
    if type(answer) not in (int, float):
        text = as_text(answer)
        none = "" if args.answer_pattern else text
        *_, found = [none, *re.findall(args.answer_pattern or MARKED, text)]
        answer = (found[0] if isinstance(found, tuple) else found).strip()
    return question, answer, read_options(options)
