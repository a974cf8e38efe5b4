"""`trl-miner compare`: train every recipe with every seed, one run or several at a time, and print one table.

Each run is a process of its own in OUTPUT/<recipe>/seed<k>. This process reads the recipes, and uses no GPU.
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

from .launching.local import STARTER, parse_launch
from .launching.process import GuardedProcess
from .launching.signals import collect_signals, how_it_ended
from .progress import duration, finish
from .recipe_files import find_recipe
from .redaction import learn, redact
from .runs.files import read_yaml, write_whole
from .runs.held_out import read_held_out
from .runs.history import RunHistory, read_run
from .runs.locks import TRAINING_LOCK, lock_folder
from .runs.runs_file import NAME as RUNS
from .runs.runs_file import collect_runs
from .runs.trainer_state import last_step
from .runs.training_record import read_compared, run_folder, write_compared
from .viewing.tables import final_scores, methods_table

HELD_OUT = 200  # held-out problems for a recipe that scores none
SCORED_POINTS = 10  # about this many scores per run
_STEPS_UNKNOWN = 20  # steps between two scores of a recipe that counts epochs, whose length is not known yet
_TABLE = "comparison.md"


@dataclass(frozen=True)
class Run:
    """One recipe with one seed."""

    folder: Path
    recipe: Path
    settings: Mapping[str, Any]  # "compared" in training.json: all that decides the outcome

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


def compare(
    recipes: Sequence[str | Path],
    *,
    seeds: int | Sequence[int],
    output: str | Path,
    steps: int | None = None,
    options: Sequence[str] = (),
    jobs: int = 1,
) -> int:
    """Train every recipe with several seeds, and write `comparison.md`, the table of these runs, and `runs.jsonl`.

    The first seed of every recipe comes before the second seed of any, so that a comparison that is stopped has pairs.
    Finished runs are skipped and interrupted ones resumed, so the same call completes a comparison. The arguments are
    the options of `trl-miner compare`: `seeds` are the seeds, or their number (5 for the seeds 1 to 5), and `options`
    are those of `trl-miner train` for every run.

    Returns the exit code: 0; 1 if a run failed; 128 + N if signal N stopped it. Raises ValueError where a recipe or an
    option is wrong, or the output belongs to another comparison or to one that is running.
    """
    paths, output = [find_recipe(recipe) for recipe in recipes], Path(output)
    seeds = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    _check_call(paths, seeds, steps, options, jobs)
    with collect_signals() as received, lock_folder(output):
        facts = [read_facts(path, options, steps) for path in paths]
        learn(facts)  # so that no log shows them
        runs = [
            Run(run_folder(output, own["method"], seed), path, {**own, "seed": seed})
            for seed in seeds
            for path, own in zip(paths, facts, strict=True)
        ]
        for run in runs:
            check_folder(run)
        try:
            succeeded = _train_all(runs, received, jobs)
        finally:
            collect_runs(output)  # of a comparison that is stopped, too
        if received:
            name = signal.Signals(received[0]).name
            print(f"\ntrl-miner compare: stopped by {name}. Run the same command to continue.", file=sys.stderr)
            return 128 + received[0]
        _write_table(runs, output)
        return 0 if succeeded else 1


def _check_call(
    paths: Sequence[Path], seeds: Sequence[int], steps: int | None, options: Sequence[str], jobs: int
) -> None:
    """Check what can be checked without reading a recipe."""
    if jobs < 1 or (steps is not None and steps < 1):
        raise ValueError(f"--jobs and --steps must be at least 1: got {jobs} and {steps}.")
    if not seeds or min(seeds) < 1:
        raise ValueError(f"seeds must be numbers of at least 1: got {[*seeds]}. 3 is short for [1, 2, 3].")
    stems = [path.stem for path in paths]
    if not stems or len({*stems}) < len(stems):
        raise ValueError(f"--recipes must be files whose names, those of the methods, differ: got {stems}.")
    own = {"config", "output_dir", "seed", "resume_from_checkpoint"} | ({"max_steps"} if steps else set())
    names = [option[2:].partition("=")[0].replace("-", "_") for option in options if option.startswith("--")]
    if given := own & {*names}:
        raise ValueError(f"--{min(given)} is set by compare. Give --recipes, --seeds, --steps and --output.")


def read_facts(path: Path, options: Sequence[str], steps: int | None = None) -> dict[str, Any]:
    """Return the facts of a recipe, with options of `trl-miner train`, that a comparison needs. Imports TRL.

    The "options" include those that scoring needs. `steps` replaces the recipe's number of generation batches.
    """
    from .options import split_words
    from .recipe import MinerScriptArguments, as_parsed

    recipe, words = read_yaml(path), ["--config", str(path)]
    if not recipe.get("held_out"):
        options = ["--held_out", str(HELD_OUT), *options]  # before the user's, which therefore win
    try:
        settings, *_ = split_words([*words, *options])
        args = as_parsed(MinerScriptArguments, vars(settings))
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    if not args.held_out:
        raise ValueError("held_out must be at least 1 to compare: got 0. Leave it out for a default.")
    per_step = _steps_per_generation(settings, [*words, *options])
    max_steps = settings.max_steps
    if steps is not None:
        max_steps = round(steps * per_step)
        options = [*options, "--max_steps", str(max_steps)]
    if not args.score_steps:
        generations = max_steps / per_step / SCORED_POINTS if max_steps > 0 else _STEPS_UNKNOWN
        options = ["--score_steps", str(max(1, round(max(1, round(generations)) * per_step))), *options]
    return {"method": path.stem, "recipe": recipe, "options": options}


def _steps_per_generation(settings: Any, words: list[str]) -> float:
    """Return the optimizer steps per generation batch, as the configuration will derive it from these settings."""
    import torch

    launch = parse_launch(words)
    config = read_yaml(Path(launch.config_file)) if launch.config_file else {}
    processes = int(launch.num_processes or config.get("num_processes") or torch.accelerator.device_count() or 1)
    together = settings.per_device_train_batch_size * processes
    optimizer = settings.optimizer_batch_size or together * settings.gradient_accumulation_steps
    generation = settings.generation_batch_size or together * (settings.steps_per_generation or 0) or optimizer
    return float(generation * settings.num_iterations / optimizer)


def check_folder(run: Run) -> None:
    """Raise ValueError if the run's folder holds something else, which must not be overwritten."""
    if known := read_compared(run.folder):
        before, after = (
            {"options": one.get("options"), "seed": one.get("seed"), **(one.get("recipe") or {})}
            for one in (known, redact(run.settings))
        )
        if names := sorted(name for name in before | after if before.get(name) != after.get(name)):
            other = "; ".join(f"{name} is {before.get(name)!r}, wanted {after.get(name)!r}" for name in names)
            raise ValueError(f"{run.folder} holds another run: {other}. Give another --output, or delete that folder.")
        with lock_folder(run.folder, TRAINING_LOCK):  # a comparison that was killed may have left it behind
            pass
    elif run.folder.is_dir() and any(not entry.name.startswith(".") for entry in run.folder.iterdir()):
        raise ValueError(f"{run.folder} holds other files than a run of compare. Give another --output, or delete it.")


def _train_all(runs: Sequence[Run], received: Sequence[int], jobs: int) -> bool:
    """Train the runs that have not finished, `jobs` at a time, with a line for each. Return whether all succeeded.

    After a signal in `received` it starts no more. Their guards end the runs if this process ends.
    """
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    env = {"OMP_NUM_THREADS": threads} if jobs > 1 and "OMP_NUM_THREADS" not in os.environ else {}

    def train(number: int, run: Run) -> bool:
        result, how = run.result(), "finished before"
        if result is None and not received:
            result, how = _train(run, received, env)
        if not received:
            name, passed = f"{run.settings['method']} seed {run.settings['seed']}", ""
            if result is not None:
                passed = f"Pass@1 {final_scores(result)['pass@1']:.2f}, "
            print(f"[{number}/{len(runs)}] {name}: {passed}{how}", flush=True)
        return result is not None

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return all([done.result() for done in [pool.submit(train, *one) for one in enumerate(runs, 1)]])
        finally:
            # if one run raised, for example on a full disk, do not start the others
            pool.shutdown(cancel_futures=True)


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
