r"""Verifiers: does an answer agree with the gold?

`judge` decides one answer, `math_reward` a batch of completions. A verdict is 1.0 (right), 0.0 (wrong) or None (the
gold itself cannot be judged; TRL then counts the rollout neither way).

The rule follows the evaluation of arXiv 2601.04731: the gold is wrapped in `\boxed{}` unless it already is, the answer
must hold a `\boxed{}`, and several boxes that disagree are wrong. "Disagree" is decided by value here, so
`\boxed{0.5} ... \boxed{\frac{1}{2}}` is one answer written twice: every box must equal the gold.

How long a verdict can take. math-verify stops itself with SIGALRM, which exists in the main thread only. There, each
parse and each comparison is cut off after `TIMEOUT_SECONDS`, and one answer needs a handful of them; but a signal
waits for the running C call, so a power tower such as `9^{9^{9^9}}` can outlast the limit. (A SIGALRM timer of your
own is lost.) In any other thread there is no limit at all: a hostile answer can block that thread for good. Where
answers are not to be trusted, call `judge` in a process that you can kill.
"""

# one completion: a plain string, or a conversation [{"role": ..., "content": str or [{"type": "text", "text": ...}]}]

import re
import threading
from functools import lru_cache
from typing import Any

TIMEOUT_SECONDS = 5

BOX = re.compile(r"\\boxed\s*\{")
# Nine digits are far from any rounding inside math-verify. No leading zeros, no "-0": left to math-verify.
PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]{0,8}|0")


def math_reward(completions: list[Any], solution: list[Any], **kwargs: Any) -> list[float | None]:
    """Reward 1.0 for a right answer, 0.0 for a wrong one, None where the gold cannot be judged.

    Args:
        completions: B completions, plain strings or conversations (the last assistant message counts). One that is
            None or empty scores 0.0.
        solution: B golds, as text: `"17"`, `"\\frac{1}{2}"` or `"\\boxed{17}"`.
        **kwargs: other columns of the batch, unused; TRL passes them.

    Returns:
        B rewards, each 1.0, 0.0 or None.

    Raises:
        ValueError: if there is not one gold per completion.
    """
    if len(completions) != len(solution):
        raise ValueError(
            f"solution must hold one gold answer per completion: got {len(solution)} for {len(completions)} "
            "completions. Repeat each prompt's gold for all of its rollouts."
        )
    return [judge(_text(completion), gold) for completion, gold in zip(completions, solution, strict=True)]


def judge(answer: str, gold: str) -> float | None:
    r"""The verdict on one answer: a plain function of two strings, easy to call in a worker process.

    Args:
        answer: the model's whole output.
        gold: the reference, with or without `\boxed{}`; if it holds several boxes, the last one counts.

    Returns:
        1.0 if every box of the answer equals the gold, else 0.0; None if the gold cannot be parsed (empty, unbalanced,
        or a time limit). A gold that sympy cannot read, but that is whole, is compared as text, as math-verify does.
    """
    expected = _gold_content(gold)
    if not expected:
        return None
    found = boxes(answer)
    if PLAIN_INTEGER.fullmatch(expected) and all(PLAIN_INTEGER.fullmatch(box) for box in found):
        return float(bool(found) and set(found) == {expected})
    return judge_by_math_verify(found, expected)


def boxes(text: str) -> list[str]:
    r"""The different contents of the `\boxed{}` in a text, the last one first.

    A box that never closes (an answer cut off at its length limit) leaves nothing to trust: the result is then empty.
    """
    found = []
    position = 0
    while match := BOX.search(text, position):
        end = _closing_brace(text, match.end())
        if end is None:
            return []
        found.append(text[match.end() : end].strip())
        position = end
    return list(dict.fromkeys(reversed(found)))


def judge_by_math_verify(found: list[str], expected: str) -> float | None:
    """The verdict without the shortcut for plain integers; the arguments are contents of boxes, `found` as `boxes`."""
    # SIGALRM can be set in the main thread only; elsewhere math-verify would raise.
    timeout = TIMEOUT_SECONDS if threading.current_thread() is threading.main_thread() else None
    parsed_gold = _parse_gold(expected, timeout)
    if not parsed_gold:
        return None
    # The last box first, and no further than the first wrong one: many hostile boxes cost one time limit, not many.
    return float(bool(found) and all(_is_equal(parsed_gold, box, timeout) for box in found))


def _text(completion: Any) -> str:
    """The answer's text in a completion of any of TRL's shapes; empty if there is none."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    spoken = [message for message in completion if message.get("role", "assistant") == "assistant"]
    content = spoken[-1].get("content") if spoken else None
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")


def _gold_content(gold: Any) -> str:
    """What stands in the gold's last box, or the whole gold; empty if it could not stand in a box."""
    text = "" if gold is None else str(gold).strip()
    if BOX.search(text):
        found = boxes(text)
        return found[0] if found else ""
    # An unbalanced gold would not fill the box that we put around it.
    return text if _closing_brace(text + "}", 0) == len(text) else ""


def _closing_brace(text: str, start: int) -> int | None:
    r"""Where the brace closes that was opened just before `start`; escaped braces (`\{`, a set) do not count."""
    depth = 1
    position = start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return position
        position += 1
    return None


@lru_cache(maxsize=16_384)
def _parse_gold(expected: str, timeout: int | None) -> tuple[Any, ...]:
    # All rollouts of a prompt share its gold, and parsing takes milliseconds.
    return _parse(expected, timeout)


def _parse(content: str, timeout: int | None) -> tuple[Any, ...]:
    """Expressions and text found in a box; empty if math-verify fails in whatever way."""
    from math_verify import LatexExtractionConfig, parse
    from math_verify.errors import TimeoutException

    target = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    try:
        # `fallback_mode="first_match"` keeps the text as well, so that a gold sympy cannot read still equals itself.
        return tuple(
            parse(
                "\\boxed{" + content + "}",
                extraction_config=[target],
                fallback_mode="first_match",
                extraction_mode="first_match",
                parsing_timeout=timeout,
            )
        )
    # Its TimeoutException is a BaseException, so that `except Exception` alone would let it through.
    except (Exception, TimeoutException):
        return ()


def _is_equal(parsed_gold: tuple[Any, ...], content: str, timeout: int | None) -> bool:
    from math_verify import verify
    from math_verify.errors import TimeoutException

    try:
        parsed = list(_parse(content, timeout))
        return bool(verify(list(parsed_gold), parsed, timeout_seconds=timeout))
    except (Exception, TimeoutException):
        return False
