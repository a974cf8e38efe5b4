"""Rewards for TRL: whether a completion holds the right answer. The rules are in
`trl_miner.grading`.

A reward is 1.0 (right), 0.0 (wrong) or None: the gold cannot be parsed, or grading exceeded a limit
that the gold exceeds too. The scorer of a task may also give part of the reward. TRL counts a
rollout with None neither way. The share of None is logged as `<reward>/not_judged`, that of answers
over a limit as `<reward>/timed_out`, and a warning gives the reasons.
"""

# one completion: a plain string, or a conversation [{"role": ..., "content": str or [{"type":
# "text", "text": ...}]}]

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .grading import Verdict, grade
from .grading.decimals import with_points
from .trainer.reward_functions import text_of

# The other processes of a training run wait for the slowest one; NCCL gives up after 30 minutes.
BATCH_SECONDS = 300.0

_REASONS = {
    "gold": "whose reference answer cannot be parsed",
    "task": "whose problem the installed reasoning-gym does not make",
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
    decimal_comma: bool = False,
    batch_seconds: float | None = BATCH_SECONDS,
    **kwargs: Any,
) -> list[float | None]:
    r"""Reward a right answer in `\boxed{}` with 1.0, a wrong one with 0.0, and one that was not
    graded with None.

    Args:
        completions: B completions, plain strings or conversations (the last assistant message
            counts). None and empty ones score 0.0.
        solution: B golds as text: `"17"`, `"\\frac{1}{2}"` or `"\\boxed{17}"`.
        accept_unboxed: Look for a final answer in completions without a box too.
        decimal_comma: Read a comma between digits as a decimal point, in golds and answers.
        batch_seconds: Wall time for the whole batch, in seconds, with waiting for other threads
            that grade; what is not graded by then scores None.
        **kwargs: The other columns of the batch, which TRL passes; unused, as in the functions
            below.
    """
    texts = [text_of(completion) for completion in completions]
    if decimal_comma:
        texts = [with_points(text) for text in texts]
        solution = [with_points(gold) if isinstance(gold, str) else gold for gold in solution]
    verdicts = grade("math", texts, solution, unboxed=accept_unboxed, budget=batch_seconds)
    return _rewards("math_reward", verdicts, texts, kwargs)


def choice_reward(
    completions: list[Any], solution: list[Any], options: list[Sequence[str]], **kwargs: Any
) -> list[float | None]:
    """Reward the right option after "The answer is" with 1.0, anything else with 0.0.

    A gold in `solution` is the letter of the right option, its text, or its index, counted from 0;
    None where it is none of the `options`.
    """
    texts = [text_of(completion) for completion in completions]
    options = [given or () for given in options]  # None: a problem of another kind
    return _rewards(
        "choice_reward", grade("choice", texts, solution, options=options), texts, kwargs
    )


def task_reward(
    completions: list[Any],
    task: list[str],
    *,
    batch_seconds: float | None = BATCH_SECONDS,
    **kwargs: Any,
) -> list[float | None]:
    """Reward an answer to a problem of reasoning-gym with the score of its family's own scorer, 0.0
    to 1.0.

    1.0 is right. Many scorers pay a part of it for an answer that is partly right or in another
    form. `grading.tasks` says where the answer stands, and what the column `task` holds. None: the
    installed reasoning-gym does not make the problem, or the scorer exceeded its limits.
    """
    texts = [text_of(completion) for completion in completions]
    return _rewards("task_reward", grade("task", texts, task, budget=batch_seconds), texts, kwargs)


def _rewards(
    name: str, verdicts: Sequence[Verdict], texts: Sequence[str], kwargs: dict[str, Any]
) -> list[float | None]:
    """Turn verdicts into rewards; log and warn of the answers that have none."""
    missing = [row for row, verdict in enumerate(verdicts) if verdict.is_correct is None]
    # TRL averages it over the processes, so every one of them logs it, at every batch.
    if verdicts and (log_metric := kwargs.get("log_metric")) is not None:
        log_metric(f"{name}/not_judged", len(missing) / len(verdicts))
        over = [verdict.reason in ("limit", "died") for verdict in verdicts]
        log_metric(f"{name}/timed_out", sum(over) / len(verdicts))
    if missing:
        counts = Counter(verdicts[row].reason for row in missing)
        reasons = ", ".join(
            f"{count} {_REASONS[reason]}" for reason, count in counts.items() if reason is not None
        )
        logger.warning(
            f"{name}: {len(missing)} of {len(verdicts)} answers were not graded and score None:"
            f" {reasons}. The first ends with {texts[missing[0]][-100:]!r}."
        )
    return [verdict.reward for verdict in verdicts]
