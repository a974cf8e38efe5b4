"""`trl-miner compare`: train every recipe with every seed, one run or several at a time, and print
one table.

Each run is a process of its own in `OUTPUT/RECIPE/seedK`. This process uses no GPU.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .common.progress import duration, finish
from .common.redaction import learn, redact
from .launching.guard import collect_signals, how_it_ended
from .launching.local import STARTER
from .launching.process import GuardedProcess
from .recipe.files import find_recipe
from .runs.checkpoints import last_step
from .runs.files import read_yaml, write_whole
from .runs.held_out import read_held_out
from .runs.history import RunHistory, read_run
from .runs.locks import lock_folder
from .runs.runs_file import NAME as RUNS
from .runs.runs_file import collect_runs
from .runs.training_record import read_compared, write_compared
from .viewing.tables import final_scores, methods_table

HELD_OUT = 200  # held-out problems for a recipe that scores none
_TABLE = "comparison.md"


@dataclass(frozen=True)
class Run:
    """One recipe with one seed."""

    folder: Path
    recipe: Path
    settings: Mapping[str, Any]  # of `compared.json`: all that decides the outcome

    @property
    def command(self) -> list[str]:
        train = [*STARTER, "--config", str(self.recipe)]
        own = ["--output_dir", str(self.folder), "--seed", str(self.settings["seed"])]
        return [*train, *self.settings["options"], *own, "--resume_from_checkpoint", "latest"]

    def result(self) -> RunHistory | None:
        """Return what the run recorded; None: it was not scored after training, or a file is
        missing or damaged."""
        try:
            held_out = read_held_out(self.folder)
            is_finished = (
                last_step(self.folder) is not None
                and held_out is not None
                and held_out.after is not None
            )
            return read_run(self.folder) if is_finished else None
        except (FileNotFoundError, ValueError):
            return None


def compare(
    recipes: Sequence[str | Path],
    *,
    seeds: int | Sequence[int],
    output: str | Path,
    options: Sequence[str] = (),
    methods: Sequence[str] = (),
    jobs: int = 1,
) -> int:
    """Train every recipe with several seeds, or one recipe with several methods, and write
    `comparison.md`, the table of these runs, and `runs.jsonl`.

    The first seed of every recipe comes before the second seed of any, so that a comparison that is
    stopped has pairs. Finished runs are skipped and interrupted ones resumed, so the same call
    completes a comparison. The arguments are the options of `trl-miner compare`: `seeds` are the
    seeds, or their number (5 for the seeds 1 to 5), and `options` are those of `trl-miner train`
    for every run.

    Returns the exit code: 0; 1 if a run failed; 128 + N if signal N stopped it. Raises ValueError
    where a recipe is missing, or the output belongs to another comparison or to one that is
    running.
    """
    paths, output = [find_recipe(recipe) for recipe in recipes], Path(output)
    if len({path.stem for path in paths}) < len(paths):
        raise ValueError(
            f"--recipes must have different names, those of the methods: got {[*map(str, paths)]}."
        )
    if given := _by_name(options).keys() & {
        "config",
        "output_dir",
        "seed",
        "resume_from_checkpoint",
    }:
        raise ValueError(f"--{min(given)} is set by compare. Give --recipes, --seeds and --output.")
    if methods:
        _check_methods(paths, methods, options)
    seeds = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    chosen: Sequence[str | None] = [*methods] or [None]
    pairs = [(path, method) for path in paths for method in chosen]
    with collect_signals() as received, lock_folder(output):
        runs = [
            _plan(path, seed, output, options, method) for seed in seeds for path, method in pairs
        ]
        try:
            succeeded = _train_all(runs, received, jobs)
        finally:
            collect_runs(output)  # of a comparison that is stopped, too
        if received:
            name = signal.Signals(received[0]).name
            print(
                f"\ntrl-miner compare: stopped by {name}. Run the same command to continue.",
                file=sys.stderr,
            )
            return 128 + received[0]
        _write_table(runs, output)
        return 0 if succeeded else 1


def _check_methods(paths: Sequence[Path], methods: Sequence[str], options: Sequence[str]) -> None:
    """Raise ValueError for methods that there are not, or that something else says, too."""
    from .methods.compose import find_composition

    if len(paths) > 1 or len({*methods}) < len(methods):
        raise ValueError(
            f"--methods must be different methods for one recipe: got {', '.join(methods)} and"
            f" {len(paths)} recipes. Give one of them."
        )
    if "advantage_estimator" in _by_name(options):
        raise ValueError("--advantage_estimator is set by --methods. Leave one of them out.")
    for method in methods:
        find_composition(method, None, None)


def _plan(
    path: Path, seed: int, output: Path, options: Sequence[str], method: str | None = None
) -> Run:
    """Return a run. Raise ValueError if its folder holds another one, which must not be taken for
    it."""
    recipe = read_yaml(path)
    if not recipe.get("held_out"):
        options = ["--held_out", str(HELD_OUT), *options]  # before the user's, which therefore win
    if method is not None:
        options = [*options, "--advantage_estimator", method]
    name = method or path.stem
    settings = {"method": name, "recipe": recipe, "options": [*options], "seed": seed}
    learn(settings)  # so that no log shows their secrets
    run = Run(output / name / f"seed{seed}", path, settings)
    known = read_compared(run.folder)
    if known or last_step(run.folder) is not None:
        before, after = (
            {
                "seed": one.get("seed"),
                **(one.get("recipe") or {}),
                **_by_name(one.get("options") or (), "--"),
            }
            for one in (known, redact(settings))
        )
        if names := sorted(name for name in before | after if before.get(name) != after.get(name)):
            other = "; ".join(
                f"{name} is {before.get(name)!r}, wanted {after.get(name)!r}" for name in names
            )
            raise ValueError(
                f"{run.folder} holds another run: {other}. Give another --output, or delete that"
                " folder."
            )
    return run


def _by_name(options: Sequence[str], prefix: str = "") -> dict[str, list[str]]:
    """Return the values of each option by its name; of one that is given twice, the last."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in options:
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            values = found[prefix + name.replace("-", "_")] = [value] if has_value else []
        else:
            values.append(word)
    return found


def _train_all(runs: Sequence[Run], received: Sequence[int], jobs: int) -> bool:
    """Train the runs that have not finished, `jobs` at a time, with a line for each. Return whether
    all succeeded.

    After a signal in `received` it starts no more. Their guards end the runs if this process ends.
    """
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    env = {"OMP_NUM_THREADS": threads} if jobs > 1 and "OMP_NUM_THREADS" not in os.environ else {}

    def train(number: int, run: Run) -> bool:
        result, how = run.result(), "finished before"
        if result is None and not received:
            result, how = _train(run, received, env)
        if not received:
            score = final_scores(result).get("pass@1") if result else None
            passed = "" if score is None else f"Pass@1 {score:.2f}, "
            name = f"{run.settings['method']} seed {run.settings['seed']}"
            print(f"[{number}/{len(runs)}] {name}: {passed}{how}", flush=True)
        return result is not None

    with ThreadPoolExecutor(jobs) as pool:
        return all([*pool.map(train, range(1, len(runs) + 1), runs)])


def _train(run: Run, received: Sequence[int], env: dict[str, str]) -> tuple[RunHistory | None, str]:
    """Train a run. Return its result, if it has one, and how long it took or how it ended."""
    write_compared(run.folder, run.settings)
    log, start = run.folder / "log.txt", time.monotonic()
    process = GuardedProcess("run", run.command, env, log, live=False)
    process.start()
    try:
        while process.is_running and not received:
            time.sleep(0.1)
    finally:
        process.end()
    result = run.result()
    if process.exit_code or result is None:
        how = how_it_ended(process.exit_code) if process.exit_code else "without a result"
        return None, f"ended {how}, see {log}"
    return result, duration(time.monotonic() - start)


def _write_table(runs: Sequence[Run], output: Path) -> None:
    """Write and print the table of the runs."""
    results: dict[str, list[RunHistory | None]] = {}
    for run in runs:
        results.setdefault(run.settings["method"], []).append(run.result())
    table = methods_table(results).markdown()
    write_whole(output / _TABLE, table)
    print("\n" + table, end="", flush=True)
    written = [path for path in (output / _TABLE, output / RUNS) if path.is_file()]
    finish(written, shlex.join(["trl-miner", "report", str(output)]))
