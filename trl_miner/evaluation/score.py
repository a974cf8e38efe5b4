"""Grade what `trl-miner eval` has sampled, and turn it into scores. Reads result folders; needs no model, no network.

# P problems, n samples of each; M metrics; R draws of a majority vote
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import track
from ..runs.eval_folder import read_settings, write_scores
from .graded import Graded, read_graded
from .majority import majorities
from .metrics import bootstrap_interval, pass_curve, powers_of_two
from .paper import known_base_model, paper_rows
from .score_tables import scores_markdown


def score_folder(
    folder: str | Path,
    *,
    repeats: int = 10,
    resamples: int = 10_000,
    k: int | None = None,
    paper: str | None = None,
    graded: Sequence[Graded] | None = None,
) -> dict[str, Any]:
    """Score a result folder, and write `scores.json` and `scores.md` into it.

    Args:
        folder: The output of `trl-miner eval`: `settings.json` and a folder per benchmark.
        repeats: Draws of a majority vote.
        resamples: Number of resamples for the bootstrap intervals.
        k: The K of Pass@K and Maj@K in the tables; None: the number of samples of each benchmark.
        paper: A base model whose rows in the paper are shown too; None: the model itself if the paper has it.
        graded: The result of `read_graded` for this folder and k; None: grade now.

    Returns:
        The content of `scores.json`. Scores are shares, not percent.

    Raises:
        FileNotFoundError: Not a result folder.
        ValueError: Samples are missing, k exceeds their number, files contradict each other, or the paper does not
            have that model.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    paper = known_base_model(str(settings.get("model", ""))) if paper is None else paper
    if paper is not None:
        paper_rows(paper)  # an unknown name is an error before the grading, which may take minutes
    if graded is None:
        graded = read_graded(folder, k=k)
    warnings = [f"{one.name}: {warning}" for one in graded for warning in one.warnings]
    if not any(one.is_scored for one in graded):
        raise ValueError(f"{folder} must hold samples that can be judged. {' '.join(warnings)}")
    tracked = track([one for one in graded if one.is_scored], f"scoring {folder}", unit="benchmarks", leave=False)
    scores: dict[str, Any] = {
        "settings": settings,
        "repeats": repeats,
        "resamples": resamples,
        "benchmarks": {one.name: _summary(one, k, repeats, resamples) for one in tracked},
        "warnings": warnings,
    }
    write_scores(folder, scores, scores_markdown(scores, paper))
    return scores


def _summary(one: Graded, k: int | None, repeats: int, resamples: int) -> dict[str, Any]:
    """Return a benchmark's part of `scores.json`."""
    n = one.num_samples
    k = k or n
    votes = majorities(one.answers_PN, one.correct_PN, sorted({*powers_of_two(n), k}), repeats=repeats, seed=0)
    passes = dict(enumerate(pass_curve(n, one.correct_PN.sum(1)).T, start=1))
    intervals = _intervals({**{size: passes[size] for size in votes}, "maj@k": votes[k].mean(0)}, resamples)
    levels = {
        level: (len(rows), _intervals({"pass@1": passes[1][rows], "pass@k": passes[k][rows]}, resamples))
        for level, rows in _rows_of_levels(one).items()
    }
    return {
        **{key: one.about.get(key) for key in ("title", "grader", "fingerprint", "source")},
        "problems": len(one.problems),
        "samples": n,
        "k": k,
        "pass@k": {str(size): float(scores_P.mean()) for size, scores_P in passes.items()},
        "pass@k_intervals": {str(size): intervals[size] for size in votes},
        "lenient_pass@1": float(one.lenient_PN.mean()),
        "maj@k": {str(size): _vote_summary(vote) for size, vote in votes.items()},
        "intervals": {"pass@1": intervals[1], "pass@k": intervals[k], "maj@k": intervals["maj@k"]},
        "levels": {
            level: {"problems": size, **{name: found["mean"] for name, found in scores.items()}}
            for level, (size, scores) in levels.items()
        },
        "level_intervals": {level: scores for level, (_, scores) in levels.items()},
        "truncated": float(one.truncated_PN.mean()),
        "tokens": {
            "mean": float(one.tokens_PN.mean()),
            "median": float(np.quantile(one.tokens_PN, 0.5)),
            "p95": float(np.quantile(one.tokens_PN, 0.95)),
        },
        "no_answer": one.no_answer,
        "not_judged": dict(one.not_judged),
        "warnings": list(one.warnings),
    }


def _intervals(scores: Mapping[Any, np.ndarray], resamples: int) -> dict[Any, dict[str, float]]:
    """Return the mean of each (P,) metric, and its bootstrap interval over the problems."""
    scores_PM = np.stack(list(scores.values()), axis=1)
    lows, highs = bootstrap_interval(scores_PM, resamples=resamples)
    numbers = zip(scores, scores_PM.mean(0).tolist(), lows.tolist(), highs.tolist(), strict=True)
    return {name: {"mean": mean, "low": low, "high": high} for name, mean, low, high in numbers}


def _vote_summary(votes_RP: np.ndarray) -> dict[str, float | None]:
    """Return the score and its deviation over the draws."""
    scores_R = votes_RP.mean(1)
    return {"mean": float(scores_R.mean()), "std": float(scores_R.std(ddof=1)) if len(scores_R) > 1 else None}


def _rows_of_levels(one: Graded) -> dict[str, list[int]]:
    """Return the rows of each level's problems; numbers in levels in their order: 2 before 10."""
    rows_of: dict[str, list[int]] = {}
    for row, problem in enumerate(one.problems):
        if problem.get("level") is not None:
            rows_of.setdefault(str(problem["level"]), []).append(row)
    return {level: rows_of[level] for level in sorted(rows_of, key=lambda level: (len(level), level))}
