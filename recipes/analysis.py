"""All tables of RESULTS.md and of both studies' pages, from the raw counts.

    python recipes/analysis.py    # writes them between the marks in the pages

Each effect is a difference between runs with the same seed, with Student's t over seeds: a mean, a
95 % interval, and p, which Holm adjusts over the rows of its table. `counts.jsonl.gz` of each study
says how many samples of each held-out problem were correct, before and after a training.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

HERE = Path(__file__).parent
PAGES = ("RESULTS.md", "forks/README.md", "two-procedures/README.md")
MARGIN = 0.1  # in log-odds: what lies within counts as no difference


def scores(name: str, moment: dict[str, Any], levels: list[str], wanted: list[str]) -> dict:
    """Return Pass@1 in percent and in log-odds (half a sample added to either side), and the
    percentage of problems with a correct sample, over the problems of some levels."""
    of_problems = np.array(moment["correct"])[np.isin(levels, wanted)]
    right, total = of_problems.sum(), len(of_problems) * moment["samples"]
    odds = np.log((right + 0.5) / (total - right + 0.5))
    solved = 100 * (of_problems > 0).mean()
    return {name: 100 * right / total, f"{name} odds": odds, f"{name} solved": solved}


def read() -> pd.DataFrame:
    """Return a row per training: its scores at the start and the end, on the target (levels that no
    training sees, and that only one way of answering solves) and, as "all", on all problems; and on
    the target at temperature 0.7, with the share of worked steps."""
    rows = []
    for path in HERE.glob("*/counts.jsonl.gz"):
        head, *runs = map(json.loads, gzip.open(path, "rt"))
        for run in runs:
            levels, target = (head[what][run["world"]] for what in ("levels", "target"))
            run |= scores("end all", run["end"], levels, levels)
            for when in ("start", "end"):
                run |= scores(when, run[when], levels, target)
            if cold := run.get("end_at_0.7"):
                run |= scores("end cold", cold, head["levels_at_0.7"], target)
                steps = {**cold, "correct": cold["worked"]}
                run |= scores("worked", steps, head["levels_at_0.7"], target)
            rows.append(run)
    return pd.DataFrame(rows)


def interval(differences: pd.Series, digits: int) -> str:
    """Return a mean difference with its 95 % interval."""
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    return f"{differences.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def holm(p: list[float]) -> list[float]:
    """Return the p-values as Holm adjusts them for their number."""
    ordered = pd.Series(p).sort_values() * np.arange(len(p), 0, -1)
    return [*ordered.cummax().clip(upper=1).sort_index()]


def verdict(differences: pd.Series, p: float) -> str:
    """Return what the tests say: of a difference, and two one-sided ones against the margin."""
    above = stats.ttest_1samp(differences, -MARGIN, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, MARGIN, alternative="less").pvalue
    size = ", within the margin" if max(above, below) < 0.05 else ""
    if p < 0.05:
        return ("higher" if differences.mean() > 0 else "lower") + size
    return f"no difference{size}" if size else "not decided"


def table(pairs: dict[str, pd.DataFrame], end: str, *columns: str, has_odds: bool = False) -> str:
    """Return a table of comparisons in Markdown.

    Args:
        pairs: By name a row per seed, with the arm's scores, and GRPO's as "... of GRPO".
        end: The score that is compared, such as "end" or "end all".
        columns: Others; their means are shown.
        has_odds: Whether the difference in log-odds, which is tested, is shown, too.
    """
    odds = [both[f"{end} odds"] - both[f"{end} odds of GRPO"] for both in pairs.values()]
    p = holm([stats.ttest_1samp(each, 0).pvalue for each in odds])
    shares = [f"{name}, %" for name in (*columns, "GRPO", "arm")]
    columns = (*columns, f"{end} of GRPO", end)
    header = ["", "seeds", *shares, "points", *["log-odds"] * has_odds, "verdict"]
    lines = [header, ["---", *["---:"] * (len(header) - 2), "---"]]
    for (name, both), own, adjusted in zip(pairs.items(), odds, p, strict=True):
        means = [f"{both[column].mean():.1f}" for column in columns]
        tests = [interval(both[end] - both[f"{end} of GRPO"], 1), *[interval(own, 2)] * has_odds]
        lines.append([name, str(len(both)), *means, *tests, verdict(own, adjusted)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables() -> dict[str, str]:
    """Return every table by its name in the pages."""
    runs = read()
    made = {}
    miner = {}
    for (world, model), of_model in runs.groupby(["world", "model"]):
        is_grpo = of_model["arm"] == "GRPO"
        pairs = of_model[~is_grpo].merge(of_model[is_grpo], on="seed", suffixes=("", " of GRPO"))
        arms = dict(iter(pairs.groupby("arm")))
        name = f"{world}, {model}"
        miner[name] = arms["MINER"]
        made[name] = table(arms, "end", "start")
        if "two procedures" in world:
            made[f"{name}, at 0.7"] = table(arms, "end cold", "worked")
    made["MINER, all problems"] = table(miner, "end all", has_odds=True)
    return made | {"MINER": table(miner, "end", "start", has_odds=True)}


def write_pages() -> None:
    """Write the tables into the pages, between `<!-- table: NAME -->` and `<!-- end -->`."""
    made = tables()
    for page in PAGES:
        path = HERE / page
        text = path.read_text("utf-8")
        for name, rows in made.items():
            text = re.sub(f"(?s)(<!-- table: {name} -->\n).*?(?=<!-- end -->)", rf"\1{rows}", text)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    write_pages()
