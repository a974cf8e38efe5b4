"""Metrics of sampled completions, of numbers or arrays.

# P problems, n samples and c correct ones of each; R draws of k samples
"""

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
        float64 in [0, 1], a scalar or (P,). Average it over problems.

    Raises:
        ValueError: k or c is out of range.

    Source: arXiv 2107.03374, equation 1, in its product form.
    """
    samples, correct = np.broadcast_arrays(
        np.asarray(num_samples, float), np.asarray(num_correct, float)
    )
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


def maj_at_k(
    answers_PN: Any, correct_PN: Any, k: int, *, repeats: int = 10, seed: int = 0
) -> np.ndarray:
    """Return whether the most frequent of k answers is correct, for each draw of k samples and
    each problem.

    A draw takes k of the n samples without replacement. Ties go to the answer drawn first; a draw
    in which no sample has an answer is wrong. Draws of one `seed` are nested: those of k samples
    begin those of k+1. At k = n every draw is the same set, and only ties vary.

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
    answers_PN, correct_PN = np.asarray(answers_PN), np.asarray(correct_PN)
    _check_k(k, answers_PN.shape[1])
    rng, is_won_RP = np.random.default_rng(seed), np.zeros((repeats, len(answers_PN)))
    for draw in range(repeats):
        order_PK = rng.random(answers_PN.shape).argsort(1)[:, :k]
        for problem, order in enumerate(order_PK):
            values, first, counts = np.unique(
                answers_PN[problem, order], return_index=True, return_counts=True
            )
            votes = np.where(values < 0, 0, counts)
            winner = first[np.lexsort((first, -votes))[0]]
            is_won_RP[draw, problem] = votes.max() and correct_PN[problem, order[winner]]
    return is_won_RP


def _check_k(k: int, num_samples: int) -> None:
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {num_samples} samples."
            " Sample more, or ask for a smaller k."
        )


def bootstrap_interval(
    values_P: Any, *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over problems, had other problems of their
    kind been asked.

    One problem, or equal values, give an interval of no width: resampling cannot see beyond what
    it has.

    Args:
        values_P: A finite score of each problem, at least one.
        resamples: Resampled sets of P problems.
        seed: Of the resampling.

    Raises:
        ValueError: There is no problem, or a score is not finite.
    """
    from scipy import stats

    values_P = _finite(values_P, "values_P")
    if len(values_P) == 1:
        return float(values_P[0]), float(values_P[0])
    found = stats.bootstrap(
        (values_P,), np.mean, n_resamples=resamples, batch=max(1, _BATCH // len(values_P)),
        method="percentile", rng=seed,
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


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

    Args:
        a_P: Score of the first model on each problem.
        b_P: Score of the second, in the same order.
        resamples: Of the interval, and random swaps of the test; with few problems it takes all.
        seed: Of both.

    Returns:
        The difference, its interval and p; positive where the second model is better.

    Raises:
        ValueError: The scores are not finite, or not of the same problems.
    """
    from scipy import stats

    if np.shape(a_P) != np.shape(b_P) or np.ndim(a_P) != 1:
        raise ValueError(
            f"a_P and b_P must hold the same problems: got shapes {np.shape(a_P)} and"
            f" {np.shape(b_P)}. Keep the problems that both models were asked."
        )
    # equal shares may differ in their last bits
    differences_P = (_finite(b_P, "b_P") - _finite(a_P, "a_P")).round(12)
    test = stats.permutation_test(
        (differences_P, np.zeros_like(differences_P)), lambda b, a, axis: np.mean(b - a, axis),
        permutation_type="samples", vectorized=True, n_resamples=resamples,
        batch=max(1, _BATCH // len(differences_P)), rng=seed,
    )  # fmt: skip
    interval = bootstrap_interval(differences_P, resamples=resamples, seed=seed)
    return PairedDifference(float(differences_P.mean()), *interval, float(test.pvalue))


def _finite(values: Any, name: str) -> np.ndarray:
    scores = np.asarray(values, float)
    if not len(scores) or not np.isfinite(scores).all():
        raise ValueError(
            f"{name} must hold a finite score for at least one problem: got shape {scores.shape},"
            f" {int((~np.isfinite(scores)).sum())} not finite. Drop the problems without a score."
        )
    return scores
