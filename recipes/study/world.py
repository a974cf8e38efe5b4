r"""The study's world: chains of additions and subtractions, worked out by strategies that differ in
reliability.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, now 12 + 8 = 20. The answer is \boxed{20}.        careful
    so 17 + 4 = 21, so 21 - 9 = 12, + 8 gives 20. Answer: \boxed{20}.                    short
    up 4 + 8 = 12, so 17 + 12 is 29, down 9, so 29 - 9 = 20. We get \boxed{20}.          regrouping

A problem's level is its number of operations. Training uses levels 1 to 6; only the base model (1 M
parameters) has seen 7 and 8, and neither has seen 9 and 10. In the solutions from which the base
model learns, the careful way and regrouping are always right. The short way, which from the third
step on does not repeat the running total, goes wrong in half of those steps, and it is the most
frequent. So easy problems are solved in any way, by rollouts that differ in likelihood, and hard
ones only in the rarer ways: the regime that MINER is made for. The study measures how far this is
so. `trl_miner.data.worlds` loads this file.
"""

import random
from typing import TYPE_CHECKING

from trl_miner.data import arithmetic
from trl_miner.data.arithmetic import (
    CLOSERS,
    END,
    EQUALS,
    MAX_TOTAL,
    OPERATORS,
    SEPARATOR,
    Problem,
    pick,
    wrong_total,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

NAME = "trl_miner/strategies"
LEVELS = (1, 2, 3, 4, 5, 6)  # of the training set
PRETRAINED_LEVELS = (*LEVELS, 7, 8)  # of the solutions that the base model learns from
TEST_LEVELS = (*PRETRAINED_LEVELS, 9, 10)
SIZES = {"train": 6000, "test": 200}
STRATEGIES = {"careful": 0.2, "short": 0.6, "regrouping": 0.2}
FIRST_SHORT_STEP = 2  # counted from 0
OPENERS = {"so ": 0.45, "then ": 0.3, "next ": 0.15, "now ": 0.1}
UP, DOWN = "up ", "down "
BASE_MODEL = {
    "hidden_size": 128,
    "intermediate_size": 1152,
    "rows": 40_000,
    "steps": 1000,
    "learning_rate": 3e-3,
}
draw = arithmetic.draw


def solution(problem: Problem, rng: random.Random, step_error: float = 0.0) -> str:
    """Work a problem out by a strategy and in styles drawn from `rng`; see
    `arithmetic.solution`."""
    strategy = pick(STRATEGIES, rng)
    ups = [number for sign, number in problem.steps if sign == "+"]
    downs = [number for sign, number in problem.steps if sign == "-"]
    if (
        strategy == "regrouping"
        and len(problem.steps) > 1
        and problem.start + sum(ups) <= MAX_TOTAL
    ):
        return _regrouped(problem, ups, downs, rng)
    total, said = problem.start, []
    for index, (sign, number) in enumerate(problem.steps):
        is_short = strategy == "short" and index >= FIRST_SHORT_STEP
        before, total = total, total + number if sign == "+" else total - number
        if is_short and rng.random() < step_error:
            total = wrong_total(total, problem.steps[index + 1 :], rng)
        operator = pick(OPERATORS[sign], rng)
        stated = operator.lstrip() if is_short else f"{pick(OPENERS, rng)}{before}{operator}"
        said.append(f"{stated}{number}{pick(EQUALS, rng)}{total}")
    return SEPARATOR.join(said) + _close(total, rng)


def _regrouped(problem: Problem, ups: list[int], downs: list[int], rng: random.Random) -> str:
    """First add the sum of all that is added, then subtract the sum of all that is subtracted."""
    total, said = problem.start, []
    for word, sign, numbers in ((UP, "+", ups), (DOWN, "-", downs)):
        if not numbers:
            continue
        gathered = numbers[0]
        text = f"{word}{gathered}"
        for number in numbers[1:]:
            gathered += number
            text += f"{pick(OPERATORS['+'], rng)}{number}{pick(EQUALS, rng)}{gathered}"
        before, total = total, total + gathered if sign == "+" else total - gathered
        said.append(text)
        said.append(
            f"{pick(OPENERS, rng)}{before}{pick(OPERATORS[sign], rng)}{gathered}{pick(EQUALS, rng)}{total}"
        )
    return SEPARATOR.join(said) + _close(total, rng)


def _close(total: int, rng: random.Random) -> str:
    return pick(CLOSERS, rng) + str(total) + END


def strategy_of(completion: str) -> str:
    """Return the strategy of a rollout, right or wrong: "short" once a step leaves the running
    total out."""
    if completion.startswith((UP, DOWN)):
        return "regrouping"
    steps = completion.split(SEPARATOR)
    return "careful" if all(step.startswith(tuple(OPENERS)) for step in steps) else "short"


def load_dataset(split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """Return problems as `arithmetic.load_dataset` does: 6000 of levels 1 to 6 to train, 200 of 1
    to 10 to test."""
    levels = TEST_LEVELS if split == "test" else LEVELS
    return arithmetic.make_dataset(
        split, SIZES.get(split, 0) if size is None else size, seed, levels, draw
    )


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return the tokenizer of `arithmetic`, with a token for each opener and for the words that
    begin a regrouping."""
    return arithmetic.build_tokenizer([*OPENERS, UP, DOWN])
