"""Problems: questions with their reference answers, read from rows of any form."""

from dataclasses import dataclass

from .prompts import Message


@dataclass(frozen=True)
class Problem:
    """A question with its reference answer."""

    id: str  # unique within its benchmark
    question: str | list[Message]  # without options and context; messages are prompts already
    solution: str  # a value or LaTeX for the grader "math", a letter for "choice"
    options: tuple[str, ...] = ()  # texts of the choices A, B, ...
    level: str | None = None  # difficulty or subject, where the data set has one
    context: str = ""  # what the question is about, shown before it
