"""Grade what `trl-miner eval` has sampled, and turn it into scores. Reads result folders; needs no
model, no network.

# P problems, n samples of each; M metrics; R draws of a majority vote
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.eval_folder import read_settings, write_scores
from .graded import Graded, read_graded
from .metrics import bootstrap_interval, majorities, powers_of_two
from .score_tables import scores_markdown


def score_folder(
    folder: str | Path, *, paper: str | None = None, graded: Sequence[Graded] | None = None
) -> dict[str, Any]:
    """Score a result folder, and write `scores.json` and `scores.md` into it.

    Args:
        folder: The output of `trl-miner eval`: `settings.json` and a folder per benchmark.
        paper: A base model whose rows in the paper are shown too; None: none.
        graded: The result of `read_graded` for this folder; None: grade now.

    Returns:
        The content of `scores.json`. Scores are shares, not percent.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    if graded is None:
        graded = read_graded(folder)
    warnings = [f"{one.name}: {warning}" for one in graded for warning in one.warnings]
    scored = [one for one in graded if one.problems]
    if not scored:
        raise ValueError(f"{folder} must hold samples that can be judged. {' '.join(warnings)}")
    scores: dict[str, Any] = {
        "settings": settings,
        "benchmarks": {one.name: _summary(one) for one in scored},
        "warnings": warnings,
    }
    write_scores(folder, scores, scores_markdown(scores, paper))
    return scores


def _summary(one: Graded) -> dict[str, Any]:
    """Return a benchmark's part of `scores.json`. Its K is the number of samples."""
    k, ks = one.num_samples, powers_of_two(one.num_samples)
    votes = majorities(one.answers_PN, one.correct_PN, ks)
    intervals = _intervals({**{size: one.pass_at(size) for size in ks}, "maj@k": votes[k].mean(0)})
    return {
        **{key: one.about.get(key) for key in ("title", "grader", "fingerprint", "source")},
        "problems": len(one.problems),
        "samples": one.num_samples,
        "k": k,
        "pass@k": {str(size): intervals[size]["mean"] for size in ks},
        "pass@k_intervals": {str(size): intervals[size] for size in ks},
        "lenient_pass@1": float(one.lenient_PN.mean()),
        "maj@k": {str(size): _vote_summary(vote) for size, vote in votes.items()},
        "intervals": {"pass@1": intervals[1], "pass@k": intervals[k], "maj@k": intervals["maj@k"]},
        "truncated": float(one.truncated_PN.mean()),
        "tokens": float(one.tokens_PN.mean()),
        "levels": _by_level(one),
        "no_answer": one.no_answer,
        "not_judged": dict(one.not_judged),
        "warnings": list(one.warnings),
    }


def _by_level(one: Graded) -> list[tuple[str, int, float]]:
    """Return each level of the problems, their number and Pass@1; empty: they have none."""
    levels = np.array([problem.get("level") or "" for problem in one.problems], dtype=str)
    known = sorted({*levels.tolist()} - {""}, key=lambda level: level.zfill(4))  # "10" after "9"
    rates_of = ((level, one.pass_at(1)[levels == level]) for level in known)
    return [(level, len(rates_P), float(rates_P.mean())) for level, rates_P in rates_of]


def _intervals(scores: Mapping[Any, np.ndarray]) -> dict[Any, dict[str, float]]:
    """Return the mean of each (P,) metric, and its bootstrap interval over the problems."""
    scores_PM = np.stack(list(scores.values()), axis=1)
    lows, highs = bootstrap_interval(scores_PM)
    numbers = zip(scores, scores_PM.mean(0).tolist(), lows.tolist(), highs.tolist(), strict=True)
    return {name: {"mean": mean, "low": low, "high": high} for name, mean, low, high in numbers}


def _vote_summary(votes_RP: np.ndarray) -> dict[str, float]:
    """Return the score and its deviation over the draws."""
    scores_R = votes_RP.mean(1)
    return {"mean": float(scores_R.mean()), "std": float(scores_R.std(ddof=1))}
