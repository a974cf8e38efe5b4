"""Tables and picture of the study from its raw results, as protocol.md lays down. Prints Markdown.

python recipes/forks/analysis.py recipes/forks/results/{study,real_model}.jsonl.gz \
    --again recipes/forks/results/again.jsonl.gz --page recipes/forks/tables.md \
    --figure recipes/forks/figures/effect_against_share.png

An effect is the difference from the baseline, paired by seed. It is GRPO's, but for those in
BASELINES. Pass@1 is in log-odds: logit of the share of right samples.
"""

import argparse
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs
from trl_miner.tables import Table
from trl_miner.viewing.effects import holm

Run = TypeVar("Run")  # what is known of a run
MARGIN = 0.1  # in log-odds: differences within it count as none
REAL = "SmolLM2-135M"
# by data set
WORLDS = {"trl_miner/forks": "forks", "trl_miner/forks_mirror": "mirror", "reasoning_gym": REAL}
BY_OPERATIONS: dict[str, Container] = {
    "levels 0 and 1": (0, 1),
    "levels 2 to 4": (2, 3, 4),
    "levels 6 and 7": (6, 7),
}
BY_FAMILY: dict[str, Container] = {
    "basic_arithmetic": ("basic_arithmetic",),
    "chain_sum": ("chain_sum num digits 1", "chain_sum num digits 2"),
    "gcd": ("gcd",),
}
LEVELS = {"forks": BY_OPERATIONS, "mirror": BY_OPERATIONS, REAL: BY_FAMILY}
# ends the name of an arm at the learning rate of most, where its own is another one
AT_COMMON_RATE = "_2e-4"
# seeds of the protocol, and where those beyond go (its deviation 2)
PLANNED, MORE = 10, "forks, more seeds"
AGAIN = ", again"  # ends the name of a world from another base model (its deviation 4)
BASELINES = {"ledger": "repeats", "ledger_2e-4": "repeats"}  # of the others: grpo
CONFIRMATORY = (
    ("forks", "miner", "grpo"),
    ("mirror", "miner", "grpo"),
    ("forks", "miner", "entropy"),
)
DOSES = ("miner", "miner_1", "miner_5", "miner_20")  # a line connects them
DRAWN = (
    ("forks", "tab:blue", "o", "forks: the rare way is sound"),
    ("mirror", "tab:orange", "s", "mirror: the rare way is unsound"),
    (REAL, "tab:green", "^", f"{REAL}, arithmetic"),
)
START, END = "<!-- tables of analysis.py -->", "<!-- end -->"  # the marks of the page
MARKED = re.compile(f"{START}\n(.*?){END}", re.DOTALL)


def right_samples(
    run: RunHistory, levels: Container | None = None, when: str = "after"
) -> tuple[np.ndarray, int]:
    """Return the right samples of each held-out problem after (or before) training, and how many
    samples each has.

    `levels` are those of the problems that count; None: all.
    """
    assert run.held_out is not None and run.held_out.levels is not None
    moment = run.held_out.moments[when]
    problems = zip(moment.num_correct, run.held_out.levels, strict=True)
    right = [right for right, level in problems if levels is None or level in levels]
    return np.array(right), moment.num_samples


def pass_at_1(run: RunHistory, levels: Container | None = None, when: str = "after") -> float:
    """Return the share of right samples."""
    right, samples = right_samples(run, levels, when)
    return float(right.mean() / samples)


def points(levels: Container, run: RunHistory) -> float:
    """Return Pass@1 in percent, over problems of these levels."""
    return 100 * pass_at_1(run, levels)


def log_odds(run: RunHistory) -> float:
    """Return the primary measure: the logit of Pass@1 over all problems, with half a sample added
    to either side."""
    right, samples = right_samples(run)
    total = len(right) * samples
    return math.log((right.sum() + 0.5) / (total - right.sum() + 0.5))


def late(run: RunHistory, key: str) -> float:
    """Return the mean of a metric over the last fifth of the steps; NaN where it was not logged."""
    values = [value for step, value in run.values(key) if step > 0.8 * run.steps]
    return float(np.mean(values)) if values else math.nan


def over_run(run: RunHistory, key: str) -> float:
    """Return the mean of a metric over all logs; NaN where it was not logged."""
    values = [value for _, value in run.values(key)]
    return float(np.mean(values)) if values else math.nan


def gradient_share(run: RunHistory) -> float:
    """Return the share of all-right prompts in the policy gradient: theirs of the sum of both mean
    norms.

    A mean of the steps' shares would be ruled by batches without mixed prompts, where the share is
    1. NaN where no step that was measured has a mixed prompt.
    """
    own, others = (over_run(run, f"miner/{part}_gradient_norm") for part in ("ph", "other"))
    return own / (own + others) if others else math.nan


@dataclass(frozen=True)
class Effect:
    """A mean difference over paired seeds."""

    seeds: int
    mean: float
    half_width: float  # of its 95 % interval; NaN for one seed
    p: float  # two-sided, of no difference
    p_equivalent: float  # of the two one-sided tests against MARGIN

    @property
    def verdict(self) -> str:
        """What the protocol calls it."""
        is_small = self.p_equivalent < 0.05
        if self.p < 0.05:
            return ("higher" if self.mean > 0 else "lower") + ", within the margin" * is_small
        return "no difference beyond the margin" if is_small else "not decided"


def effect(differences: Sequence[float]) -> Effect:
    """Return the mean of paired differences with Student's t over seeds."""
    values = np.array(differences)
    count, mean = len(values), float(values.mean())
    if count < 2 or (error := float(values.std(ddof=1)) / math.sqrt(count)) == 0:
        return Effect(count, mean, math.nan, math.nan, math.nan)
    t = stats.t(count - 1)
    p_equivalent = max(t.sf((mean + MARGIN) / error), t.cdf((mean - MARGIN) / error))
    return Effect(
        count,
        mean,
        float(t.ppf(0.975)) * error,
        2 * float(t.sf(abs(mean) / error)),
        float(p_equivalent),
    )


def seeds_needed(differences: Sequence[float], power: float = 0.8) -> int:
    """Return with how many seeds as scattered as these a true difference of MARGIN would be
    significant that often."""
    deviation = float(np.std(differences, ddof=1))
    for count in range(2, 10_000):
        shift, bound = MARGIN / deviation * math.sqrt(count), stats.t(count - 1).ppf(0.975)
        if stats.nct(count - 1, shift).sf(bound) >= power:
            return count
    raise ValueError(
        f"more than 9,999 seeds would be needed: the differences scatter by {deviation:.3g}."
    )


def paired(
    runs: Mapping[int, Run], baseline: Mapping[int, Run], measure: Callable[[Run], float]
) -> list[float]:
    """Return a measure's differences from the baseline, for the seeds that both have."""
    return [
        measure(runs[seed]) - measure(baseline[seed]) for seed in sorted(set(runs) & set(baseline))
    ]


def by_world(
    runs: Iterable[RunHistory], suffix: str = ""
) -> dict[str, dict[str, dict[int, RunHistory]]]:
    """Return finished runs by world, method and seed; those of more seeds than planned as a world
    of their own.

    `suffix` ends the names of the worlds.
    """
    found: dict[str, dict[str, dict[int, RunHistory]]] = {}
    for run in runs:
        world = WORLDS.get(run.settings.get("dataset_name", ""))
        if world and run.finished and run.method and run.seed is not None:
            part = world if run.seed <= PLANNED else MORE
            found.setdefault(part + suffix, {}).setdefault(run.method, {})[run.seed] = run
    return found


def baseline_of(name: str, methods: Mapping[str, Mapping[int, RunHistory]]) -> str | None:
    """Return what a method is compared with: of its baseline at two learning rates the better one
    (protocol.md)."""
    wanted = BASELINES.get(name, "grpo")
    means = {
        each: float(np.mean([log_odds(run) for run in methods[each].values()]))
        for each in (wanted, wanted + AT_COMMON_RATE)
        if each in methods
    }
    return max(means, key=means.__getitem__) if means else None


def against_baseline(
    name: str,
    methods: Mapping[str, Mapping[int, RunHistory]],
    measure: Callable[[RunHistory], float],
) -> Effect | None:
    """Return a method's effect on a measure; None for a baseline, or without runs to pair."""
    baseline = baseline_of(name, methods)
    differences = (
        paired(methods[name], methods[baseline], measure) if baseline not in (None, name) else []
    )
    return effect(differences) if differences else None


def plain(value: float, digits: int) -> str:
    return "n/a" if math.isnan(value) else f"{value:.{digits}f}"


def p_value(p: float) -> str:
    return "below 0.001" if p < 0.001 else plain(p, 3)


def signed(value: float, digits: int = 2) -> str:
    return "n/a" if math.isnan(value) else f"{value:+.{digits}f}"


# What `comparison_rows` tells of a comparison.
COMPARED = (
    "Seeds",
    "Pass@1, log-odds",
    "p",
    "p, Holm",
    "p, equivalence",
    "Seeds needed",
    "Verdict",
)


def comparison_rows(compared: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Return a row for each comparison, by its paired differences: its name and COMPARED. The
    verdict is by p as Holm adjusts it over all rows. A comparison with a single pair, or none, is
    left out."""
    known = {name: differences for name, differences in compared.items() if len(differences) > 1}
    effects = [effect(differences) for differences in known.values()]
    adjusted = holm([found.p for found in effects])
    return [
        [
            name,
            str(found.seeds),
            interval(found),
            p_value(found.p),
            p_value(p),
            p_value(found.p_equivalent),
        ]
        + [str(seeds_needed(differences)), replace(found, p=p).verdict]
        for (name, differences), found, p in zip(known.items(), effects, adjusted, strict=True)
    ]


def confirmatory_table(
    worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]], *, to_the_letter: bool
) -> Table:
    """Return the comparisons that decide, with p adjusted by Holm; `to_the_letter` against `grpo`
    at 4e-4."""
    compared = {}
    for world, method, other in CONFIRMATORY:
        methods = worlds.get(world, {})
        baseline = (
            other if to_the_letter or other != "grpo" else baseline_of(method, methods) or other
        )
        differences = paired(methods.get(method, {}), methods.get(baseline, {}), log_odds)
        compared[f"{method} against {baseline}, {world}"] = differences
    title = "To the letter of the protocol" if to_the_letter else "Confirmatory"
    return Table(title, ["Comparison", *COMPARED], comparison_rows(compared))


def more_seeds_table(worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]]) -> Table:
    """Return the first comparison on the seeds that were added, and on all."""
    more, first = worlds[MORE], worlds["forks"]
    baseline = baseline_of("miner", more) or "grpo"
    added = paired(more["miner"], more[baseline], log_odds)
    rows = []
    for seeds, differences in (
        ("added", added),
        ("all", added + paired(first["miner"], first[baseline], log_odds)),
    ):
        found = effect(differences)
        rows.append(
            [
                seeds,
                str(found.seeds),
                interval(found),
                p_value(found.p),
                p_value(found.p_equivalent),
            ]
        )
        rows[-1].append(found.verdict)
    header = ["Which", "Seeds", "Pass@1, log-odds", "p", "p, equivalence", "Verdict"]
    return Table(f"More seeds, miner against {baseline}, forks", header, rows)


def again_table(worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]]) -> Table:
    """Return the effects of the runs from another base model, and whether what the study found
    holds again."""
    rows = []
    for world in LEVELS:
        for name in (methods := worlds.get(world + AGAIN, {})):
            found = against_baseline(name, methods, log_odds)
            before = against_baseline(name, worlds.get(world, {}), log_odds)
            if found and before:
                holds = "yes" if holds_again(before, found) else "no"
                row = [f"{name}, {world}", str(found.seeds), interval(found), found.verdict]
                rows.append([*row, str(before.seeds), interval(before), holds])
    header = [
        "Method",
        "Seeds",
        "Pass@1, log-odds",
        "Verdict",
        "Seeds, study",
        "Study",
        "Holds again",
    ]
    return Table("Again, with another base model", header, rows)


def holds_again(before: Effect, found: Effect) -> bool:
    """Return whether two effects agree: their intervals overlap, and a difference that was clear
    keeps its sign."""
    overlap = abs(before.mean - found.mean) <= before.half_width + found.half_width
    was_clear = abs(before.mean) > before.half_width
    return overlap and (not was_clear or found.mean * before.mean > 0)


def interval(found: Effect, digits: int = 2) -> str:
    """Return an effect with its 95 % interval, which one seed alone does not have."""
    if math.isnan(found.half_width):
        return signed(found.mean, digits)
    mean, *ends = (signed(found.mean + sign * found.half_width, digits) for sign in (0, -1, 1))
    return f"{mean} ({' to '.join(ends)})"


def effect_table(world: str, methods: Mapping[str, Mapping[int, RunHistory]]) -> Table:
    """Return the effects on held-out Pass@1 in log-odds, and in points by kind of problem."""
    rows = []
    for name in methods:
        found = against_baseline(name, methods, log_odds)
        if found is None:
            continue
        by_level = (
            against_baseline(name, methods, partial(points, of)) for of in LEVELS[world].values()
        )
        differences = [signed(one.mean, 1) for one in by_level if one]
        p = [p_value(found.p), p_value(found.p_equivalent)]
        rows.append([name, str(found.seeds), interval(found), *p, found.verdict, *differences])
    header = ["Method", "Seeds", "Pass@1, log-odds", "p", "p, equivalence", "Verdict"]
    return Table(
        f"Against GRPO, {world}", header + [f"{name}, points" for name in LEVELS[world]], rows
    )


def score_table(world: str, methods: Mapping[str, Mapping[int, RunHistory]]) -> Table:
    """Return Pass@1 and Pass@K of each method after training, by kind of problem; K is the number
    of samples."""
    samples = max(right_samples(run)[1] for runs in methods.values() for run in runs.values())
    groups = {"all": None, **LEVELS[world]}
    every = [run for runs in methods.values() for run in runs.values()]
    starts = [
        100 * float(np.mean([pass_at_1(run, of, "before") for run in every]))
        for of in groups.values()
    ]
    rows = [
        [
            "before training",
            str(len(every)),
            *(plain(share, 1) for share in starts),
            *["n/a"] * len(groups),
        ]
    ]
    for name, runs in methods.items():
        once = [
            100 * float(np.mean([pass_at_1(run, of) for run in runs.values()]))
            for of in groups.values()
        ]
        hits = ([right_samples(run, of)[0] > 0 for run in runs.values()] for of in groups.values())
        shares = [*once, *(100 * float(np.mean(hit)) for hit in hits)]
        rows.append([name, str(len(runs)), *(plain(share, 1) for share in shares)])
    header = [f"{name}, {group}" for name in ("Pass@1", f"Pass@{samples}") for group in groups]
    return Table(f"After training, {world}, %", ["Method", "Runs", *header], rows)


# Of a run: over its last fifth; the share of the gradient, and tokens, over all of it.
TRAINING_COLUMNS: dict[str, tuple[Callable[[RunHistory], float], int]] = {
    # half of the training prompts have ways; a rollout of another that begins alike counts, too
    "Sound way, %": (lambda run: 200 * late(run, "rewards/is_sound/mean"), 0),
    "Entropy, nats per token": (lambda run: late(run, "entropy"), 3),
    "Prompts all right, %": (lambda run: 100 * late(run, "groups/ph"), 0),
    "Their share of the gradient, %": (lambda run: 100 * gradient_share(run), 2),
    # generated and read
    "Tokens of a run, thousands": (lambda run: run.points("num_tokens")[-1, 1] / 1000, 0),
}


def means(
    runs: Iterable[RunHistory], columns: Iterable[tuple[Callable[[RunHistory], float], int]]
) -> list[str]:
    """Return the mean over the runs of each column."""
    return [plain(float(np.mean([of(run) for run in runs])), digits) for of, digits in columns]


def training_table(world: str, methods: Mapping[str, Mapping[int, RunHistory]]) -> Table:
    """Return what training did."""
    columns = dict(TRAINING_COLUMNS)
    if not any(
        run.values("rewards/is_sound/mean") for runs in methods.values() for run in runs.values()
    ):
        del columns["Sound way, %"]  # a task without ways
    rows = [[name, *means(runs.values(), columns.values())] for name, runs in methods.items()]
    return Table(f"What training did, {world}", ["Method", *columns], rows)


def pace_table(world: str, methods: Mapping[str, Mapping[int, RunHistory]]) -> Table:
    """Return how soon each method is where GRPO of the same seed is best, by the scores during
    training.

    Seeds at which GRPO never scores above the start are left out.
    """
    rows = []
    for name, by_seed in methods.items():
        reached = []
        baseline = methods.get(baseline_of("", methods) or "", {})
        for seed in sorted(set(by_seed) & set(baseline)):
            start, *scores = (score["pass@1"] for _, score in sorted(baseline[seed].scores.items()))
            if scores and max(scores) > start:
                reached.append(reached_at(by_seed[seed], max(scores)))
        found = [where for where in reached if where is not None]
        steps, rollouts = (
            (f"{np.median(values):,.0f}" for values in zip(*found, strict=True))
            if found
            else ("n/a",) * 2
        )
        rows.append([name, f"{len(found)} of {len(reached)}", steps, rollouts])
    header = ["Method", "Runs that reach it", "Steps, median of these", "Rollouts, median of these"]
    return Table(f"To GRPO's best Pass@1, {world}", header, rows)


def reached_at(run: RunHistory, wanted: float) -> tuple[float, float] | None:
    """Return the step of the first score of at least `wanted`, and the rollouts generated until
    then."""
    step = next(
        (step for step, score in sorted(run.scores.items()) if score["pass@1"] >= wanted), None
    )
    if step is None:
        return None
    generated = [total for at, total in run.values("rollouts/generated_total") if at <= step]
    return step, max(generated, default=0)


def tables(worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]]) -> list[Table]:
    """Return all tables of the page."""
    found = [confirmatory_table(worlds, to_the_letter=letter) for letter in (False, True)]
    found += [more_seeds_table(worlds)] if MORE in worlds else []
    found += [again_table(worlds)] if any(world.endswith(AGAIN) for world in worlds) else []
    for world in WORLDS.values():
        methods = worlds.get(world)
        if not methods:
            continue
        found += [
            effect_table(world, methods),
            score_table(world, methods),
            training_table(world, methods),
        ]
        found.append(pace_table(world, methods))
    return found


def sections(worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]]) -> str:
    """Return all tables with their titles, as they stand on the page."""
    return "".join(
        f"### {table.title}\n\n{table.markdown().rstrip()}\n\n" for table in tables(worlds)
    )


def draw(worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]], path: Path) -> None:
    """Draw each method's effect against its mean share of the policy gradient, with 95 %
    intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 7))
    axes.axhspan(-MARGIN, MARGIN, color="0.93", label="margin: counts as no difference")
    axes.axhline(0, color="0.5", linewidth=1)
    # linear from 0 to 0.1 %: methods that pay nothing on solved prompts have a place, too
    axes.set_xscale("symlog", linthresh=0.1, linscale=0.7)
    labels = []
    for world, color, marker, label in DRAWN:
        effects = effect_points(worlds.get(world, {}))
        if not effects:
            continue
        shares, means, widths = np.array([*effects.values()]).T
        axes.errorbar(
            shares, means, np.nan_to_num(widths), fmt=marker, color=color, capsize=2, label=label
        )
        curve = sorted(effects[name][:2] for name in DOSES if name in effects)
        axes.plot(*zip(*curve, strict=True), color=color, linewidth=1, alpha=0.5)
        labels += [(name, *point, color) for name, point in effects.items()]
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="share of solved prompts in the policy gradient, %", xlim=(-0.05, 60))
    axes.set(ylabel="held-out Pass@1 against GRPO, log-odds")
    axes.legend(loc="lower left", fontsize=9)
    figure.tight_layout()
    add_labels(axes, labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def add_labels(axes: Any, labels: Sequence[tuple[str, float, float, float, str]]) -> None:
    """Write names beside points at (x, y), in a color, where none covers another, a point or its
    interval.

    A label is (name, x, y, half of the interval, color). Where there is room it covers no line
    either.
    """
    # in pixels: boxes along the lines, and around points and bars
    curves = [
        axes.transData.transform(line.get_xydata())
        for line in axes.get_lines()
        if len(line.get_xydata()) > 2
    ]
    along = [
        (a + (b - a) * part)
        for curve in curves
        for a, b in pairwise(curve)
        for part in np.linspace(0, 1, 50)
    ]
    lines = [np.concatenate([point - 1, point + 1]) for point in along]
    taken = []
    for _, x, y, half, _ in labels:
        (at, middle), (_, low), (_, high) = axes.transData.transform(
            [(x, y + part) for part in (0, -half, half)]
        )
        taken += [
            np.array([at - 6, middle - 6, at + 6, middle + 6]),
            np.array([at - 2, low, at + 2, high]),
        ]

    places = [
        (side * (7 + far), up)
        for far in (0, 13, 26)
        for up in range(-36, 31, 3)
        for side in (1, -1)
    ]
    for name, x, y, _, color in labels:
        text = axes.annotate(
            name, (x, y), (0, 0), textcoords="offset points", fontsize=8, color=color
        )
        # in points of type: a line may be covered rather than a place taken that is as far away
        costs = [
            abs(across) + abs(up + 3) + 12 * covers(box, lines) + 1000 * covers(box, taken)
            for (across, up), box in ((place, put_at(place, text)) for place in places)
        ]
        taken.append(put_at(places[int(np.argmin(costs))], text))


def put_at(place: tuple[int, int], text: Any) -> np.ndarray:
    """Put a text beside its point, in points of type, and return its box in pixels: left, low,
    right, high."""
    text.set(position=place, horizontalalignment="left" if place[0] > 0 else "right")
    return text.get_window_extent().extents


def covers(box: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Return whether a box (left, low, right, high) overlaps any of the others."""
    return any((box[:2] < other[2:]).all() and (other[:2] < box[2:]).all() for other in others)


def effect_points(
    methods: Mapping[str, Mapping[int, RunHistory]],
) -> dict[str, tuple[float, float, float]]:
    """Return by method its share of the gradient in percent, its effect, and half the effect's
    interval.

    Of a method at two learning rates the better one stands for both.
    """
    effects: dict[str, tuple[float, float, float]] = {}
    for name, runs in methods.items():
        share = 100 * float(np.mean([gradient_share(run) for run in runs.values()]))
        found, title = against_baseline(name, methods, log_odds), name.removesuffix(AT_COMMON_RATE)
        is_baseline = title in ("grpo", *BASELINES.values())
        if found and not is_baseline and (title not in effects or found.mean > effects[title][1]):
            effects[title] = (0.0 if math.isnan(share) else share, found.mean, found.half_width)
    return effects


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, help="raw results, as trl-miner compare writes them"
    )
    parser.add_argument("--again", type=Path, help="raw results of runs from another base model")
    parser.add_argument(
        "--page", type=Path, help="a page to put the tables into, between its two marks"
    )
    parser.add_argument(
        "--figure", type=Path, help="where to draw the effect against the share of the gradient"
    )
    args = parser.parse_args()
    worlds = by_world(run for path in args.runs for run in read_runs(path))
    if args.again:
        worlds |= by_world(read_runs(args.again), AGAIN)
    text = sections(worlds)
    print(text)
    if args.page:
        before, _, after = MARKED.split(args.page.read_text(encoding="utf-8"))
        args.page.write_text(f"{before}{START}\n{text}{END}{after}", encoding="utf-8")
    if args.figure:
        draw(worlds, args.figure)


if __name__ == "__main__":
    main()
