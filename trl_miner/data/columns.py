"""Which columns hold the question, the reference answer and the options: by the names that people
use, never because no other is left.

A name with dots is a field of a column: `reward_model.ground_truth`, `answers.text`.
"""

import ast
import re
import unicodedata
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from .files import Row, as_text
from .settings import DataArguments

# The surest first, in lower case without accents, blanks and signs. GSM8K, OpenR1, MATH, MMLU:
# question or problem, answer or solution. ARC: question.stem, choices, answerKey. MedQA: answer_idx.
# MedMCQA: cop. verl and DAPO: prompt, reward_model.ground_truth. Alpaca: instruction, input, output.
# SQuAD: context, answers.text. ShareGPT: conversations. TRL: prompt, messages.
USUAL = {
    "question": """question.stem question problem problemstatement questiontext query instruction
        prompt frage aufgabe enonce pregunta problema 题目 问题 messages conversations input q""",
    "answer": """rewardmodel.groundtruth answer finalanswer expectedanswer correctanswer answerkey
        answeridx groundtruth answers.text solution correct expected gold target label cop output
        response antwort losung ergebnis reponse respuesta 答案 a""",
    "options": "question.choices options choices optionen opciones 选项",
    "context": "context passage input",
    "level": "level",
}
SETTINGS = {
    "question": "dataset_prompt_column",
    "answer": "dataset_solution_column",
    "options": "dataset_options_column",
}
_OPTION = re.compile(r"(?:option|op|choice|antwort|选项)?([a-j])|(?:option|op|choice)([1-9])")


def find_columns(rows: Sequence[Row], args: DataArguments, needs_answers: bool) -> dict[str, Any]:
    """Return the columns of a data set by what they hold: question, answer, options (one column, or
    a tuple of one for each), context and level; None: it has none.

    Raises:
        ValueError: None has a usual name for the question, or for the answer where there must be
            one, or there is none of the name that the user gives.
    """
    fields = (field for row in rows for name in row for field in (name, *_inner(name, row[name])))
    names = [*dict.fromkeys(fields)]
    by_key = {_key(name): name for name in reversed(names)}
    found: dict[str, Any] = {
        what: next((by_key[key] for key in usual.split() if key in by_key), None)
        for what, usual in USUAL.items()
    }
    letters = [by_key[key] for key in sorted(by_key) if _OPTION.fullmatch(key)]
    if len(letters) > 2 and not found["options"]:  # a and b may be question and answer
        found["options"] = tuple(letters)
    if args.options_columns:
        found["options"] = tuple(args.options_columns)
    for what, setting in SETTINGS.items():
        found[what] = getattr(args, setting) or found[what]
    if found["context"] == found["question"]:  # "input" is a question where there is no other
        found["context"] = None
    needed = ["question", "answer"]
    if any(is_messages(cell(row, found["question"])) for row in rows) or not needs_answers:
        needed = ["question", "answer"] if found["answer"] else ["question"]
    for what in needed:
        if all(cell(row, found[what]) is None for row in rows):
            raise ValueError(
                f"No column {getattr(args, SETTINGS[what]) or 'with a usual name'} holds the {what}."
                f" There are {', '.join(names)}. Name one with --{SETTINGS[what]}."
            )
    return found


def _inner(name: str, value: Any) -> list[str]:
    return [f"{name}.{inner}" for inner in value] if isinstance(value, Mapping) else []


def _key(name: str) -> str:
    """Return a name as the table above has it, without what stands in parentheses."""
    plain = unicodedata.normalize("NFKD", re.sub(r"\(.*\)", "", name.casefold()))
    return re.sub(r"[^\w.]|_", "", plain)


def cell(row: Mapping[str, Any], name: str | None) -> Any:
    """Return what a row has in a column, or in a field of one; None: nothing.

    >>> cell({"answers": {"text": ["7"]}}, "answers.text")
    ['7']
    """
    if name is None:
        return None
    first, _, rest = name.partition(".")
    value = _parsed(row.get(name, row.get(first)), "[{")
    if name in row or not rest:
        return value
    return cell(value, rest) if isinstance(value, Mapping) else None


def _parsed(value: Any, start: str) -> Any:
    """Return the list that a text is, as pandas writes one into a table; else the value."""
    try:
        is_list = isinstance(value, str) and value.startswith(start)
        return ast.literal_eval(value) if is_list else value
    except (ValueError, SyntaxError):
        return value


def is_messages(value: Any) -> bool:
    """Return whether a value is a conversation."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def read_messages(value: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return messages as chat templates want them; ShareGPT's have `from` and `value`."""
    roles = {"human": "user", "gpt": "assistant"}
    pairs = [
        (turn.get("role", turn.get("from")), turn.get("content", turn.get("value")))
        for turn in value
    ]
    return [{"role": roles.get(role, role), "content": as_text(text)} for role, text in pairs]


def read_options(value: Any) -> dict[str, str]:
    """Return the texts of options by label: of a list, {A: text}, ARC's {text: [], label: []} or
    [{text, label}]. Empty options at the end are padding.

    >>> read_options(["3", "4", ""])
    {'A': '3', 'B': '4'}
    """
    value = _parsed(value, "[")
    if isinstance(value, Mapping) and "label" in value:
        value = dict(zip(value["label"], value["text"], strict=True))
    elif is_messages(value):
        value = {each["label"]: each["text"] for each in value}
    elif isinstance(value, list):
        value = dict(zip(ascii_uppercase, value, strict=False))
    texts = (
        {label: as_text(text) for label, text in value.items()}
        if isinstance(value, Mapping)
        else {}
    )
    while texts and not [*texts.values()][-1]:
        texts.popitem()
    return texts


def option_place(answer: str, options: Mapping[str, str]) -> int | None:
    """Return the place of the right option, which is given by its label, its text or both; None: it
    is none of them.

    >>> option_place("(B)", {"A": "3", "B": "4"}), option_place("B. 4", {"A": "3", "B": "4"})
    (1, 1)
    """

    known = [*options, *options.values(), *map("".join, options.items())]
    places = [re.sub(r"[\s().:]", "", text).casefold() for text in (*known, answer)]
    place = places.index(places[-1])
    return None if place == len(known) else place % len(options)
