"""What to say at the end of a training whose held-out scores are what they were before."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..reward_functions import WHERE_NONE_IS_RIGHT, show_ends
from ..runs.held_out import Moment
from .metrics import paired_difference

MANY_CUT, FEW_USED = 0.2, 0.1  # shares of rollouts that are cut off, and that have an advantage


def say_no_gain(
    before: Moment, after: Moment, logs: Sequence[Mapping[str, Any]], answers: Sequence[str]
) -> str | None:
    """Return what a training did not change, and what may help; None: its Pass@1 has moved beyond chance.

    Args:
        before: The scores before the training.
        after: Those after it, on the same problems.
        logs: What the training has logged.
        answers: Some answers of the trained model.
    """
    both = sorted(before.whole & after.whole)
    if not both:
        return None
    first_P, last_P = (np.array(one.num_correct)[both] / one.num_samples for one in (before, after))
    if not first_P.any() and not last_P.any():
        return (
            f"Not one answer to the {len(both)} held-out problems was right, before or after the training. The first "
            f"ones end with {show_ends(answers)}. What may help: {'; '.join(_advice(logs, is_too_hard=True))}."
        )
    found = paired_difference(first_P, last_P, resamples=2000)
    if not found.low <= 0 <= found.high:
        return None
    return (
        f"Pass@1 is {first_P.mean():.3f} before and {last_P.mean():.3f} after the training: a difference of "
        f"{found.difference:+.3f}, with a 95 % interval over {len(both)} problem(s) from {found.low:+.3f} to "
        f"{found.high:+.3f}, may be chance. What may help: {'; '.join(_advice(logs, is_too_hard=False))}."
    )


def _advice(logs: Sequence[Mapping[str, Any]], *, is_too_hard: bool) -> list[str]:
    cut, used = (_last(logs, name) for name in ("completions/clipped_ratio", "rollouts/used"))
    advice = []
    if cut is not None and cut >= MANY_CUT:
        advice.append(f"raise max_completion_length, at which {cut:.0%} of the last rollouts were cut off")
    if is_too_hard:
        advice += WHERE_NONE_IS_RIGHT
    elif used is not None and used <= FEW_USED:
        advice.append(f"take problems of another difficulty, as {used:.0%} of the last rollouts had an advantage")
    else:
        advice += ["train longer, or with a larger learning_rate", "score more problems, which shows smaller changes"]
    return advice


def _last(logs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((float(log[name]) for log in reversed(logs) if name in log), None)
