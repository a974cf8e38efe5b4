"""The tables of README.md from raw results, as protocol.md lays down. Prints Markdown.

python tables.py results/pilot    # results/pilot.jsonl.gz of trl-miner compare, results/pilot_measures.jsonl
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs
from trl_miner.tables import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "forks"))
from analysis import effect, interval, late, plain  # noqa: E402

SUMS = ("3", "4")  # levels of the held-out sums
Measure = Callable[["Measured"], float]


class Measured:
    """A run with its line of measures.jsonl."""

    def __init__(self, run: RunHistory, line: Mapping[str, Any]) -> None:
        self.run, self.line = run, line
        assert run.held_out is not None and run.held_out.after is not None and run.held_out.levels is not None
        self.after, self.levels = run.held_out.after, run.held_out.levels

    def share(self, name: str, levels: Collection[str] = SUMS) -> float:
        """Return the share of samples that are "correct" or "worked", at temperature 0.7."""
        pairs = zip(self.line[f"num_{name}"], self.line["level"], strict=True)
        return float(np.mean([count for count, level in pairs if level in levels])) / self.line["num_samples"]

    def share_at_1(self, levels: Collection[str] = SUMS, *, once: bool = False) -> float:
        """Return the share of right samples at temperature 1, or with `once` of problems with a right one."""
        pairs = zip(self.after.num_correct, self.levels, strict=True)
        right = np.array([count for count, level in pairs if level in levels])
        return float((right > 0).mean() if once else right.mean() / self.after.num_samples)

    def log_odds(self, share: float, num_samples: int) -> float:
        """Return the logit of a share of right samples of the sums, with half a sample added to either side."""
        total = num_samples * sum(level in SUMS for level in self.levels)
        return math.log((share * total + 0.5) / (total - share * total + 0.5))

    def primary(self) -> float:
        """Return the primary measure: Pass@1 on the held-out sums at temperature 0.7, in log-odds."""
        return self.log_odds(self.share("correct"), self.line["num_samples"])

    def primary_at_1(self) -> float:
        """Return the same at temperature 1."""
        return self.log_odds(self.share_at_1(), self.after.num_samples)

    def all_right(self) -> float:
        """Return the share of all-right prompts in the middle half of the steps."""
        steps = self.run.steps
        values = [value for step, value in self.run.values("groups/ph") if 0.25 * steps < step <= 0.75 * steps]
        return float(np.mean(values))


COLUMNS: Mapping[str, Measure] = {
    "Three terms": lambda own: own.share("correct", ["3"]),
    "Four terms": lambda own: own.share("correct", ["4"]),
    "Worked": lambda own: own.share("worked"),
    "Three terms, T 1": lambda own: own.share_at_1(["3"]),
    "Four terms, T 1": lambda own: own.share_at_1(["4"]),
    "Any right, T 1": lambda own: own.share_at_1(once=True),
    "Products, T 1": lambda own: own.share_at_1(["product"]),
    "Worked, trained": lambda own: late(own.run, "rewards/is_worked/mean"),
    "All right": Measured.all_right,
    "Choice": lambda own: own.line.get("choice_share") or math.nan,
}


def read(prefix: str) -> dict[str, dict[int, Measured]]:
    """Return the finished runs that have been measured, by arm and seed."""
    text = Path(f"{prefix}_measures.jsonl").read_text(encoding="utf-8")
    lines = {(line["method"], line["seed"]): line for line in map(json.loads, text.splitlines())}
    found: dict[str, dict[int, Measured]] = {}
    for run in read_runs(f"{prefix}.jsonl.gz"):
        if run.finished and run.method and run.seed is not None and (line := lines.get((run.method, run.seed))):
            found.setdefault(run.method, {})[run.seed] = Measured(run, line)
    return found


def tables(arms: Mapping[str, Mapping[int, Measured]]) -> list[Table]:
    """Return what came out, in percent, and the effects against GRPO, in log-odds."""
    means = []
    for name, runs in arms.items():
        shares = [100 * float(np.mean([of(run) for run in runs.values()])) for of in COLUMNS.values()]
        means.append([name, str(len(runs)), *(plain(share, 1) for share in shares)])
    effects = []
    for name, runs in arms.items():
        seeds = sorted(set(runs) & set(arms.get("grpo", {}))) if name != "grpo" else []
        if seeds:
            found = [
                effect([of(runs[seed]) - of(arms["grpo"][seed]) for seed in seeds])
                for of in (Measured.primary, Measured.primary_at_1)
            ]
            effects.append([name, str(len(seeds)), *(cell for one in found for cell in (interval(one), one.verdict))])
    header = ["Arm", "Seeds", "Log-odds, T 0.7", "Verdict", "Log-odds, T 1", "Verdict"]
    return [Table("After training, %", ["Arm", "Runs", *COLUMNS], means), Table("Against GRPO", header, effects)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", help="of the two files, such as results/pilot")
    print("\n".join(table.markdown() for table in tables(read(parser.parse_args().prefix))), end="")
