"""Whether the content of a box agrees with a reference.

The reference says what the answer is read as: an option, a time, a date, a value, or words. What
could not be read as mathematics is compared as text.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from . import units, values, words
from .notation import NotRead
from .parsing import Node, parse, readings


class Text(NamedTuple):
    """A reference or an answer: its words, and the trees that it may be read as."""

    text: str
    flat: str
    nodes: tuple[Node, ...]


@lru_cache(maxsize=64)  # a function of its text alone; all rollouts of a prompt have one reference
def read(text: str) -> Text:
    flat = words.flat(text)
    nodes = readings(text)
    if not nodes and (meaning := words.meaning(flat)) is not None:
        nodes = [meaning]
    if not nodes:
        nodes = next(filter(None, map(_value, words.ends_of_sentence(text))), [])
    return Text(text, flat, tuple(nodes))


def _value(text: str) -> list[Node]:
    """Return the trees of the end of a sentence; none if it is no value."""
    kept = {*"number over negative list set sequence times power call quantity relation".split()}
    return [node for node in readings(text) if node[0] in kept]


def agrees(reference: str, answer: str) -> bool:
    """Return whether the content of a box agrees with a reference. There is no time limit."""
    gold, given = read(reference), read(answer)
    if gold.text == given.text:
        return True
    if words.is_option(gold.flat):
        return _is_option(gold, given)
    letters = words.several_options(gold.flat), words.several_options(given.flat)
    if all(letters):
        return letters[0] == letters[1]
    if (time := words.clock(gold.flat)) is not None:
        return _is_time(time, gold, given)
    if words.is_date(gold.flat) and not any(node[0] == "relation" for node in gold.nodes):
        return words.are_same_dates(gold.flat, given.flat)
    option = words.option(gold.flat)
    if option is not None and option.rest and re.match(r"\([A-J]\)", gold.flat):
        chosen = words.option(given.flat)
        return chosen.letter == option.letter if chosen else agrees(option.rest, answer)
    if gold.nodes and any(
        values.agrees(node, other) for node in gold.nodes for other in given.nodes
    ):
        return True
    if _agree_in_plain_units(gold, given):
        return True
    if gold.nodes and given.nodes:
        return False
    if gold.nodes or "\\" in gold.flat:  # a value, of which every letter counts
        return words.are_same_characters(gold.flat, given.flat)
    return words.are_same_words(gold.flat, given.flat)


def _is_option(gold: Text, given: Text) -> bool:
    letter = gold.flat.strip("().")
    option = words.option(given.flat)
    if option is not None:
        return option.letter == letter
    return any(values.agrees(("symbol", letter), node) for node in given.nodes)


def _is_time(time: words.Clock, gold: Text, given: Text) -> bool:
    other = words.clock(given.flat.rpartition("= ")[2])
    if other is not None:
        return words.are_same_times(time, other)
    ratio = words.ratio_of(gold.flat)
    return ratio is not None and any(
        node[0] not in ("ratio", "relation") and values.agrees(("number", ratio, None), node)
        for node in given.nodes
    )


def _agree_in_plain_units(gold: Text, given: Text) -> bool:
    """Compare `7m`, where one side marks m as a unit: then it is one on the other side too."""
    if not (gold.nodes and given.nodes):
        return False
    for marked, plain in ((gold, given), (given, gold)):
        unit = _unit(marked.nodes[0])
        if unit is not None and _unit(plain.nodes[0]) is None:
            try:
                node = parse(plain.text, plain_units=True)
            except NotRead:
                return False
            same = _unit(node)
            return (
                same is not None
                and unit.may_equal(same)
                and any(values.agrees(node, other) for other in marked.nodes)
            )
    return False


def _unit(node: Node) -> units.Unit | None:
    if node[0] == "relation":
        node = node[1][-1]
    return values.unit_of(node) if node[0] in values.EXPRESSIONS else None


def is_readable(reference: str) -> bool:
    """Return whether anything can be compared with a reference."""
    return bool(read(reference).flat or read(reference).nodes)
