r"""A world with MINER's premise built in: solved prompts can be solved in a rare sound way or by a
frequent shortcut.

    Apply b to 7314.
    fast: \boxed{4137}.                                      the shortcut: the answer at once
    so b = 4137, \boxed{4137}.                               the sound way: the state after each operation

    Apply bea to 7314.
    so b = 4137, e = 5248, a = 2485, \boxed{2485}.

    Apply w to 7314.
    try \boxed{4137}.                                       level 0: there is no choice

Operations rearrange four digits or add to each of them, so an answer is one of 10,000. A problem's
level is its number of operations; level 0 has a single one of another kind:

    level 0       one operation of w to z, which does one of two things, by a rule that the base model does not know
    level 1       one operation of a to f: both ways are right
    levels 2 to 4 chains of a to f: the shortcut mostly skips one of them, the sound way is right
    levels 6, 7   longer than any chain that the base model has seen

Training uses levels 0 and 1, so it never rewards the sound way for being sound: prompts of level 1
are all right, and those of level 0 are mixed and have no ways. (With ways, the frequent one would
be practised more, become right more often, and be rewarded for that.) The ways differ from their
first token on, and no wording varies, so that of the rollouts of an all-right prompt the sound ones
alone are unlikely. Whether a method finds that out shows at levels 2 to 4, which it never trains
on. `forks_mirror` is the same world with the shares of the ways exchanged.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trl_miner.data import arithmetic
from trl_miner.data.arithmetic import pick

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

Digits = tuple[int, ...]

NAME = "trl_miner/forks"
LEVELS = (0, 1)  # of the training set
# of the solutions that the base model learns from, with their shares
PRETRAINED_LEVELS = (0, 1, 1, 2, 3, 3, 4, 4)
TEST_LEVELS = (0, 1, 1, 1, 2, 3, 4, 6, 7, 7)
SIZES = {"train": 4800, "test": 512}
SHARES = {"sound": 0.3, "fast": 0.7}  # of the ways in the solutions that the base model learns from
BASE_MODEL = {"rows": 40_000, "steps": 2000, "step_error": 0.9}
LENGTH = 4  # digits

SURE: dict[str, Callable[[Digits], Digits]] = {
    "a": lambda d: d[1:] + d[:1],
    "b": lambda d: d[::-1],
    "c": lambda d: (d[1], d[0], *d[2:]),
    "d": lambda d: (*d[:2], d[3], d[2]),
    "e": lambda d: _add(d, 1),
    "f": lambda d: _add(d, 3),
}
# does the first for an even first digit, else the second
UNSURE = {"w": "ab", "x": "cd", "y": "ef", "z": "be"}
OPERATIONS = (*SURE, *UNSURE)

QUESTION, OF, ASK = "Apply ", " to ", ".\n"
STARTS = {"sound": "so ", "fast": "fast: "}
TRY = "try "
RESULT, SEPARATOR, BOX, END = " = ", ", ", "\\boxed{", "}."


def _add(digits: Digits, number: int) -> Digits:
    return tuple((digit + number) % 10 for digit in digits)


def _text(digits: Digits) -> str:
    return "".join(map(str, digits))


@dataclass(frozen=True)
class Problem:
    """Operations on four digits, e.g. start (7, 3, 1, 4), operations "bea"."""

    start: Digits
    operations: str

    @property
    def prompt(self) -> str:
        """The question."""
        return f"{QUESTION}{self.operations}{OF}{_text(self.start)}{ASK}"

    @property
    def answer(self) -> str:
        """The four digits after the last operation."""
        return _text(self.states(self.operations)[-1])

    def states(self, operations: str) -> list[Digits]:
        """Return the digits after each of some operations, of which the unsure ones follow their
        rule."""
        states = [self.start]
        for name in operations:
            if name in UNSURE:
                name = UNSURE[name][states[-1][0] % 2]
            states.append(SURE[name](states[-1]))
        return states[1:]


def draw(split: str, level: int, rng: random.Random) -> Problem:
    """Draw a problem of one level from one split."""
    if not 0 <= level <= max(TEST_LEVELS):
        raise ValueError(
            f"level must be 0 to {max(TEST_LEVELS)}: got {level}. It is the number of sure"
            " operations."
        )

    def problem() -> Problem:
        start = tuple(rng.randrange(10) for _ in range(LENGTH))
        return Problem(start, "".join(rng.choices([*SURE], k=level)) or rng.choice([*UNSURE]))

    return arithmetic.draw_from(split, problem)


def solution(
    problem: Problem,
    rng: random.Random,
    step_error: float = 0.0,
    shares: Mapping[str, float] = SHARES,
) -> str:
    """Work a problem out in a way drawn from `rng`, which also decides what an unsure operation
    does, by a coin.

    `step_error` is the probability that the shortcut skips one of several operations, `shares` that
    of each way.
    """
    way = pick(shares, rng)
    taken = "".join(rng.choice(UNSURE.get(name, name)) for name in problem.operations)
    if way == "fast" and len(taken) > 1 and rng.random() < step_error:
        skipped = rng.randrange(len(taken))
        taken = taken[:skipped] + taken[skipped + 1 :]
    states = [_text(digits) for digits in problem.states(taken)]
    steps = [
        f"{name}{RESULT}{state}{SEPARATOR}"
        for name, state in zip(problem.operations, states, strict=False)
    ]
    has_ways = problem.operations[0] in SURE
    work = STARTS[way] + "".join(steps) * (way == "sound") if has_ways else TRY
    return f"{work}{BOX}{states[-1]}{END}"


def way_of(completion: str) -> str:
    """Return the way of a rollout, right or wrong: "sound", "fast", or "": neither."""
    return next((way for way, start in STARTS.items() if completion.startswith(start)), "")


def is_sound(completions: Sequence[str], **_: Any) -> list[float]:
    """Reward 1 for a rollout of the sound way, whether right or wrong, else 0: for logging, with a
    weight of 0."""
    return [float(way_of(text) == "sound") for text in completions]


def oracle(rollouts: Any) -> Any:
    """Pay the sound way, `all_right: trl_miner.data.forks.oracle`: 1 or 0, less the mean over the
    prompt's rollouts.

    An upper bound of what any credit on all-right prompts can do here, as no method can see which
    way is sound.
    """
    return _over_group_mean(rollouts, is_sound(rollouts.texts()))


def uniqueness(rollouts: Any) -> Any:
    """Pay rare ways by counting them, `all_right: trl_miner.data.forks.uniqueness`.

    A rollout gets 1 / (the share of its way among the prompt's rollouts), less the mean over them.
    """
    from torch import tensor

    ways = [*STARTS, ""]
    ways_N = rollouts.world.gather(tensor([ways.index(way_of(text)) for text in rollouts.texts()]))
    ways_PG = ways_N.view(-1, rollouts.num_generations)
    counts_PG = (ways_PG.unsqueeze(2) == ways_PG.unsqueeze(1)).sum(dim=2)
    return _over_group_mean(
        rollouts, rollouts.local((rollouts.num_generations / counts_PG).flatten()).tolist()
    )


def _over_group_mean(rollouts: Any, values_B: Sequence[float]) -> Any:
    from torch import tensor

    values_PG = rollouts.world.gather(tensor(values_B)).view(-1, rollouts.num_generations)
    return rollouts.to_tokens((values_PG - values_PG.mean(dim=1, keepdim=True)).flatten())


def load_dataset(split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """Return problems as `arithmetic.load_dataset` does: 4800 of levels 0 and 1 to train, 512 of 0
    to 6 to test."""
    levels: Sequence[int] = TEST_LEVELS if split == "test" else LEVELS
    return arithmetic.make_dataset(
        split, SIZES.get(split, 0) if size is None else size, seed, levels, draw
    )


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return a tokenizer with a token per digit, operation and phrase; other ASCII text goes by
    character."""
    phrases = [QUESTION, OF, ASK, *STARTS.values(), TRY, RESULT, SEPARATOR, BOX, END]
    return arithmetic.word_tokenizer([str(digit) for digit in range(10)], phrases)


def mirrored() -> SimpleNamespace:
    """Return this world with the shares of the ways exchanged: there the rare way is the shortcut.

    It fails on harder problems. What pays rare ways on solved prompts gains here, and must lose
    there.
    """
    shares = {"sound": SHARES["fast"], "fast": SHARES["sound"]}
    changed = {"NAME": "trl_miner/forks_mirror", "solution": partial(solution, shares=shares)}
    return SimpleNamespace(**globals() | changed)
