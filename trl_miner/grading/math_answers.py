r"""Whether a mathematical answer agrees with the gold. The obvious is decided here, the rest by
`agreement.py`.

The rule follows the evaluation of arXiv 2601.04731: the gold is wrapped in `\boxed{}` unless it
already is, the answer must contain a `\boxed{}`, and several boxes that disagree are wrong.
"Disagree" is decided by value here, so that `\boxed{0.5} ... \boxed{\frac{1}{2}}` is one answer
written twice: every box must equal the gold.

`is_correct` and `vote` count their steps, but what sympy computes (an infinite sum, a limit) may
take for ever, and nothing in this process can stop it. `pool.py` runs them in processes that can be
killed.
"""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from .notation import MAX_DEPTH

# Boxes that are longer together are no answer: the longest gold of the benchmarks has about 200
# characters, and parsing takes more than linear time. It also bounds what is sent to a worker.
MAX_CHARACTERS = 10_000
# A box is no answer if it is longer than both, or has more brackets within brackets: to read it would
# take long, and to be graded as wrong must not take longer than to be wrong.
MAX_BOX, MAX_FACTOR = 500, 20  # characters; times the gold
# Where an answer without a box is looked for.
TAIL_CHARACTERS = 2_000

BOX = re.compile(r"\\boxed\s*\{")
_FRAME = re.compile(r"\\fbox\s*\{")  # a box by another name, where there is none
# Leading zeros and "-0" are left to mathematics.
PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,8}|0")
_BRACKET = re.compile(r"[()\[\]{}]")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def boxes(text: str) -> tuple[str, ...]:
    r"""Return the distinct contents of the `\boxed{}` in a text, the last one first; none if they
    are too long."""
    contents: dict[str, None] = {}
    position = characters = 0
    box = BOX if BOX.search(text) else _FRAME
    while match := box.search(text, position):
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
    if any(_is_hostile(box, expected) for box in boxes):
        return False
    if PLAIN_INTEGER.fullmatch(expected) and all(PLAIN_INTEGER.fullmatch(box) for box in boxes):
        return False
    return None


def _is_hostile(box: str, expected: str) -> bool:
    """Return whether a box is too long or nested too deeply to be an answer."""
    if len(box) > max(MAX_BOX, MAX_FACTOR * len(expected)):
        return True
    turns = (1 if match[0] in "([{" else -1 for match in _BRACKET.finditer(box))
    return max(accumulate(turns), default=0) > MAX_DEPTH


def is_correct(boxes: Sequence[str], tail: str, expected: str) -> bool | None:
    """Grade an answer: every box must agree with the gold. None: nothing can be compared with it.

    Without boxes, a final answer is looked for in `tail` (`phrases.py`). There is no time limit.
    """
    from . import agreement, phrases

    if not agreement.is_readable(expected):
        return None
    if not boxes:
        answer = phrases.final_answer(tail)
        boxes = () if answer is None else (answer,)
    # Lazy: the last box first, and no further than the first wrong one.
    return bool(boxes) and all(_agrees(expected, box) for box in boxes)


def _agrees(expected: str, box: str) -> bool:
    """An answer on which the grading fails is wrong."""
    from . import agreement

    return bool(_attempt(lambda: agreement.agrees(expected, box), False))


def vote(boxes: Sequence[str], tail: str) -> str | None:
    """Return a canonical form of a wrong answer, so that equal ones can be counted. There is no
    time limit."""
    from . import phrases

    answers: Sequence[str | None] = boxes or [phrases.final_answer(tail)]
    forms = {None if answer is None else _form(answer) for answer in answers}
    return forms.pop() if len(forms) == 1 else None


def _form(answer: str) -> str | None:
    from . import votes

    # what cannot be evaluated counts as it stands in its box
    return _attempt(lambda: votes.form(answer), answer)


def _attempt(function: Callable[[], Any], default: Any) -> Any:
    """Call a function; return the default if it fails. Running out of memory ends the worker
    instead."""
    try:
        return function()
    except MemoryError:
        raise
    except Exception:
        return default


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
