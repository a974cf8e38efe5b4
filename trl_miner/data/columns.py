"""Which columns hold the question, the reference answer and the options: by the names that people
use, never because no other is left.

A name with dots is a field of a column: `reward_model.ground_truth`, `answers.text`.
"""

import ast
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice
from string import ascii_uppercase
from typing import Any

from .settings import DataArguments

Row = dict[str, Any]
ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's

# The surest first, in lower case without blanks and signs. GSM8K, OpenR1, MATH, MMLU: question or
# problem, answer or solution. ARC: question.stem, choices, answerKey. MedQA: answer_idx. MedMCQA:
# cop. verl and DAPO: prompt, reward_model.ground_truth. Alpaca: instruction, input, output. SQuAD:
# context, answers.text. ShareGPT: conversations. TRL: prompt, messages.
USUAL = {
    "prompt": """question.stem question problem problemstatement questiontext query instruction
        prompt frage aufgabe énoncé enonce pregunta problema 题目 问题 messages conversations input
        q""",
    "solution": """rewardmodel.groundtruth answer finalanswer expectedanswer correctanswer answerkey
        answeridx groundtruth answers.text solution correct expected gold target label cop output
        response antwort lösung losung ergebnis réponse reponse respuesta 答案 a messages.reply
        conversations.reply prompt.reply""",
    "options": "question.choices options choices optionen opciones 选项",
    "context": "context passage input",
}
_OPTION = re.compile(r"(?:option|op|choice|antwort|选项)?([a-j])|(?:option|op|choice)([1-9])")
_WRITTEN = re.compile(r"""[\[{]{1,2}['"]""")  # how a list or a dictionary in a table's cell begins


def flatten(row: Row) -> Row:
    """Return a row with the fields of its columns, and with the last answer of a conversation, as
    columns of their own.

    >>> flatten({"answers": {"text": ["7"]}})
    {'answers': {'text': ['7']}, 'answers.text': ['7']}
    """
    flat = {}
    for name, value in row.items():
        if isinstance(value, str) and _WRITTEN.match(value):
            with suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)
        flat[name] = value
        if isinstance(value, dict):
            flat |= {f"{name}.{field}": each for field, each in flatten(value).items()}
        elif turns := read_messages(value):
            flat[name] = turns
            if turns[-1]["role"] == "assistant":
                flat |= {name: turns[:-1], f"{name}.reply": turns[-1]["content"]}
    return flat


def find_columns(rows: Iterable[Row], args: DataArguments, needs_answers: bool = True) -> Row:
    """Return the columns of a data set, of which the first thousand rows tell, by what they hold:
    prompt, solution, options (one column, or a tuple of one for each) and context; None: it has
    none.

    Raises:
        ValueError: None has a usual name for the prompt, or for the solution where there must be
            one, or there is none of the name that the user gives.
    """
    flat = [flatten(row) for row in islice(rows, 1000)]
    names = [*dict.fromkeys(chain(*flat))]
    by_key = {_key(name): name for name in reversed(names)}  # of two names alike the first counts
    needed, found = ("prompt", "solution")[: 1 + needs_answers], Row()
    for what, usual in USUAL.items():
        setting = f"dataset_{what}_column"
        given, *known = getattr(args, setting, None), *map(by_key.get, usual.split())
        found[what] = given or next(filter(None, known), None)
        if (given or what in needed) and all(row.get(found[what]) is None for row in flat):
            raise ValueError(
                f"There is no column {given or 'with a usual name'} for the {what}, but"
                f" {', '.join(names)}. Name one with --{setting}."
            )
    letters = [by_key[key] for key in sorted(by_key) if _OPTION.fullmatch(key)]
    if args.options_columns or (len(letters) > 2 and not found["options"]):
        found["options"] = tuple(args.options_columns or letters)  # a, b: question and answer
    if found["context"] == found["prompt"]:  # "input" is a question where there is no other
        found["context"] = None
    return found


def _key(name: str) -> str:
    """Return a name as the table above has it, without what stands in parentheses."""
    return re.sub(r"\(.*\)|[^\w.]|_", "", name.casefold())


def as_text(value: Any) -> str:
    """Return a cell as text, stripped: "" for None and NaN, "27" for 27.0, of a list its values.

    >>> as_text(0.1 + 0.2)
    '0.3'
    """
    if isinstance(value, list):  # SQuAD has the same answer of several readers
        return ", ".join(dict.fromkeys(map(as_text, value)))
    if isinstance(value, float):  # Arrow makes 2.0 of 2 beside 0.5
        value = None if value != value else f"{value:.15g}"
    return "" if value is None else str(value).strip()


def read_messages(value: Any) -> list[Row]:
    """Return a conversation as chat templates want it; empty: it is none. ShareGPT's messages have
    `from` and `value`."""
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, dict) or first.keys().isdisjoint(("role", "from")):
        return []
    who, what = ("role", "content") if "role" in first else ("from", "value")
    return [
        {"role": ROLES.get(turn[who], turn[who]), "content": as_text(turn.get(what))}
        for turn in value
    ]


def read_options(value: Any) -> Row:
    """Return the texts of options by label: of a list, {A: text}, ARC's {text: [], label: []} or
    [{text, label}]. Empty options are padding.

    >>> read_options(["3", "4", ""])
    {'A': '3', 'B': '4'}
    """
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {each["label"]: each["text"] for each in value}
    if isinstance(value, list):
        value = dict(zip(ascii_uppercase, value, strict=False))
    if not isinstance(value, dict):
        return {}
    if "label" in value:
        value = dict(zip(value["label"], value["text"], strict=True))
    return {label: as_text(text) for label, text in value.items() if as_text(text)}


def option_letter(answer: str, options: Row, first: int | None) -> str:
    """Return the letter of the correct option, which is given by its number, counted from `first`,
    else by its label, its text or both; empty: it is none of them.

    >>> option_letter("(2)", {"1": "3", "2": "4"}, None)
    'B'
    """
    known = [*options, *options.values(), *map("".join, options.items())]
    if first is not None and answer.isdecimal():
        known = [str(first + place) for place in range(len(options))]
    plain = [re.sub(r"[\s().:]", "", text).casefold() for text in (*known, answer)]
    place = plain.index(plain[-1])
    return "" if place == len(known) else ascii_uppercase[place % len(options)]
