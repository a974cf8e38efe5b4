"""Tables of the second protocol, both_sides.md, from its raw results. Prints Markdown.

python recipes/forks/both_sides.py recipes/forks/results/both_sides.jsonl.gz --page
recipes/forks/both_sides.md

Effects, intervals and verdicts are those of analysis.py.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from analysis import (
    BESIDE,
    DRAWN,
    END,
    MARKED,
    PACE,
    START,
    TRAINING_COLUMNS,
    WORLDS,
    beside_the_end,
    effect,
    interval,
    log_odds,
    means,
    p_value,
    pace,
    paired,
    pass_at_1,
    points,
    right_samples,
    save,
    seeds_needed,
)

from trl_miner.common.tables import Table
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs
from trl_miner.viewing.effects import holm

# by world, method and learning rate, then by seed
Arms = Mapping[tuple[str, str, str], Mapping[int, RunHistory]]
BASELINES = {"boundary_gate": "repeats_2e-4", "thompson": "repeats_2e-4"}  # of the others: grpo
NOT_AGAINST_GRPO = {"grpo", *BASELINES, *BASELINES.values()}
CONFIRMATORY = "miner"


def by_arm(runs: list[RunHistory]) -> Arms:
    """Return the finished runs by world, method and learning rate."""
    found: dict[tuple[str, str, str], dict[int, RunHistory]] = {}
    for run in runs:
        world = WORLDS.get(run.settings.get("dataset_name", ""))
        if world and run.finished and run.method and run.seed is not None:
            rate = f"{float(run.settings['learning_rate']):.0e}".replace("e-0", "e-")
            found.setdefault((world, run.method, rate), {})[run.seed] = run
    return found


def baseline_of(arms: Arms, world: str, method: str, rate: str) -> Mapping[int, RunHistory]:
    """Return the runs that a method is compared with: those of its baseline at the same learning
    rate."""
    return arms.get((world, BASELINES.get(method, "grpo"), rate), {})


def same_rate_table(arms: Arms) -> Table:
    """Return each method against its baseline at the same learning rate; p of MINER's adjusted by
    Holm."""
    rows, confirmatory = [], []
    for (world, method, rate), runs in sorted(arms.items()):
        baseline = baseline_of(arms, world, method, rate)
        differences = paired(runs, baseline, log_odds)
        if method in ("grpo", *BASELINES.values()) or len(differences) < 2:
            continue
        found = effect(differences)
        row = [
            f"{method}, {world}, {rate}",
            str(found.seeds),
            interval(found),
            p_value(found.p),
            "exploratory",
        ]
        needed = [p_value(found.p_equivalent), str(seeds_needed(differences)), found.verdict]
        rows.append([*row, *needed, *beside_the_end(runs, baseline)])
        if method == CONFIRMATORY:
            confirmatory.append((rows[-1], found.p))
    for (row, _), p in zip(confirmatory, holm([p for _, p in confirmatory]), strict=True):
        row[4] = p_value(p)
    header = [
        "Arm",
        "Seeds",
        "Pass@1, log-odds",
        "p",
        "p, Holm",
        "p, equivalence",
        "Seeds needed",
        "Verdict",
        *BESIDE,
    ]
    return Table("Against GRPO at the same learning rate", header, rows)


def pace_table(arms: Arms) -> Table:
    """Return how soon each arm is where GRPO of the same seed and rate is best."""
    rows = [
        [world, method, rate, *pace(runs, baseline)]
        for (world, method, rate), runs in sorted(arms.items())
        if (baseline := baseline_of(arms, world, method, rate))
    ]
    return Table("To GRPO's best Pass@1", ["World", "Arm", "Learning rate", *PACE], rows)


def better_rate_table(arms: Arms) -> Table:
    """Return each method against GRPO at the better of the rates, by its mean in that world."""
    rows = []
    for world in sorted({world for world, *_ in arms}):
        rates = {
            rate: runs
            for (where, method, rate), runs in arms.items()
            if (where, method) == (world, "grpo")
        }
        best = max(
            rates,
            key=lambda rate: np.mean([log_odds(run) for run in rates[rate].values()]),
            default=None,
        )
        for (where, method, rate), runs in sorted(arms.items()):
            differences = paired(runs, rates[best], log_odds) if best else []
            if where == world and method not in NOT_AGAINST_GRPO and len(differences) > 1:
                found = effect(differences)
                row = [
                    f"{method}, {world}, {rate}",
                    f"grpo, {best}",
                    str(found.seeds),
                    interval(found),
                ]
                rows.append([*row, found.verdict])
    return Table(
        "Against GRPO at the better rate",
        ["Arm", "Against", "Seeds", "Pass@1, log-odds", "Verdict"],
        rows,
    )


def other_pairs_table(arms: Arms) -> Table:
    """Return MINER against each other method at the same rate, and each arm at 1e-4 against itself
    at 2e-4."""
    rows = []
    others = [arm for arm in sorted(arms) if arm[1] not in NOT_AGAINST_GRPO | {CONFIRMATORY}]
    pairs = [((world, CONFIRMATORY, rate), (world, method, rate)) for world, method, rate in others]
    pairs += [
        ((world, method, rate), (world, method, "2e-4"))
        for world, method, rate in sorted(arms)
        if rate == "1e-4"
    ]
    for first, second in pairs:
        differences = paired(arms.get(first, {}), arms.get(second, {}), log_odds)
        if len(differences) > 1:
            found = effect(differences)
            names = (f"{method}, {rate}" for _, method, rate in (first, second))
            rows.append([first[0], *names, str(found.seeds), interval(found), found.verdict])
    return Table(
        "Other pairs", ["World", "Arm", "Against", "Seeds", "Pass@1, log-odds", "Verdict"], rows
    )


def score_table(arms: Arms) -> Table:
    """Return the means of each arm: its scores after training, and what training did."""
    samples = max(
        (right_samples(run)[1] for runs in arms.values() for run in runs.values()), default=0
    )
    columns: dict[str, tuple[Callable[[RunHistory], float], int]] = {
        "Pass@1, %": (lambda run: 100 * pass_at_1(run), 1),
        f"Pass@{samples}, %": (lambda run: 100 * float(np.mean(right_samples(run)[0] > 0)), 1),
        **TRAINING_COLUMNS,
    }
    rows = [
        [world, method, rate, str(len(runs)), *means(runs.values(), columns.values())]
        for (world, method, rate), runs in sorted(arms.items())
    ]
    return Table("After training", ["World", "Arm", "Learning rate", "Runs", *columns], rows)


# as a reader knows them
NAMES = {
    "miner": "MINER, the default",
    "miner_1": "MINER, 1 % of the gradient",
    "entropy": "entropy bonus",
    "f_grpo": "F-GRPO",
    "thompson": "prompts by Thompson sampling",
    "certainty": "MINER's credit, reversed",
    "boundary_gate": "boundary gate",
    "passk": "Pass@k training",
    "rounds": "Reinforce-Ada's rounds",
}


def draw(arms: Arms, path: Path) -> None:
    """Draw what the table of one rate has, at 2e-4: each method's effect in both worlds in points,
    with 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["font.size"] = 14
    effects: dict[str, dict[str, Any]] = {}
    for (world, method, rate), runs in arms.items():
        differences = paired(runs, baseline_of(arms, world, method, rate), partial(points, None))
        if rate == "2e-4" and method not in ("grpo", *BASELINES.values()) and len(differences) > 1:
            effects.setdefault(method, {})[world] = effect(differences)
    methods = sorted(effects, key=lambda method: effects[method]["forks"].mean)
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(methods) + 2.2), layout="constrained")
    axes.axvline(0, color="0.3", linewidth=1)
    for (world, color, marker, label), beside in zip(DRAWN, (0.15, -0.15), strict=True):
        found = [(place + beside, effects[method][world]) for place, method in enumerate(methods)]
        centers, widths = np.array([(one.mean, one.half_width) for _, one in found]).T
        places = [place for place, _ in found]
        axes.errorbar(
            centers, places, xerr=widths, fmt=marker, color=color, capsize=3, linewidth=2,
            label=label.replace("\n", " "),
        )  # fmt: skip
    axes.set_yticks(range(len(methods)), [NAMES[method] for method in methods])
    axes.set(xlabel="Pass@1 against GRPO, points")
    axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1), ncols=1, frameon=False)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, help="raw results, as trl-miner compare writes them"
    )
    parser.add_argument(
        "--page", type=Path, help="a page to put the tables into, between its two marks"
    )
    parser.add_argument("--figure", type=Path, help="draw the methods at 2e-4 into this file")
    args = parser.parse_args()
    arms = by_arm([run for path in args.runs for run in read_runs(path)])
    found = [
        same_rate_table(arms),
        better_rate_table(arms),
        other_pairs_table(arms),
        score_table(arms),
        pace_table(arms),
    ]
    text = "".join(
        f"### {table.title}\n\n{table.markdown().rstrip()}\n\n" for table in found if table.rows
    )
    print(text)
    if args.figure:
        draw(arms, args.figure)
    if args.page:
        before, _, after = MARKED.split(args.page.read_text(encoding="utf-8"))
        args.page.write_text(f"{before}{START}\n{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
