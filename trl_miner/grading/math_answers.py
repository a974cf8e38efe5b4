r"""Whether a mathematical answer agrees with the gold. The obvious is decided here, the rest by
math-verify.

The rule follows the evaluation of arXiv 2601.04731: the gold is wrapped in `\boxed{}` unless it
already is, the answer must contain a `\boxed{}`, and several boxes that disagree are wrong.
"Disagree" is decided by value here, so that `\boxed{0.5} ... \boxed{\frac{1}{2}}` is one answer
written twice: every box must equal the gold.

`is_correct` and `vote` may run forever on a hostile answer (`9^{9^{9^9}}`), and nothing in this
process can stop a C call that holds the interpreter. `pool.py` runs them in processes that can be
killed.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from . import notation, words

# Boxes that are longer together are no answer: the longest gold of the benchmarks has about 200
# characters, and parsing takes more than linear time. It also bounds what is sent to a worker.
MAX_CHARACTERS = 10_000
# Where an answer without a box is looked for.
TAIL_CHARACTERS = 2_000

BOX = re.compile(r"\\boxed\s*\{")
# Nine digits are far from any rounding inside math-verify. Leading zeros and "-0" are left to
# math-verify.
PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,8}|0")
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*)?(\d+)")
_SIDE_BY_SIDE = re.compile(r"(?:[A-Za-z]\s*=)?\s*[-+]?(?:[\d\s.~$(){}\[\]]|\\[,;: {}]|\\q?quad)*")
_INEQUALITY = re.compile(r"[<>]|\\(?:[lg]eq?|[lg]t)(?![A-Za-z])")
_OR = re.compile(
    r",?\s*(?:\\(?:lor|vee)(?![A-Za-z])|\\text\s*\{\s*or\s*\}|(?<![\\A-Za-z])or(?![A-Za-z]))"
)
_AND = re.compile(
    r",?\s*(?:\\(?:land|wedge)(?![A-Za-z])|\\text\s*\{\s*and\s*\}|(?<![\\A-Za-z])and(?![A-Za-z]))"
)
_PERCENT = re.compile(r"\s*\\?%\s*$")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def boxes(text: str) -> tuple[str, ...]:
    r"""Return the distinct contents of the `\boxed{}` in a text, the last one first; none if they
    are too long."""
    contents: dict[str, None] = {}
    position = characters = 0
    while match := BOX.search(text, position):
        end = _closing_brace(text, match.end())
        if end is None:
            return ()
        content, position = text[match.end() : end].strip(), end
        if not content:  # a quote of the prompt, which asks for an answer within \boxed{}
            continue
        characters += 0 if content in contents else len(content)
        if characters > MAX_CHARACTERS:
            return ()
        contents.pop(content, None)  # its last place counts
        contents[content] = None
    return tuple(reversed(contents))


def gold_content(gold: Any) -> str:
    """Return the content of the gold's last box, or the whole gold without one; "" if no box could
    hold it."""
    text = "" if gold is None else str(gold).strip()
    if len(text) > MAX_CHARACTERS:
        return ""
    if BOX.search(text):
        return next(iter(boxes(text)), "")
    # An unbalanced gold would not fill the box that we put around it.
    return text if _closing_brace(text + "}", 0) == len(text) else ""


def is_correct_as_text(boxes: Sequence[str], expected: str) -> bool | None:
    """Grade an answer where that needs no mathematics; return None where it does. Linear in the
    answer's length."""
    if not boxes:
        return False
    if tuple(boxes) == (expected,):
        return True
    if PLAIN_INTEGER.fullmatch(expected) and all(PLAIN_INTEGER.fullmatch(box) for box in boxes):
        return False
    return None


def is_correct(boxes: Sequence[str], tail: str, expected: str) -> bool | None:
    """Grade an answer: every box must equal the gold. None: the gold cannot be parsed.

    Words decide where they can (`words.py`), else math-verify. Without boxes, math-verify looks for
    a final answer in `tail`. A gold that sympy cannot read, but that is well-formed, is compared as
    text, as math-verify does. There is no time limit.
    """
    gold = notation.plain(expected)
    if not (parsed := _parse(gold)):
        return None
    if not boxes:
        return _is_equal(parsed, _parse_tail(tail))
    # Lazy: the last box first, and no further than the first wrong one.
    return all(_agrees(gold, parsed, notation.plain(box)) for box in boxes)


def _agrees(gold: str, parsed: Sequence[Any], answer: str) -> bool:
    if (verdict := words.compare(gold, answer)) is not None:
        return verdict
    shares = _PERCENT.sub("", gold), _PERCENT.sub("", answer)
    if shares == (gold, answer):
        return _is_equal(parsed, _parse(answer))
    both = [_parse(share) for share in shares]
    if shares[0] == gold or shares[1] == answer:
        index = int(shares[0] == gold)
        both[index] = _percent(both[index])
    return _is_equal(*both)


def _percent(parsed: Sequence[Any]) -> tuple[Any, ...]:
    """Return what 25%, given as 25, may be written as: 0.25, and 25 with the sign left out; but
    0.5% is no 0.5."""

    def readings(part: Any) -> list[Any]:
        return [part / 100, part] if abs(part) >= 1 else [part / 100]

    nothing: list[Any] = []  # a text or a set has no percentage
    return tuple(value for part in parsed for value in _attempt(partial(readings, part), nothing))


def vote(boxes: Sequence[str], tail: str) -> str | None:
    """Return a canonical form of a wrong answer, so that equal ones can be counted. There is no
    time limit."""
    forms = (
        {_form(_parse_plain(box)) or box for box in boxes} if boxes else {_form(_parse_tail(tail))}
    )
    return forms.pop() if len(forms) == 1 else None


def _form(parsed: Sequence[Any]) -> str | None:
    def canonical() -> str | None:
        answer = parsed[0]
        if getattr(answer, "is_number", False):
            answer = value = answer.evalf(12)
            if value.is_real and abs(value) < 10**12 and value - value.round() == 0:
                answer = value.round()
        form = str(answer).strip()
        return form if 0 < len(form) <= MAX_CHARACTERS else None

    # What sympy can neither evaluate nor print, or only at length, counts as it stands in its box.
    return _attempt(canonical, None) if parsed else None


def _closing_brace(text: str, start: int) -> int | None:
    r"""Find the brace that closes the one just before `start`, no further than an answer may be
    long.

    Escaped braces (`\{`, a set) do not count.
    """
    depth = 1
    for match in _BRACE.finditer(text, start, start + MAX_CHARACTERS + 1):
        character = match.group()
        if len(character) == 1:
            depth += 1 if character == "{" else -1
            if depth == 0:
                return match.start()
    return None


def _parse(text: str) -> tuple[Any, ...]:
    """Return the expressions and the text in a box in plain notation; empty if math-verify fails in
    any way."""
    for joint, function in ((_OR, "Union"), (_AND, "Intersection")):
        parts = joint.split(text)
        if len(parts) > 1 and all(map(_INEQUALITY.search, parts)):
            return _attempt(partial(_combined, function, parts), ()) or _parse_one(text)
    return _parse_one(text)


def _combined(function: str, parts: Sequence[str]) -> tuple[Any, ...]:
    import sympy

    from .values import solution_set

    return (getattr(sympy, function)(*(solution_set(_parse_one(part)[0]) for part in parts)),)


def _parse_one(text: str) -> tuple[Any, ...]:
    from math_verify import LatexExtractionConfig, parse

    target = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    # `fallback_mode="first_match"` keeps the text as well, so that a gold that sympy cannot read
    # still equals itself.
    modes: dict[str, Any] = {"fallback_mode": "first_match", "extraction_mode": "first_match"}
    content = notation.bare(words.split_unit(text)[0])
    if _SIDE_BY_SIDE.fullmatch(content) and re.search(r"\d[^\d.]+\d", content):
        return (" ".join(content.split()),)  # sympy would add them up
    boxed = "\\boxed{" + content + "}"
    return _attempt(
        lambda: tuple(parse(boxed, extraction_config=[target], parsing_timeout=None, **modes)), ()
    )


def _parse_tail(text: str) -> tuple[Any, ...]:
    from math_verify import parse

    return _attempt(lambda: tuple(parse(text[-TAIL_CHARACTERS:], parsing_timeout=None)), ())


def _is_equal(gold: Sequence[Any], answer: Sequence[Any]) -> bool:
    from .values import are_equal, without_lost_infinity

    bases = [
        {base for part in parsed for base in _BASE.findall(part if isinstance(part, str) else "")}
        for parsed in (gold, answer)
    ]
    if all(bases) and bases[0] != bases[1]:  # sympy reads 12_3 as 12
        return False
    pairs = product(gold, without_lost_infinity(answer))
    return any(_attempt(partial(are_equal, *pair), False) for pair in pairs)


def _parse_plain(content: str) -> tuple[Any, ...]:
    return _parse(notation.plain(content))


def _attempt(function: Callable[[], Any], default: Any) -> Any:
    """Call a function; return the default if it fails. Running out of memory ends the worker
    instead."""
    try:
        return function()
    except MemoryError:
        raise
    except Exception:
        return default
