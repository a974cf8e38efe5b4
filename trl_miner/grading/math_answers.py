r"""Does a mathematical answer agree with the gold? The last word is math-verify's; what is obvious is decided here.

The rule follows the evaluation of arXiv 2601.04731: the gold is wrapped in `\boxed{}` unless it already is, the answer
must hold a `\boxed{}`, and several boxes that disagree are wrong. "Disagree" is decided by value here, so
`\boxed{0.5} ... \boxed{\frac{1}{2}}` is one answer written twice: every box must equal the gold.

`judge` and `vote` may run for ever on a hostile answer (`9^{9^{9^9}}`): nothing in this process can stop a C call that
holds the interpreter. `pool.py` runs them in processes that can be killed.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Longer is no answer: the longest gold of the benchmarks has about 200 characters, and parsing takes more than linear
# time. It also bounds what is sent to a worker.
MAX_CHARACTERS = 10_000
# Where an answer without a box is looked for.
TAIL_CHARACTERS = 2_000

BOX = re.compile(r"\\boxed\s*\{")
# Nine digits are far from any rounding inside math-verify. No leading zeros, no "-0": left to math-verify.
PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,8}|0")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def boxes(text: str) -> tuple[str, ...]:
    r"""The different contents of the `\boxed{}` in a text, the last one first.

    A box that never closes (an answer cut off at its length limit) leaves nothing to trust: the result is then empty.
    """
    found = []
    position = 0
    while match := BOX.search(text, position):
        end = _closing_brace(text, match.end())
        if end is None:
            return ()
        found.append(text[match.end() : end].strip())
        position = end
    return tuple(dict.fromkeys(reversed(found)))


def gold_content(gold: Any) -> str:
    """What stands in the gold's last box, or the whole gold; empty if it could not stand in a box."""
    text = "" if gold is None else str(gold).strip()
    if len(text) > MAX_CHARACTERS:
        return ""
    if BOX.search(text):
        found = boxes(text)
        return found[0] if found else ""
    # An unbalanced gold would not fill the box that we put around it.
    return text if _closing_brace(text + "}", 0) == len(text) else ""


def judge_at_sight(found: Sequence[str], expected: str) -> float | None:
    """The verdict where no mathematics is needed; None where it is. Linear in the answer's length.

    Args:
        found: contents of the answer's boxes, as from `boxes`.
        expected: the gold's content, not empty.
    """
    if not found or sum(map(len, found)) > MAX_CHARACTERS:
        return 0.0
    if tuple(found) == (expected,):
        return 1.0
    if PLAIN_INTEGER.fullmatch(expected) and all(PLAIN_INTEGER.fullmatch(box) for box in found):
        return 0.0
    return None


def judge(found: Sequence[str], expected: str) -> float | None:
    """math-verify's verdict on the contents of boxes: 1.0 if every one equals the gold, else 0.0.

    None if the gold cannot be parsed. A gold that sympy cannot read, but that is whole, is compared as text, as
    math-verify does. No time limit.
    """
    parsed_gold = _parse_gold(expected)
    if not parsed_gold:
        return None
    # The last box first, and no further than the first wrong one.
    return float(bool(found) and all(_is_equal(parsed_gold, _parse(box)) for box in found))


def judge_unboxed(text: str, expected: str) -> float | None:
    """As `judge`, for an answer without a box: math-verify looks for a final answer in the text. No time limit."""
    parsed_gold = _parse_gold(expected)
    if not parsed_gold:
        return None
    return float(_is_equal(parsed_gold, _parse_anywhere(text)))


def vote(found: Sequence[str]) -> str | None:
    """A canonical form of a wrong answer, so that equal ones can be counted; None if the boxes disagree.

    Numbers by their value to 12 digits ("0.5" and "1/2" agree), all else as sympy prints it. No time limit.
    """
    forms = {_form(_parse(box)) or box for box in found}
    return forms.pop() if len(forms) == 1 else None


def vote_unboxed(text: str) -> str | None:
    """As `vote`, for an answer without a box; None if there is no answer."""
    return _form(_parse_anywhere(text))


def _form(parsed: Sequence[Any]) -> str | None:
    if not parsed:
        return None
    answer = parsed[0]
    try:
        if getattr(answer, "is_number", False):
            answer = value = answer.evalf(12)
            if value.is_real and abs(value) < 10**12 and value - value.round() == 0:
                answer = value.round()
        return str(answer).strip() or None
    except MemoryError:
        raise
    except Exception:  # what sympy can neither evaluate nor print is counted as it stands in its box
        return None


def _closing_brace(text: str, start: int) -> int | None:
    r"""Where the brace closes that was opened just before `start`; escaped braces (`\{`, a set) do not count."""
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
    return _parse(expected)


def _parse(content: str) -> tuple[Any, ...]:
    """Expressions and text found in a box; empty if math-verify fails in whatever way."""
    from math_verify import LatexExtractionConfig, parse

    target = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    try:
        # `fallback_mode="first_match"` keeps the text as well, so that a gold sympy cannot read still equals itself.
        return tuple(
            parse(
                "\\boxed{" + content + "}",
                extraction_config=[target],
                fallback_mode="first_match",
                extraction_mode="first_match",
                parsing_timeout=None,
            )
        )
    except MemoryError:
        raise
    except Exception:
        return ()


def _parse_anywhere(text: str) -> tuple[Any, ...]:
    from math_verify import parse

    try:
        return tuple(parse(text[-TAIL_CHARACTERS:], parsing_timeout=None))
    except MemoryError:
        raise
    except Exception:
        return ()


def _is_equal(parsed_gold: Sequence[Any], parsed: Sequence[Any]) -> bool:
    from math_verify import verify

    try:
        return bool(verify(list(parsed_gold), list(parsed), timeout_seconds=None))
    except MemoryError:
        raise
    except Exception:
        return False
