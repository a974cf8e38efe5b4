"""The mirror of `forks`: the same problems and ways, but the rare way is the shortcut, which fails on harder problems.

What pays rare ways on solved prompts gains in `forks`, and must lose here.
"""

import random

from . import forks
from .forks import BASE_MODEL, LEVELS, PRETRAINED_LEVELS, build_tokenizer, draw, load_dataset

__all__ = ["BASE_MODEL", "LEVELS", "NAME", "PRETRAINED_LEVELS", "build_tokenizer", "draw",
           "load_dataset", "solution"]  # fmt: skip

NAME = "trl_miner/forks_mirror"
SHARES = {"sound": forks.SHARES["fast"], "fast": forks.SHARES["sound"]}


def solution(problem: forks.Problem, rng: random.Random, step_error: float = 0.0) -> str:
    """Work a problem out; see `forks.solution`."""
    return forks.solution(problem, rng, step_error, SHARES)
