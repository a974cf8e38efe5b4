"""The records of a run: ours, and those of TRL's own `GRPOTrainer`."""

import json
import math
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run.record import Record, read_record

if TYPE_CHECKING:
    from pandas import DataFrame

STATE = "trainer_state.json"
COMPLETIONS = "completions/completions_*.parquet"
# Settings in which runs of one method may differ.
_NOT_THE_METHOD = {"seed", "data_seed", "output_dir", "run_name", "report_to"}


@dataclass(frozen=True)
class RunLog:
    """What a run has logged.

    Attributes:
        folder: The `output_dir`.
        log: A row per logged step, a column per metric; the index is the step. Scores on held-out
            problems begin with `eval_`. Of a run of TRL's own trainer the share of completions with
            a gradient, and the kinds of prompts where completions were logged, have our names, too.
        record: What is in `training.json`; None for a run of TRL's own trainer.
        completions: What was written with `log_completions`, as `read_completions` returns it.
        verifier: The reward function that decides what is correct; None: several may.
        threshold: Its reward from which on a completion is correct: the run's setting, else 1.
    """

    folder: Path
    log: "DataFrame"
    record: Record | None
    completions: "DataFrame | None"
    verifier: str | None
    threshold: float

    @property
    def method(self) -> str:
        """What trained, such as "MINER"."""
        return " + ".join(self.record.methods) if self.record else "TRL's GRPOTrainer"

    @property
    def method_key(self) -> str:
        """Equal for runs that differ in nothing but their seed. Each run of TRL's has its own: it
        does not record its settings."""
        if self.record is None:
            return str(self.folder.resolve())
        settings = self.record.settings.items()
        kept = sorted(item for item in settings if item[0] not in _NOT_THE_METHOD)
        return str((self.record.base_model, self.record.dataset, kept))

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the logged steps; NaN: it was not logged."""
        return float(self.log[metric].mean()) if metric in self.log else math.nan


def read_run(folder: str | Path, correct: str | None = None) -> RunLog:
    """Return what the run in a folder has logged.

    Args:
        folder: Of `trainer_state.json` there and in its checkpoints the one that went furthest
            counts.
        correct: The reward function that decides what is correct. Default: the run's own setting,
            else its only one.

    Raises:
        ValueError: The folder is missing, holds no run, or has no such reward function.
    """
    path = run_folder(folder)
    states = [*path.glob(STATE), *path.glob(f"checkpoint-*/{STATE}")]
    if not states:
        raise ValueError(
            f"No run in {folder}: it has no {STATE}, and no checkpoint with one. Give the"
            f" output_dir of a run. An evaluation is shown by trl-miner eval {folder}"
        )
    log = max(map(_log_of, states), key=lambda log: log.index.max())
    record, completions = read_record(path), read_completions(path)
    settings = record.settings if record else {}
    functions = [name.split("/")[1] for name in log if re.fullmatch(r"rewards/.*/mean", name)]
    if correct and correct not in functions:
        raise ValueError(f"No reward function {correct!r} in {folder}: it has {functions}.")
    verifier = correct or settings.get("correct_reward_func")
    if verifier not in functions:
        verifier = functions[0] if len(functions) == 1 else None
    threshold = float(settings.get("correct_threshold", 1))
    if "completions/grpo" not in log and "frac_reward_zero_std" in log:
        log["completions/grpo"] = log["completions/used"] = 1 - log["frac_reward_zero_std"]
    if completions is not None and verifier and "groups/ph" not in log:
        log = log.join(_kinds(completions, verifier, threshold))
    return RunLog(path, log, record, completions, verifier, threshold)


def run_folder(folder: str | Path) -> Path:
    """Return the path of a run's folder.

    Raises:
        ValueError: It is empty, a file, or missing.
    """
    if not (str(folder) and Path(folder).is_dir()):
        raise ValueError(f"{str(folder)!r} is not a folder. Give the output_dir of a run.")
    return Path(folder)


def _log_of(path: Path) -> "DataFrame":
    """Return the logged metrics by step; of a step that was logged twice the last value."""
    import pandas as pd

    try:
        history = json.loads(path.read_text("utf-8"))["log_history"]
        log = pd.DataFrame(history).dropna(axis=1, how="all").groupby("step").last()
        log["reward"] = log["reward"].astype(float)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged, or of a run that has logged no reward.") from None
    return log.apply(pd.to_numeric, errors="coerce")


def read_completions(folder: str | Path) -> "DataFrame | None":
    """Return the completions that a run wrote with `log_completions`, or None where it wrote none.

    Columns are TRL's: step, prompt, completion, one per reward function, those of `log_extra`,
    advantage. Prompts and completions are texts, those of messages joined.
    A column `group` numbers the prompts. A batch that TRL wrote at several steps is there once, at
    the first.

    Raises:
        ValueError: A file is damaged.
    """
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for path in sorted(Path(folder).glob(COMPLETIONS)):
        try:
            part = pd.read_parquet(path)
            texts = part[["prompt", "completion"]].map(_text)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not (parts and texts.equals(parts[-1][[*texts]])):
            parts.append(part.assign(**texts))
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    # As many completions a prompt as divide every stretch of equal prompts.
    size = math.gcd(*(len([*stretch]) for _, stretch in groupby(table["prompt"])))
    return table.assign(group=table.index // size)


def _text(value: Any) -> str:
    """Return a prompt or a completion, a message, or a part of one as one text."""
    if isinstance(value, dict):
        value = value.get("content") or value.get("text") or ""
    return value if isinstance(value, str) else "\n".join(map(_text, value))


def _kinds(completions: "DataFrame", verifier: str, threshold: float) -> "DataFrame":
    """Return the shares of all-right, mixed and all-wrong prompts of each step, as our trainer
    logs them: all right are correct completions with one total reward."""
    of_rows = completions.assign(
        correct=completions[verifier] >= threshold,
        scored=completions[verifier].notna(),
        equal=completions["advantage"] == 0,
    ).groupby("group")
    kinds = of_rows.agg({"step": "first", "correct": "mean", "scored": "all", "equal": "all"})
    kinds["groups/ph"] = kinds["scored"] & kinds["equal"] & (kinds["correct"] == 1)
    kinds["groups/nh"] = kinds["scored"] & (kinds["correct"] == 0)
    kinds["groups/he"] = kinds["scored"] & ~kinds["groups/ph"] & ~kinds["groups/nh"]
    return kinds.groupby("step")[["groups/ph", "groups/he", "groups/nh"]].mean()
