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
PAPER = json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
Scores = dict[str, Any]


def read_graded(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return how the samples of a file were drawn, and a row for each: with whether it `is_correct`
    and `is_graded`, and its `answer`, -1 for none, else a number that equal answers share.

    Raises:
        ValueError: It lacks samples of some problems.
    """
    settings, samples = read_samples(path)
    rows = pd.DataFrame([*samples.values()], columns=["problem", "sample", "text", "truncated",
                                                      "solution", "options", "level"])  # fmt: skip
    counts = rows["problem"].value_counts()
    if len(counts) < settings["problems"] or counts.nunique() > 1:
        raise ValueError(
            f"{path} must hold as many samples of each of its {settings['problems']} problems: got"
            f" {len(rows)}. The command that drew them draws the missing ones."
        )
    verdicts = grade(
        settings["grader"],
        [*(rows["text"].map(with_points) if settings["decimal_comma"] else rows["text"])],
        [*rows["solution"]],
        options=[*rows["options"]] if settings["grader"] == "choice" else None,
        votes=True,
    )
    answers, _ = pd.factorize(pd.Series([verdict.answer for verdict in verdicts]))
    is_correct = pd.Series([verdict.is_correct for verdict in verdicts], dtype="boolean")
    rows = rows.assign(
        is_correct=is_correct.fillna(False).astype(bool),
        is_graded=is_correct.notna(),
        # all correct ones are one answer
        answer=np.where(is_correct.fillna(False), len(answers), answers),
    )
    return settings, rows.sort_values(["problem", "sample"])


def score(settings: dict[str, Any], rows: pd.DataFrame, ks: Sequence[int] = ()) -> Scores:
    """Return the scores of a benchmark, as shares: Pass@K and Maj@K for K = 1, n and `ks`, each as
    [mean, low, high] with a 95 % interval over problems.

    A sample that could not be graded counts as wrong; a problem without a graded one is left out.
    """
    n = rows["sample"].nunique()
    kept = rows[rows.groupby("problem")["is_graded"].transform("any")]
    correct_PN, answers_PN = (
        kept[column].to_numpy().reshape(-1, n) for column in ("is_correct", "answer")
    )
    metrics = {}
    for k in sorted({1, n, *ks}):
        metrics[f"Pass@{k}"] = pass_at_k(n, correct_PN.sum(1), k)
        if k > 1:
            metrics[f"Maj@{k}"] = maj_at_k(answers_PN, correct_PN, k).mean(0)
    return {
        "title": settings["title"], "problems": len(correct_PN), "samples": n,
        "left out": settings["problems"] - len(correct_PN),
        "ungraded": int((~rows["is_graded"]).sum()),
        "no answer": float((kept["answer"] < 0).mean()),
        "cut off": float(kept["truncated"].mean()),
        "Pass@1 by level": kept.groupby("level")["is_correct"].mean().to_dict(),
        "metrics": {
            name: [values_P.mean(), *bootstrap_interval(values_P)]
            for name, values_P in metrics.items()
        },
    }  # fmt: skip


def score_folders(
    folders: Sequence[str | Path], ks: Sequence[int] = (), paper: str | None = None
) -> str:
    """Grade and score folders of `trl-miner eval`, write `scores.json` into each, and return what
    to print: their scores, the paper's for a base model, and the others against the first folder.

    Raises:
        ValueError: A folder has no samples, or lacks some; or the paper has no such model.
    """
    parts, first = [], {}
    for folder in map(Path, folders):
        graded = {path.stem: read_graded(path) for path in sorted(folder.glob("*.jsonl"))}
        if not graded:
            raise ValueError(f"{folder} has no samples. Give the --output of `trl-miner eval`.")
        scores = {name: score(*one, ks) for name, one in graded.items()}
        text = json.dumps(
            {
                "model": {name: one["model"] for name, (one, _) in graded.items()},
                "benchmarks": scores,
            },
            indent=1,
        )
        (folder / FILE).write_text(text, encoding="utf-8")
        parts += [f"{folder}:", *map(sentence, scores.values())]
        if paper is not None:
            parts.append(beside_paper(scores, paper).to_string(na_rep="-"))
        for name in first.keys() & graded.keys():
            parts.append(f"{compare(first[name], graded[name])} than {folders[0]}")
        first = first or graded
    return "\n".join(parts)


def sentence(scores: Scores) -> str:
    """Return the scores of a benchmark in words."""
    shown = [
        f"{name} {mean:.2%} ({low:.2%} to {high:.2%})"
        for name, (mean, low, high) in scores["metrics"].items()
    ]
    shown += [f"{scores[name]:.1%} {name}" for name in ("cut off", "no answer")]
    shown += [f"{scores[name]} {name}" for name in ("ungraded", "left out") if scores[name]]
    levels = scores["Pass@1 by level"]
    if len(levels) > 1:
        shown.append(
            "by level " + ", ".join(f"{key}: {value:.1%}" for key, value in levels.items())
        )
    size = f"{scores['problems']} problems x {scores['samples']}"
    return f"  {scores['title']}, {size}: {'; '.join(shown)}"


def beside_paper(scores: dict[str, Scores], base_model: str) -> pd.DataFrame:
    """Return Pass@1 and Pass@K in percent above the paper's rows for a base model. Its Pass@K is
    left out where its K is another.

    Raises:
        ValueError: The paper does not have this model.
    """
    if base_model not in PAPER["rows"]:
        raise ValueError(f"--paper: {base_model!r} is none of {', '.join(PAPER['rows'])}.")
    columns = {}
    for one in scores.values():
        for place, k in enumerate((1, one["samples"])):
            column = {"here": 100 * one["metrics"][f"Pass@{k}"][0]}
            if k in (1, PAPER["k"].get(one["title"])):
                for method, printed in PAPER["rows"][base_model].items():
                    column[f"paper: {method}"] = printed.get(one["title"], [None, None])[place]
            columns[f"{one['title']} P@{k}"] = column
    return pd.DataFrame(columns).round(2)


def compare(first: tuple[Scores, pd.DataFrame], second: tuple[Scores, pd.DataFrame]) -> str:
    """Return the difference in Pass@1 on a benchmark, its interval over problems, and p of a paired
    test, in words.

    Raises:
        ValueError: The problems are not the same.
    """
    (a, of_a), (b, of_b) = first, second
    if a["fingerprint"] != b["fingerprint"]:
        raise ValueError(f"{a['title']} has other problems in the two folders. Sample one again.")
    scores = [rows.groupby("problem")["is_correct"].mean() for rows in (of_a, of_b)]
    by, low, high, p = paired_difference(*scores)
    return f"  {a['title']}: Pass@1 {by:+.2%} ({low:+.2%} to {high:+.2%}, p {p:.4f})"
