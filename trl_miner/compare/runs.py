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
from ..launching.signals import how_it_ended, signal_name
from ..progress import duration
from ..redaction import redact
from ..runs.compare_folder import LOG, RUN, read_run_settings, write_run
from ..runs.locks import IN_USE, TRAINING_LOCK, lock_folder
from ..runs.steps import forget_steps
from ..threads import NOT_ASKED
from ..viewing.comparison import RunSummary, summarize_run
from .progress import ComparisonProgress

_GRACE_SECONDS = 30.0  # from a signal to SIGKILL: torch's launcher needs a few seconds to end its workers


class Stopped(Exception):  # noqa: N818
    """A signal asked the comparison to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal_name(signum))
        self.signum = signum


class ProcessRunner:
    """Runs child processes, one for each calling thread."""

    def __init__(self, received: list[int]) -> None:
        self._received = received

    def check(self) -> None:
        """Raise `Stopped` if a signal has arrived, so that nothing more is started."""
        if self._received:
            raise Stopped(self._received[0])

    def run(self, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> int:
        """Run a command to its end and return its exit code. After a signal, end it and raise `Stopped`."""
        self.check()
        process = GuardedProcess("run", command, env or {}, log, live=False, grace=_GRACE_SECONDS)
        process.start()
        try:
            while process.is_running and not self._received:
                time.sleep(0.1)
        finally:
            process.end()
        self.check()
        assert process.exit_code is not None
        return process.exit_code


@dataclass(frozen=True)
class Run:
    """One recipe with one seed."""

    folder: Path
    recipe: Path
    settings: Mapping[str, Any]  # the content of run.json: all that decides the outcome, and that tables must know

    @property
    def name(self) -> str:
        return f"{self.settings['method']} seed {self.settings['seed']}"

    @property
    def command(self) -> list[str]:
        train = [*STARTER, "--config", str(self.recipe)]
        own = ["--output_dir", str(self.folder), "--seed", str(self.settings["seed"])]
        return [*train, *self.settings["options"], *own, "--resume_from_checkpoint", "latest"]

    def summary(self) -> RunSummary | None:
        """Return the run's results, or None if it has not finished."""
        try:
            return summarize_run(self.folder)
        except (FileNotFoundError, ValueError):  # missing, cut off, or not scored after training
            return None


def check_folder(run: Run) -> None:
    """Raise ValueError if the run's folder holds something else, which must not be overwritten."""
    if not (run.folder / RUN).is_file():
        if run.folder.is_dir() and any(not entry.name.startswith(".") for entry in run.folder.iterdir()):
            raise ValueError(
                f"{run.folder} must be empty or hold a run of compare: it holds files but no {RUN}. Give another "
                f"--output, or delete that folder."
            )
        return
    known, wanted = read_run_settings(run.folder), redact(run.settings)
    if differences := _differences(redact(known), wanted):
        raise ValueError(
            f"{run.folder} must be empty or hold the same run: it holds one with other settings, {differences}. Give "
            f"another --output, or delete that folder."
        )
    with lock_folder(run.folder, IN_USE, TRAINING_LOCK):  # a comparison that was killed may have left it behind
        pass


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe which settings differ, and how; empty if none does."""
    before, wanted = old.get("recipe") or {}, new["recipe"]
    if before != wanted:
        keys = sorted(key for key in before | wanted if before.get(key) != wanted.get(key))
        return "; ".join(f"{key} is {before.get(key)!r}, wanted {wanted.get(key)!r}" for key in keys)
    options = old.get("options") or []
    if options != new["options"]:
        return f"options are '{' '.join(map(str, options))}', wanted '{' '.join(new['options'])}'"
    return "" if old.get("seed") == new["seed"] else f"seed is {old.get('seed')}, wanted {new['seed']}"


def train_all(runs: Sequence[Run], runner: ProcessRunner, jobs: int) -> bool:
    """Train all runs that have not finished, `jobs` at a time. Return whether all have a result."""
    is_finished = [run.summary() is not None for run in runs]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    env = {"OMP_NUM_THREADS": threads, NOT_ASKED: "1"} if jobs > 1 and "OMP_NUM_THREADS" not in os.environ else {}
    waiting = {number: run.settings["method"] for number, run in enumerate(runs) if not is_finished[number]}
    with ComparisonProgress(len(runs), waiting, jobs) as progress, ThreadPoolExecutor(jobs) as pool:

        def train(number: int, run: Run) -> bool:
            runner.check()
            place = f"[{number + 1}/{len(runs)}]"
            if summary := run.summary():
                print(f"{place} {run.name}: Pass@1 {summary.final['pass@1']:.2f}, finished before", flush=True)
                return True
            forget_steps(run.folder)
            progress.begin(number, run.name, run.folder)
            has_result = _train(run, place, runner, env)
            progress.end(number)
            forget_steps(run.folder)
            return has_result

        try:
            return all([future.result() for future in [pool.submit(train, i, run) for i, run in enumerate(runs)]])
        finally:
            # if one run raised, for example on a full disk, do not start the others
            pool.shutdown(cancel_futures=True)


def _train(run: Run, place: str, runner: ProcessRunner, env: dict[str, str]) -> bool:
    """Train a run, and print one line. Return whether it has a result."""
    write_run(run.folder, run.settings)
    log, start = run.folder / LOG, time.monotonic()
    code = runner.run(run.command, log, env)
    summary = run.summary()
    if code or summary is None:
        reason = f"ended {how_it_ended(code)}" if code else "ended without a result"
        print(f"{place} {run.name}: {reason}, see {log}", flush=True)
        return False
    seconds = duration(time.monotonic() - start)
    print(f"{place} {run.name}: Pass@1 {summary.final['pass@1']:.2f}, {seconds}", flush=True)
    return True
