"""One picture of runs: reward, kinds of prompts, completions with a gradient, scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .runs import RunLog

# Okabe and Ito's colors, distinguishable for color-blind readers: one per method.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# What a panel shows, and a row of the table: its first and its last value, or its mean.
ENDS = {
    "reward": "Reward",
    "entropy": "Entropy, nats",
    "kl": "KL divergence, nats",
    "eval_pass@1": "Held-out Pass@1",
    "eval_reward": "Held-out reward",
}
SHARES = {
    "groups/ph": "Prompts all right",
    "groups/he": "Prompts mixed",
    "groups/nh": "Prompts all wrong",
    "completions/used": "Completions with a gradient",
    "completions/clipped_ratio": "Completions cut off",
}
COLUMNS = 3


def draw(runs: Sequence[RunLog], path: str | Path) -> None:
    """Draw the metrics that some run has logged, and save the picture as a file.

    Runs that differ in nothing but their seed become one line, their mean, with a band from the
    lowest to the highest.

    Args:
        runs: At least one.
        path: Of the picture; its ending (.png, .svg) says the format.
    """
    from matplotlib.figure import Figure

    methods = by_method(runs)
    logged = {metric for run in runs for metric in run.log}
    panels = [item for item in (ENDS | SHARES).items() if item[0] in logged]
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(4.5 * COLUMNS, 3.2 * rows), layout="constrained")
    for place, (metric, title) in enumerate(panels, 1):
        axes = figure.add_subplot(rows, COLUMNS, place, title=title, xlabel="step")
        for (name, seeds), color in zip(methods.items(), COLORS * len(methods), strict=False):
            _draw_line(axes, seeds, metric, color=color, label=name)
        axes.grid(alpha=0.3)
        axes.axhline(0, color="0.8", linewidth=0.8)  # so that no noise fills the panel
        if place == 1:
            axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


def _draw_line(axes: Any, seeds: Sequence[RunLog], metric: str, **look: Any) -> None:
    import pandas as pd

    known = [run.log[metric].dropna() for run in seeds if metric in run.log]
    if not known:
        return
    values = pd.concat(known, axis=1).sort_index()
    axes.plot(values.index, values.mean(axis=1), marker=".", **look)
    if len(known) > 1:
        low, high = values.min(axis=1), values.max(axis=1)
        axes.fill_between(values.index, low, high, color=look["color"], alpha=0.2, linewidth=0)


def by_method(runs: Sequence[RunLog]) -> dict[str, list[RunLog]]:
    """Return the runs by their folder, those that differ in their seed alone together."""
    methods: dict[str, list[RunLog]] = {}
    for run in runs:
        methods.setdefault(run.method_key, []).append(run)
    return {
        f"{seeds[0].folder}" + f" (mean of {len(seeds)} seeds)" * (len(seeds) > 1): seeds
        for seeds in methods.values()
    }
