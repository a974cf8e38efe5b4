"""Which columns hold the question, the reference answer and the options: by the names that people
use, never because no other is left.

A name with dots is a field of a column: `reward_model.ground_truth`, `answers.text`, `turns.0`.
"""

import ast
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from ..common.names import did_you_mean
from .files import Row, as_text
from .settings import DataArguments

# The surest first, compared in lower case without accents, blanks and signs. GSM8K, OpenR1, MATH,
# MMLU: question or problem, answer or solution. ARC: question.stem, choices, answerKey. MedQA:
# answer_idx. verl and DAPO: prompt, reward_model.ground_truth. Alpaca: instruction, input, output.
# SQuAD: context, answers.text. ShareGPT: conversations. TRL: prompt, messages.
USUAL = {
    "question": """question.stem question problem problemstatement questiontext query instruction
        prompt frage aufgabe fragestellung enonce pregunta problema enunciado 题目 题 问题 問題
        messages conversations input q""",
    "answer": """rewardmodel.groundtruth answer finalanswer expectedanswer correctanswer answerkey
        answeridx groundtruth answers.text solution correct expected gold target label cop output
        response reference antwort losung loesung ergebnis reponse respuesta solucion resultado 答案
        a""",
    "options": "question.choices options choices optionen antworten opciones choix 选项 選項",
    "context": "context passage input",
    "level": "level",
    "id": "id",
}
SETTINGS = {
    "question": "dataset_prompt_column",
    "answer": "dataset_solution_column",
    "options": "dataset_options_column",
}
_LETTERED = re.compile(r"(?:option|op|opt|choice|answer|auswahl|antwort|opcion|choix|选项)?([a-j])")
_NUMBERED = re.compile(r"(?:option|op|opt|choice|auswahl|antwort|opcion|choix|选项)([0-9])")
_FIRST_ROWS = 100


@dataclass(frozen=True)
class Columns:
    """The columns of a data set by what they hold; None: it has none."""

    question: str
    answer: str | None
    options: str | tuple[str, ...] | None = None  # one column, or one for each option
    context: str | None = None
    level: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        held = {what: getattr(self, what) for what in (*SETTINGS, "context", "level")}
        named = {k: v if isinstance(v, str) else ", ".join(v) for k, v in held.items() if v}
        return "; ".join(f"{what} in {name}" for what, name in named.items())


def find_columns(rows: Sequence[Row], args: DataArguments, needs_answers: bool = True) -> Columns:
    """Return the columns of a data set, by its first rows.

    Raises:
        ValueError: None has a usual name for the question, or for the answer where there must be
            one, or there is none of a name that the user gives.
    """
    names = [*dict.fromkeys(name for row in rows[:_FIRST_ROWS] for name in _fields(row))]
    there = f"There are {', '.join(names)}."
    given = {what: column for what, name in SETTINGS.items() if (column := getattr(args, name))}
    asked = [(SETTINGS[what], column) for what, column in given.items()]
    for setting, column in [*asked, *(("options_columns", each) for each in _own_options(args))]:
        if all(cell(row, column) is None for row in rows[:_FIRST_ROWS]) and column not in names:
            hint = did_you_mean(column, names)
            raise ValueError(f"{setting}: there is no column {column!r}.{hint} {there}")
    keys = [_key(name) for name in names]
    by_key = {key: name for key, name in zip(keys, names, strict=True) if keys.count(key) == 1}
    found: dict[str, Any] = {
        what: next((by_key[key] for key in usual.split() if key in by_key), None)
        for what, usual in USUAL.items()
    }
    found["options"] = found["options"] or _option_columns(by_key)
    found |= given | ({"options": _own_options(args)} if args.options_columns else {})
    # "input" is the question where no other column is; a question is no context of its own
    found["context"] = None if found["context"] == found["question"] else found["context"]
    question = found["question"] and next(
        (value for row in rows if (value := cell(row, found["question"])) is not None), None
    )
    for what, is_there in (
        ("question", found["question"]),
        ("answer", found["answer"] or not needs_answers or is_messages(question)),
    ):
        if not is_there:
            raise ValueError(
                f"No column has a usual name for the {what}. {there} Name it with"
                f" --{SETTINGS[what]}."
            )
    return Columns(**found)


def _own_options(args: DataArguments) -> tuple[str, ...]:
    return tuple(args.options_columns or ())


def _option_columns(by_key: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the columns A, B, C, ..., or option1, option2, ..., in order; None: there are not
    three, as a and b alone may be question and answer, or two numbers."""
    for pattern, firsts in ((_LETTERED, "a"), (_NUMBERED, "01")):
        marks = {match[1]: by_key[key] for key in by_key if (match := pattern.fullmatch(key))}
        series = "".join(sorted(marks))
        if len(series) > 2 and series[0] in firsts and series in "abcdefghij0123456789":
            return tuple(marks[mark] for mark in series)
    return None


def _key(name: str) -> str:
    """Return a name as the table above has it, without what stands in parentheses."""
    plain = re.sub(r"\(.*\)", "", name.casefold())
    letters = (
        each for each in unicodedata.normalize("NFKD", plain) if each.isalnum() or each == "."
    )
    return "".join(letters).strip(".")


def _fields(row: Mapping[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _fields(value))


def cell(row: Any, name: str | None) -> Any:
    """Return what a row has in a column, or in a field of one; None: nothing.

    >>> cell({"answers": {"text": ["7"]}}, "answers.text.0")
    '7'
    """
    if name is None or (isinstance(row, Mapping) and name in row):
        return row[name] if name is not None else None
    first, _, rest = name.partition(".")
    if isinstance(row, str):
        row = parsed(row)
    if isinstance(row, Sequence) and not isinstance(row, str) and first.isdecimal():
        inner = row[int(first)] if int(first) < len(row) else None
    else:
        inner = row.get(first) if isinstance(row, Mapping) else None
    return cell(inner, rest) if rest and inner is not None else inner


def parsed(text: str) -> Any:
    """Return the list or dictionary that a text holds as JSON or Python writes it, else the
    text."""
    if text.lstrip()[:1] in ("[", "{") and len(text) <= 10_000:
        for read in (json.loads, ast.literal_eval):  # the second reads what pandas writes
            try:
                return read(text.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return text


# Conversations


def is_messages(value: Any) -> bool:
    """Return whether a value is a conversation, also one that is written as text."""
    if isinstance(value, str) and value.lstrip()[:2] == "[{":
        value = parsed(value)
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def read_messages(value: Any) -> list[dict[str, str]]:
    """Return messages as chat templates want them; ShareGPT's have `from` and `value`.

    Raises:
        ValueError: One has no text.
    """
    roles = {"human": "user", "gpt": "assistant", "bot": "assistant"}
    messages = []
    for turn in parsed(value) if isinstance(value, str) else value:
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if isinstance(content, list):  # parts of a message
            content = "\n".join(part.get("text") or "" for part in content)
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError("messages without a role or a text")
        messages.append({"role": roles.get(role, role), "content": content})
    return messages


# Options


def read_options(value: Any) -> dict[str, str]:
    """Return the texts of options by label: of a list, {A: text}, ARC's {text: [], label: []},
    [{text, label}], or of a text that holds one of these, or options on lines or between bars.

    Empty options at the end are padding.

    >>> read_options("A) 3|B) 4")
    {'A': '3', 'B': '4'}
    """
    if isinstance(value, str):
        value = _split_options(value)
    if isinstance(value, Mapping) and {"text", "label"} <= {*value}:
        value = dict(zip(value["label"], value["text"], strict=True))
    elif is_messages(value):
        value = {each.get("label", each.get("key")): each.get("text") for each in value}
    elif isinstance(value, list | tuple):
        value = dict(zip(ascii_uppercase, _without_letters(value), strict=False))
    if not isinstance(value, Mapping):
        return {}
    texts = {str(label): as_text(text) for label, text in value.items() if text is not None}
    while texts and not [*texts.values()][-1]:
        texts.popitem()
    return texts


def _split_options(text: str) -> Any:
    value = parsed(text)
    if isinstance(value, str):
        mark = next((mark for mark in "\n|;" if mark in text.strip()), None)
        value = [part.strip() for part in text.split(mark) if part.strip()] if mark else None
    return value


def _without_letters(texts: Sequence[Any]) -> list[Any]:
    """Return options without the letters that each begins with."""
    options = [as_text(text) for text in texts]
    marks = [
        re.match(rf"\W?{letter}[.):\]]\s*(?=\S)", option)
        for letter, option in zip(ascii_uppercase, options, strict=False)
    ]
    cut = [option[mark.end() :] for option, mark in zip(options, marks, strict=False) if mark]
    return cut if 1 < len(cut) == len(options) else options


def option_place(answer: str, options: Mapping[str, str]) -> int | None:
    """Return the place of the right option, which is given by its label, its text or both; None: it
    is none of them.

    >>> option_place("(B)", {"A": "3", "B": "4"}), option_place("B. 4", {"A": "3", "B": "4"})
    (1, 1)
    """

    def plain(text: str) -> str:
        return " ".join(text.split()).casefold().rstrip(".")

    both = [f"{label}{text}" for label, text in options.items()]
    bare = re.sub(r"^\W?(\w+)[.):\]]*\s*", r"\1", answer.strip())
    for known, said in (([*options], bare), ([*options.values()], answer), (both, bare)):
        places = [plain(each) for each in known]
        if plain(said) in places:
            return places.index(plain(said))
    return None
