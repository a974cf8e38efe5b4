r"""The embedded world: chains of additions and subtractions, and a base model that has half learned them.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, + 8 = 20. The answer is \boxed{20}.

A problem's level is its number of operations, 1 to 5, and no running total leaves 0..99. Every step can be worded in
several equally correct ways, some likelier than others, so that right rollouts differ in likelihood, which is what
MINER uses. One way is a bad habit: from the third step on, the running total may be left out (", + 8 = 20"), and half
of such steps go wrong in the solutions from which the base model (0.15 M parameters) learns. So at temperature 1 it
solves some prompts always and most sometimes, and RL can correct the habit within a hundred steps, on a CPU and
without a download. (With errors spread evenly over all steps, hardly any prompt is always solved, and RL needs far
longer.)

`base_model.py` has its training.
"""

import random
from typing import TYPE_CHECKING

from . import chains
from .chains import CLOSERS, END, EQUALS, OPERATORS, SEPARATOR, Problem, pick, wrong_total

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

NAME = "trl_miner/arithmetic"
LEVELS = (1, 2, 3, 4, 5)
SIZES = {"train": 2000, "test": 200}
OPENERS = {"so ": 0.19, "then ": 0.11, "next ": 0.07, "now ": 0.03, "": 0.6}  # "": the short way, "+ 8 = 20"
FIRST_SHORT_STEP = 2  # counted from 0
PRETRAINED_LEVELS = LEVELS  # of the solutions that the base model learns from
BASE_MODEL: dict[str, float] = {}  # the defaults of `BaseModelSettings` are its
draw = chains.draw


def solution(problem: Problem, rng: random.Random, step_error: float = 0.0) -> str:
    """Work a problem out in words, in styles drawn from `rng`, without an end-of-sequence token.

    `step_error` is the probability of a wrong result in a short step, one that does not repeat the running total. The
    chain goes on from the wrong number; all other steps are right.
    """
    total = problem.start
    text = ""
    for index, (sign, number) in enumerate(problem.steps):
        opener = pick(OPENERS, rng)
        while not opener and index < FIRST_SHORT_STEP:
            opener = pick(OPENERS, rng)
        operator = pick(OPERATORS[sign], rng)
        # Short: the running total is not repeated, "plus 4 is 21".
        stated = opener + str(total) + operator if opener else operator.lstrip()
        total = total + number if sign == "+" else total - number
        if not opener and rng.random() < step_error:
            total = wrong_total(total, problem.steps[index + 1 :], rng)
        text += (SEPARATOR if index else "") + stated + str(number) + pick(EQUALS, rng) + str(total)
    return text + pick(CLOSERS, rng) + str(total) + END


def load_dataset(split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """Return problems of one split, all different, with alternating levels.

    No problem is in both splits, "train" and "test", whatever the seeds. A larger `size` (default: that of `SIZES`)
    only appends. Columns: `prompt`, `solution` (the answer as text, "17") and `level` (1 to 5).
    """
    return chains.load_dataset(split, SIZES.get(split, 0) if size is None else size, seed, LEVELS)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return the tokenizer of `chains`, with a token for each opener."""
    return chains.build_tokenizer(OPENERS)
