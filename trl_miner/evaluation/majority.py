"""Maj@K: whether the most frequent of k sampled answers is correct.

# P problems, n samples of each; R draws of k samples
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def maj_at_k(answers_PN: Any, correct_PN: Any, k: int, *, repeats: int = 10, seed: int = 0) -> Any:
    """Return whether the most frequent of k answers is correct, one number per draw of k samples and problem.

    Each draw takes k of the n samples without replacement. Ties go to the answer seen first in the draw; a draw in
    which nobody answers is wrong. Draws of one `seed` are nested: those of k samples begin those of k+1. Every draw
    of all n samples is the same set, and only ties still vary; the paper's deviation at K = n is not 0.

    Args:
        answers_PN: Whole numbers, equal where two answers to a problem are; negative: no answer, which does not vote.
        correct_PN: bool, whether the answer is correct.
        k: At least 1 and at most n.
        repeats: R, draws per problem.
        seed: Of the draws.

    Returns:
        float64 (R, P) of 0 and 1. `.mean(1)` is one score per draw.

    Raises:
        ValueError: k, repeats or the shapes are out of range, or a correct sample has no answer.

    Source: arXiv 2203.11171; arXiv 2601.04731, tables of Maj@K.
    """
    return majorities(np.asarray(answers_PN), np.asarray(correct_PN), [k], repeats=repeats, seed=seed)[k]


def majorities(
    answers_PN: np.ndarray, correct_PN: np.ndarray, ks: Sequence[int], *, repeats: int, seed: int
) -> dict[int, np.ndarray]:
    """Return `maj_at_k` for each of several k, from the same draws."""
    _check(answers_PN, correct_PN, ks, repeats)
    rng = np.random.default_rng(seed)
    bins_PN = _answer_bins(answers_PN)
    won: dict[int, list[np.ndarray]] = {k: [] for k in ks}
    for _ in range(repeats):
        order_PN = rng.random(bins_PN.shape).argsort(1)
        for k in ks:
            won[k].append(_majority_wins(bins_PN, correct_PN, order_PN[:, :k]))
    return {k: np.stack(draws) for k, draws in won.items()}


def _check(answers_PN: np.ndarray, correct_PN: np.ndarray, ks: Sequence[int], repeats: int) -> None:
    if answers_PN.ndim != 2 or answers_PN.shape != correct_PN.shape:
        raise ValueError(
            f"answers_PN and correct_PN must both be (problems, samples): got {answers_PN.shape} and "
            f"{correct_PN.shape}. Give one row per problem."
        )
    num_samples = answers_PN.shape[1]
    for k in ks:
        if not 1 <= k <= num_samples:
            raise ValueError(
                f"k must be between 1 and the number of samples: got k={k} for {num_samples} samples. Sample more, or "
                f"ask for a smaller k."
            )
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1: got {repeats}. The paper takes 10.")
    if (correct_PN & (answers_PN < 0)).any():
        raise ValueError("A correct sample must have an answer: got a negative one. Number every correct answer.")


def _answer_bins(answers_PN: np.ndarray) -> np.ndarray:
    """Renumber answers within their problem, 0 to n-1; no answer is n."""
    order = answers_PN.argsort(1)
    ordered = np.take_along_axis(answers_PN, order, 1)
    is_new = np.zeros_like(ordered)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    bins = np.empty_like(ordered)
    np.put_along_axis(bins, order, is_new.cumsum(1), 1)
    return np.where(answers_PN < 0, answers_PN.shape[1], bins)


def _majority_wins(bins_PN: np.ndarray, correct_PN: np.ndarray, drawn_PK: np.ndarray) -> np.ndarray:
    """Return (P,) whether the winner of each problem's draw is correct; `drawn_PK` are samples in the order of it."""
    num_problems, k = drawn_PK.shape
    num_bins = bins_PN.shape[1] + 1  # the last one holds the samples without an answer
    # where each vote counts, for all problems in one row
    votes = (np.take_along_axis(bins_PN, drawn_PK, 1) + num_bins * np.arange(num_problems)[:, None]).T.ravel()
    counts = np.bincount(votes, minlength=num_problems * num_bins)
    first = np.full(num_problems * num_bins, k)
    first[votes[::-1]] = np.repeat(np.arange(k), num_problems)[::-1]  # of equal ones the earliest is written last
    strength = (counts * (k + 1) - first).reshape(num_problems, num_bins)  # most votes, then the earliest place
    winner_P1 = strength[:, :-1].argmax(1, keepdims=True)
    seen_first_P1 = np.take_along_axis(first.reshape(num_problems, num_bins), winner_P1, 1)
    sample_P1 = np.take_along_axis(drawn_PK, seen_first_P1.clip(max=k - 1), 1)  # nobody answers: any, as all are wrong
    return np.take_along_axis(correct_PN, sample_P1, 1)[:, 0].astype(np.float64)
