"""Pure metrics of sampled answers, of numbers, arrays or tensors on the CPU.

# P problems, n samples and c correct ones of each; M metrics
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_BATCH = 2_000_000  # numbers resampled at once: about 50 MB


def pass_at_k(num_samples: Any, num_correct: Any, k: int) -> Any:
    """Return the chance that at least one of k samples is correct: 1 - C(n-c, k) / C(n, k), unbiased for any k <= n.

    Args:
        num_samples: n, an int or (P,).
        num_correct: c, 0 <= c <= n, an int or (P,).
        k: At least 1 and at most n.

    Returns:
        float64 in [0, 1], scalar or (P,). Average it over problems.

    Raises:
        ValueError: k or c out of range.

    Source: arXiv 2107.03374, equation 1, in its product form.
    """
    samples, correct = np.broadcast_arrays(_numbers(num_samples), _numbers(num_correct))
    if samples.size and not 1 <= k <= samples.min():
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {int(samples.min())} samples. Sample more, "
            f"or ask for a smaller k."
        )
    if not ((correct >= 0) & (correct <= samples)).all():  # False for NaN
        raise ValueError(
            "num_correct must be between 0 and num_samples: got a problem outside. Count each sample once, "
            "and leave out problems without a verdict."
        )
    return 1.0 - _none_right(samples, correct, k)[..., -1]


def pass_curve(num_samples: int, num_correct_P: np.ndarray) -> np.ndarray:
    """Return (P, n): `pass_at_k` for every k from 1 to n."""
    return 1.0 - _none_right(np.array(num_samples), num_correct_P, num_samples)


def _none_right(samples: np.ndarray, correct: np.ndarray, k: int) -> np.ndarray:
    """Return (..., k): the chance that none of the first 1, 2, ... k samples is right.

    C(n-c, k) / C(n, k) is the product of (n-c-i) / (n-i) over i < k, and 0 where fewer than k samples are wrong.
    """
    drawn = np.arange(k)
    wrong_left = np.clip((samples - correct)[..., None] - drawn, 0, None)
    return np.cumprod(wrong_left / (samples[..., None] - drawn), axis=-1)


def powers_of_two(largest: int) -> list[int]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself."""
    return sorted({2**power for power in range(largest.bit_length())} | {largest})


def bootstrap_interval(values: Any, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> tuple[Any, Any]:
    """Return the percentile interval of the mean over problems, had other problems of their kind been asked.

    One problem, or equal values, give an interval of no width: resampling cannot see beyond what it has.

    Args:
        values: (P,), or (P, M) for M metrics, which share the resamples.
        level: Share of the resampled means inside.
        resamples: Resampled sets of P problems.
        seed: Of the resampling.

    Returns:
        The bounds, float64, each a scalar or (M,).

    Raises:
        ValueError: No problems, values that are not finite, or a level or number of resamples out of range.
    """
    scores = _finite(values, "values")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1: got {level}. 0.95 is usual.")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1: got {resamples}. 10000 settle the second digit.")
    rng, size = np.random.default_rng(seed), len(scores)

    def counts(rows: int) -> np.ndarray:
        """Return (rows, P) how often each problem is drawn."""
        drawn = rng.integers(0, size, (rows, size)) + size * np.arange(rows)[:, None]
        return np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)

    means = _weighted_sums(scores, resamples, counts) / size
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _weighted_sums(scores: np.ndarray, resamples: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return (resamples,) or (resamples, M): the sum over problems for each row of the (rows, P) weights drawn."""
    at_once = max(1, _BATCH // len(scores))
    return np.concatenate([draw(min(at_once, resamples - start)) @ scores for start in range(0, resamples, at_once)])


@dataclass(frozen=True)
class PairedDifference:
    """How two models differ on the same problems.

    Attributes:
        difference: Mean of b minus mean of a.
        low: Lower bound of its bootstrap interval over problems.
        high: Upper bound.
        p_value: Two-sided, of the sign-flip test: had the two models been one, how often would they differ as much?
    """

    difference: float
    low: float
    high: float
    p_value: float


def paired_difference(
    a_P: Any, b_P: Any, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> PairedDifference:
    """Compare two models problem by problem.

    The test swaps the two models at random within each problem: p = (1 + swaps as extreme) / (1 + resamples).

    Args:
        a_P: Score of the first model on each problem.
        b_P: Score of the second, in the same order.
        level: Of the interval.
        resamples: Number of resamples for the interval, and of swaps for the test.
        seed: Seed of both.

    Returns:
        The difference, its interval and p; positive where the second model is better.

    Raises:
        ValueError: Shapes differ, no problems, or values that are not finite.
    """
    shapes = [np.shape(scores) for scores in (a_P, b_P)]
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise ValueError(
            f"a_P and b_P must hold the same problems: got shapes {shapes[0]} and {shapes[1]}. Keep the problems that "
            f"both models were asked."
        )
    differences_P = (_finite(b_P, "b_P") - _finite(a_P, "a_P")).round(12)  # equal shares may differ in their last bits
    low, high = bootstrap_interval(differences_P, level=level, resamples=resamples, seed=seed)
    rng = np.random.default_rng(seed)
    flipped = _weighted_sums(
        differences_P, resamples, lambda rows: rng.choice((-1.0, 1.0), (rows, len(differences_P)))
    )
    is_extreme = np.abs(flipped) > abs(differences_P.sum()) - 1e-9  # sums too
    p_value = (1 + int(is_extreme.sum())) / (1 + resamples)
    return PairedDifference(float(differences_P.mean()), float(low), float(high), p_value)


def _finite(values: Any, name: str) -> np.ndarray:
    scores = _numbers(values)
    if not len(scores) or not np.isfinite(scores).all():
        raise ValueError(
            f"{name} must hold a finite score for at least one problem: got shape {scores.shape}, "
            f"{int((~np.isfinite(scores)).sum())} not finite. Drop the problems without a score."
        )
    return scores


def _numbers(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def interval_text(difference: float, low: float, high: float) -> str:
    """Return a difference of two shares and its 95 % interval in words: `+2.00 points, 95 % -1.00 to +5.00`."""
    return f"{100 * difference:+.2f} points, 95 % {100 * low:+.2f} to {100 * high:+.2f}"


def effect_text(difference: float, low: float, high: float, p_value: float) -> str:
    """Return a difference of two shares in words: `+2.00 points, 95 % -1.00 to +5.00: no difference shown`.

    "better" or "worse" only where both the interval and p below 0.05 say so.
    """
    shown = "no difference shown"
    if p_value < 0.05 and (low > 0 or high < 0):
        shown = "better" if low > 0 else "worse"
    return f"{interval_text(difference, low, high)}: {shown}"
