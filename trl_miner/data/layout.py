"""Your own data set: which columns hold questions, golds and options, and how they become
prompts."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ..grading.decimals import with_points
from . import columns as c
from .prompts import Kind, Message, PromptForm, build_prompt
from .reading import Row

STREAMED = 1000  # rows of a stream that tell how golds number options
_SHOWN = 5  # rows that an error names
_SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # in ShareGPT's form


@dataclass(frozen=True)
class Layout:
    """What the columns of a data set are called, and how its questions become prompts.

    A name with dots is that of a field: `reward_model.ground_truth`, `metadata.gold`.
    """

    prompt: str = "prompt"
    solution: str = "solution"
    options: str = "options"
    options_columns: tuple[str, ...] = ()  # one for each option, in the place of `options`
    context_columns: tuple[str, ...] = ()  # shown with the question
    # the gold is its last match in the column `solution`, or that one's first group
    answer_pattern: str | None = None
    answer_after: str | None = None  # the gold follows these words
    decimal_comma: bool = False  # 15,50 is 15.5
    first_option: int | None = None  # its number, in golds that are numbers
    form: PromptForm = PromptForm()

    def __post_init__(self) -> None:
        try:
            re.compile(self.answer_pattern or "")
        except re.error as error:
            raise ValueError(
                f"answer_pattern must be a regular expression: got {self.answer_pattern!r}"
                f" ({error})."
            ) from error
        if self.answer_pattern and self.answer_after:
            raise ValueError(
                "answer_after must be given without answer_pattern: got both. Leave one out."
            )

    @property
    def builds_prompts(self) -> bool:
        """Whether the column with the prompts holds questions, from which they are yet to be
        built."""
        shown = self.options_columns or self.context_columns
        return bool(self.prompt != "prompt" or self.form.is_own or shown)

    def asked(self, rewards: Collection[str], names: Collection[str]) -> list[tuple[str, str]]:
        """Return the columns that the data set must have, behind their settings; none: it stays as
        it is."""
        columns = []
        if self.builds_prompts:
            columns.append(("dataset_prompt_column", self.prompt))
        is_read = self.answer_pattern or self.answer_after or self.decimal_comma
        # golds that number options become letters, by all rows
        numbers = "choice_reward" in rewards and {"options", "solution"} <= {*names}
        if self.solution != "solution" or is_read or self.options_columns or numbers:
            columns.append(("dataset_solution_column", self.solution))
        if self.options != "options" and not self.options_columns:
            columns.append(("dataset_options_column", self.options))
        columns += [("options_columns", name) for name in self.options_columns]
        return columns + [("context_columns", name) for name in self.context_columns]

    def question(self, row: Row) -> str | list[Message]:
        """Return the question of a row with its context, as text, or as the messages that it is."""
        value = as_messages(c.field(row, self.prompt))
        if isinstance(value, list):  # without the answer that an example of a conversation has
            return value[:-1] if value and value[-1].get("role") == "assistant" else value
        if not isinstance(value, str):
            return ""
        parts = {name: c.text(_joined(c.field(row, name))) for name in self.context_columns}
        # what an instruction is about follows it; a passage is read before its question
        before = [text for name, text in parts.items() if text and name.lower() != "input"]
        behind = [text for name, text in parts.items() if text and name.lower() == "input"]
        return "\n\n".join([*before, value, *behind]) if value.strip() else ""

    def options_of(self, row: Row) -> tuple[str, ...]:
        """Return the options of a row; none: it has none."""
        if self.options_columns:
            texts = [c.text(c.field(row, name)) for name in self.options_columns]
            return c.options(texts) if any(texts) else ()
        try:
            value = c.field(row, self.options)
        except KeyError:
            return ()
        return tuple(c.read((self.options, c.options), row)) if value not in (None, "") else ()

    def gold(self, row: Row, place: int = 0) -> Any:
        """Return the gold of a row: a number that may number an option, or text.

        Raises:
            ValueError: `answer_after` or `answer_pattern` finds none.
        """
        value = _only(as_messages(c.field(row, self.solution)))
        if not isinstance(value, str) and c.is_number(value):
            return int(value)  # Arrow makes 2.0 of 2 beside 0.5
        text = c.text(value)
        if self.answer_after is not None:
            text = self._after(text, place)
        if self.answer_pattern is not None:
            text = self._matched(text, place)
        return with_points(text.strip()) if self.decimal_comma else text.strip()

    def choice(self, row: Row) -> tuple[Any, tuple[str, ...]] | None:
        """Return gold and options of a row; None: it has no options."""
        options = self.options_of(row)
        return (self.gold(row), options) if options else None

    def _after(self, text: str, place: int) -> str:
        _, words, rest = text.rpartition(self.answer_after or "")
        if not words:
            raise ValueError(self._finds_none("answer_after", place, text))
        return rest.strip(" \n\t:*").rstrip(".").rstrip(" *")

    def _matched(self, text: str, place: int) -> str:
        matches = [*re.finditer(self.answer_pattern or "", text)]
        answer = _group(matches[-1]) if matches else ""
        if not answer.strip():
            raise ValueError(self._finds_none("answer_pattern", place, text))
        return answer

    def _finds_none(self, setting: str, place: int, text: str) -> str:
        return (
            f"{setting} {getattr(self, setting)!r} finds none in row {place} of the column"
            f" {self.solution}, which ends with {text[-80:]!r}. Correct it, or drop such rows."
        )


def arrange(data: Any, layout: Layout, rewards: Collection[str]) -> Any:
    """Return a data set with the columns `prompt`, `solution` and, where there are some, `options`.

    Without a setting in `layout` it stays as it is, but for golds that number options. Without a
    template, a question with options is asked as the benchmarks of choice are, one for
    `math_reward` as those of mathematics, and any other as it stands; messages are prompts already.
    """
    names = data.column_names
    asked = layout.asked(rewards, names or ())
    if not asked:
        return data
    for setting, name in asked:
        # those of a stream may not be known
        if names is not None and name not in names and name.partition(".")[0] not in names:
            raise ValueError(
                f"{setting} must name a column: got {name!r}, and there are {', '.join(names)}."
            )
    first = first_option(_bounded(data), layout) if "choice_reward" in rewards else None
    # `datasets` would take prompts of an earlier version of this package from its cache.
    afresh = {"load_from_cache_file": False} if hasattr(data, "__len__") else {}
    return data.map(
        lambda row, place: _arranged(row, place, layout, rewards, first),
        with_indices=True,
        **afresh,
    )


def first_option(rows: Iterable[Row], layout: Layout) -> int | None:
    """Return the number of the first option in golds that number them; see
    `columns.number_options`."""
    return c.number_options(rows, layout.choice, layout.first_option)


def decided(layout: Layout, parts: Iterable[Any]) -> Layout:
    """Return a layout with the number of the first option that all parts of a data set tell
    together: a small one alone may not."""
    first = first_option(chain.from_iterable(map(_bounded, parts)), layout)
    return layout if first is None else replace(layout, first_option=first)


def _bounded(rows: Any) -> Iterable[Row]:
    """Return all rows, and of a stream the first."""
    return rows if hasattr(rows, "__len__") else islice(rows, STREAMED)


def _arranged(
    row: Row, place: int, layout: Layout, rewards: Collection[str], first: int | None
) -> Row:
    """Return the columns of a row that are new."""
    new: Row = {}
    try:
        options = layout.options_of(row)
        if layout.options_columns or layout.options.partition(".")[0] in row:
            # a row without one gets None: all rows must have the same columns
            new["options"] = list(options) or None
        if layout.solution.partition(".")[0] in row:
            gold = layout.gold(row, place)
            is_choice = bool(options) and "choice_reward" in rewards
            new["solution"] = c.choice(gold, options, first) if is_choice else c.text(gold) or None
        if layout.builds_prompts:
            new["prompt"] = _prompt(row, place, layout, rewards, options)
    except KeyError as error:
        raise ValueError(
            f"Row {place}, counted from 0, has no {error.args[0]}. Add it, or drop the row."
        ) from error
    return new


def _prompt(
    row: Row, place: int, layout: Layout, rewards: Collection[str], options: Sequence[str]
) -> str | list[Message]:
    question, is_plain = layout.question(row), layout.form.style == "plain"
    if not question or (isinstance(question, list) and layout.form.is_own):
        raise ValueError(
            f"The column {layout.prompt} must hold a question as text: row {place}, counted from"
            f" 0, has {str(c.field(row, layout.prompt))[:80]!r}. Drop the row; messages are"
            " prompts already."
        )
    if isinstance(question, list):
        return "\n\n".join(part["content"] for part in question) if is_plain else question
    kind: Kind = "math" if "math_reward" in rewards else "verbatim"
    return build_prompt("choice" if options else kind, question, options, form=layout.form)


def as_messages(value: Any) -> Any:
    """Return a conversation as messages with role and content; any other value as it is."""
    if not isinstance(value, list) or not value or not isinstance(value[0], Mapping):
        return value
    return [_message(turn) if "from" in turn else turn for turn in value]


def _message(turn: Mapping[str, Any]) -> Message:
    return {"role": _SPEAKERS.get(turn["from"], turn["from"]), "content": turn["value"]}


def _group(match: re.Match[str]) -> str:
    return match[1 if match.re.groups else 0] or ""


def _only(value: Any) -> Any:
    """Return the text of a conversation's last message, and the element of a list that has one, as
    often as it likes."""
    if not isinstance(value, (list, tuple)) or not value:
        return value
    if isinstance(value[-1], Mapping):
        return value[-1].get("content")
    return value[0] if len({*map(c.text, value)}) == 1 else value


def _joined(value: Any) -> Any:
    """Return texts of a list as paragraphs."""
    return "\n".join(map(c.text, value)) if isinstance(value, (list, tuple)) else value


def check_questions(rows: Any) -> None:
    """Raise if a row of a data set has a prompt that is neither text nor messages; those of a
    stream are not seen."""
    if "prompt" in (getattr(rows, "column_names", None) or ()) and hasattr(rows, "__len__"):
        bad = [place for place, prompt in enumerate(rows["prompt"]) if not _is_prompt(prompt)]
        _refuse(bad, len(rows), "prompt must hold text or messages", "")


def _refuse(bad: Sequence[int], count: int, rule: str, where: str) -> None:
    """Raise ValueError if there are bad rows."""
    if bad:
        raise ValueError(
            f"The column {rule} in every row: {len(bad)} of {count} have none, such as row"
            f" {', '.join(map(str, bad[:_SHOWN]))} (counted from 0{where}). Add it, or drop the"
            " rows."
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
    is_stream = not hasattr(rows, "__len__")
    values = [row["solution"] for row in islice(rows, STREAMED)] if is_stream else rows["solution"]
    bad = [place for place, value in enumerate(values) if _is_empty(value)]
    _refuse(bad, len(values), f"{column} must hold an answer", ", below the header")


def _is_empty(value: Any) -> bool:
    return c.text(value).casefold() in ("", "nan")
