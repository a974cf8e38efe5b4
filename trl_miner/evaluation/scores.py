"""Grade the samples of `trl-miner eval`, score them, and compare models.

# P problems, n samples of each
"""

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..grading import grade, with_points
from .evaluate import read_samples
from .metrics import bootstrap_interval, maj_at_k, paired_difference, pass_at_k

FILE = "scores.json"
# as printed; Pass@1 and Pass@K in percent by base model, method and benchmark
PAPER = json.loads(resources.files(__package__).joinpath("paper.json").read_text())
COLUMNS = "problem sample text truncated solution options level".split()


def read_graded(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return how the samples of a file were drawn, and a row for each: with whether it `is_correct`
    and `is_graded`, and its `answer`, -1 for none, else a number that equal answers share.

    Raises:
        ValueError: It lacks samples of some problems.
    """
    settings, samples = read_samples(path)
    rows = pd.DataFrame([*samples.values()], columns=COLUMNS).sort_values(["problem", "sample"])
    counts = rows["problem"].value_counts()
    if len(counts) < settings["num_problems"] or counts.nunique() > 1:
        raise ValueError(
            f"{path} must hold as many samples of each of {settings['num_problems']} problems: got"
            f" {len(rows)} in all. The command that drew them draws the missing ones."
        )
    verdicts = grade(
        settings["grader"],
        [*map(with_points if settings["decimal_comma"] else str, rows["text"])],
        [*rows["solution"]],
        options=[*rows["options"]] if settings["grader"] == "choice" else None,
        votes=True,
    )
    rows["is_correct"] = [verdict.is_correct is True for verdict in verdicts]
    rows["is_graded"] = [verdict.is_correct is not None for verdict in verdicts]
    answers, _ = pd.factorize(pd.Series([verdict.answer for verdict in verdicts]))
    rows["answer"] = np.where(rows["is_correct"], len(rows), answers)  # all correct are one answer
    return settings, rows


def score(settings: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the scores of a benchmark as shares: by K, a power of 2 or n, Pass@K and Maj@K, each
    as [mean, low, high] with a 95 % interval over problems. A sample that could not be graded
    counts as wrong."""
    n, metrics = int(rows["sample"].nunique()), {}
    correct_PN, answers_PN = (
        rows[column].to_numpy().reshape(-1, n) for column in ("is_correct", "answer")
    )
    for k in sorted({2**power for power in range(n.bit_length())} | {n}):
        pass_P, maj_P = pass_at_k(n, correct_PN.sum(1), k), maj_at_k(answers_PN, correct_PN, k)
        for name, values_P in (("Pass", pass_P), ("Maj", maj_P.mean(0))):
            metrics[f"{name}@{k}"] = [float(values_P.mean()), *bootstrap_interval(values_P)]
    return {
        "title": settings["title"],
        "problems": len(correct_PN),
        "samples": n,
        "not graded": int((~rows["is_graded"]).sum()),
        "without an answer": int((rows["answer"] < 0).sum()),
        "cut off": int(rows["truncated"].sum()),
        "by level": rows.groupby("level")["is_correct"].mean().round(4).to_dict(),
        "metrics": metrics,
    }


def score_folders(folders: Sequence[Path], paper: str | None = None) -> str:
    """Grade and score folders of `trl-miner eval`, write `scores.json` into each, and return what
    to print: their scores, the paper's for a base model, and the others against the first folder.

    Raises:
        ValueError: A folder has no samples, or lacks some; or the paper has no such model.
    """
    lines: list[str] = []
    first: dict[str, Any] = {}
    for folder in folders:
        graded = {path.stem: read_graded(path) for path in sorted(folder.glob("*.jsonl"))}
        if not graded:
            raise ValueError(f"{folder} has no samples. Give the --output of `trl-miner eval`.")
        scores = {name: score(*one) for name, one in graded.items()}
        (folder / FILE).write_text(json.dumps(scores, indent=1))
        for one in scores.values():
            about = (f"{name} {value}" for name, value in one.items() if name != "metrics")
            table = pd.DataFrame(one["metrics"], ["%", "95 % from", "to"]).T.mul(100).round(2)
            lines += [f"{folder}: {', '.join(about)}", table.to_string(), ""]
        if paper is not None:
            lines.append(beside_paper(scores, paper))
        for name in first.keys() & graded.keys():
            lines.append(f"{folder} against {folders[0]}: {compare(first[name], graded[name])}")
        first = first or graded
    return "\n".join(lines)


def beside_paper(scores: dict[str, dict[str, Any]], model: str) -> str:
    """Return [Pass@1, Pass@n] in percent above the paper's rows for a base model, as a table.

    Raises:
        ValueError: The paper does not have this model.
    """
    if model not in PAPER["rows"]:
        raise ValueError(f"--paper must be one of {', '.join(PAPER['rows'])}: got {model}.")
    here = {
        one["title"]: [round(100 * one["metrics"][f"Pass@{k}"][0], 2) for k in (1, one["samples"])]
        for one in scores.values()
    }
    table = pd.DataFrame({"here": here} | PAPER["rows"][model]).T
    return table[[*here]].to_string(na_rep="-")


def compare(first: tuple[Any, pd.DataFrame], second: tuple[Any, pd.DataFrame]) -> str:
    """Return the difference in Pass@1 on a benchmark, its interval over problems, and p of a paired
    test, in words.

    Raises:
        ValueError: The problems are not the same.
    """
    if first[0]["problems"] != second[0]["problems"]:
        raise ValueError("The two folders have other problems of one name. Sample one again.")
    by, low, high, p = paired_difference(
        *(rows.groupby("problem")["is_correct"].mean() for _, rows in (first, second))
    )
    return f"{first[0]['title']}, Pass@1 {by:+.2%} ({low:+.2%} to {high:+.2%}, p {p:.4f})"
