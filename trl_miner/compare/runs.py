"""Train the runs of a comparison, each in a process of its own in OUTPUT/<recipe>/seed<k>."""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..launching.local import STARTER
from ..launching.process import GuardedProcess
from ..launching.signals import how_it_ended
from ..progress import Progress, duration
from ..redaction import redact
from ..runs.held_out import read_held_out
from ..runs.history import RunHistory, read_run
from ..runs.locks import TRAINING_LOCK, lock_folder
from ..runs.trainer_state import last_step
from ..runs.training_record import read_compared, write_compared
from ..threads import NOT_ASKED
from ..viewing.tables import final_scores

_GRACE_SECONDS = 30.0  # from a signal to SIGKILL: torch's launcher needs a few seconds to end its workers


class Stopped(Exception):  # noqa: N818
    """A signal, its argument, asked the comparison to end."""


def check_signals(received: Sequence[int]) -> None:
    """Raise `Stopped` if a signal has arrived, so that nothing more is started."""
    if received:
        raise Stopped(received[0])


@dataclass(frozen=True)
class Run:
    """One recipe with one seed."""

    folder: Path
    recipe: Path
    settings: Mapping[str, Any]  # "compared" in training.json: all that decides the outcome

    @property
    def name(self) -> str:
        return f"{self.settings['method']} seed {self.settings['seed']}"

    @property
    def command(self) -> list[str]:
        train = [*STARTER, "--config", str(self.recipe)]
        own = ["--output_dir", str(self.folder), "--seed", str(self.settings["seed"])]
        return [*train, *self.settings["options"], *own, "--resume_from_checkpoint", "latest"]

    def result(self) -> RunHistory | None:
        """Return what the run recorded; None: it was not scored after training, or a file is missing or damaged."""
        try:
            held_out = read_held_out(self.folder)
            is_finished = last_step(self.folder) is not None and held_out is not None and held_out.after is not None
            return read_run(self.folder) if is_finished else None
        except (FileNotFoundError, ValueError):
            return None


def check_folder(run: Run) -> None:
    """Raise ValueError if the run's folder holds something else, which must not be overwritten."""
    advice = "Give another --output, or delete that folder."
    if known := read_compared(run.folder):
        if difference := _difference(known, redact(run.settings)):
            raise ValueError(
                f"{run.folder} must be empty or hold the same run: it holds one with other settings, {difference}. "
                f"{advice}"
            )
        with lock_folder(run.folder, TRAINING_LOCK):  # a comparison that was killed may have left it behind
            pass
    elif run.folder.is_dir() and any(not entry.name.startswith(".") for entry in run.folder.iterdir()):
        raise ValueError(f"{run.folder} must be empty or hold a run of compare: it holds other files. {advice}")


def _difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return which settings differ, and how; empty: none does."""
    before, after = (
        {"options": " ".join(map(str, one.get("options") or [])), "seed": one.get("seed"), **(one.get("recipe") or {})}
        for one in (known, wanted)
    )
    keys = sorted(key for key in before | after if before.get(key) != after.get(key))
    return "; ".join(f"{key} is {before.get(key)!r}, wanted {after.get(key)!r}" for key in keys)


def train_all(runs: Sequence[Run], received: Sequence[int], jobs: int) -> bool:
    """Train the runs that have not finished, `jobs` at a time, with a line for each. Return whether all succeeded.

    Raises `Stopped` after a signal in `received`. Their guards end the runs if this process ends.
    """
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    env = {"OMP_NUM_THREADS": threads, NOT_ASKED: "1"} if jobs > 1 and "OMP_NUM_THREADS" not in os.environ else {}
    progress = Progress("training", len(runs), unit="runs", leave=False)

    def train(number: int, run: Run) -> bool:
        check_signals(received)
        result, how = run.result(), "finished before"
        if result is None:
            result, how = _train(run, received, env)
        passed = "" if result is None else f"Pass@1 {final_scores(result)['pass@1']:.2f}, "
        print(f"[{number}/{len(runs)}] {run.name}: {passed}{how}", flush=True)
        progress.advance()
        return result is not None

    with progress, ThreadPoolExecutor(jobs) as pool:
        try:
            return all([done.result() for done in [pool.submit(train, *one) for one in enumerate(runs, 1)]])
        finally:
            # if one run raised, for example on a full disk, do not start the others
            pool.shutdown(cancel_futures=True)


def _train(run: Run, received: Sequence[int], env: dict[str, str]) -> tuple[RunHistory | None, str]:
    """Train a run. Return its result, if it has one, and how long it took or how it ended."""
    write_compared(run.folder, run.settings)
    log, start = run.folder / "log.txt", time.monotonic()
    process = GuardedProcess("run", run.command, env, log, live=False, grace=_GRACE_SECONDS)
    process.start()
    try:
        while process.is_running and not received:
            time.sleep(0.1)
    finally:
        process.end()
    check_signals(received)
    result = run.result()
    if process.exit_code or result is None:
        how = how_it_ended(process.exit_code) if process.exit_code else "without a result"
        return None, f"ended {how}, see {log}"
    return result, duration(time.monotonic() - start)
