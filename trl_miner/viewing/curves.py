"""Curves over the steps of training runs: `draw_chart("rollouts", ["runs/grpo", "runs/miner"])`.

Runs of one method, that is with the same settings but for the seed, become one line: their mean, with a band from the
smallest to the largest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runs.history import RunHistory, read_run
from .charts import UNSCORABLE, Chart, Panel, charts_of
from .drawing import draw_metrics, keys_of
from .figures import save
from .frame import Metrics, read_metrics
from .grouping import Method, group_methods
from .material import read_material, tell_apart

Runs = str | Path | RunHistory | Sequence[str | Path | RunHistory]

_TRAINING = {  # of the picture of one run: a panel, and its metrics with their labels
    Panel("reward", "Reward", "mean reward"): {"reward": "mean reward"},
    Panel("prompts", "Kinds of prompt", "share of prompts", share=True): {
        "groups/nh": "all wrong (NH)",
        "groups/ph": "all right (PH)",
        "groups/he": "mixed (HE)",
        UNSCORABLE: "unscorable",
    },
    Panel("rollouts", "Rollouts with a gradient", "share of rollouts", share=True): {
        "rollouts/used": "in this run",
        "rollouts/recovered": "recovered from PH",
        "rollouts/grpo": "under GRPO",
    },
}


def draw_chart(chart: str | Chart, runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Draw one chart, which Jupyter shows.

    Args:
        chart: reward, prompt_kinds, rollouts, calibration, dose, update, entropy, kl, grad_norm, length, overhead or
            held_out; or a `Chart` of your own.
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
        chart = charts[chart]
    return save(draw_metrics(chart, read_metrics(group_methods(histories), keys_of([chart])), smooth), path)


def read_runs(runs: Runs) -> list[RunHistory]:
    """Return the histories of one folder or several `runs`; a folder of `trl-miner compare` is all of its runs."""
    histories: list[RunHistory] = []
    for run in [runs] if isinstance(runs, str | Path | RunHistory) else runs:
        if isinstance(run, RunHistory):
            histories.append(run)
        else:
            histories += read_material([run]).runs or [read_run(run)]
    return tell_apart(histories)


def draw_training(run: str | Path, path: str | Path | None = None) -> Path:
    """Draw reward, kinds of prompt and used rollouts of a run folder as one picture.

    Args:
        run: Output folder of a run.
        path: The file to write; default: `training.png` in the run folder.

    Returns:
        The path of the picture.
    """
    history = read_run(run)
    if not history.columns:
        raise ValueError(f"{run} has no logged training step. Set logging_steps below the number of steps.")
    path = Path(run) / "training.png" if path is None else Path(path)
    labels = {metric: label for series in _TRAINING.values() for metric, label in series.items()}
    panels = {metric: panel.key for panel, series in _TRAINING.items() for metric in series}
    metrics = read_metrics([Method("", [history])], labels)
    if not metrics.occurs(UNSCORABLE):
        del labels[UNSCORABLE]
    rows = metrics.rows[metrics.rows["metric"].isin([*labels])]
    rows = rows.assign(method=rows["metric"].map(labels), metric=rows["metric"].map(panels))
    methods = [Method(label, [], index) for index, label in enumerate(labels.values())]
    chart = Chart("training", "Training", tuple(_TRAINING), "")
    save(draw_metrics(chart, Metrics(methods, rows, metrics.axis)), path)
    return path
