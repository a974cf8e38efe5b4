"""Grade the samples of `trl-miner eval`, score them, and compare models.

# P problems, n samples of each
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..grading import grade, with_points
from .evaluate import read_samples
from .metrics import bootstrap_interval, maj_at_k, paired_difference, pass_at_k

FILE = "scores.json"
# as printed; Pass@1 and Pass@K in percent by base model, method and benchmark
PAPER = json.loads(Path(__file__).with_name("paper.json").read_text())["rows"]
Graded = tuple[dict[str, Any], pd.DataFrame]


def read_graded(path: Path) -> Graded:
    """Return how the samples of a file were drawn, and a row for each, in the order of problems:
    with whether it `is_correct`, its `answer`, and the `reason` why it could not be graded.

    Raises:
        ValueError: It lacks samples of some problems.
    """
    settings, samples = read_samples(path)
    P, n = settings["num_problems"], 1 + max((number for _, number in samples), default=0)
    if len(samples) < P * n:
        raise ValueError(
            f"{path} must hold {n} samples of each of {P} problems: got {len(samples)} in all. The"
            " command that drew them draws the missing ones."
        )
    rows = pd.DataFrame([samples[key] for key in sorted(samples)])
    texts = rows["text"].map(with_points if settings["decimal_comma"] else str).to_list()
    golds, options = rows["solution"].to_list(), rows["options"].to_list()
    verdicts = grade(settings["grader"], texts, golds, options=options, votes=True)
    rows[["is_correct", "answer", "reason"]] = pd.DataFrame(verdicts, rows.index)
    rows["is_correct"] = rows["is_correct"].eq(True)
    return settings, rows


def score(settings: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the scores of a benchmark as shares: by K, a power of 2 or n, Pass@K and Maj@K, each
    as [mean, low, high] with a 95 % interval over problems. A sample that could not be graded
    counts as wrong."""
    P, values = settings["num_problems"], {}
    correct_PN = rows["is_correct"].to_numpy().reshape(P, -1)
    answers_PN = rows["answer"].factorize()[0].reshape(P, -1)
    n = correct_PN.shape[1]
    for k in sorted({2**power for power in range(n.bit_length())} | {n}):
        values[f"Pass@{k}"] = pass_at_k(n, correct_PN.sum(1), k)
        values[f"Maj@{k}"] = maj_at_k(answers_PN, correct_PN, k).mean(0)
    return {
        "title": settings["title"],
        "problems": P,
        "samples": n,
        "cut off": int(rows["truncated"].sum()),
        "not graded": rows["reason"].value_counts().to_dict(),
        "metrics": {
            name: [values_P.mean(), *bootstrap_interval(values_P)]
            for name, values_P in values.items()
        },
    }


def score_folders(folders: Sequence[Path], paper: str | None = None) -> str:
    """Grade and score folders of `trl-miner eval`, write `scores.json` into each, and return what
    to print: their scores, the paper's for a base model, and the others against the first folder.

    Raises:
        ValueError: A folder has no samples, or lacks some; or the paper has no such model.
    """
    if paper not in (None, *PAPER):
        raise ValueError(f"--paper must be one of {', '.join(PAPER)}: got {paper}.")
    lines: list[str] = []
    first: dict[str, Graded] = {}
    for folder in folders:
        graded = {path.stem: read_graded(path) for path in sorted(folder.glob("*.jsonl"))}
        if not graded:
            raise ValueError(f"{folder} has no samples. Give the --output of `trl-miner eval`.")
        scores = {name: score(*one) for name, one in graded.items()}
        (folder / FILE).write_text(json.dumps(scores, indent=1))
        here = {}
        for one in scores.values():
            *about, (_, metrics) = one.items()
            table = pd.DataFrame(metrics, ["%", "95 % from", "to"]).mul(100).round(2)
            lines += [f"{folder}: {dict(about)}", f"{table.T}\n"]
            here[one["title"]] = [table[f"Pass@{k}"]["%"] for k in (1, one["samples"])]
        if paper:  # [Pass@1, Pass@n]
            rows = pd.DataFrame({"here": here} | PAPER[paper]).T
            lines.append(rows[[*here]].to_string(na_rep="-"))
        for name in filter(first.get, graded):
            lines.append(f"{folder} against {folders[0]}: {compare(first[name], graded[name])}")
        first = first or graded
    return "\n".join(lines)


def compare(first: Graded, second: Graded) -> str:
    """Return the difference in Pass@1 on a benchmark, its interval over problems, and p of a paired
    test, in words.

    Raises:
        ValueError: The problems are not the same.
    """
    if first[0]["problems"] != second[0]["problems"]:
        raise ValueError("The two folders have other problems of one name. Sample one again.")
    means = [rows.groupby("problem")["is_correct"].mean() for _, rows in (first, second)]
    by, low, high, p = paired_difference(*means)
    return f"{first[0]['title']}, Pass@1 {by:+.2%} ({low:+.2%} to {high:+.2%}, p {p:.4f})"
