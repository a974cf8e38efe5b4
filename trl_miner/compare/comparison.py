"""Compare recipes: check the call, read the recipes, train the runs, and write the table."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..launching.signals import collect_signals, signal_name
from ..progress import Progress, finish
from ..recipe_files import find_recipe
from ..redaction import learn
from ..runs.files import write_whole
from ..runs.history import RunHistory
from ..runs.locks import lock_folder
from ..runs.runs_file import NAME as RUNS
from ..runs.runs_file import collect_runs
from ..runs.training_record import run_folder
from ..viewing.tables import methods_table
from .recipes import read_recipes
from .runs import Run, Stopped, check_folder, check_signals, train_all

_OWN_OPTIONS = ("config", "output_dir", "seed", "resume_from_checkpoint")

_TABLE = "comparison.md"


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
    try:
        with collect_signals() as received, lock_folder(output):
            with Progress("reading the recipes", unit="", leave=False):
                facts = read_recipes(paths, steps, options)
            check_signals(received)
            learn(facts)  # so that no log shows them
            runs = [
                Run(run_folder(output, own["method"], seed), path, {**own, "seed": seed})
                for seed in seeds
                for path, own in zip(paths, facts, strict=True)
            ]
            for run in runs:
                check_folder(run)
            try:
                succeeded = train_all(runs, received, jobs)
            finally:
                collect_runs(output)  # of a comparison that is stopped, too
            results: dict[str, list[RunHistory]] = {run.settings["method"]: [] for run in runs}
            for run in runs:
                results[run.settings["method"]] += [result for result in [run.result()] if result is not None]
            table = methods_table(results, dict.fromkeys(results, len(seeds))).markdown()
            write_whole(output / _TABLE, table)
            print("\n" + table, end="", flush=True)
            written = [path for path in (output / _TABLE, output / RUNS) if path.is_file()]
            finish(written, shlex.join(["trl-miner", "report", str(output)]))
            return 0 if succeeded else 1
    except Stopped as stopped:
        signum: int = stopped.args[0]
        so_far = f" trl-miner report {shlex.quote(str(output))} shows the runs so far." * (output / RUNS).is_file()
        print(
            f"\ntrl-miner compare: stopped by {signal_name(signum)}. Run the same command to continue.{so_far}",
            file=sys.stderr,
        )
        return 128 + signum


def _check_call(
    paths: Sequence[Path], seeds: Sequence[int], steps: int | None, options: Sequence[str], jobs: int
) -> None:
    """Check what can be checked without reading a recipe."""
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1: got {jobs}. It is the number of runs at a time.")
    if not seeds or min(seeds) < 1:
        raise ValueError(f"seeds must be numbers of at least 1: got {[*seeds]}. 3 is short for [1, 2, 3].")
    if steps is not None and steps < 1:
        raise ValueError(f"--steps must be at least 1: got {steps}. Leave it out for the recipes' own lengths.")
    stems = [path.stem for path in paths]
    if not stems or len({*stems}) < len(stems):
        raise ValueError(f"--recipes must be files whose names, those of the methods, differ: got {stems}.")
    for option in options:
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        if option.startswith("--") and name in (*_OWN_OPTIONS, *(["max_steps"] if steps else [])):
            raise ValueError(
                f"--{name} is set by compare for every run. Give --recipes, --seeds, --steps and --output."
            )
