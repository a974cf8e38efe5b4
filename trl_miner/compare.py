"""`trl-miner compare`: every recipe with every seed, one run or several at a time, and one table of them all.

Each run is a `trl-miner train` of its own in OUTPUT/<recipe>/seed<k>. This process stays light: it holds neither torch
nor a GPU while the runs need both, so recipes are read in a child process too.
"""

import contextlib
import fcntl
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from .progress import Progress, duration, finish
from .runs.files import write_whole
from .runs.runs_file import NAME as RUNS
from .runs.runs_file import write_comparison
from .viewing.tables import RunSummary, compare_runs, comparison_table, summarize_run

SCORE_PROBLEMS = 200  # where a recipe scores none
SCORED_POINTS = 10  # per run, about
_STEPS_UNKNOWN = 20  # steps between two scores of a recipe that counts epochs: its length shows when it has its data
_KILL_AFTER = 30.0  # seconds from SIGTERM to SIGKILL; torch's launcher needs a few to end its workers
_OWN_OPTIONS = {
    "config": "name the recipes with --recipes",
    "output_dir": "give --output, which holds a folder for each run",
    "seed": "give --seeds, the number of seeds",
    "resume_from_checkpoint": "it always goes on from the newest checkpoint",
}


class Stopped(Exception):  # noqa: N818
    """A signal asked for the end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@dataclass(frozen=True)
class Run:
    """One recipe with one seed.

    Attributes:
        folder: Where it trains, and what it leaves.
        recipe: Path of the recipe.
        settings: What decides its outcome, and what `viewing.tables` must know: the content of `run.json`.
    """

    folder: Path
    recipe: Path
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.settings['method']} seed {self.settings['seed']}"

    @property
    def command(self) -> list[str]:
        own = ["--output_dir", str(self.folder), "--seed", str(self.settings["seed"])]
        own += ["--resume_from_checkpoint", "latest"]
        train = [sys.executable, "-m", "trl_miner.cli", "train", "--config", str(self.recipe)]
        return [*train, *self.settings["options"], *own]

    def summary(self) -> RunSummary | None:
        """What it found; None: it has not finished."""
        try:
            return summarize_run(self.folder)
        except (FileNotFoundError, ValueError):  # missing, cut off, or not scored after training
            return None


def compare(
    recipes: Sequence[str | Path],
    *,
    seeds: int,
    output: str | Path,
    steps: int | None = None,
    options: Sequence[str] = (),
    jobs: int = 1,
) -> int:
    """Train every recipe with the seeds 1 to `seeds`, and write `comparison.md` and `comparison.json`.

    Finished runs are skipped and interrupted ones go on, so that the same call completes a comparison.

    Args:
        recipes: Paths; the file's name without its ending names the method.
        seeds: Number of seeds.
        output: Folder of the comparison.
        steps: Generation batches of every run; None: as many as its recipe has.
        options: Options of `trl-miner train` for every run.
        jobs: Runs at a time. With more than one, each gets its share of the cores (`OMP_NUM_THREADS`, unless it is
            set); runs on GPUs would share these, so leave it at 1 there.

    Returns:
        The exit code: 0, or 1 when a run failed, or 128 and the signal's number when one stopped it.

    Raises:
        ValueError: A recipe or an option that cannot be run; the output belongs to a comparison with other settings,
            or to one that is running.
    """
    paths, output = [Path(recipe) for recipe in recipes], Path(output)
    _check_call(paths, seeds, steps, options, jobs)
    try:
        with _signals() as stop, _lock(output) as lock:
            children = _Children(stop, lock)
            with Progress("reading the recipes", unit="", leave=False):
                parsed = _parse_all(paths, steps, options, children)
            runs = [
                _plan(output, path, facts, seed)
                for path, facts in zip(paths, parsed, strict=True)
                for seed in range(1, seeds + 1)
            ]
            for run in runs:
                _check_same(run)
            succeeded = _run_all(runs, children, jobs)
            print("\n" + _write_table(output, runs, parsed, seeds), end="", flush=True)
            named = [output / name for name in ("comparison.md", "comparison.json", RUNS)]
            written = [path for path in named if path.is_file()]
            finish(written, shlex.join(["trl-miner", "report", str(output)]))
            return 0 if succeeded else 1
    except Stopped as stopped:
        print(f"\ntrl-miner compare: stopped by {stopped}. The same command goes on from here.", file=sys.stderr)
        return 128 + stopped.signum


def parse_recipe(path: str | Path, options: Sequence[str], steps: int | None = None) -> dict[str, Any]:
    """What a comparison must know of a recipe. Imports TRL.

    Args:
        path: The recipe.
        options: Options of `trl-miner train` that are added to it.
        steps: Generation batches of the run; None: the recipe's.

    Returns:
        The recipe's "method", its content as "recipe", the "options" with those that scoring needs, the number of
        "optimizer_steps_per_step", and "is_grpo".

    Raises:
        ValueError: `trl-miner train` would not take it.
    """
    import yaml

    environment = dict(os.environ)  # a recipe may set variables, for itself alone
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            return _facts(Path(path), list(options), steps)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except SystemExit as error:  # argparse, after a page of usage
        reason = said.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise ValueError(f"{path}: {reason}. See trl-miner train --help.") from error
    finally:
        os.environ.clear()
        os.environ.update(environment)


def _facts(path: Path, options: list[str], steps: int | None) -> dict[str, Any]:
    import yaml

    from .commands.train import plan_launch
    from .config import MinerGRPOConfig
    from .recipe import check_recipe, make_parser
    from .train import load_reward_funcs

    check_recipe(["--config", str(path)], make_parser())
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not recipe.get("score_problems"):
        options = ["--score_problems", str(SCORE_PROBLEMS), *options]  # before the user's, which therefore win
    launch = plan_launch(["--config", str(path), *options])
    num_processes = _num_processes(launch)
    single = MinerGRPOConfig.world_size
    try:  # TRL checks and splits batches by the number of processes, and this is but one
        if num_processes > 1:
            MinerGRPOConfig.world_size = property(lambda self: num_processes)
        args, config, *_ = make_parser().parse_args_and_config(launch.training_script_args)
    finally:
        MinerGRPOConfig.world_size = single
    load_reward_funcs(args, config)
    if not args.score_problems:
        raise ValueError("score_problems must be at least 1 to compare: got 0. Leave it out for a default.")
    per_step = config.optimizer_steps_per_generation
    max_steps = config.max_steps if steps is None else round(steps * per_step)
    if steps is not None:
        options = [*options, "--max_steps", str(max_steps)]
    if not args.score_steps:
        options = ["--score_steps", str(_score_steps(max_steps, per_step)), *options]
    return {
        "method": path.stem,
        "recipe": recipe,
        "options": options,
        "optimizer_steps_per_step": per_step,
        "is_grpo": config.advantage_estimator == "grpo"
        and config.policy_loss == "clip"
        and not config.dynamic_sampling,
    }


def _num_processes(launch: Any) -> int:
    """How many processes accelerate will start, from its options, its file, or the GPUs there are."""
    import torch
    import yaml

    if launch.num_processes:
        return launch.num_processes
    if launch.config_file:
        return int(yaml.safe_load(Path(launch.config_file).read_text(encoding="utf-8")).get("num_processes") or 1)
    return max(1, torch.accelerator.device_count())


def _score_steps(max_steps: int, per_step: float) -> int:
    """Optimizer steps between two scores, a whole number of generation batches where one holds several."""
    steps = max_steps / per_step / SCORED_POINTS if max_steps > 0 else _STEPS_UNKNOWN
    return max(1, round(max(1, round(steps)) * per_step))


def _check_call(paths: Sequence[Path], seeds: int, steps: int | None, options: Sequence[str], jobs: int) -> None:
    """What can be known without reading a recipe."""
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1: got {jobs}. It is the number of runs at a time.")
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1: got {seeds}. 3 give a mean and its spread.")
    if steps is not None and steps < 1:
        raise ValueError(f"--steps must be at least 1: got {steps}. Leave it out for what the recipes say.")
    if not paths:
        raise ValueError("--recipes must name at least one recipe: got none. Try recipes/arithmetic/*.yaml.")
    first: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            raise ValueError(f"--recipes must name files: got {path}, which is none. Try recipes/arithmetic/*.yaml.")
        if path.stem in first:
            raise ValueError(
                f"Recipes must differ in their names, which name the methods: got {first[path.stem]} and {path}. "
                f"Leave one out, or rename it."
            )
        first[path.stem] = path
    for option in options:
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        if option.startswith("--") and name in _OWN_OPTIONS:
            raise ValueError(f"{option.partition('=')[0]} is set by compare for every run: {_OWN_OPTIONS[name]}.")
        if option.startswith("--") and name == "max_steps" and steps is not None:
            raise ValueError(f"--steps and --max_steps both set the length of a run: got --steps {steps}. Give one.")


def _parse_all(
    paths: Sequence[Path], steps: int | None, options: Sequence[str], children: "_Children"
) -> list[dict[str, Any]]:
    """`parse_recipe` of each, in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer, log = (Path(folder) / name for name in ("request.json", "answer.json", "log.txt"))
        asked = {"recipes": [str(path) for path in paths], "options": list(options), "steps": steps}
        request.write_text(json.dumps(asked))
        with log.open("wb") as stream:
            code = children.run([sys.executable, "-m", "trl_miner.compare", str(request), str(answer)], stream)
        if code or not answer.is_file():
            tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise ValueError(f"The recipes could not be read, exit code {code}. What the reader said:\n{tail}")
        found = json.loads(answer.read_text(encoding="utf-8"))
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _answer(request: Path, answer: Path) -> None:
    """The child's side of `_parse_all`: a list of facts, or the text of an error."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    found: Any
    try:
        found = [parse_recipe(path, asked["options"], asked["steps"]) for path in asked["recipes"]]
    except ValueError as error:
        found = str(error)
    answer.write_text(json.dumps(found, default=str), encoding="utf-8")


def _plan(output: Path, path: Path, facts: Mapping[str, Any], seed: int) -> Run:
    kept = {name: value for name, value in facts.items() if name != "is_grpo"}
    return Run(output / facts["method"] / f"seed{seed}", path, {**kept, "seed": seed})


def _check_same(run: Run) -> None:
    """A folder that another run has begun is left alone."""
    path = run.folder / "run.json"
    if not path.is_file():
        if run.folder.is_dir() and any(not entry.name.startswith(".") for entry in run.folder.iterdir()):
            raise ValueError(
                f"{run.folder} must be free or hold a run of compare: it holds files but no run.json. Give another "
                f"--output, or delete that folder."
            )
        return
    differing = _differences(json.loads(path.read_text(encoding="utf-8")), run.settings)
    if differing:
        raise ValueError(
            f"{run.folder} must be free or hold the same run: it holds one with other settings, {differing}. Give "
            f"another --output, or delete that folder."
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which settings differ, and how; empty: none does."""
    if old["recipe"] != new["recipe"]:
        keys = sorted(key for key in old["recipe"] | new["recipe"] if old["recipe"].get(key) != new["recipe"].get(key))
        shown = (f"{key} is {old['recipe'].get(key)!r}, wanted {new['recipe'].get(key)!r}" for key in keys)
        return "; ".join(shown)
    if old["options"] != new["options"]:
        return f"options are '{' '.join(old['options'])}', wanted '{' '.join(new['options'])}'"
    return "" if old["seed"] == new["seed"] else f"seed is {old['seed']}, wanted {new['seed']}"


def _run_all(runs: Sequence[Run], children: "_Children", jobs: int) -> bool:
    """Whether all have a result."""
    is_finished = [run.summary() is not None for run in runs]
    environment = dict(os.environ)
    if jobs > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    with (
        Progress("training", len(runs), unit="runs", initial=sum(is_finished), leave=False) as progress,
        ThreadPoolExecutor(jobs) as pool,
    ):

        def train(number: int, run: Run) -> bool:
            children.check()
            progress.note = "" if is_finished[number] else run.name
            succeeded = _run(run, f"[{number + 1}/{len(runs)}]", children, environment)
            progress.advance(0 if is_finished[number] else 1)
            return succeeded

        try:
            return all([future.result() for future in [pool.submit(train, i, run) for i, run in enumerate(runs)]])
        finally:
            pool.shutdown(cancel_futures=True)  # where one raised, such as on a full disk, the others do not begin


def _run(run: Run, place: str, children: "_Children", environment: Mapping[str, str]) -> bool:
    """Train unless finished; one line for the reader. Whether there is a result."""
    if summary := run.summary():
        print(f"{place} {run.name}: Pass@1 {summary.final['pass@1']:.2f}, finished before", flush=True)
        return True
    run.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.folder / "run.json", json.dumps(run.settings, indent=2) + "\n")
    log, start = run.folder / "log.txt", time.monotonic()
    with log.open("ab") as stream:
        code = children.run(run.command, stream, environment)
    summary = run.summary()
    if code or summary is None:
        reason = f"failed with exit code {code}" if code else "ended without a result"
        print(f"{place} {run.name}: {reason}, see {log}", flush=True)
        return False
    print(
        f"{place} {run.name}: Pass@1 {summary.final['pass@1']:.2f}, {duration(time.monotonic() - start)}", flush=True
    )
    return True


def _write_table(output: Path, runs: Sequence[Run], parsed: Sequence[Mapping[str, Any]], seeds: int) -> str:
    baselines = [facts["method"] for facts in parsed if facts["is_grpo"]]
    comparison = compare_runs(
        [summary for run in runs if (summary := run.summary())],
        {facts["method"]: seeds for facts in parsed},
        baseline="grpo" if "grpo" in baselines else next(iter(baselines), None),  # GSPO differs in its ratio alone
    )
    table = comparison_table(comparison)
    write_whole(output / "comparison.json", json.dumps(comparison, indent=2) + "\n")
    write_whole(output / "comparison.md", table)
    write_comparison(output)
    return table


@contextlib.contextmanager
def _lock(output: Path) -> Iterator[IO[str]]:
    """At most one comparison in a folder. A run that a killed one leaves behind still holds the lock."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        stream = (output / ".lock").open("a+")
    except OSError as error:
        raise ValueError(f"--output must be a folder that can be written: {output} cannot ({error}).") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise ValueError(
                f"--output must be a folder that no other comparison is using: {output} is in use by process "
                f"{stream.read().strip() or 'unknown'}, or by a run that it left behind. Wait for it, or give another."
            ) from None
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield stream


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that a signal to end is put on. Raising where it strikes could lose a child that is just starting."""
    received: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)

    # one that is ignored (nohup) stays so
    wanted = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, note) for signum in wanted}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class _Children:
    """Runs child processes, one for each thread that calls, and never leaves one.

    Args:
        stop: The list of `_signals`.
        lock: A lock that children hold on to, should this process be killed without a chance to end them.
    """

    def __init__(self, stop: list[int], lock: IO[str]) -> None:
        self._stop, self._lock = stop, lock

    def check(self) -> None:
        """Raise `Stopped` where a signal has come: nothing more is to be begun."""
        if self._stop:
            raise Stopped(self._stop[0])

    def run(self, command: Sequence[str], output: IO[bytes], environment: Mapping[str, str] | None = None) -> int:
        """Its exit code. Raises `Stopped` on a signal, when the child and all that it started have ended."""
        self.check()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a process group of its own, which one signal reaches as a whole
            pass_fds=[self._lock.fileno()],
        )
        try:
            while not self._stop:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=0.2)
        finally:
            _end(process)
        raise Stopped(self._stop[0])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process group: ask, wait, kill what is left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_KILL_AFTER)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; so says macOS
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    _answer(Path(sys.argv[1]), Path(sys.argv[2]))
