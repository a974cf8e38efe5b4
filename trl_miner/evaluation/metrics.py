"""Pure metrics of sampled answers, of numbers, arrays or tensors on the CPU.

# P problems, n samples and c correct ones of each; M metrics; R draws of k samples
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_BATCH = 2_000_000  # numbers resampled at once: about 50 MB


def pass_at_k(num_samples: Any, num_correct: Any, k: int) -> Any:
    """Return the chance that at least one of k samples is correct: 1 - C(n-c, k) / C(n, k),
    unbiased for any k <= n.

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
    if samples.size:
        _check_k(k, int(samples.min()))
    if not ((correct >= 0) & (correct <= samples)).all():  # False for NaN
        raise ValueError(
            "num_correct must be between 0 and num_samples: got a problem outside. Count each"
            " sample once, and leave out problems without a verdict."
        )
    drawn = np.arange(k)
    # 0 where fewer than k samples are wrong
    wrong_left = np.clip((samples - correct)[..., None] - drawn, 0, None)
    return 1.0 - np.prod(wrong_left / (samples[..., None] - drawn), axis=-1)


def maj_at_k(answers_PN: Any, correct_PN: Any, k: int, *, repeats: int = 10, seed: int = 0) -> Any:
    """Return whether the most frequent of k answers is correct, one number per draw of k samples
    and problem.

    Each draw takes k of the n samples without replacement. Ties go to the answer seen first in the
    draw; a draw in which nobody answers is wrong. Draws of one `seed` are nested: those of k
    samples begin those of k+1. Every draw of all n samples is the same set, and only ties still
    vary; the paper's deviation at K = n is not 0.

    Args:
        answers_PN: Whole numbers, equal where two answers to a problem are; negative: no answer,
            which does not vote.
        correct_PN: bool, whether the answer is correct.
        k: At least 1 and at most n.
        repeats: R, draws per problem; the paper's are 10.
        seed: Of the draws.

    Returns:
        float64 (R, P) of 0 and 1. `.mean(1)` is one score per draw.

    Raises:
        ValueError: k is out of range.

    Source: arXiv 2203.11171; arXiv 2601.04731, tables of Maj@K.
    """
    return majorities(
        np.asarray(answers_PN), np.asarray(correct_PN), [k], repeats=repeats, seed=seed
    )[k]


def majorities(
    answers_PN: np.ndarray,
    correct_PN: np.ndarray,
    ks: Sequence[int],
    *,
    repeats: int = 10,
    seed: int = 0,
) -> dict[int, np.ndarray]:
    """Return `maj_at_k` for each of several k, from the same draws."""
    for k in ks:
        _check_k(k, answers_PN.shape[1])
    rng, answers_PN = np.random.default_rng(seed), np.maximum(answers_PN, -1)
    won = {k: np.zeros((repeats, len(answers_PN))) for k in ks}
    for draw in range(repeats):
        order_PN = rng.random(answers_PN.shape).argsort(1)
        drawn = [
            np.take_along_axis(array_PN, order_PN, 1).tolist()
            for array_PN in (answers_PN, correct_PN)
        ]
        for problem, (answers, is_correct) in enumerate(zip(*drawn, strict=True)):
            for k in ks:
                votes = Counter(answers[:k])  # in the order of the draw
                votes.pop(-1, None)
                if votes:
                    won[k][draw, problem] = is_correct[
                        answers.index(max(votes, key=votes.__getitem__))
                    ]
    return won


def _check_k(k: int, num_samples: int) -> None:
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {num_samples} samples."
            " Sample more, or ask for a smaller k."
        )


def powers_of_two(largest: int) -> list[int]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself."""
    return sorted({2**power for power in range(largest.bit_length())} | {largest})


def bootstrap_interval(values: Any, *, resamples: int = 10_000, seed: int = 0) -> tuple[Any, Any]:
    """Return the 95 % percentile interval of the mean over problems, had other problems of their
    kind been asked.

    One problem, or equal values, give an interval of no width: resampling cannot see beyond what it
    has.

    Args:
        values: (P,), or (P, M) for M metrics, which share the resamples. The bounds are scalars or
            (M,).
        resamples: Resampled sets of P problems.
        seed: Of the resampling.
    """
    # Not scipy's, whose import would take a twentieth of the time of the first run.
    scores = _finite(values, "values")
    generator, size = np.random.default_rng(seed), len(scores)
    at_once = max(1, _BATCH // scores.size)
    means = [
        scores.T[..., generator.integers(0, size, (min(at_once, resamples - done), size))].mean(
            axis=-1
        )
        for done in range(0, resamples, at_once)
    ]
    low, high = np.percentile(np.concatenate(means, axis=-1), (2.5, 97.5), axis=-1)
    return low, high


@dataclass(frozen=True)
class PairedDifference:
    """How two models differ on the same problems."""

    difference: float  # mean of b minus mean of a
    low: float  # of its 95 % bootstrap interval over problems
    high: float
    # two-sided, of the sign-flip test: were the models one, how often would they differ as much?
    p_value: float


def paired_difference(
    a_P: Any, b_P: Any, *, resamples: int = 10_000, seed: int = 0
) -> PairedDifference:
    """Compare two models problem by problem.

    The test swaps the two models at random within each problem: p = (1 + swaps as extreme) / (1 +
    resamples).

    Args:
        a_P: Score of the first model on each problem.
        b_P: Score of the second, in the same order.
        resamples: Number of resamples for the interval, and of swaps for the test.
        seed: Seed of both.

    Returns:
        The difference, its interval and p; positive where the second model is better.
    """
    shapes = [np.shape(scores) for scores in (a_P, b_P)]
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise ValueError(
            f"a_P and b_P must hold the same problems: got shapes {shapes[0]} and {shapes[1]}. Keep"
            " the problems that both models were asked."
        )
    # equal shares may differ in their last bits
    differences_P = (_finite(b_P, "b_P") - _finite(a_P, "a_P")).round(12)
    low, high = bootstrap_interval(differences_P, resamples=resamples, seed=seed)
    rng = np.random.default_rng(seed)
    flipped = np.array(
        [rng.choice((-1.0, 1.0), len(differences_P)) @ differences_P for _ in range(resamples)]
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
    """Return a difference of two shares and its 95 % interval in words: `+2.00 points, 95 % -1.00
    to +5.00`."""
    return f"{100 * difference:+.2f} points, 95 % {100 * low:+.2f} to {100 * high:+.2f}"


def effect_text(difference: float, low: float, high: float, p_value: float) -> str:
    """Return a difference of two shares in words: `+2.00 points, 95 % -1.00 to +5.00: no difference
    shown`.

    "better" or "worse" only where both the interval and p below 0.05 say so.
    """
    shown = "no difference shown"
    if p_value < 0.05 and (low > 0 or high < 0):
        shown = "better" if low > 0 else "worse"
    return f"{interval_text(difference, low, high)}: {shown}"
