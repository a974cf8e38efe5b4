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
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from trl_miner.common.tables import Table
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs
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
# as a reader knows them, for the picture: what gets credit on all-right prompts
CREDITS = {
    "oracle": "the sound way (oracle)",
    "uniqueness": "rare ways (uniqueness)",
    "entropy": "entropy bonus",
    "unlikeliness": "unlikely completions",
    "miner": "MINER, the default",
    "constant": "all alike",
    "rl_zvp": "all, by entropy (RL-ZVP)",
    "placebo": "MINER's, dealt out at random",
    "dapo": "no all-right prompts (DAPO)",
}
# Okabe and Ito's blue and vermilion, distinguishable for color-blind readers
DRAWN = (
    ("forks", "#0072B2", "o", "forks: the rare\nway is better"),
    ("mirror", "#D55E00", "s", "mirror: the rare\nway is worse"),
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


def points(levels: Container | None, run: RunHistory) -> float:
    """Return Pass@1 in percent, over problems of these levels."""
    return 100 * pass_at_1(run, levels)


def log_odds(run: RunHistory, when: str = "after") -> float:
    """Return the primary measure: the logit of Pass@1 over all problems, with half a sample added
    to either side."""
    right, samples = right_samples(run, when=when)
    total = len(right) * samples
    return math.log((right.sum() + 0.5) / (total - right.sum() + 0.5))


def log_odds_over_run(run: RunHistory) -> float:
    """Return the mean of the measure over all scorings but that before training."""
    assert run.held_out is not None
    return float(
        np.mean([log_odds(run, when) for when in run.held_out.moments if when != "before"])
    )


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


# What `beside_the_end` tells of a comparison.
BESIDE = ("Points", "Mean over the scorings, log-odds", "Its verdict")


def beside_the_end(runs: Mapping[int, RunHistory], baseline: Mapping[int, RunHistory]) -> list[str]:
    """Return a comparison's mean difference of Pass@1 in points, and that of the mean over the
    scorings during training with its verdict (BESIDE). Neither decides."""
    in_points = effect(paired(runs, baseline, partial(points, None)))
    over_run = effect(paired(runs, baseline, log_odds_over_run))
    return [interval(in_points, 1), interval(over_run), over_run.verdict]


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
    compared, beside = {}, {}
    for world, method, other in CONFIRMATORY:
        methods = worlds.get(world, {})
        baseline = (
            other if to_the_letter or other != "grpo" else baseline_of(method, methods) or other
        )
        differences = paired(methods.get(method, {}), methods.get(baseline, {}), log_odds)
        name = f"{method} against {baseline}, {world}"
        compared[name] = differences
        if differences:
            beside[name] = beside_the_end(methods[method], methods[baseline])
    title = "To the letter of the protocol" if to_the_letter else "Confirmatory"
    rows = [[*row, *beside[row[0]]] for row in comparison_rows(compared)]
    return Table(title, ["Comparison", *COMPARED, *BESIDE], rows)


def more_seeds_table(worlds: Mapping[str, Mapping[str, Mapping[int, RunHistory]]]) -> Table:
    """Return the first comparison on the planned seeds, with the verdict that counts, on those that
    were added, and on all."""
    more, first = worlds[MORE], worlds["forks"]
    baseline = baseline_of("miner", more) or "grpo"
    planned = confirmatory_table(worlds, to_the_letter=False).rows[0]
    rows = [["planned", *planned[1:4], planned[5], *planned[7:]]]
    for seeds, parts in (("added", [more]), ("all", [first, more])):
        runs, others = (
            {seed: run for part in parts for seed, run in part[name].items()}
            for name in ("miner", baseline)
        )
        found = effect(paired(runs, others, log_odds))
        cells = [interval(found), p_value(found.p), p_value(found.p_equivalent), found.verdict]
        rows.append([seeds, str(found.seeds), *cells, *beside_the_end(runs, others)])
    header = ["Which", "Seeds", "Pass@1, log-odds", "p", "p, equivalence", "Verdict", *BESIDE]
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
                beside = beside_the_end(methods[name], methods[baseline_of(name, methods) or ""])
                rows.append([*row, *beside, str(before.seeds), interval(before), holds])
    header = [
        "Method",
        "Seeds",
        "Pass@1, log-odds",
        "Verdict",
        *BESIDE,
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
        beside = beside_the_end(methods[name], methods[baseline_of(name, methods) or ""])
        row = [name, str(found.seeds), interval(found), *p, found.verdict]
        rows.append([*row, *beside, *differences])
    header = ["Method", "Seeds", "Pass@1, log-odds", "p", "p, equivalence", "Verdict", *BESIDE]
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
    training."""
    baseline = methods.get(baseline_of("", methods) or "", {})
    rows = [[name, *pace(runs, baseline)] for name, runs in methods.items()]
    return Table(f"To GRPO's best Pass@1, {world}", ["Method", *PACE], rows)


# What `pace` tells of a method.
PACE = ("Runs that reach it", "Steps, median over all runs", "Rollouts, median over all runs")


def pace(runs: Mapping[int, RunHistory], baseline: Mapping[int, RunHistory]) -> list[str]:
    """Return how many runs reach the best score of the baseline's run of the same seed, and after
    how many steps and rollouts in the median.

    A run that never reaches it counts as later than all that do. Seeds at which the baseline never
    scores above the start are left out.
    """
    reached = []
    for seed in sorted(set(runs) & set(baseline)):
        start, *scores = (score["pass@1"] for _, score in sorted(baseline[seed].scores.items()))
        if scores and max(scores) > start:
            reached.append(reached_at(runs[seed], max(scores)) or (math.inf, math.inf))
    if not reached:
        return ["0 of 0", "n/a", "n/a"]
    medians = [float(np.median(values)) for values in zip(*reached, strict=True)]
    finite = sum(math.isfinite(step) for step, _ in reached)
    shown = ["not reached" if math.isinf(value) else f"{value:,.0f}" for value in medians]
    return [f"{finite} of {len(reached)}", *shown]


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
    if MORE in worlds:
        all_seeds = {
            name: {**worlds["forks"].get(name, {}), **runs} for name, runs in worlds[MORE].items()
        }
        found += [more_seeds_table(worlds), pace_table("forks, all seeds", all_seeds)]
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
    """Draw MINER against GRPO by its share of the gradient in both worlds, and which credit on
    all-right prompts helps in forks; in points, with 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["font.size"] = 14
    figure = plt.figure(figsize=(8, 8.6), layout="constrained")
    upper, lower = figure.subfigures(2)
    by_share, by_credit = upper.subplots(), lower.subplots()
    for world, color, marker, label in DRAWN:
        found = [in_points(name, worlds[world]) for name in DOSES]
        means, widths = np.array([(each.mean, each.half_width) for each in found]).T
        by_share.errorbar(
            range(len(DOSES)), means, widths, fmt=f"{marker}-", color=color, capsize=4, linewidth=2
        )
        by_share.annotate(label, (3, means[-1]), (3.1, means[-1]), color=color, va="center")
    by_share.set_xticks(range(len(DOSES)), ["default\n(0.2 to 0.7 %)", "1 %", "5 %", "20 %"])
    by_share.set(xlabel="MINER's share of the gradient", xlim=(-0.3, 5))
    by_share.set(ylabel="Pass@1 against GRPO, points")
    credits_of = sorted(CREDITS, key=lambda name: in_points(name, worlds["forks"]).mean)
    found = [in_points(name, worlds["forks"]) for name in credits_of]
    means, widths = np.array([(each.mean, each.half_width) for each in found]).T
    by_credit.errorbar(means, range(len(means)), xerr=widths, fmt="o", color=DRAWN[0][1], capsize=4)
    by_credit.set_yticks(range(len(means)), [CREDITS[name] for name in credits_of])
    by_credit.set(xlabel="Pass@1 against GRPO in forks, points")
    by_share.axhline(0, color="0.3", linewidth=1)
    by_credit.axvline(0, color="0.3", linewidth=1)
    save(figure, path)


def in_points(name: str, methods: Mapping[str, Mapping[int, RunHistory]]) -> Effect:
    """Return a method's effect on Pass@1 in points."""
    found = against_baseline(name, methods, partial(points, None))
    assert found is not None, f"{name} has no runs with a baseline"
    return found


def save(figure: Any, path: Path) -> None:
    """Write a figure without a frame around its panels."""
    for axes in figure.get_axes():
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


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
