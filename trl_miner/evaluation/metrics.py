"""Metrics of sampled completions.

# P problems, n samples and c correct ones of each; R draws of k samples
"""

from typing import Any

import numpy as np


def pass_at_k(num_samples: Any, num_correct: Any, k: int) -> Any:
    """Return the chance that at least one of k samples is correct: 1 - C(n-c, k) / C(n, k),
    unbiased for any k <= n.

    >>> float(pass_at_k(4, 1, 2))
    0.5

    Args:
        num_samples: n, an int or (P,).
        num_correct: c, 0 <= c <= n, an int or (P,).
        k: At least 1 and at most n.

    Returns:
        float64 in [0, 1], a scalar or (P,). Average it over problems.

    Raises:
        ValueError: k or c is out of range.

    Source: arXiv 2107.03374, equation 1.
    """
    from scipy import stats

    chance = stats.hypergeom.sf(0, num_samples, num_correct, k)  # of more than 0 correct ones
    if k < 1 or np.isnan(chance).any():
        given = f"k={k}, num_samples={num_samples}, num_correct={num_correct}"
        raise ValueError(f"1 <= k <= num_samples and 0 <= num_correct <= num_samples: got {given}.")
    return chance


def maj_at_k(
    answers_PN: Any, correct_PN: Any, k: int, *, repeats: int = 10, seed: int = 0
) -> np.ndarray:
    """Return whether the most frequent of k answers is correct, for each draw of k samples and
    each problem.

    A draw takes k of the n samples without replacement. Ties go to the answer drawn first; a draw
    in which no sample has an answer is wrong. Draws of one `seed` are nested: those of k samples
    begin those of k+1. At k = n every draw is the same set, and only ties vary.

    >>> maj_at_k([[7, 7, 8]], [[True, True, False]], 3, repeats=2)
    array([[1.],
           [1.]])

    Args:
        answers_PN: Whole numbers, equal where two answers to a problem are; negative: no answer,
            which does not vote.
        correct_PN: bool, whether the answer is correct; false for none.
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
    pass_at_k(answers_PN.shape[1], 0, k)  # refuses k
    rng, is_won_RP = np.random.default_rng(seed), np.zeros((repeats, len(answers_PN)))
    for is_won_P in is_won_RP:
        for problem, order in enumerate(rng.random(answers_PN.shape).argsort(1)[:, :k]):
            drawn = answers_PN[problem, order]
            votes = (drawn[:, None] == drawn).sum(1) * (drawn >= 0)
            is_won_P[problem] = correct_PN[problem, order[votes.argmax()]]  # the first with most
    return is_won_RP


def bootstrap_interval(values_P: Any, *, resamples: int = 10_000) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over problems, had other problems of their
    kind been asked: (low, high).

    One problem, or equal values, give an interval of no width: resampling cannot see beyond what
    it has.
    """
    from scipy import stats

    found = stats.bootstrap(
        [np.resize(values_P, max(2, len(values_P)))],  # scipy refuses a single one
        np.mean, n_resamples=resamples, batch=1000, method="percentile", rng=0,
    )  # fmt: skip
    low, high = found.confidence_interval
    return float(low), float(high)
