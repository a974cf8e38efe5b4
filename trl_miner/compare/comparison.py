"""Compare recipes: check the call, read the recipes, train the runs, and write the table."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..launching.signals import collect_signals
from ..progress import Progress, finish
from ..recipe_files import find_recipe
from ..redaction import learn
from ..runs.compare_folder import TABLE, lock_comparison, run_folder
from ..runs.files import write_whole
from ..runs.history import RunHistory
from ..runs.runs_file import NAME as RUNS
from ..runs.runs_file import collect_runs
from ..viewing.tables import methods_table
from .recipes import read_recipes
from .runs import ProcessRunner, Run, Stopped, check_folder, train_all

_OWN_OPTIONS = ("config", "output_dir", "seed", "resume_from_checkpoint")


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

    Returns:
        The exit code: 0; 1 if a run failed; 128 + N if signal N stopped it.

    Raises:
        ValueError: A recipe or an option is wrong, or the output belongs to a comparison with other settings or to
            one that is running.
    """
    paths, output = [find_recipe(recipe) for recipe in recipes], Path(output)
    seeds = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    _check_call(paths, seeds, steps, options, jobs)
    try:
        with collect_signals() as received, lock_comparison(output):
            runner = ProcessRunner(received)
            with Progress("reading the recipes", unit="", leave=False):
                facts = read_recipes(paths, steps, options)
            runner.check()
            learn(facts)  # so that no log shows them
            runs = [
                Run(run_folder(output, own["method"], seed), path, {**own, "seed": seed})
                for seed in seeds
                for path, own in zip(paths, facts, strict=True)
            ]
            for run in runs:
                check_folder(run)
            try:
                succeeded = train_all(runs, runner, jobs)
            finally:
                collect_runs(output)  # of a comparison that is stopped, too
            print("\n" + _write_table(output, runs, len(seeds)), end="", flush=True)
            results = [output / name for name in (TABLE, RUNS)]
            finish([path for path in results if path.is_file()], shlex.join(["trl-miner", "report", str(output)]))
            return 0 if succeeded else 1
    except Stopped as stopped:
        so_far = f" trl-miner report {shlex.quote(str(output))} shows the runs so far." * (output / RUNS).is_file()
        print(f"\ntrl-miner compare: stopped by {stopped}. Run the same command to continue.{so_far}", file=sys.stderr)
        return 128 + stopped.signum


def _check_call(
    paths: Sequence[Path], seeds: Sequence[int], steps: int | None, options: Sequence[str], jobs: int
) -> None:
    """Check everything that can be checked without reading a recipe."""
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1: got {jobs}. It is the number of runs at a time.")
    if not seeds or min(seeds) < 1:
        raise ValueError(f"seeds must be numbers of at least 1: got {[*seeds]}. 3 is short for [1, 2, 3].")
    if steps is not None and steps < 1:
        raise ValueError(f"--steps must be at least 1: got {steps}. Leave it out for the recipes' own lengths.")
    if not paths:
        raise ValueError("--recipes must name at least one recipe: got none. Try recipes/arithmetic/*.yaml.")
    stems = [path.stem for path in paths]
    if twice := {stem for stem in stems if stems.count(stem) > 1}:
        raise ValueError(f"Recipes must differ in their names, which name the methods: got {sorted(twice)} twice.")
    for option in options:
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        if option.startswith("--") and name in _OWN_OPTIONS:
            raise ValueError(f"--{name} is set by compare for every run. Give --recipes, --seeds and --output.")
        if option.startswith("--") and name == "max_steps" and steps is not None:
            raise ValueError(f"--steps and --max_steps both set the length of a run: got --steps {steps}. Give one.")


def _write_table(output: Path, runs: Sequence[Run], num_seeds: int) -> str:
    """Write the table, and return it as Markdown."""
    results: dict[str, list[RunHistory]] = {run.settings["method"]: [] for run in runs}
    for run in runs:
        if (result := run.result()) is not None:
            results[run.settings["method"]].append(result)
    table = methods_table(results, dict.fromkeys(results, num_seeds)).markdown()
    write_whole(output / TABLE, table)
    return table
