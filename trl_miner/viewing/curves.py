"""Curves over the steps of a run, from the `trainer_state.json` that the trainer leaves."""

import json
from pathlib import Path
from typing import Any


def read_log(run: str | Path) -> list[dict[str, Any]]:
    """The training logs of a run folder, one dict per logged step.

    Raises:
        FileNotFoundError: The folder holds no `trainer_state.json`, nor does a checkpoint in it.
    """
    run = Path(run)
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True)
    for folder in (run, *checkpoints):
        if (state := folder / "trainer_state.json").is_file():
            history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
            return [log for log in history if "reward" in log]
    raise FileNotFoundError(f"{run} holds no trainer_state.json. Give the output_dir of a training run.")


def draw_training(run: str | Path, path: str | Path | None = None) -> Path:
    """Reward, kinds of prompt and used rollouts over the steps, as one picture.

    Args:
        run: Output folder of a run.
        path: Where to write; default: `training.png` in the run folder.

    Returns:
        The path written.
    """
    from matplotlib.figure import Figure  # the object interface: no display, no global state
    from matplotlib.ticker import MaxNLocator

    logs = read_log(run)
    if not logs:
        raise ValueError(f"{run} has no logged training step. Set logging_steps below the number of steps.")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    reward, kinds, rollouts = figure.subplots(1, 3)
    # Okabe-Ito colours, told apart by colour-blind readers, and each line with its own dash for grey print
    _lines(reward, logs, {"reward": ("mean reward", "#0072B2", "-")})
    _lines(
        kinds,
        logs,
        {
            "groups/ph": ("all right (PH)", "#009E73", "-"),
            "groups/he": ("mixed (HE)", "#E69F00", "--"),
            "groups/nh": ("all wrong (NH)", "#D55E00", ":"),
        },
    )
    _lines(
        rollouts,
        logs,
        {
            "rollouts/grpo": ("under GRPO", "#E69F00", "--"),
            "rollouts/used": ("in this run", "#0072B2", "-"),
            "rollouts/recovered": ("recovered from PH", "#009E73", "-."),
        },
    )
    for axes, title in ((reward, "Reward"), (kinds, "Share of prompts"), (rollouts, "Share of rollouts that teach")):
        axes.set(title=title, xlabel="step", ylim=None if axes is reward else (-0.02, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes is not reward and axes.has_data():  # below, where no line can run through it
            axes.legend(frameon=False, ncols=3, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16))
    path = Path(run) / "training.png" if path is None else Path(path)
    figure.savefig(path, dpi=150)
    return path


def _lines(axes: Any, logs: list[dict[str, Any]], series: dict[str, tuple[str, str, str]]) -> None:
    for key, (label, colour, dash) in series.items():
        points = [(log["step"], log[key]) for log in logs if log.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), dash, color=colour, label=label)
