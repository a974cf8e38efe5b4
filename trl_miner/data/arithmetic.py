r"""The embedded world: chains of additions and subtractions, and a base model that has half learned them.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, + 8 = 20. The answer is \boxed{20}.

A problem's level is its number of operations, 1 to 5, and no running total leaves 0..99. Every step can be said in
several equally correct ways, some likelier than others, so that right rollouts differ in likelihood, which is what
MINER feeds on. One way is a bad habit: from the third step on, the running total may be left out (", + 8 = 20"), and
half of such steps go wrong in the solutions that the base model (0.15 M parameters) learns from. So at temperature 1
it solves some prompts always and most sometimes, and RL can mend that within a hundred steps, on a CPU, without a
download. (With errors spread evenly over all steps, hardly a prompt is always solved, and RL needs far longer.)

`base_model.py` trains and keeps that model.
"""

import dataclasses
import hashlib
import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

NAME = "trl_miner/arithmetic"
LEVELS = (1, 2, 3, 4, 5)
MAX_TOTAL = 99
MAX_OPERAND = 9

# Ways to say the same, with their shares. Each is one token, spaces included, and numbers are bare: no token ever
# spans the end of a prompt, and joining tokens gives the text back.
QUESTION, ASK = "Compute ", ".\n"
OPERATORS = {"+": {" + ": 0.8, " plus ": 0.2}, "-": {" - ": 0.8, " minus ": 0.2}}
OPENERS = {"so ": 0.19, "then ": 0.11, "next ": 0.07, "now ": 0.03, "": 0.6}  # "": the short way, "+ 8 = 20"
FIRST_SHORT_STEP = 2  # counted from 0
EQUALS = {" = ": 0.55, " is ": 0.25, " gives ": 0.13, " makes ": 0.07}
SEPARATOR = ", "
CLOSERS = {". The answer is \\boxed{": 0.6, ". Answer: \\boxed{": 0.3, ". We get \\boxed{": 0.1}
END = "}."

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain of operations, e.g. start 17, steps (("+", 4), ("-", 9))."""

    start: int
    steps: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        """The question, in the plain notation: the ways to say "+" belong to the solutions."""
        return QUESTION + str(self.start) + "".join(f" {sign} {number}" for sign, number in self.steps) + ASK

    @property
    def answer(self) -> int:
        """The total after the last step."""
        return self.start + sum(number if sign == "+" else -number for sign, number in self.steps)


def problem(rng: random.Random, level: int) -> Problem:
    """Draw a problem in which every running total lies within 0..99.

    Args:
        rng: decides.
        level: number of operations, 1 to 5.

    Returns:
        The problem, of either split.

    Raises:
        ValueError: for another level.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {LEVELS}: got {level}. It is the number of operations in the problem.")
    start = total = rng.randint(1, MAX_TOTAL)
    steps: list[tuple[str, int]] = []
    while len(steps) < level:
        sign, number = rng.choice("+-"), rng.randint(1, MAX_OPERAND)
        reached = total + number if sign == "+" else total - number
        if 0 <= reached <= MAX_TOTAL:
            steps.append((sign, number))
            total = reached
    return Problem(start, tuple(steps))


def solution(problem: Problem, rng: random.Random, step_error: float = 0.0) -> str:
    """Work a problem out in words, in styles drawn from `rng`.

    Args:
        problem: what to solve.
        rng: decides on the styles and on the errors.
        step_error: probability of a wrong result in a step taken the short way, which does not repeat the running
            total; the chain goes on from the wrong number. All other steps are right.

    Returns:
        The completion, up to and including the boxed result, without an end-of-sequence token.
    """
    total = problem.start
    text = ""
    for index, (sign, number) in enumerate(problem.steps):
        opener = _pick(OPENERS, rng)
        while not opener and index < FIRST_SHORT_STEP:
            opener = _pick(OPENERS, rng)
        operator = _pick(OPERATORS[sign], rng)
        # Short: the running total is not repeated, "plus 4 is 21".
        stated = opener + str(total) + operator if opener else operator.lstrip()
        total = total + number if sign == "+" else total - number
        if not opener and rng.random() < step_error:
            total = _wrong(total, problem.steps[index + 1 :], rng)
        text += (SEPARATOR if index else "") + stated + str(number) + _pick(EQUALS, rng) + str(total)
    return text + _pick(CLOSERS, rng) + str(total) + END


def is_test(problem: Problem) -> bool:
    """Whether a problem belongs to the test split: one in ten, by a hash of its text.

    Args:
        problem: any.

    Returns:
        The same in every process and on every machine.
    """
    return hashlib.sha256(problem.prompt.encode()).digest()[0] % 10 == 0


def draw(split: str, level: int, rng: random.Random) -> Problem:
    """Draw a problem of one level from one split.

    Args:
        split: "train" or "test".
        level: number of operations, 1 to 5.
        rng: decides.

    Returns:
        The problem.

    Raises:
        ValueError: for another split or level.
    """
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test": got {split!r}. The arithmetic world has no other.')
    while True:
        drawn = problem(rng, level)
        if is_test(drawn) == (split == "test"):
            return drawn


def load_dataset(split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """Problems of one split, all different, levels taking turns.

    Args:
        split: "train" or "test". No problem is in both, whatever the seeds.
        size: rows; by default 2000 for train and 200 for test.
        seed: equal seeds give equal rows, and a larger `size` only appends.

    Returns:
        Columns `prompt` (text), `solution` (the answer as text, "17") and `level` (1 to 5).

    Raises:
        ValueError: for another split, or for more rows than there are different problems.
    """
    from datasets import Dataset

    wanted = size if size is not None else {"train": 2000, "test": 200}.get(split, 0)
    rng = random.Random(f"{split} {seed}")
    seen: set[Problem] = set()
    rows: list[dict[str, Any]] = []
    for index in range(wanted):
        level = LEVELS[index % len(LEVELS)]
        for _ in range(1000):
            drawn = draw(split, level, rng)
            if drawn not in seen:
                break
        else:
            raise ValueError(
                f"size must not exceed the different problems: got {size}, level {level} of the {split} split "
                f"is used up after {index} rows. Ask for fewer rows."
            )
        seen.add(drawn)
        rows.append({"prompt": drawn.prompt, "solution": str(drawn.answer), "level": level})
    return Dataset.from_list(rows)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per number 0..99 and per phrase of this world; any other ASCII text goes character by character.

    Decoding gives the text back exactly (for ASCII). There is no beginning-of-sequence token: all prompts begin alike.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    phrases = [QUESTION, ASK, SEPARATOR, END, *OPENERS, *EQUALS, *CLOSERS]
    for ways in OPERATORS.values():
        phrases += [*ways, *(way.lstrip() for way in ways)]
    # The longest match first, or " - " would be cut at its space.
    phrases = sorted({phrase for phrase in phrases if phrase}, key=lambda phrase: (-len(phrase), phrase))
    numbers = [str(number) for number in range(MAX_TOTAL + 1)]
    characters = [chr(code) for code in (9, 10, 13, *range(32, 127))]
    tokens = list(dict.fromkeys([PAD, EOS, UNKNOWN, *numbers, *phrases, *characters]))

    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
    pattern = "|".join([*(re.escape(phrase) for phrase in phrases), "[1-9][0-9]", r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def _pick(ways: Mapping[str, float], rng: random.Random) -> str:
    return rng.choices(list(ways), weights=list(ways.values()))[0]


def _wrong(total: int, remaining: tuple[tuple[str, int], ...], rng: random.Random) -> int:
    """A wrong result, not far off, that keeps all later totals within 0..99."""
    shifts = [0]
    for sign, number in remaining:
        shifts.append(shifts[-1] + (number if sign == "+" else -number))
    low, high = -min(shifts), MAX_TOTAL - max(shifts)
    return rng.choice([slip for slip in range(total - 10, total + 11) if low <= slip <= high and slip != total])
