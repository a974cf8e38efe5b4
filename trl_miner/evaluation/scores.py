"""Grade the samples of `trl-miner eval`, score them, and compare models.

# P problems, n samples of each
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ..grading import grade, with_points
from .evaluate import read_samples
from .metrics import bootstrap_interval, maj_at_k, pass_at_k

FILE = "scores.json"
# as printed; Pass@1 and Pass@K in percent by base model, method and benchmark
PAPER = json.loads(Path(__file__).with_name("paper.json").read_text())["rows"]


def read_graded(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
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
    texts = [*rows["text"].map(with_points if settings["decimal_comma"] else str)]
    golds, options = [*rows["solution"]], [*rows["options"]]
    verdicts = grade(settings["grader"], texts, golds, options=options, votes=True)
    rows = rows.join(pd.DataFrame(verdicts))
    return settings, rows.assign(is_correct=rows["is_correct"].eq(True))


def score(settings: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the scores of a benchmark as shares: by K, a power of 2 or n, Pass@K and Maj@K, each
    as [mean, low, high] with a 95 % interval over problems. A sample that could not be graded
    counts as wrong."""
    P, metrics = settings["num_problems"], {}
    correct_PN = rows["is_correct"].to_numpy().reshape(P, -1)
    answers_PN = rows["answer"].factorize()[0].reshape(P, -1)
    n = correct_PN.shape[1]
    for k in sorted({2**power for power in range(n.bit_length())} | {n}):
        pass_P = pass_at_k(n, correct_PN.sum(1), k)
        maj_P = maj_at_k(answers_PN, correct_PN, k).mean(0)
        for name, values_P in {f"Pass@{k}": pass_P, f"Maj@{k}": maj_P}.items():
            metrics[name] = [values_P.mean(), *bootstrap_interval(values_P)]
    return {
        "title": settings["title"],
        "problems": P,
        "samples": n,
        "cut off": int(rows["truncated"].sum()),
        "not graded": rows["reason"].value_counts().to_dict(),
        "metrics": metrics,
    }


def score_folders(folders: Sequence[Path], paper: str | None = None) -> str:
    """Grade and score folders of `trl-miner eval`, write `scores.json` into each, and return what
    to print: their scores, the paper's for a base model, and the difference of the others from the
    first folder that has the same problems.

    Raises:
        ValueError: A folder has no samples, or lacks some.
    """
    lines: list[str] = []
    firsts: dict[Any, Any] = {}  # scores by benchmark and hash of its problems
    for folder in folders:
        scores = {}
        for path in sorted(folder.glob("*.jsonl")):
            settings, rows = read_graded(path)
            one = scores[path.stem] = score(settings, rows)
            *about, metrics = one.items()
            table = pd.DataFrame(metrics[1], ["%", "95 % from", "to"]).mul(100).round(2)
            lines += [f"{folder}\n{pd.Series(dict(about)).to_string()}", f"{table.T}\n"]
            for method, row in PAPER.get(paper, {}).items():
                lines.append(
                    f"paper, {method}: Pass@1, and Pass@K at its K, {row.get(one['title'])}"
                )
            mean_P = rows.groupby("problem")["is_correct"].mean()
            first_P = firsts.setdefault((path.stem, settings["problems"]), mean_P)
            if first_P is not mean_P:
                by_P = (mean_P - first_P).round(12)  # equal shares may differ in their last bits
                low, high = bootstrap_interval(by_P)
                # of one set of values scipy flips the signs
                test = stats.permutation_test(
                    [by_P], np.mean, permutation_type="samples", batch=1000, rng=0
                )
                told = f"{by_P.mean():+.2%} ({low:+.2%} to {high:+.2%}, p {test.pvalue:.4f})"
                lines.append(f"{path} against the first: Pass@1 {told}\n")
        if not scores:
            raise ValueError(f"{folder} has no samples. Give the --output of `trl-miner eval`.")
        (folder / FILE).write_text(json.dumps(scores, indent=1))
    return "\n".join(lines)
