"""What the columns of a data set hold, guessed from their names and first rows, with reasons."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from . import columns as c
from .layout import Layout, as_messages
from .reading import Row
from .settings import DATA_SETTINGS

# What columns are usually called, the surest name first, in English, German, French, Spanish and
# Chinese; compared in lower case, without accents, blanks and underscores.
QUESTIONS = """
    question problem prompt query stem instruction input task text q messages conversations
    frage aufgabe fragestellung probleme enonce pregunta problema enunciado statement
    exercise exercice ejercicio ubung 问题 題目 题目 问 problemstatement questiontext
    """.split()
ANSWERS = """
    answer solution gold finalanswer expectedanswer correctanswer expected groundtruth
    answerkey key correct target label result output response a reference antwort losung
    loesung ergebnis reponse resultat respuesta solucion resultado 答案 解答 回答 标准答案 answers
    """.split()
OPTIONS = """
    options choices optionen antworten auswahl choix opciones alternatives endings 选项 選項
    """.split()
CONTEXTS = """
    context passage input article document background kontext contexte contexto 上下文 材料 背景 文章
    """.split()
_OPTION = re.compile(r"(?:option|op|opt|choice|ending|auswahl|antwort|opcion|choix|选项)?([a-j])")
_NUMBERED = re.compile(r"(?:option|op|opt|choice|ending|auswahl|antwort|opcion|choix|选项)([0-9])")
FIRST_ROWS = 1000  # of a data set, from which its settings are guessed
_THOUSANDS = re.compile(r"\.\d{3}(?=[.,])")  # in 1.234,56
_DECIMAL = re.compile(r"\d,\d{1,2}(?!\d)|(?<!\d)0,\d")
MARKED = r"####\s*(.+)"  # the answer at the end of a worked solution, as in GSM8K


class Guess(NamedTuple):
    """The settings that say what a data set holds, and why each was chosen."""

    settings: dict[str, Any]
    reasons: dict[str, str]


def guess_columns(
    name: str, rows: Sequence[Row], given: Mapping[str, Any], hint: str = ""
) -> Guess:
    """Return the settings that name the columns with questions, answers, options and contexts, by
    some first rows; those that are given stay.

    `hint` is what an error says to do, with {setting} and {what} for what is missing.

    Raises:
        ValueError: No column looks like the question, or like the answer.
    """
    for column in (column for setting in given.items() for column in columns_in(*setting)):
        if column:
            c.check_column(name, rows, column)
    guesser = _Guesser(name, rows, dict(given), hint or "Name it with --{setting} COLUMN")
    guesser.find_options()
    guesser.find_question()
    guesser.find_answer()
    guesser.find_contexts()
    return Guess(guesser.settings, guesser.reasons)


@dataclass
class _Guesser:
    """Finds the columns of a data set, one after the other."""

    source: str
    rows: Sequence[Row]
    settings: dict[str, Any]
    hint: str
    reasons: dict[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        """The columns and fields of the rows."""
        return [*dict.fromkeys(name for row in self.rows for name in c.fields(row))]

    def take(self, setting: str, value: Any, reason: str) -> None:
        self.settings[setting], self.reasons[setting] = value, reason

    @property
    def others(self) -> list[str]:
        """The columns that are not used yet."""
        named = [columns_in(*setting) for setting in self.settings.items()]
        return [name for name in self.names if not any(name in columns for columns in named)]

    def find_options(self) -> None:
        if {"dataset_options_column", "options_columns"} & {*self.settings}:
            return
        if named := [name for name in self.names if _key(name) in OPTIONS]:
            self.take("dataset_options_column", named[0], "by its name")
        elif columns := _lettered(self.names):
            self.take("options_columns", columns, "a column for each option, by their names")

    def find_question(self) -> None:
        if "dataset_prompt_column" not in self.settings:
            column, reason = self.find(QUESTIONS)
            self.refuse(column, "question", "dataset_prompt_column")
            self.take("dataset_prompt_column", column, reason)

    def find_answer(self) -> None:
        if "dataset_solution_column" in self.settings:
            return
        column, reason = self.find(ANSWERS)
        if not column and self.ends_with_answer():
            column, reason = self.settings["dataset_prompt_column"], "its last message"
        self.refuse(column, "answer", "dataset_solution_column")
        self.take("dataset_solution_column", column, reason)

    def find_contexts(self) -> None:
        if "context_columns" in self.settings:
            return
        named = [name for name in self.others if _key(name) in CONTEXTS]
        if columns := [_inner_text(name, self.names) for name in named if self.is_filled(name)]:
            self.take("context_columns", columns, "by its name; shown with the question")

    def is_filled(self, name: str) -> bool:
        """Return whether a column has text in some row."""
        return any(_text_of(row, name) for row in self.rows)

    def find(self, usual: Sequence[str]) -> tuple[str, str]:
        """Return the column whose name is the most usual, else the only one, and why; "": none."""
        top = [name for name in self.others if any(name in row for row in self.rows)]
        for names in (top, [name for name in self.others if name not in top]):
            by_name = {_key(name): name for name in reversed(names)}
            if likely := [by_name[key] for key in usual if key in by_name]:
                return _inner_text(likely[0], self.names), "by its name"
        return (top[0], "the only other column") if len(top) == 1 else ("", "")

    def refuse(self, column: str, what: str, setting: str) -> None:
        """Raise ValueError if there is no such column."""
        if not column:
            used = self.settings.values()
            others = ", ".join(name for name in self.names if name not in used) or "no others"
            raise ValueError(
                f"No column of {self.source} looks like the {what}: there are {others}."
                f" {self.hint.format(setting=setting, what=what)}."
            )

    def ends_with_answer(self) -> bool:
        """Return whether the prompts are conversations that end with an answer of the
        assistant."""
        column = self.settings["dataset_prompt_column"]
        return all(_has_answer(as_messages(c.field(row, column))) for row in self.rows)


def _has_answer(turns: Any) -> bool:
    return isinstance(turns, list) and bool(turns) and turns[-1].get("role") == "assistant"


def columns_in(setting: str, value: Any) -> list[str]:
    """Return the names of columns in the value of a setting."""
    if not setting.endswith(("_column", "_columns")):
        return []
    return [value] if isinstance(value, str) else [*(value or ())]


def guess_settings(name: str, rows: Sequence[Row], given: Mapping[str, Any]) -> Guess:
    """Return the settings of a recipe that say what a data set holds, by its first rows; those that
    are given stay."""
    guess = guess_columns(name, rows, given)
    settings, reasons = guess
    golds = golds_of(rows, settings)
    if not {"answer_pattern", "answer_after"} & {*given} and is_marked(golds):
        settings["answer_pattern"] = MARKED
        reasons["answer_pattern"] = "every answer ends with ####"
    if "decimal_comma" not in given and has_decimal_commas(golds):
        settings["decimal_comma"] = True
        reasons["decimal_comma"] = (
            "one or two digits follow every comma, or a 0 precedes it; no decimal point occurs"
        )
    if "reward_funcs" not in given:
        has_options = {"options_columns", "dataset_options_column"} & {*settings}
        settings["reward_funcs"] = ["choice_reward" if has_options else "math_reward"]
        reasons["reward_funcs"] = "there are options" if has_options else "there are no options"
    return guess


def layout_of_settings(settings: Mapping[str, Any], **more: Any) -> Layout:
    """Return the layout that settings of a recipe describe."""
    fields: dict[str, Any] = {
        name.removeprefix("dataset_").removesuffix("_column"): settings.get(name)
        for name in DATA_SETTINGS
    }
    lists = {name: tuple(fields[name] or ()) for name in ("options_columns", "context_columns")}
    fields = {name: value for name, value in fields.items() if value is not None} | lists
    return Layout(**fields, **more)


def golds_of(rows: Iterable[Row], settings: Mapping[str, Any]) -> list[str]:
    """Return the texts of the golds, before anything in them is looked for."""
    layout = Layout(solution=settings["dataset_solution_column"])
    golds = []
    for row in rows:
        try:
            golds.append(c.text(layout.gold(row)))
        except KeyError:
            continue
    return [gold for gold in golds if gold]


def is_marked(golds: Sequence[str]) -> bool:
    """Return whether all of these, which are some, end with #### and the answer."""
    return bool(golds) and all("####" in gold for gold in golds)


def has_decimal_commas(golds: Sequence[str]) -> bool:
    """Return whether most have one comma, with one or two digits behind it or a 0 before it, and
    none a decimal point."""
    numbers = [gold for gold in golds if len(gold) <= 40 and not re.search(r"[({\[\\]", gold)]
    commas = [gold for gold in numbers if "," in gold]
    has_points = any(re.search(r"\d\.\d", _THOUSANDS.sub("", gold)) for gold in numbers)
    is_decimal = all(gold.count(",") == 1 and _DECIMAL.search(gold) for gold in commas)
    return 2 * len(commas) > len(golds) > 0 and not has_points and is_decimal


def _lettered(names: Sequence[str]) -> list[str]:
    """Return the columns A, B, C, ..., or option1, option2, ..., in order; none: there are not
    three."""
    for pattern, firsts in ((_OPTION, "a"), (_NUMBERED, "01")):
        marks = {match[1]: name for name in names if (match := pattern.fullmatch(_key(name)))}
        series = "".join(sorted(marks))
        # a and b alone may be question and answer, or two numbers
        if len(series) > 2 and series[0] in firsts and series in "abcdefghij0123456789":
            return [marks[mark] for mark in series]
    return []


def _key(name: str) -> str:
    """Return the last part of a name as the tables above have it."""
    plain = unicodedata.normalize("NFKD", name.rpartition(".")[2].casefold())
    return re.sub(r"[\W_]", "", "".join(each for each in plain if not unicodedata.combining(each)))


def _text_of(row: Row, name: str) -> str:
    try:
        return c.text(c.field(row, name))
    except KeyError:
        return ""


def _inner_text(name: str, names: Sequence[str]) -> str:
    """Return the field with the texts of a column of objects, as PubMedQA's `context.contexts`."""
    usual = ("text", "value", "contexts", *CONTEXTS, *ANSWERS)
    inner = [each for each in names if each.startswith(f"{name}.") and _key(each) in usual]
    return inner[0] if inner else name
