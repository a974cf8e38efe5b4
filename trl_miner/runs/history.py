"""A run folder as reports see it: `read_run` puts its files together."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from ..common.network import not_found
from .checkpoints import STATE, list_checkpoints
from .files import read_object
from .held_out import HeldOut, read_held_out
from .records import State, number
from .training_record import read_compared, read_run_record, told_settings

if TYPE_CHECKING:
    import numpy as np

_STATE = TypeAdapter(State)
_UNSET = {("all_right", "None"), ("all_wrong", "None")}  # advantage_estimator decides


@dataclass(frozen=True)
class RunHistory:
    """One training run."""

    folder: Path
    name: str  # in reports
    # The training logs: by metric (n, 2) optimizer steps, ascending, and values; NaN is no finite
    # number.
    columns: Mapping[str, "np.ndarray"]
    method: str | None = None  # the name of the recipe, where `trl-miner compare` recorded it
    seed: int | None = None  # None: not recorded
    # the recorded ones, in one spelling; empty: none
    settings: Mapping[str, str] = field(default_factory=dict)
    # Scores on held-out problems by optimizer step, {0: {"pass@1": 0.5}}; 0 is before training.
    scores: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    steps: int = 0  # optimizer steps done
    planned: int | None = None  # None: not recorded
    per_step: float | None = None  # optimizer steps per generation batch; None: not recorded
    # all planned steps are done, and it was scored after training if it was scored at all
    finished: bool = True
    held_out: HeldOut | None = None  # None: not recorded
    # of the packages, and "git", this package's commit
    versions: Mapping[str, str] = field(default_factory=dict)

    def points(self, key: str) -> "np.ndarray":
        """Return a column, which may be empty."""
        import numpy as np

        return self.columns.get(key, np.empty((0, 2)))

    def values(self, key: str) -> list[tuple[float, float]]:
        """Return `points` of a metric by its key, as (optimizer step, value)."""
        return [(step, value) for step, value in self.points(key).tolist()]


def read_run(folder: str | Path) -> RunHistory:
    """Return the history of a run folder, finished or not.

    Raises:
        FileNotFoundError: Neither the folder nor a checkpoint in it holds a `trainer_state.json`.
        ValueError: A file is damaged.
    """
    folder = Path(folder)
    state, record, held_out = read_state(folder), read_run_record(folder), read_held_out(folder)
    columns = columns_of(state.get("log_history") or ())
    steps = int(
        state.get("global_step") or max((points[-1, 0] for points in columns.values()), default=0)
    )
    planned = state.get("max_steps")
    settings = told_settings(record)
    return RunHistory(
        folder=folder,
        name=folder.resolve().name,
        columns=columns,
        method=read_compared(folder).get("method"),
        seed=record.get("seed"),
        settings={name: text for name, text in settings.items() if (name, text) not in _UNSET},
        scores=held_out.by_step if held_out else {},
        steps=steps,
        planned=int(planned) if planned and planned > 0 else None,
        per_step=record.get("optimizer_steps_per_step"),
        finished=(not planned or steps >= planned)
        and (held_out is None or held_out.after is not None),
        held_out=held_out,
        versions=(record.get("versions") or {})
        | ({"git": record["git"]} if record.get("git") else {}),
    )


def columns_of(logs: Iterable[Any]) -> dict[str, "np.ndarray"]:
    """Return training logs as columns: by metric (n, 2) optimizer steps, ascending, and values; NaN
    where a value is no finite number. Of logs of the same step the last value counts. Logs without
    a reward are no training logs."""
    import numpy as np

    by_metric: dict[str, dict[float, float | None]] = defaultdict(dict)
    for log in logs:
        if (
            isinstance(log, Mapping)
            and "reward" in log
            and (step := number(log.get("step"))) is not None
        ):
            for key, value in log.items():
                by_metric[key][step] = number(value)
    return {key: np.array(sorted(points.items()), dtype=float) for key, points in by_metric.items()}


def has_state(folder: Path) -> bool:
    """Return whether a folder, which need not exist, is that of a run with a log."""
    return bool(_with_state(folder))


def _with_state(folder: Path) -> list[Path]:
    return [
        place
        for place in (folder, *reversed(list_checkpoints(folder)))
        if (place / STATE).is_file()
    ]


def no_state(folder: Path) -> str:
    """Return an error message: why a folder without a log cannot be read, and what to do."""
    if not folder.is_dir():
        what = f"{folder} is not a folder." if folder.exists() else not_found("Run folder", folder)
        return f"{what} Give the output_dir of a run."
    return (
        f"No run in {folder}: it has no {STATE}, nor does a checkpoint in it. Give the output_dir of"
        " a run, or the --output of trl-miner compare or eval. If the run has just started, wait for"
        " its first checkpoint."
    )


def read_state(folder: Path) -> dict[str, Any]:
    """Read the state with the most steps, the folder's own or the newest checkpoint's, which may be
    half written."""
    states, errors = [], []
    for place in _with_state(folder):
        try:
            states.append(read_object(place / STATE, record=_STATE))
        except ValueError as error:
            errors.append(error)
        if len(states) == 2:  # each checkpoint repeats the log of those before it
            break
    if errors and not states:
        raise errors[0]
    if not states:
        raise FileNotFoundError(no_state(folder))
    return max(states, key=lambda state: state.get("global_step") or 0)
