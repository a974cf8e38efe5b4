"""Grade what `trl-miner eval` has sampled, and turn it into scores. Reads result folders; needs no model, no network.

# P problems, n samples of each; M metrics; R draws of a majority vote
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..progress import track
from ..runs.files import write_whole
from ..runs.held_out import powers_of_two
from .graded import Graded, read_graded, read_json
from .metrics import bootstrap_interval, maj_at_k
from .paired import compare_folders, comparison_markdown
from .report import report_latex, report_markdown
from .tables import known_base_model, paper_rows

__all__ = ["compare_folders", "comparison_markdown", "score_folder"]


def score_folder(
    folder: str | Path,
    *,
    repeats: int = 10,
    resamples: int = 10_000,
    seed: int = 0,
    k: int | None = None,
    partial: bool = False,
    paper: str | None = None,
    graded: Sequence[Graded] | None = None,
) -> dict[str, Any]:
    """Score a result folder, and write `scores.json`, `scores.md` and `scores.tex` into it.

    Args:
        folder: What `trl-miner eval` wrote: `settings.json` and a folder per benchmark.
        repeats: Draws of a majority vote.
        resamples: Of the bootstrap intervals.
        seed: Of both.
        k: The K of Pass@K and Maj@K in the tables; None: the number of samples of each benchmark.
        partial: Score an unfinished run with the samples that every problem has.
        paper: A base model whose rows of the paper are shown beside; None: the model itself where the paper has it.
        graded: What `read_graded` gave for this folder, k and partial, where it is there already; None: grade now.

    Returns:
        The content of `scores.json`. Scores are shares, not percent.

    Raises:
        FileNotFoundError: Not a result folder.
        ValueError: Samples are missing, k exceeds their number, files contradict each other, or the paper does not
            have that model.
    """
    folder = Path(folder)
    settings = read_json(folder / "settings.json")
    paper = known_base_model(str(settings.get("model", ""))) if paper is None else paper
    if paper is not None:
        paper_rows(paper, ())  # an unknown name is an error before the grading, which may take minutes
    if graded is None:
        graded = read_graded(folder, k=k, partial=partial)
    tracked = track(graded, f"scoring {folder}", unit="benchmarks", leave=False)
    scores: dict[str, Any] = {
        "settings": settings,
        "repeats": repeats,
        "resamples": resamples,
        "seed": seed,
        "benchmarks": {one.name: _summary(one, k, repeats, resamples, seed) for one in tracked},
        "warnings": [f"{one.name}: {warning}" for one in graded for warning in one.warnings],
    }
    write_whole(folder / "scores.json", json.dumps(scores, indent=1, allow_nan=False) + "\n")
    write_whole(folder / "scores.md", report_markdown(scores, paper))
    write_whole(folder / "scores.tex", report_latex(scores, paper))
    return scores


def _summary(one: Graded, k: int | None, repeats: int, resamples: int, seed: int) -> dict[str, Any]:
    """A benchmark's part of `scores.json`."""
    n = one.num_samples
    k = k or n
    votes = {
        size: maj_at_k(one.answers_PN, one.correct_PN, size, repeats=repeats, seed=seed)
        for size in sorted({*powers_of_two(n), k})
    }
    pass_1, pass_k = one.pass_at(1), one.pass_at(k)
    measured = {"pass@1": pass_1, "pass@k": pass_k, "maj@k": votes[k].mean(0)}
    measured |= {str(size): one.pass_at(size) for size in votes}
    intervals = _intervals(measured, resamples, seed)
    tokens = one.tokens_PN.double().flatten()
    return {
        **{key: one.about.get(key) for key in ("title", "grader", "fingerprint", "source")},
        "problems": len(one.problems),
        "samples": n,
        "k": k,
        "pass@k": {str(size): one.pass_at(size).mean().item() for size in range(1, n + 1)},
        "pass@k_intervals": {str(size): intervals[str(size)] for size in votes},
        "maj@k": {str(size): _vote_summary(vote) for size, vote in votes.items()},
        "intervals": {name: intervals[name] for name in ("pass@1", "pass@k", "maj@k")},
        "levels": _levels(one, pass_1, pass_k),
        "level_intervals": {
            level: _intervals({"pass@1": pass_1[rows], "pass@k": pass_k[rows]}, resamples, seed)
            for level, rows in _rows_of_levels(one).items()
        },
        "truncated": one.truncated_PN.double().mean().item(),
        "tokens": {
            "mean": tokens.mean().item(),
            "median": tokens.quantile(0.5).item(),
            "p95": tokens.quantile(0.95).item(),
        },
        "no_answer": one.no_answer,
        "not_judged": dict(one.not_judged),
        "per_problem": {
            problem["id"]: {"pass@1": first, "pass@k": last}
            for problem, first, last in zip(one.problems, pass_1.tolist(), pass_k.tolist(), strict=True)
        },
        "warnings": list(one.warnings),
    }


def _intervals(measured: Mapping[str, Tensor], resamples: int, seed: int) -> dict[str, dict[str, float]]:
    """Mean and bootstrap interval over the problems of each (P,) metric."""
    values_PM = torch.stack(list(measured.values()), dim=1)
    lows, highs = bootstrap_interval(values_PM, resamples=resamples, seed=seed)
    return {
        name: {"mean": mean, "low": low, "high": high}
        for name, mean, low, high in zip(
            measured, values_PM.mean(0).tolist(), lows.tolist(), highs.tolist(), strict=True
        )
    }


def _vote_summary(votes_RP: Tensor) -> dict[str, float | None]:
    """Two deviations over the draws: of the score, and, as in the paper, of each problem, averaged."""
    scores_R = votes_RP.mean(1)
    return {
        "mean": scores_R.mean().item(),
        "std": scores_R.std().item() if len(scores_R) > 1 else None,
        "std_of_problems": votes_RP.std(0, correction=0).mean().item(),
    }


def _by_number(entry: tuple[str, Any]) -> tuple[float, str]:
    """Levels that are numbers come as numbers: 2 before 10."""
    name = entry[0]
    return (float(name) if name.isdecimal() else float("inf")), name


def _rows_of_levels(one: Graded) -> dict[str, list[int]]:
    rows_of: dict[str, list[int]] = {}
    for row, problem in enumerate(one.problems):
        if problem.get("level") is not None:
            rows_of.setdefault(str(problem["level"]), []).append(row)
    return dict(sorted(rows_of.items(), key=_by_number))


def _levels(one: Graded, pass_1: Tensor, pass_k: Tensor) -> dict[str, dict[str, float]]:
    return {
        level: {"problems": len(rows), "pass@1": pass_1[rows].mean().item(), "pass@k": pass_k[rows].mean().item()}
        for level, rows in _rows_of_levels(one).items()
    }
