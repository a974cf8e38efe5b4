"""Read the recipes of a comparison, in a child process: this imports TRL, and may take memory of a GPU."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..launching.signals import how_it_ended
from ..runs.files import read_yaml

HELD_OUT = 200  # held-out problems for a recipe that scores none
SCORED_POINTS = 10  # about this many scores per run
_STEPS_UNKNOWN = 20  # steps between two scores of a recipe that counts epochs, whose length is not known yet
# not `-m`, which warns about a module that its package has imported already
_CHILD = f"from {__name__} import _answer; _answer()"


def read_recipes(paths: Sequence[Path], steps: int | None, options: Sequence[str]) -> list[dict[str, Any]]:
    """Return the result of `parse_recipe` for each path, computed in a child process."""
    asked = json.dumps([[str(path) for path in paths], [*options], steps])  # by a pipe: options may hold a token
    done = subprocess.run([sys.executable, "-P", "-c", _CHILD], input=asked, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ValueError(f"The recipes could not be read: their reader ended {how_it_ended(done.returncode)}.")
    facts = json.loads(done.stdout)
    if isinstance(facts, str):
        raise ValueError(facts)
    return facts


def _answer() -> None:
    """Print the facts of each recipe, or the text of an error: the child's side of `read_recipes`."""
    paths, options, steps = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            facts: Any = [parse_recipe(path, options, steps) for path in paths]
        except ValueError as error:
            facts = str(error)
    json.dump(facts, sys.stdout, default=str)


def parse_recipe(path: str | Path, options: Sequence[str], steps: int | None = None) -> dict[str, Any]:
    """Return the facts of a recipe, with options of `trl-miner train`, that a comparison needs. Imports TRL.

    The "options" include those that scoring needs. `steps` replaces the recipe's number of generation batches.
    """
    environment = dict(os.environ)  # a recipe may set variables, which must not leak into the next one
    try:
        return _facts(Path(path), list(options), steps)
    except (ValueError, TypeError) as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    finally:
        os.environ.clear()
        os.environ.update(environment)


def _facts(path: Path, options: list[str], steps: int | None) -> dict[str, Any]:
    from ..launching.local import parse_launch
    from ..recipe import load_reward_funcs, make_parser

    recipe = make_parser(["--config", str(path), *options]).recipe
    if not recipe.get("held_out"):
        options = ["--held_out", str(HELD_OUT), *options]  # before the user's, which therefore win
    args, config = _parse(parse_launch(["--config", str(path), *options]))
    load_reward_funcs(args, config)
    if not args.held_out:
        raise ValueError("held_out must be at least 1 to compare: got 0. Leave it out for a default.")
    per_step = config.optimizer_steps_per_generation
    max_steps = config.max_steps if steps is None else round(steps * per_step)
    if steps is not None:
        options = [*options, "--max_steps", str(max_steps)]
    if not args.score_steps:
        options = ["--score_steps", str(_score_steps(max_steps, per_step)), *options]
    return {"method": path.stem, "recipe": recipe, "options": options}


def _parse(launch: Any) -> tuple[Any, Any]:
    """Parse the script's arguments as on the processes that will train: TRL divides batches by their number."""
    import torch

    from ..config import MinerGRPOConfig
    from ..recipe import make_parser

    asked = launch.num_processes
    if not asked and launch.config_file:
        asked = int(read_yaml(Path(launch.config_file)).get("num_processes") or 1)
    num_processes, world_size = asked or torch.accelerator.device_count(), MinerGRPOConfig.world_size
    try:
        if num_processes > 1:
            MinerGRPOConfig.world_size = property(lambda self: num_processes)
        args, config, *_ = make_parser(launch.training_script_args).parse_args_and_config(launch.training_script_args)
    finally:
        MinerGRPOConfig.world_size = world_size
    return args, config


def _score_steps(max_steps: int, per_step: float) -> int:
    """Return the optimizer steps between two scores, a multiple of a generation batch's."""
    steps = max_steps / per_step / SCORED_POINTS if max_steps > 0 else _STEPS_UNKNOWN
    return max(1, round(max(1, round(steps)) * per_step))
