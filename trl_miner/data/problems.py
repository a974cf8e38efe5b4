"""Problems: questions with their reference answers, read from rows of any form."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Literal

from .columns import cell, find_columns, is_messages, option_place, read_messages, read_options
from .files import Row, as_text
from .prompts import Kind, Message, form_asked_for
from .settings import DataArguments

if TYPE_CHECKING:
    from datasets import Dataset

MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K


@dataclass(frozen=True)
class Problem:
    """A question with its reference answer."""

    id: str  # unique within its benchmark
    question: str | list[Message]  # without options and context; messages are prompts already
    solution: str  # a value or LaTeX for the grader "math", a letter for "choice"; "": none is read
    options: tuple[str, ...] = ()  # texts of the choices A, B, ...
    level: str | None = None  # difficulty or subject, where the data set has one
    context: str = ""  # what the question is about, shown before it


@dataclass(frozen=True)
class Layout:
    """Which column of a data set holds what, and how its rows become problems.

    Attributes:
        question: A column, or COLUMN.FIELD, as the next.
        answer: None: the last message of the conversation, or nothing.
        options: One column, or one for each option.
        context: What the question is about.
        level: Difficulty or subject.
        pattern: Of the reference answer in its column.
        first_option: Number of the first option; None: reference answers are labels or texts.
        is_true_or_false: Whether all reference answers are True or False.
        prompts: "asking": the questions say how an answer must look, or are several messages, so
            that they are prompts; "verbatim": they are to stand as they are; "": they are
            questions.
    """

    question: str
    answer: str | None = None
    options: str | tuple[str, ...] | None = None
    context: str | None = None
    level: str | None = None
    pattern: str | None = None
    first_option: int | None = None
    is_true_or_false: bool = False
    prompts: Literal["", "asking", "verbatim"] = ""

    @property
    def kind(self) -> Kind:
        """The grader: "choice" where the rows have options, else "math"."""
        return "choice" if self.options or self.is_true_or_false else "math"


def find_layout(rows: Sequence[Row], args: DataArguments, needs_answers: bool = True) -> Layout:
    """Return how rows become problems, by the first of them.

    A number is the place of an option, as 2 for the third of `["1", "2", "0"]`, unless all numbers
    are text that is a label or an option.

    Raises:
        ValueError: As `find_columns`; a pattern that is no regular expression; numbers of options
            of which nothing tells the first.
    """
    try:
        re.compile(args.answer_pattern or "")
    except re.error as error:
        raise ValueError(f"answer_pattern {args.answer_pattern!r}: {error}.") from error
    layout = Layout(**find_columns(rows, args, needs_answers), pattern=args.answer_pattern)
    questions, answers, options = zip(*(_read(row, layout) for row in rows), strict=True)
    said, first = {as_text(answer).casefold() for answer in answers} - {""}, args.first_option
    numbers = [pair for pair in zip(answers, options, strict=True) if as_text(pair[0]).isdecimal()]
    are_places = any(not isinstance(a, str) or option_place(a, each) is None for a, each in numbers)
    if layout.options and first is None and are_places:
        if "0" not in said:
            raise ValueError("Answers are numbers of options, and none is 0: set --first_option.")
        first = 0
    forms = [form_asked_for(question) for question in questions]
    is_asking = 10 * forms.count(None) < len(rows) or isinstance(questions[0], list)
    return replace(
        layout,
        first_option=first,
        is_true_or_false=not layout.options and bool(said) and said <= {"true", "false"},
        prompts="verbatim" if args.prompt_style == "verbatim" else "asking" if is_asking else "",
    )


def read_problem(row: Row, layout: Layout, name: str = "") -> Problem:
    """Return the problem of a row; `name` is its id."""
    question, gold, options = _read(row, layout)
    answer = as_text(gold)
    if layout.kind == "choice":
        is_number = layout.first_option is not None and answer.isdecimal()
        first = layout.first_option or 0
        place = int(answer) - first if is_number else option_place(answer, options)
        letters = ascii_uppercase[: len(options)]
        answer = "" if place is None else letters[max(place, 0) : place + 1]
    if layout.prompts == "asking" and isinstance(question, str):
        question = [{"role": "user", "content": question}]
    return Problem(
        id=name,
        question=question,
        solution=answer if "".join(map(str, question)).strip() else "",
        options=tuple(options.values()),
        level=as_text(cell(row, layout.level)) if layout.level else None,
        context=as_text(cell(row, layout.context)),
    )


def _read(row: Row, layout: Layout) -> tuple[str | list[Message], Any, dict[str, str]]:
    """Return the question of a row, its reference answer (text, or a number) and its options by
    label. One message is a question, several are a prompt; an answer of the assistant may end
    them."""
    question, answer = cell(row, layout.question), cell(row, layout.answer)
    if is_messages(question):
        question = read_messages(question)
        if question[-1]["role"] == "assistant":
            *question, last = question
            answer = answer if layout.answer else last["content"]
        if len(question) == 1 and not layout.prompts:
            question = question[0]["content"]
    elif not isinstance(question, str):
        question = as_text(question)
    if not isinstance(answer, int):
        *_, match = [None, *re.finditer(layout.pattern or MARKED, as_text(answer))]
        answer = "" if layout.pattern else as_text(answer)
        answer = (match[1 if match.re.groups else 0] or "").strip() if match else answer
    if isinstance(layout.options, tuple):
        listed: Any = [cell(row, name) for name in layout.options]
    else:
        listed = cell(row, layout.options)
    return question, answer, read_options(["True", "False"] if layout.is_true_or_false else listed)


def iterate(rows: "Dataset") -> Iterator[Row]:
    """Yield the rows of a data set, a thousand read at a time."""
    for batch in rows.iter(1000):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))
