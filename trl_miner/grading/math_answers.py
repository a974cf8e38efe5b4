r"""Whether a mathematical answer agrees with the gold. math-verify has the last word; the obvious is decided here.

The rule follows the evaluation of arXiv 2601.04731: the gold is wrapped in `\boxed{}` unless it already is, the answer
must contain a `\boxed{}`, and several boxes that disagree are wrong. "Disagree" is decided by value here, so that
`\boxed{0.5} ... \boxed{\frac{1}{2}}` is one answer written twice: every box must equal the gold.

`is_correct` and `vote` may run forever on a hostile answer (`9^{9^{9^9}}`), and nothing in this process can stop a C
call that holds the interpreter. `pool.py` runs them in processes that can be killed.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

# A longer box is no answer: the longest gold of the benchmarks has about 200 characters, and parsing takes more than
# linear time. It also bounds what is sent to a worker.
MAX_CHARACTERS = 10_000
# Where an answer without a box is looked for.
TAIL_CHARACTERS = 2_000

BOX = re.compile(r"\\boxed\s*\{")
# Nine digits are far from any rounding inside math-verify. Leading zeros and "-0" are left to math-verify.
PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,8}|0")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def boxes(text: str) -> tuple[str, ...]:
    r"""Return the distinct contents of the `\boxed{}` in a text, the last one first."""
    contents = []
    position = 0
    while match := BOX.search(text, position):
        end = _closing_brace(text, match.end())
        if end is None:
            return ()
        contents.append(text[match.end() : end].strip())
        position = end
    return tuple(dict.fromkeys(reversed(contents)))


def gold_content(gold: Any) -> str:
    """Return the content of the gold's last box, or the whole gold without one; "" if no box could hold it."""
    text = "" if gold is None else str(gold).strip()
    if len(text) > MAX_CHARACTERS:
        return ""
    if BOX.search(text):
        return next(iter(boxes(text)), "")
    # An unbalanced gold would not fill the box that we put around it.
    return text if _closing_brace(text + "}", 0) == len(text) else ""


def is_correct_as_text(boxes: Sequence[str], expected: str) -> bool | None:
    """Grade an answer where that needs no mathematics; return None where it does. Linear in the answer's length."""
    if not boxes or sum(map(len, boxes)) > MAX_CHARACTERS:
        return False
    if tuple(boxes) == (expected,):
        return True
    if PLAIN_INTEGER.fullmatch(expected) and all(PLAIN_INTEGER.fullmatch(box) for box in boxes):
        return False
    return None


def is_correct(boxes: Sequence[str], tail: str, expected: str) -> bool | None:
    """Grade an answer with math-verify: every box must equal the gold. None: the gold cannot be parsed.

    Without boxes, math-verify looks for a final answer in `tail`. A gold that sympy cannot read, but that is
    well-formed, is compared as text, as math-verify does. There is no time limit.
    """
    gold = _parse_gold(expected)
    if not gold:
        return None
    # Lazy: the last box first, and no further than the first wrong one.
    answers = map(_parse_box, boxes) if boxes else map(_parse_tail, [tail])
    return all(_is_equal(gold, answer) for answer in answers)


def vote(boxes: Sequence[str], tail: str) -> str | None:
    """Return a canonical form of a wrong answer, so that equal ones can be counted. There is no time limit."""
    forms = {_form(_parse_box(box)) or box for box in boxes} if boxes else {_form(_parse_tail(tail))}
    return forms.pop() if len(forms) == 1 else None


def _form(parsed: Sequence[Any]) -> str | None:
    def canonical() -> str | None:
        answer = parsed[0]
        if getattr(answer, "is_number", False):
            answer = value = answer.evalf(12)
            if value.is_real and abs(value) < 10**12 and value - value.round() == 0:
                answer = value.round()
        return str(answer).strip() or None

    # What sympy can neither evaluate nor print counts as it stands in its box.
    return _attempt(canonical, None) if parsed else None


def _closing_brace(text: str, start: int) -> int | None:
    r"""Find the brace that closes the one just before `start`; escaped braces (`\{`, a set) do not count."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        character = match.group()
        if len(character) == 1:
            depth += 1 if character == "{" else -1
            if depth == 0:
                return match.start()
    return None


@lru_cache(maxsize=16_384)
def _parse_gold(expected: str) -> tuple[Any, ...]:
    # All rollouts of a prompt share its gold, and parsing takes milliseconds.
    return _parse_box(expected)


def _parse_box(content: str) -> tuple[Any, ...]:
    """Return the expressions and the text in a box; empty if math-verify fails in any way."""
    from math_verify import LatexExtractionConfig, parse

    target = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    # `fallback_mode="first_match"` keeps the text as well, so that a gold that sympy cannot read still equals itself.
    modes: dict[str, Any] = {"fallback_mode": "first_match", "extraction_mode": "first_match"}
    boxed = "\\boxed{" + content + "}"
    return _attempt(lambda: tuple(parse(boxed, extraction_config=[target], parsing_timeout=None, **modes)), ())


def _parse_tail(text: str) -> tuple[Any, ...]:
    from math_verify import parse

    return _attempt(lambda: tuple(parse(text[-TAIL_CHARACTERS:], parsing_timeout=None)), ())


def _is_equal(gold: Sequence[Any], answer: Sequence[Any]) -> bool:
    from math_verify import verify

    return _attempt(lambda: bool(verify(list(gold), list(answer), timeout_seconds=None)), False)


def _attempt(function: Callable[[], Any], default: Any) -> Any:
    """Call a function; return the default if it fails. Running out of memory ends the worker instead."""
    try:
        return function()
    except MemoryError:
        raise
    except Exception:
        return default
