"""Rewards for TRL: whether a completion holds the correct answer. The rules are in
`trl_miner.grading`.

A reward is 1.0 (right), 0.0 (wrong) or None: the reference cannot be read, or the answer was not
graded. TRL counts a rollout with None neither way. The share of None is logged as
`<reward>/not_judged`, that of answers over a limit as `<reward>/timed_out`, and a warning gives the
reasons.
"""

# one completion: a plain string, or a conversation [{"role": ..., "content": str or [{"type":
# "text", "text": ...}]}]

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .grading import Verdict, grade, with_points

# The other processes of a training run wait for the slowest one; NCCL gives up after 30 minutes.
BATCH_SECONDS = 300.0

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
    r"""Reward a correct answer in `\boxed{}` with 1.0, a wrong one with 0.0, and one that was not
    graded with None.

    Args:
        completions: B completions, plain strings or conversations (the last assistant message
            counts). None and empty ones score 0.0.
        solution: B references as text: `"17"`, `"\\frac{1}{2}"` or `"\\boxed{17}"`.
        accept_unboxed: Look for a final answer in completions without a box too.
        decimal_comma: Read a comma between digits as a decimal point, in references and answers.
        batch_seconds: Wall time for the whole batch, in seconds, with waiting for other threads
            that grade; what is not graded by then scores None.
        **kwargs: The other columns of the batch, which TRL passes; unused.
    """
    texts = [text_of(completion) for completion in completions]
    if decimal_comma:
        texts = [with_points(text) for text in texts]
        solution = [gold if gold is None else with_points(str(gold)) for gold in solution]
    verdicts = grade("math", texts, solution, unboxed=accept_unboxed, budget=batch_seconds)
    return _rewards("math_reward", verdicts, kwargs)


def choice_reward(
    completions: list[Any], solution: list[Any], options: list[Sequence[str]], **kwargs: Any
) -> list[float | None]:
    """Reward the right option after "The answer is" with 1.0, anything else with 0.0.

    A reference in `solution` is the letter of the right option, its text, or its index, counted
    from 0; None where it is none of the `options`.
    """
    texts = [text_of(completion) for completion in completions]
    rows = [row or () for row in options]  # None: a problem of another kind
    return _rewards("choice_reward", grade("choice", texts, solution, options=rows), kwargs)


def text_of(completion: Any) -> str:
    """Return the text of the answer in a completion of any of TRL's shapes; "" if there is none."""
    if isinstance(completion, list):
        answers = [each for each in completion if each.get("role", "assistant") == "assistant"]
        completion = answers[-1].get("content") if answers else ""
    if isinstance(completion, list):
        completion = "".join(part.get("text") or "" for part in completion)
    return completion or ""


def _rewards(name: str, verdicts: list[Verdict], kwargs: Any) -> list[float | None]:
    """Turn verdicts into rewards; log and warn of the answers that have none."""
    rewards = [None if each.is_correct is None else float(each.is_correct) for each in verdicts]
    reasons = Counter(each.reason for each in verdicts)
    if rewards and (log_metric := kwargs.get("log_metric")):
        # TRL averages them over the processes, so every one of them logs them, at every batch.
        log_metric(f"{name}/not_judged", rewards.count(None) / len(rewards))
        log_metric(f"{name}/timed_out", (reasons["limit"] + reasons["died"]) / len(rewards))
    if None in rewards:
        logger.warning(
            f"{name}: {rewards.count(None)} of {len(rewards)} answers were not graded and score None."
            f" Reasons: {reasons}. gold: the reference answer cannot be read; limit: reading it"
            " takes too long; died: a grading process was killed twice; budget: the time was up."
        )
    return rewards
