"""Rewards for TRL: does a completion hold the right answer? The rules are in `trl_miner.grading`.

A reward is 1.0 (right), 0.0 (wrong) or None: the gold cannot be judged, or the judging took longer than it may. TRL
counts a rollout with None neither way. How many there were is logged as `<reward>/not_judged`, and warned of.
"""

# one completion: a plain string, or a conversation [{"role": ..., "content": str or [{"type": "text", "text": ...}]}]

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .grading import Verdict, grade

# The other processes of a training run wait for the slowest one; NCCL gives up after 30 minutes.
BATCH_SECONDS = 300.0

_REASONS = {
    "gold": "without a gold that can be parsed",
    "limit": "over the time limit",
    "died": "whose process died",
    "budget": "left over when the batch's time was up",
}

logger = logging.getLogger(__name__)


def math_reward(
    completions: list[Any],
    solution: list[Any],
    *,
    accept_unboxed: bool = False,
    batch_seconds: float | None = BATCH_SECONDS,
    **kwargs: Any,
) -> list[float | None]:
    r"""Reward 1.0 for a right answer in `\boxed{}`, 0.0 for a wrong one, None where it was not judged.

    Args:
        completions: B completions, plain strings or conversations (the last assistant message counts). One that is
            None or empty scores 0.0.
        solution: B golds, as text: `"17"`, `"\\frac{1}{2}"` or `"\\boxed{17}"`.
        accept_unboxed: Look for a final answer in completions without a box too.
        batch_seconds: Wall time for the whole batch, in seconds; what is not judged by then scores None.
        **kwargs: other columns of the batch, unused; TRL passes them.

    Returns:
        B rewards, each 1.0, 0.0 or None.

    Raises:
        ValueError: if there is not one gold per completion.
    """
    texts = [_text(completion) for completion in completions]
    verdicts = grade("math", texts, solution, unboxed=accept_unboxed, budget=batch_seconds)
    return _rewards("math_reward", verdicts, texts, kwargs)


def choice_reward(
    completions: list[Any], solution: list[Any], options: list[Sequence[str]], **kwargs: Any
) -> list[float | None]:
    """Reward 1.0 if a completion chooses the right option after "The answer is", 0.0 if not.

    Args:
        completions: B completions, plain strings or conversations.
        solution: B golds: the letter of the right option, or its text.
        options: The texts of the options of each question, B lists.
        **kwargs: other columns of the batch, unused; TRL passes them.

    Returns:
        B rewards, each 1.0, 0.0, or None where the gold is none of the options.

    Raises:
        ValueError: if there is not one gold and one list of options per completion.
    """
    texts = [_text(completion) for completion in completions]
    return _rewards("choice_reward", grade("choice", texts, solution, options=options), texts, kwargs)


def _rewards(
    name: str, verdicts: Sequence[Verdict], texts: Sequence[str], kwargs: dict[str, Any]
) -> list[float | None]:
    """The scores; the answers without one are reported."""
    missing = [row for row, verdict in enumerate(verdicts) if verdict.score is None]
    # TRL averages it over the processes, so every one of them logs it, at every batch.
    if verdicts and (log_metric := kwargs.get("log_metric")) is not None:
        log_metric(f"{name}/not_judged", len(missing) / len(verdicts))
    if missing:
        counts = Counter(verdicts[row].reason for row in missing)
        what = ", ".join(f"{count} {_REASONS[reason]}" for reason, count in counts.items() if reason is not None)
        logger.warning(
            "%s: %d of %d answers were not judged and score None: %s. The first ends with %r.",
            name, len(missing), len(verdicts), what, texts[missing[0]][-100:],
        )  # fmt: skip
    return [verdict.score for verdict in verdicts]


def _text(completion: Any) -> str:
    """The answer's text in a completion of any of TRL's shapes; empty if there is none."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    spoken = [message for message in completion if message.get("role", "assistant") == "assistant"]
    content = spoken[-1].get("content") if spoken else None
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")
