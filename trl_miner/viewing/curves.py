"""Curves over the steps of training runs: `draw_chart("rollouts", ["runs/grpo", "runs/miner"])`.

Runs of one method, that is with the same settings but for the seed, become one line: their mean, with a band from the
smallest to the largest.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.dose import dose_of
from ..runs.history import RunHistory, read_run
from .charts import COMPLETIONS, HELD_OUT, UNSCORABLE, Chart, charts_of
from .completions import completions_history
from .grouping import Method, group_methods, standing_out
from .lines import INK, MOST_BANDS, add_legend, draw_lines, finish_axes, method_line, new_figure, save, style
from .material import read_material
from .spreads import known_values

Runs = str | Path | RunHistory | Sequence[str | Path | RunHistory]


def draw_chart(chart: str | Chart, runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Draw one chart, which Jupyter shows.

    Args:
        chart: reward, prompt_kinds, rollouts, calibration, dose, update, entropy, kl, grad_norm, length, overhead,
            held_out or completions; or a `Chart` of your own.
        runs: A run or several, read or as folders; a folder of `trl-miner compare` is all of its runs.
        path: A .png or .svg file to write; None: write nothing.
        smooth: Logs of a trailing mean over each run; 1: none.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is no run.
        ValueError: There is no such chart, or the path ends otherwise.
    """
    histories = read_runs(runs)
    if isinstance(chart, str):
        charts = charts_of(histories)
        if chart not in charts:
            raise ValueError(f"chart must be one of {', '.join(charts)}: got {chart!r}.")
        histories = [completions_history(run) for run in histories] if chart == COMPLETIONS.name else histories
        chart = charts[chart]
    methods = group_methods(histories)
    xlabel, per_step = step_axis(histories)
    shown = [panel for panel in chart.panels if not panel.rare or _occurs(panel.key, histories)] or chart.panels[:1]
    figure, panels = new_figure(len(shown), len(methods), columns=chart.columns)
    for axes, panel in zip(panels, shown, strict=True):
        points_of = _points_of(panel.key, per_step)
        lines = [line for method in methods if (line := method_line(method, points_of, smooth)) is not None]
        draw_lines(axes, lines, panels=len(panels), bands=len(methods) <= MOST_BANDS, front=standing_out(methods))
        for method in methods if panel.target else ():
            dosed = [run for run in method.runs if run.has(panel.key) and run.has(panel.target)]
            for target in {known_values(run, panel.target)[-1] for run in dosed}:
                axes.axhline(target, color=style(method.place)[0], linestyle=":", linewidth=1.2)
        if panel.share:
            axes.set_ylim(-0.03, 1.03)
        percent = panel.unit.startswith("share")
        mark_steps(axes)
        finish_axes(axes, title=panel.title, xlabel=xlabel, ylabel=panel.unit, percent=percent, log=panel.log)
    add_legend(figure, panels)
    return save(figure, path)


def has_chart(chart: Chart, run: RunHistory) -> bool:
    """Return whether a run recorded anything of a chart."""
    if chart.name == HELD_OUT:
        return bool(run.scores)
    return any(np.isfinite(_points_of(panel.key, None)(run)[:, 1]).any() for panel in chart.panels)


def _occurs(key: str, runs: Sequence[RunHistory]) -> bool:
    """Return whether a metric is a number other than 0 in some log of some run."""
    return any(np.nan_to_num(_points_of(key, None)(run)[:, 1]).any() for run in runs)


def overhead(run: RunHistory) -> list[tuple[float, float]]:
    """Return the share of a step's time that MINER's advantages took in a run, by optimizer step."""
    # `step_time` is the time of an optimizer step, `miner/seconds` that of a generation batch
    per_step = run.per_step or 1.0
    times = dict(run.values("step_time"))
    return [
        (step, seconds / (times[step] * per_step)) for step, seconds in run.values("miner/seconds") if times.get(step)
    ]


def read_runs(runs: Runs) -> list[RunHistory]:
    """Return the histories of one folder or several `runs`; a folder of `trl-miner compare` is all of its runs."""
    histories: list[RunHistory] = []
    for run in [runs] if isinstance(runs, str | Path | RunHistory) else runs:
        if isinstance(run, RunHistory):
            histories.append(run)
        else:
            histories += read_material([run]).runs or [read_run(run)]
    return histories


def draw_training(run: str | Path, path: str | Path | None = None) -> Path:
    """Draw reward, kinds of prompt and used rollouts of a run folder as one picture. Return its path.

    Args:
        run: Output folder of a run.
        path: The file to write; default: `training.png` in the run folder.
    """
    history = read_run(run)
    if not history.logs:
        raise ValueError(f"{run} has no logged training step. Set logging_steps below the number of steps.")
    path = Path(run) / "training.png" if path is None else Path(path)
    save(_overview(history), path)
    return path


_OVERVIEW = (  # title, unit, and of each line the metric, its label and its color
    ("Reward", "mean reward", [("reward", "mean reward", 0)]),
    (
        "Kinds of prompt",
        "share of prompts",
        [
            ("groups/ph", "all right (PH)", 2),
            ("groups/he", "mixed (HE)", 3),
            ("groups/nh", "all wrong (NH)", 1),
            (UNSCORABLE, "unscorable", 4),
        ],
    ),
    (
        "Rollouts that teach",
        "share of rollouts",
        [
            ("rollouts/grpo", "under GRPO", 3),
            ("rollouts/used", "in this run", 0),
            ("rollouts/recovered", "recovered from PH", 2),
        ],
    ),
)


def _overview(run: RunHistory) -> Any:
    figure, panels = new_figure(len(_OVERVIEW))
    figure.set_size_inches(12, 3.6)
    for axes, (title, unit, series) in zip(panels, _OVERVIEW, strict=True):
        is_share = unit.startswith("share")
        title += _use(run) if series[0][0] == "rollouts/grpo" else ""
        every = [
            method_line(Method(label, [run], place), _points_of(key, None))
            for key, label, place in series
            if key != UNSCORABLE or _occurs(key, [run])
        ]
        lines = [line for line in every if line is not None]
        draw_lines(axes, lines, panels=len(_OVERVIEW), bands=False)
        axes.set_ylim((-0.02, 1.02) if is_share else None)
        mark_steps(axes)
        finish_axes(axes, title=title, xlabel="step", ylabel=unit, percent=is_share)
        if is_share and lines:  # below, where no line can run through it
            axes.legend(
                frameon=False,
                ncols=3,
                fontsize="small",
                loc="upper center",
                bbox_to_anchor=(0.5, -0.16),
                labelcolor=INK,
                handlelength=2.4,
                columnspacing=1.0,
                handletextpad=0.5,
            )
    return figure


def _use(run: RunHistory) -> str:
    """Return the mean shares of rollouts that taught something, for the title of their panel."""
    used, under_grpo = (known_values(run, f"rollouts/{name}") for name in ("used", "grpo"))
    if not used or not under_grpo:
        return ""
    return f": {100 * statistics.fmean(used):.0f} % used, {100 * statistics.fmean(under_grpo):.0f} % under GRPO"


def mark_steps(axes: Any) -> None:
    """Put whole numbers on the axis of steps of `axes`, matplotlib's."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def step_axis(runs: Sequence[RunHistory]) -> tuple[str, Mapping[str, float] | None]:
    """Return the title of the axis for `runs`, and by folder what optimizer steps are divided by (None: nothing).

    The axis counts generation batches where each run says how many optimizer steps one has, so that methods with
    several stand beside those with one; else it counts optimizer steps.
    """
    if runs and all(run.per_step for run in runs):
        return "step (generation batches)", {str(run.folder): run.per_step or 1.0 for run in runs}
    return "step (of the optimizer)", None


def _points_of(key: str, per_step: Mapping[str, float] | None) -> Callable[[RunHistory], np.ndarray]:
    """Return a function that gives a run's (points, 2) of a panel, on the axis of `step_axis`."""

    def points(run: RunHistory) -> np.ndarray:
        if key == "overhead":
            found = np.array(overhead(run)).reshape(-1, 2)
        elif key == "l1_share":
            dose = dose_of(run)
            found = np.array(dose.reached if dose.unit in ("cap", "none") else []).reshape(-1, 2)
        elif key.startswith("eval:"):
            name = key.removeprefix("eval:")
            scored = [(step, scores[name]) for step, scores in run.scores.items() if name in scores]
            found = np.array(scored, dtype=float).reshape(-1, 2)
        else:
            found = run.points(key)
        return found / [1.0 if per_step is None else per_step[str(run.folder)], 1.0]

    return points
