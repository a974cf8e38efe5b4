"""Pure metrics of sampled answers.

# P problems, n samples and c correct ones of each; R draws of k samples, or resamples of the problems; M metrics
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 2_000_000  # elements of one working tensor: the largest call then takes some 150 MB
_EXACT_SIGNS = 15  # differences up to which all 2^15 signs are tried


def pass_at_k(num_samples: int | Tensor, num_correct: int | Tensor, k: int) -> Tensor:
    """The chance that at least one of k samples is right: 1 - C(n-c, k) / C(n, k), unbiased for any k <= n.

    Args:
        num_samples: n, an int or (P,).
        num_correct: c, 0 <= c <= n, an int or (P,).
        k: At least 1 and at most n.

    Returns:
        float64 in [0, 1], scalar or (P,). Average it over problems.

    Raises:
        ValueError: k or c out of range.

    Source: arXiv 2107.03374, equation 1.
    """
    samples, correct = torch.broadcast_tensors(
        torch.as_tensor(num_samples, dtype=torch.float64), torch.as_tensor(num_correct, dtype=torch.float64)
    )
    if samples.numel() and not 1 <= k <= samples.min():
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {int(samples.min())} samples. Sample more, "
            f"or ask for a smaller k."
        )
    if ((correct < 0) | (correct > samples)).any():
        raise ValueError(
            "num_correct must be between 0 and num_samples: got a problem outside. Count each sample once."
        )
    wrong = samples - correct
    # log C(n-c, k) - log C(n, k), where the k! cancel; n-c < k leaves no way to draw only wrong ones
    log_ratio = (wrong + 1).lgamma() - (wrong - k + 1).clamp(min=1).lgamma()
    log_ratio = log_ratio - (samples + 1).lgamma() + (samples - k + 1).lgamma()
    return torch.where(wrong < k, 1.0, 1.0 - log_ratio.exp()).clamp(min=0.0)


def maj_at_k(answers_PN: Tensor, correct_PN: Tensor, k: int, *, repeats: int = 10, seed: int = 0) -> Tensor:
    """Is the most frequent of k answers right? One figure per draw of k samples and problem.

    Each draw takes k of the n samples without replacement. Ties go to the answer seen first in the draw; a draw in
    which nobody answers is wrong. The draws of one `seed` are nested: those of k samples begin those of k+1.

    The paper's tables of Maj@K draw with replacement, or from more samples: their deviation at K = n is not 0. Here
    every draw of n samples is the same set, and only ties still vary. Nor is the paper's deviation that of the
    benchmark's score: its numbers are the deviation over draws of each problem, averaged over problems,
    `maj.std(0, correction=0).mean()`, and not `maj.mean(1).std()`, which is several times smaller.

    Args:
        answers_PN: int64, equal where two answers to a problem are; negative: no answer, which does not vote.
        correct_PN: bool, whether the answer is right.
        k: At least 1 and at most n.
        repeats: R, draws per problem.
        seed: Of the draws.

    Returns:
        float64 (R, P) of 0 and 1, on the CPU. `.mean(1)` is one score per draw.

    Raises:
        ValueError: k, repeats or the shapes are out of range, or a right sample has no answer.

    Source: arXiv 2203.11171; arXiv 2601.04731, tables of Maj@K.
    """
    answers_PN, correct_PN = answers_PN.cpu().long(), correct_PN.cpu().bool()
    if answers_PN.ndim != 2 or answers_PN.shape != correct_PN.shape:
        raise ValueError(
            f"answers_PN and correct_PN must both be (problems, samples): got {tuple(answers_PN.shape)} and "
            f"{tuple(correct_PN.shape)}. Give one row per problem."
        )
    num_problems, num_samples = answers_PN.shape
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {num_samples} samples. Sample more, or ask "
            f"for a smaller k."
        )
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1: got {repeats}. The paper takes 10.")
    if (correct_PN & (answers_PN < 0)).any():
        raise ValueError("A right sample must have an answer: got a negative one. Give each right answer its number.")
    generator = torch.Generator().manual_seed(seed)
    bins_PN = _answer_bins(answers_PN)
    won = torch.empty(repeats * num_problems, dtype=torch.float64)
    for rows in _chunks(repeats * num_problems, num_samples):
        problems = torch.arange(rows.start, rows.stop) % num_problems
        keys = torch.rand(len(problems), num_samples, dtype=torch.float64, generator=generator)
        won[rows] = _majority_wins(bins_PN[problems], correct_PN[problems], keys.argsort(1)[:, :k])
    return won.view(repeats, num_problems)


def bootstrap_interval(
    values: Tensor, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Percentile interval of the mean over problems, had other problems of their kind been asked.

    One problem, or equal values, give an interval of no width: resampling cannot see beyond what it has.

    Args:
        values: (P,), or (P, M) for M metrics with the same resamples.
        level: Share of the resampled means inside.
        resamples: R, resampled sets of P problems.
        seed: Of the resampling.

    Returns:
        The bounds, float64, each a scalar or (M,).

    Raises:
        ValueError: No problems, values that are not finite, or a level or number of resamples out of range.
    """
    values = _finite(values, "values")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1: got {level}. 0.95 is usual.")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1: got {resamples}. 10000 settle the second digit.")
    generator = torch.Generator().manual_seed(seed)
    num_problems = len(values)
    means_RM = torch.empty(resamples, *values.shape[1:], dtype=torch.float64)
    for rows in _chunks(resamples, num_problems):
        drawn = torch.randint(num_problems, (rows.stop - rows.start, num_problems), generator=generator)
        counts = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(
            1, drawn, torch.ones(1).double().expand_as(drawn)
        )
        means_RM[rows] = counts @ values / num_problems
    tail = (1 - level) / 2
    return means_RM.quantile(tail, dim=0), means_RM.quantile(1 - tail, dim=0)


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
    a_P: Tensor, b_P: Tensor, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> PairedDifference:
    """Compare two models problem by problem.

    The test swaps the two models at random within each problem. Up to 15 problems with a difference every swap is
    tried and p is exact; beyond that p = (1 + swaps as extreme) / (1 + resamples), which is never 0.

    Args:
        a_P: Score of the first model on each problem.
        b_P: Score of the second, in the same order.
        level: Of the interval.
        resamples: Of the interval, and swaps of the test.
        seed: Of both.

    Returns:
        The difference, its interval and p; positive where the second model is better.

    Raises:
        ValueError: Shapes differ, no problems, or values that are not finite.
    """
    if a_P.ndim != 1 or a_P.shape != b_P.shape:
        raise ValueError(
            f"a_P and b_P must hold the same problems: got shapes {tuple(a_P.shape)} and {tuple(b_P.shape)}. Keep "
            f"the problems that both models were asked."
        )
    differences_P = _finite(b_P, "b_P") - _finite(a_P, "a_P")
    differences_P[differences_P.abs() < 1e-12] = 0  # pass@k of equal shares may differ in its last bits
    low, high = bootstrap_interval(differences_P, level=level, resamples=resamples, seed=seed)
    return PairedDifference(
        differences_P.mean().item(), low.item(), high.item(), _sign_flip_p(differences_P, resamples, seed)
    )


def _answer_bins(answers_PN: Tensor) -> Tensor:
    """Answers renumbered within their problem, 0 to n-1; no answer is n."""
    ordered, order = answers_PN.sort(1)
    is_new = torch.zeros_like(ordered)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    bins = torch.empty_like(ordered).scatter_(1, order, is_new.cumsum(1))
    return bins.masked_fill(answers_PN < 0, answers_PN.shape[1])


def _majority_wins(bins: Tensor, correct: Tensor, drawn: Tensor) -> Tensor:
    """Whether the winner of each row's draw is right: bins and correct (rows, n), drawn (rows, k) in drawing order."""
    num_rows, k = drawn.shape
    num_bins = bins.shape[1] + 1  # the last one holds the samples without an answer
    votes = bins.gather(1, drawn)
    places = torch.arange(k).expand(num_rows, k)
    counts = torch.zeros(num_rows, num_bins, dtype=torch.long).scatter_add_(1, votes, torch.ones_like(votes))
    first = torch.full((num_rows, num_bins), k).scatter_reduce_(1, votes, places, "amin")
    winner = (counts * (k + 1) - first)[:, :-1].argmax(1, keepdim=True)  # most votes, then the earliest place
    seen_first = first.gather(1, winner).clamp(max=k - 1)  # where nobody answers, any sample, as all are wrong
    return correct.gather(1, drawn.gather(1, seen_first)).squeeze(1).double()


def _sign_flip_p(differences_P: Tensor, resamples: int, seed: int) -> float:
    moved = differences_P[differences_P != 0]  # the sign of a 0 changes nothing
    if not len(moved):
        return 1.0
    # scores are multiples of 1/n, so that equal sums may differ in their last bits
    observed = moved.sum().abs() * (1 - 1e-9) - 1e-12
    if len(moved) <= _EXACT_SIGNS:
        flips = torch.arange(2 ** len(moved))[:, None] >> torch.arange(len(moved)) & 1
        return ((1.0 - 2.0 * flips.double()) @ moved).abs().ge(observed).double().mean().item()
    generator = torch.Generator().manual_seed(seed)
    extreme = 0
    for rows in _chunks(resamples, len(moved)):
        flips = torch.randint(2, (rows.stop - rows.start, len(moved)), generator=generator)
        extreme += int(((1.0 - 2.0 * flips.double()) @ moved).abs().ge(observed).sum())
    return (1 + extreme) / (1 + resamples)


def _finite(values: Tensor, name: str) -> Tensor:
    values = values.cpu().double()
    if not len(values) or not values.isfinite().all():
        raise ValueError(
            f"{name} must hold a finite score for at least one problem: got shape {tuple(values.shape)}, "
            f"{int((~values.isfinite()).sum())} not finite. Drop the problems without a score."
        )
    return values


def _chunks(num_rows: int, width: int) -> Iterator[slice]:
    size = max(1, _CHUNK // max(1, width))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
