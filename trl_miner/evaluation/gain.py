"""What to say at the end of a training whose held-out scores are what they were before."""

from collections.abc import Sequence

import numpy as np

from ..reward_functions import WHERE_NONE_IS_RIGHT, show_ends
from ..runs.held_out import Moment
from .metrics import interval_text, paired_difference


def say_no_gain(before: Moment, after: Moment, answers: Sequence[str]) -> str | None:
    """Return what a training did not change, and what may help; None: its Pass@1 has moved beyond chance.

    Args:
        before: The scores before the training.
        after: Those after it, on the same problems.
        answers: Some answers of the trained model.
    """
    both = sorted(before.whole & after.whole)
    if not both:
        return None
    first_P, last_P = (np.array(one.num_correct)[both] / one.num_samples for one in (before, after))
    if not first_P.any() and not last_P.any():
        return (
            f"Not one answer to the {len(both)} held-out problems was right, before or after the training. The first "
            f"ones end with {show_ends(answers)}. What may help: {'; '.join(WHERE_NONE_IS_RIGHT)}."
        )
    found = paired_difference(first_P, last_P, resamples=2000)
    if not found.low <= 0 <= found.high:
        return None
    return (
        f"Pass@1 is {first_P.mean():.3f} before and {last_P.mean():.3f} after it, on {len(both)} problem(s): "
        f"{interval_text(found.difference, found.low, found.high)}, may be chance. What may help: train longer, or "
        f"with a larger learning_rate; problems that are neither all right nor all wrong; more held-out problems."
    )
