"""Curves over the steps of training runs, from the `trainer_state.json` that the trainer leaves.

Every `draw_*` takes runs, or the folders of runs, gives a matplotlib figure that Jupyter shows, and writes it where a
path is given. Runs of one method, that is with the same settings but for the seed, become one line: their mean, with
a band from the smallest to the largest.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.history import RunHistory, number, read_run
from .charts import (
    CALIBRATION,
    ENTROPY,
    GRAD_NORM,
    KL,
    LENGTH,
    OVERHEAD,
    PROMPT_KINDS,
    REWARD,
    ROLLOUTS,
    UPDATE,
    Chart,
    held_out_chart,
)
from .grouping import group_methods
from .lines import INK, MOST_BANDS, add_legend, draw_lines, finish_axes, method_line, new_figure, save
from .material import read_material

Runs = str | Path | RunHistory | Sequence[str | Path | RunHistory]


def draw_reward(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Training reward over the steps. For the arguments see `draw_chart`."""
    return draw_chart(REWARD, runs, path, smooth=smooth)


def draw_prompt_kinds(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Shares of PH, HE and NH prompts over the steps. For the arguments see `draw_chart`."""
    return draw_chart(PROMPT_KINDS, runs, path, smooth=smooth)


def draw_rollouts(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Shares of rollouts that teach, and that MINER recovers. For the arguments see `draw_chart`."""
    return draw_chart(ROLLOUTS, runs, path, smooth=smooth)


def draw_calibration(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """tau_pos, tau_ref, the factor, and whether the cap binds. For the arguments see `draw_chart`."""
    return draw_chart(CALIBRATION, runs, path, smooth=smooth)


def draw_update(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """What PH prompts did to the update, before and after Adam. For the arguments see `draw_chart`."""
    return draw_chart(UPDATE, runs, path, smooth=smooth)


def draw_entropy(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Entropy of the policy over the steps. For the arguments see `draw_chart`."""
    return draw_chart(ENTROPY, runs, path, smooth=smooth)


def draw_kl(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """KL to the reference model over the steps. For the arguments see `draw_chart`."""
    return draw_chart(KL, runs, path, smooth=smooth)


def draw_grad_norm(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Norm of the gradient over the steps. For the arguments see `draw_chart`."""
    return draw_chart(GRAD_NORM, runs, path, smooth=smooth)


def draw_length(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Length of the completions over the steps. For the arguments see `draw_chart`."""
    return draw_chart(LENGTH, runs, path, smooth=smooth)


def draw_overhead(runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Time of MINER's advantages as a share of a step. For the arguments see `draw_chart`."""
    return draw_chart(OVERHEAD, runs, path, smooth=smooth)


def draw_held_out(runs: Runs, path: str | Path | None = None) -> Any:
    """Pass@1, and Pass@k, on held-out problems over the steps. For the arguments see `draw_chart`."""
    histories = read_runs(runs)
    return draw_chart(held_out_chart(histories), histories, path)


def draw_chart(chart: Chart, runs: Runs, path: str | Path | None = None, *, smooth: int = 1) -> Any:
    """Draw one chart.

    Args:
        chart: One of `CHARTS`, or your own.
        runs: A run or several, read or as folders; a folder of `trl-miner compare` is all of its runs.
        path: Where to write it as .png or .svg; None: nowhere.
        smooth: Logs of a trailing mean over each run; 1: none.

    Returns:
        The matplotlib figure.

    Raises:
        FileNotFoundError: A folder is no run.
        ValueError: A path is neither .png nor .svg.
    """
    from matplotlib.ticker import MaxNLocator

    histories = read_runs(runs)
    methods = group_methods(histories)
    xlabel, per_step = step_axis(histories)
    figure, panels = new_figure(len(chart.panels), len(methods), columns=chart.columns)
    for axes, panel in zip(panels, chart.panels, strict=True):
        points_of = _points_of(panel.key, per_step)
        lines = [line for method in methods if (line := method_line(method, points_of, smooth)) is not None]
        draw_lines(axes, lines, panels=len(panels), bands=len(methods) <= MOST_BANDS)
        if panel.share:
            axes.set_ylim(-0.03, 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        finish_axes(
            axes,
            title=panel.title,
            xlabel=xlabel,
            ylabel=panel.unit,
            percent=panel.unit.startswith("share"),
            log=panel.log,
        )
    add_legend(figure, panels)
    return save(figure, path)


def has_chart(chart: Chart, run: RunHistory) -> bool:
    """Whether a run recorded anything of a chart.

    Args:
        chart: One of `CHARTS`, or of `held_out_chart`.
        run: Its history.

    Returns:
        False where no log has a finite number for any of its panels.
    """
    return any(number(value) is not None for panel in chart.panels for _, value in _points_of(panel.key, None)(run))


def overhead(run: RunHistory) -> list[tuple[float, float]]:
    """The share of a step's time that MINER's advantages took.

    Args:
        run: Its history.

    Returns:
        (optimizer step, share) pairs.
    """
    # A step is a generation batch: `step_time` is of an optimizer step, `miner/seconds` of a generation batch.
    per_step = run.per_step or 1.0
    times = dict(run.values("step_time"))
    return [
        (step, seconds / (times[step] * per_step)) for step, seconds in run.values("miner/seconds") if times.get(step)
    ]


def step_axis(runs: Sequence[RunHistory]) -> tuple[str, Mapping[str, float] | None]:
    """What the axis of steps counts: generation batches, where each run says how many optimizer steps one has, so that
    methods with several stand beside those with one; else optimizer steps.

    Args:
        runs: Histories.

    Returns:
        The axis's title, and by folder what optimizer steps are divided by (None: nothing).
    """
    if runs and all(run.per_step for run in runs):
        return "step (generation batches)", {str(run.folder): run.per_step or 1.0 for run in runs}
    return "step (of the optimizer)", None


def read_runs(runs: Runs) -> list[RunHistory]:
    """Histories as they are; folders read, those of `trl-miner compare` with all their runs.

    Args:
        runs: One or several of either.

    Returns:
        Histories, in order.
    """
    found: list[RunHistory] = []
    for run in [runs] if isinstance(runs, str | Path | RunHistory) else runs:
        if isinstance(run, RunHistory):
            found.append(run)
        else:
            found += read_material([run]).runs or [read_run(run)]
    return found


def read_log(run: str | Path) -> list[Mapping[str, Any]]:
    """The training logs of a run folder, one dict per logged step.

    Args:
        run: Output folder of a run.

    Returns:
        In order; of a step that was logged twice the later one.

    Raises:
        FileNotFoundError: The folder holds no `trainer_state.json`, nor does a checkpoint in it.
    """
    return list(read_run(run).logs)


def draw_training(run: str | Path, path: str | Path | None = None) -> Path:
    """Reward, kinds of prompt and used rollouts over the steps, as one picture.

    Args:
        run: Output folder of a run.
        path: Where to write; default: `training.png` in the run folder.

    Returns:
        The path written.

    Raises:
        FileNotFoundError: The folder is no run.
        ValueError: The run has logged no step.
    """
    history = read_run(run)
    if not history.logs:
        raise ValueError(f"{run} has no logged training step. Set logging_steps below the number of steps.")
    path = Path(run) / "training.png" if path is None else Path(path)
    save(overview(history), path)
    return path


def overview(run: RunHistory) -> Any:
    """The picture of `draw_training`, not written.

    Args:
        run: Its history.

    Returns:
        The matplotlib figure.
    """
    from matplotlib.ticker import MaxNLocator

    figure, panels = new_figure(3)
    figure.set_size_inches(12, 3.6)
    shown = (
        ("Reward", "mean reward", {"reward": ("mean reward", 0)}),
        (
            "Kinds of prompt",
            "share of prompts",
            {"groups/ph": ("all right (PH)", 2), "groups/he": ("mixed (HE)", 3), "groups/nh": ("all wrong (NH)", 1)},
        ),
        (
            "Rollouts that teach",
            "share of rollouts",
            {
                "rollouts/grpo": ("under GRPO", 3),
                "rollouts/used": ("in this run", 0),
                "rollouts/recovered": ("recovered from PH", 2),
            },
        ),
    )
    for axes, (title, unit, series) in zip(panels, shown, strict=True):
        lines = [
            line for key, (label, place) in series.items() if (line := _one_line(run, key, label, place)) is not None
        ]
        draw_lines(axes, lines, panels=3, bands=False)
        axes.set_ylim(None if axes is panels[0] else (-0.02, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        finish_axes(axes, title=title, xlabel="step", ylabel=unit, percent=axes is not panels[0])
        if axes is not panels[0] and lines:  # below, where no line can run through it
            axes.legend(
                frameon=False, ncols=3, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16),
                labelcolor=INK, handlelength=2.4, columnspacing=1.0, handletextpad=0.5,
            )  # fmt: skip
    return figure


def _one_line(run: RunHistory, key: str, label: str, place: int) -> Any:
    from .grouping import Method

    return method_line(Method(label, [run], place), lambda one: one.values(key))


def _points_of(key: str, per_step: Mapping[str, float] | None) -> Callable[[RunHistory], list[tuple[float, float]]]:
    """What gives a run's points of a panel, on the axis of `step_axis`."""

    def points(run: RunHistory) -> list[tuple[float, float]]:
        if key == "overhead":
            found = overhead(run)
        elif key.startswith("eval:"):
            name = key.removeprefix("eval:")
            found = [(step, scores[name]) for step, scores in run.scores.items() if name in scores]
        else:
            found = run.values(key)
        unit = 1.0 if per_step is None else per_step[str(run.folder)]
        return [(step / unit, value) for step, value in found]

    return points
