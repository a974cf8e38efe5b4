"""Maj@K: whether the most frequent of k sampled answers is correct.

# P problems, n samples of each; R draws of k samples
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_CHUNK = 2_000_000  # elements of one working tensor: the largest call then takes some 150 MB


def maj_at_k(answers_PN: Any, correct_PN: Any, k: int, *, repeats: int = 10, seed: int = 0) -> Any:
    """Return whether the most frequent of k answers is correct, one number per draw of k samples and problem.

    Each draw takes k of the n samples without replacement. Ties go to the answer seen first in the draw; a draw in
    which nobody answers is wrong. The draws of one `seed` are nested: those of k samples begin those of k+1.

    The paper's tables of Maj@K draw with replacement, or from more samples: their deviation at K = n is not 0. Here
    every draw of n samples is the same set, and only ties still vary. Nor is the paper's deviation that of the
    benchmark's score: its numbers are the deviation over draws of each problem, averaged over problems,
    `maj.std(0, correction=0).mean()`, and not `maj.mean(1).std()`, which is several times smaller.

    Args:
        answers_PN: Whole numbers, equal where two answers to a problem are; negative: no answer, which does not vote.
        correct_PN: bool, whether the answer is correct.
        k: At least 1 and at most n.
        repeats: R, draws per problem.
        seed: Of the draws.

    Returns:
        float64 (R, P) of 0 and 1, a tensor on the CPU where the answers are one, else an array. `.mean(1)` is one
        score per draw.

    Raises:
        ValueError: k, repeats or the shapes are out of range, or a correct sample has no answer.

    Source: arXiv 2203.11171; arXiv 2601.04731, tables of Maj@K.
    """
    answers, correct = torch.as_tensor(answers_PN).cpu().long(), torch.as_tensor(correct_PN).cpu().bool()
    _check(answers, correct, k, repeats)
    num_problems, num_samples = answers.shape
    generator = torch.Generator().manual_seed(seed)
    bins_PN = _answer_bins(answers)
    won = torch.empty(repeats * num_problems, dtype=torch.float64)
    for rows in _chunks(repeats * num_problems, num_samples):
        problems = torch.arange(rows.start, rows.stop) % num_problems
        keys = torch.rand(len(problems), num_samples, dtype=torch.float64, generator=generator)
        won[rows] = _majority_wins(bins_PN[problems], correct[problems], keys.argsort(1)[:, :k])
    won_RP = won.view(repeats, num_problems)
    return won_RP if isinstance(answers_PN, Tensor) else won_RP.numpy()


def _check(answers_PN: Tensor, correct_PN: Tensor, k: int, repeats: int) -> None:
    if answers_PN.ndim != 2 or answers_PN.shape != correct_PN.shape:
        raise ValueError(
            f"answers_PN and correct_PN must both be (problems, samples): got {tuple(answers_PN.shape)} and "
            f"{tuple(correct_PN.shape)}. Give one row per problem."
        )
    num_samples = answers_PN.shape[1]
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {num_samples} samples. Sample more, or ask "
            f"for a smaller k."
        )
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1: got {repeats}. The paper takes 10.")
    if (correct_PN & (answers_PN < 0)).any():
        raise ValueError("A correct sample must have an answer: got a negative one. Number every correct answer.")


def _answer_bins(answers_PN: Tensor) -> Tensor:
    """Renumber answers within their problem, 0 to n-1; no answer is n."""
    ordered, order = answers_PN.sort(1)
    is_new = torch.zeros_like(ordered)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    bins = torch.empty_like(ordered).scatter_(1, order, is_new.cumsum(1))
    return bins.masked_fill(answers_PN < 0, answers_PN.shape[1])


def _majority_wins(bins: Tensor, correct: Tensor, drawn: Tensor) -> Tensor:
    """Return whether the winner of each row's draw is correct.

    Args:
        bins: (rows, n), of `_answer_bins`.
        correct: (rows, n).
        drawn: (rows, k), samples in the order in which they are drawn.
    """
    num_rows, k = drawn.shape
    num_bins = bins.shape[1] + 1  # the last one holds the samples without an answer
    votes = bins.gather(1, drawn)
    places = torch.arange(k).expand(num_rows, k)
    counts = torch.zeros(num_rows, num_bins, dtype=torch.long).scatter_add_(1, votes, torch.ones_like(votes))
    first = torch.full((num_rows, num_bins), k).scatter_reduce_(1, votes, places, "amin")
    winner = (counts * (k + 1) - first)[:, :-1].argmax(1, keepdim=True)  # most votes, then the earliest place
    seen_first = first.gather(1, winner).clamp(max=k - 1)  # where nobody answers, any sample, as all are wrong
    return correct.gather(1, drawn.gather(1, seen_first)).squeeze(1).double()


def _chunks(num_rows: int, width: int) -> Iterator[slice]:
    size = max(1, _CHUNK // max(1, width))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
