"""The tables and the picture of the page from raw results, as protocol.md lays down.

python tables.py                 # writes tables.md and the pictures from results
python tables.py results/check   # prints the tables of results/check.jsonl.gz and results/check_measures.jsonl
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trl_miner.common.tables import Table
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs
from trl_miner.viewing.effects import crossed_difference, holm

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "forks"))
from analysis import (  # noqa: E402
    COMPARED,
    comparison_rows,
    effect,
    gradient_share,
    interval,
    late,
    paired,
    pass_at_1,
    plain,
    right_samples,
    signed,
)

SUMS = ("3", "4")  # levels of the held-out sums
USUAL_RATE = 5e-6  # the learning rate that an arm takes where none is clearly better
GRPO, GRPO_FAST = "grpo", "grpo_1e-5"
SMOOTHED = 10  # steps whose mean the picture shows
CONFIRMATORY = (("miner", GRPO), ("miner_5", GRPO), ("miner_5", "entropy_5"))
# at one learning rate
DOSES = (("miner_20", "miner_5"), ("miner_5", "miner_1"), ("miner_1", "entropy_1"))
RESULTS = FOLDER / "results"
ARMS = [RESULTS / name for name in ("arms_amd", "arms_xeon")]  # by machine
MIRROR = RESULTS / "mirror_xeon"
PILOTS = {
    "pilot_902": "Pilot at start 902, learning rate 1e-5",
    "pilot_903": "Pilot at start 903, learning rate 1e-5",
    "pilot_903_low": "Pilot at start 903, learning rate 2.5e-6",
}
LABELS = {  # of the picture, from above
    "oracle": "oracle",
    "entropy_5": "entropy bonus, 5 % of the gradient",
    "entropy_1": "entropy bonus, 1 %",
    "miner_20": "MINER, 20 % of the gradient",
    "miner_5": "MINER, 5 %",
    "miner_1": "MINER, 1 %",
    "miner": "MINER, the default",
    "grpo_1e-5": "GRPO, twice the learning rate",
    "grpo": "GRPO",
}


@dataclass(frozen=True)
class Measured:
    """A run with its line of measures.jsonl."""

    run: RunHistory
    line: Mapping[str, Any]

    @property
    def rate(self) -> float:
        """The learning rate."""
        return float(self.run.settings["learning_rate"])

    def total(self, name: str, *levels: str) -> int:
        """Return how many samples of these levels are "correct", "worked" or "both", at temperature
        0.7."""
        return sum(
            n
            for n, level in zip(self.line[name], self.line["level"], strict=True)
            if level in levels
        )

    def share(self, name: str, *levels: str) -> float:
        """Return that as a share of the samples."""
        return self.total(name, *levels) / (
            self.line["num_samples"] * sum(x in levels for x in self.line["level"])
        )

    def among_direct(self, *levels: str) -> float:
        """Return the share of right samples among direct answers."""
        right, all_of = (
            self.share("correct", *levels) - self.share("both", *levels),
            1 - self.share("worked", *levels),
        )
        return right / all_of if all_of else math.nan

    def among_worked(self, *levels: str) -> float:
        """Return the share of right samples among worked ones."""
        all_of = self.total("worked", *levels)
        return self.total("both", *levels) / all_of if all_of else math.nan

    def points(self) -> list[float]:
        """Return the share of right samples of each held-out sum at temperature 0.7, in percent."""
        rows = zip(self.line["correct"], self.line["level"], strict=True)
        return [100 * n / self.line["num_samples"] for n, level in rows if level in SUMS]

    def primary(self) -> float:
        """Return Pass@1 on the held-out sums at temperature 0.7, in log-odds, half a sample added
        to either side."""
        samples = self.line["num_samples"] * sum(level in SUMS for level in self.line["level"])
        return log_odds(self.total("correct", *SUMS), samples)

    def primary_at_1(self) -> float:
        """Return the same at temperature 1."""
        right, samples = right_samples(self.run, SUMS)
        return log_odds(right.sum(), len(right) * samples)

    def all_right(self) -> float:
        """Return the share of all-right prompts in the middle half of the steps."""
        steps, values = self.run.steps, self.run.values("groups/ph")
        return float(
            np.mean([value for step, value in values if 0.25 * steps < step <= 0.75 * steps])
        )


def solved(run: RunHistory) -> float:
    """Return the share of held-out sums with a right sample, of 16 after training at temperature
    1."""
    right, _ = right_samples(run, SUMS)
    return float((right > 0).mean())


def log_odds(right: int, samples: int) -> float:
    return math.log((right + 0.5) / (samples - right + 0.5))


Arms = Mapping[str, Mapping[int, Measured]]


OUTCOMES: Mapping[str, Callable[[Measured], float]] = {  # in percent
    "three terms": lambda own: 100 * own.share("correct", "3"),
    "four terms": lambda own: 100 * own.share("correct", "4"),
    "right if direct": lambda own: 100 * own.among_direct(*SUMS),
    "right if worked": lambda own: 100 * own.among_worked(*SUMS),
    "worked": lambda own: 100 * own.share("worked", *SUMS),
    "worked, two terms": lambda own: 100 * own.share("worked", "2"),
    "right, two terms": lambda own: 100 * own.share("correct", "2"),
    "right, products": lambda own: 100 * own.share("correct", "product"),
    "worked, training": lambda own: 100 * late(own.run, "rewards/is_worked/mean"),
    "all right, training": lambda own: 100 * own.all_right(),
    "choice": lambda own: 100 * (own.line.get("choice_share") or math.nan),
}
SECONDARY: Mapping[str, Callable[[Measured], float]] = {
    "Pass@1 at 1, three terms, %": lambda own: 100 * pass_at_1(own.run, "3"),
    "four terms, %": lambda own: 100 * pass_at_1(own.run, "4"),
    "Pass@16 at 1, %": lambda own: 100 * solved(own.run),
    "all-right prompts in the gradient, %": lambda own: 100 * gradient_share(own.run),
    "entropy, nats": lambda own: late(own.run, "entropy"),
    "tokens of a rollout": lambda own: late(own.run, "completions/mean_length"),
}


def read(prefix: str | Path) -> list[Measured]:
    """Return the finished runs that have been measured."""
    text = Path(f"{prefix}_measures.jsonl").read_text(encoding="utf-8")
    found = map(json.loads, text.splitlines())
    lines = {(line["method"], line["seed"], line["learning_rate"]): line for line in found}
    runs = [run for run in read_runs(f"{prefix}.jsonl.gz") if run.finished]
    keys = [(run.method, run.seed, float(run.settings["learning_rate"])) for run in runs]
    return [Measured(run, lines[key]) for run, key in zip(runs, keys, strict=True) if key in lines]


def sweep_table(sweep: Sequence[Measured]) -> Table:
    """Return how each arm came out at each learning rate, and which it takes: see "Learning rate"
    in protocol.md."""
    rates = sorted({own.rate for own in sweep})
    rows = []
    for name in dict.fromkeys(own.run.method for own in sweep):
        at = {own.rate: own for own in sweep if own.run.method == name}
        points = {rate: 100 * own.share("correct", *SUMS) for rate, own in at.items()}
        best = max(points, key=points.__getitem__)
        taken = USUAL_RATE if points[best] - points.get(USUAL_RATE, 0) <= 2 else best
        cells = [
            (
                f"{points[rate]:.1f} ({100 * at[rate].share('worked', *SUMS):.0f})"
                if rate in at
                else "not run"
            )
            for rate in rates
        ]
        rows.append([str(name), *cells, f"{taken:.1e}" if len(at) == len(rates) else "not swept"])
    header = ["Arm", *(f"{rate:.1e}" for rate in rates), "takes"]
    return Table("Pass@1 on the held-out sums, and the share of worked steps, %", header, rows)


def by_arm(measured: Sequence[Measured]) -> dict[str, dict[int, Measured]]:
    """Return the runs by arm, in the order of the picture, and seed."""
    arms: dict[str, dict[int, Measured]] = {}
    for own in measured:
        arms.setdefault(str(own.run.method), {})[int(own.run.seed or 0)] = own
    return {name: arms[name] for name in LABELS if name in arms}


def means_table(
    title: str, arms: Arms, columns: Mapping[str, Callable[[Measured], float]], digits: int
) -> Table:
    """Return the means over the runs of each arm, over those that have the value."""
    rows = []
    for name, runs in arms.items():
        values = [
            [value for own in runs.values() if not math.isnan(value := of(own))]
            for of in columns.values()
        ]
        means = [float(np.mean(known)) if known else math.nan for known in values]
        rows.append([name, str(len(runs)), *(plain(mean, digits) for mean in means)])
    return Table(title, ["Arm", "Runs", *columns], rows)


def comparisons_table(title: str, arms: Arms, pairs: Sequence[tuple[str, str]]) -> Table:
    """Return the mean differences of each pair over its common seeds, at temperature 0.7 and at 1,
    and in points with an interval over problems, too."""
    at_07: dict[str, list[float]] = {}
    at_1: dict[str, list[float]] = {}
    for name, baseline in pairs:
        for found, of in ((at_07, Measured.primary), (at_1, Measured.primary_at_1)):
            found[f"{name} against {baseline}"] = paired(
                arms.get(name, {}), arms.get(baseline, {}), of
            )
    rows = comparison_rows(at_07)
    effects_at_1 = [effect(at_1[row[0]]) for row in rows]
    adjusted = holm([found.p for found in effects_at_1])
    for row, found, p in zip(rows, effects_at_1, adjusted, strict=True):
        row += [interval(found), replace(found, p=p).verdict]
        row += [in_points(*(arms[name] for name in row[0].split(" against ")))]
    header = [
        "Comparison",
        *COMPARED,
        "At temperature 1",
        "Verdict",
        "Points, over seeds and problems",
    ]
    return Table(title, header, rows)


def in_points(runs: Mapping[int, Measured], others: Mapping[int, Measured]) -> str:
    """Return the difference of Pass@1 over common seeds in points, with an interval over seeds and
    problems."""
    own, theirs = (
        [of[seed].points() for seed in sorted(runs.keys() & others)] for of in (runs, others)
    )
    found = crossed_difference(own, theirs)
    return f"{signed(found.difference, 1)} ({signed(found.low, 1)} to {signed(found.high, 1)})"


def products_table(arms: Arms) -> Table:
    """Return each arm's difference from GRPO in the share of right products at temperature 0.7, in
    points."""
    rows = []
    for name, runs in arms.items():
        differences = paired(runs, arms.get(GRPO, {}), OUTCOMES["right, products"])
        if name != GRPO and differences:
            rows.append([name, str(len(differences)), interval(effect(differences), 1)])
    header = ["Arm", "Seeds", "Points"]
    return Table("Right products against GRPO at 5e-6, exploratory and not adjusted", header, rows)


def summary_table(arms: Arms, comparisons: Sequence[Table]) -> Table:
    """Return what the page shows: the effects against GRPO with the verdicts of the comparisons,
    and the means of some outcomes in percent."""
    verdicts = {
        row[0]: row[1 + COMPARED.index("Verdict")] for each in comparisons for row in each.rows
    }
    shown = ("three terms", "four terms", "worked")
    rows = []
    for name, runs in arms.items():
        differences = paired(runs, arms.get(GRPO, {}), Measured.primary)
        against = ["", "", ""]
        if name != GRPO and differences:
            against = [in_points(runs, arms[GRPO]), interval(effect(differences))]
            against.append(verdicts.get(f"{name} against {GRPO}", "n/a"))
        means = [
            float(np.mean([OUTCOMES[column](own) for own in runs.values()])) for column in shown
        ]
        rows.append([LABELS[name], str(len(runs)), *against, *(plain(mean, 0) for mean in means)])
    header = ["Arm", "Seeds", "Pass@1 against GRPO, points", "Log-odds", "Verdict", *shown]
    return Table("Summary", header, rows)


def tables(measured: Sequence[Measured]) -> list[Table]:
    """Return what came out, and the comparisons: those that decide, and the others, with GRPO at
    either rate."""
    arms = by_arm(measured)
    others = [
        (name, grpo) for grpo in (GRPO, GRPO_FAST) for name in arms if name not in (GRPO, grpo)
    ]
    comparisons = [
        comparisons_table("Confirmatory comparisons", arms, CONFIRMATORY),
        comparisons_table(
            "Exploratory comparisons, adjusted by Holm over this table",
            arms,
            [*(pair for pair in others if pair not in CONFIRMATORY), *DOSES],
        ),
    ]
    return [
        summary_table(arms, comparisons),
        means_table(
            "Right answers and worked steps at temperature 0.7, and prompts in training, %, over"
            " the runs that have the value",
            arms,
            OUTCOMES,
            0,
        ),
        means_table(
            "At temperature 1, and over the last fifth of the training, over the runs that have the"
            " value",
            arms,
            SECONDARY,
            2,
        ),
        products_table(arms),
        *comparisons,
    ]


# of the lines of the picture, distinguishable for color-blind readers (Okabe and Ito); gray: others
COLORS = {"oracle": "#000000", "entropy_5": "#E69F00", "miner_5": "#0072B2", "miner": "#56B4E9"}
GRAY = "#888888"


def draw(arms: Arms, path: Path) -> None:
    """Draw each arm's Pass@1 against GRPO in points, with its 95 % interval and a dot a seed; and
    worked steps in training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["font.size"] = 14
    compared = [name for name in arms if name != GRPO]
    height = 0.55 * len(compared) + 1.2  # inches
    figure = plt.figure(figsize=(8, height + 4), layout="constrained")
    # panels whose left edges need not agree: the labels of the first one are long
    upper, lower = figure.subfigures(2, height_ratios=(height, 4))
    above, below = upper.subplots(), lower.subplots()
    above.axvline(0, color="0.3", linewidth=1)
    for place, name in enumerate(compared):
        runs, color = arms[name], COLORS.get(name, GRAY)
        seeds = sorted(runs.keys() & arms[GRPO])
        points = [
            np.mean(runs[seed].points()) - np.mean(arms[GRPO][seed].points()) for seed in seeds
        ]
        above.plot(points, [-place] * len(points), "o", color=color, alpha=0.35, markersize=5)
        own, theirs = ([of[seed].points() for seed in seeds] for of in (runs, arms[GRPO]))
        found = crossed_difference(own, theirs)
        width = [[found.difference - found.low], [found.high - found.difference]]
        above.errorbar(
            found.difference, -place, xerr=width, fmt="D", color=color, capsize=4, linewidth=2
        )
    above.set_yticks(
        [-place for place in range(len(compared))], [LABELS[name] for name in compared]
    )
    above.set(xlabel="Pass@1 on longer sums against GRPO, points", ylim=(0.6 - len(compared), 0.6))
    ends = {}
    for name in [*(name for name in COLORS if name in arms), GRPO]:
        shares = pd.DataFrame(
            {
                seed: dict(own.run.values("rewards/is_worked/mean"))
                for seed, own in arms[name].items()
            }
        )
        smooth = 100 * shares.sort_index().mean(axis=1).rolling(SMOOTHED).mean().dropna()
        below.plot(smooth.index, smooth, color=COLORS.get(name, GRAY), linewidth=2.5)
        ends[name] = (smooth.index[-1], smooth.iloc[-1])
    place = -math.inf
    for name, (step, share) in sorted(ends.items(), key=lambda entry: entry[1][1]):
        place = max(share, place + 8)  # percent: the height of a label
        label = LABELS[name].partition(" of the")[0]
        below.annotate(
            label, (step, share), (step + 1.5, place), va="center", color=COLORS.get(name, "#555555"),
            annotation_clip=False,
        )  # fmt: skip
    below.set(xlabel="training step", ylabel="worked steps, %", ylim=(0, 105))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def page(measured: Sequence[Measured]) -> str:
    """Return tables.md, with these runs of the arms."""
    found = {"Arms": tables(measured), "Mirror": tables(read(MIRROR))}
    found["Learning rates"] = [sweep_table(read(RESULTS / "sweep"))]
    found |= {title: tables(read(RESULTS / prefix))[1:2] for prefix, title in PILOTS.items()}
    text = (
        "# Two procedures: all tables\n\n`python tables.py` makes this page from the [raw"
        " results](results).\n"
    )
    for title, own in found.items():
        text += f"\n## {title}\n" + "".join(
            f"\n{table.title}:\n\n{table.markdown()}" for table in own if table.rows
        )
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefixes", nargs="*", help="of the two files, such as results/check")
    given = parser.parse_args()
    found = [own for prefix in given.prefixes or ARMS for own in read(prefix)]
    if given.prefixes:
        print("\n".join(f"{table.title}:\n\n{table.markdown()}" for table in tables(found)), end="")
    else:
        (FOLDER / "tables.md").write_text(page(found), encoding="utf-8")
        draw(by_arm(found), FOLDER / "figures" / "arms.png")
        draw(by_arm(read(MIRROR)), FOLDER / "figures" / "mirror.png")
