r"""The embedded world: chains of additions and subtractions, and a base model that has half learned
them.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, + 8 = 20. The answer is \boxed{20}.

A problem's level is its number of operations, 1 to 5, and no running total leaves 0..99. Every step
can be worded in several equally correct ways, some likelier than others, so that right rollouts
differ in likelihood, which is what MINER uses. One way is a bad habit: from the third step on, the
running total may be left out (", + 8 = 20"), and half of such steps go wrong in the solutions from
which the base model (0.15 M parameters) learns. So at temperature 1 it solves some prompts always
and most sometimes, and RL can correct the habit within a hundred steps, on a CPU and without a
download. (With errors spread evenly over all steps, hardly any prompt is always solved, and RL
needs far longer.)

`base_model.py` has its training. The world of `recipes/forks` shares splits and tokens.
"""

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

MODEL = "trl_miner/arithmetic"  # the name of the data set and of its base model
LEVELS = (1, 2, 3, 4, 5)
SIZES = {"train": 2000, "test": 200}
# "": the short way, "+ 8 = 20"
OPENERS = {"so ": 0.19, "then ": 0.11, "next ": 0.07, "now ": 0.03, "": 0.6}
FIRST_SHORT_STEP = 2  # counted from 0
MAX_TOTAL = 99
MAX_OPERAND = 9
# Equivalent wordings with their shares. Each is one token, spaces included, and numbers have none:
# no token ever spans the end of a prompt, and joining the tokens gives the text back.
QUESTION, ASK = "Compute ", ".\n"
OPERATORS = {"+": {" + ": 0.8, " plus ": 0.2}, "-": {" - ": 0.8, " minus ": 0.2}}
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
        """The question, in plain notation: the wordings of "+" belong to the solutions."""
        return (
            QUESTION
            + str(self.start)
            + "".join(f" {sign} {number}" for sign, number in self.steps)
            + ASK
        )

    @property
    def answer(self) -> int:
        """The total after the last step."""
        return self.start + sum(number if sign == "+" else -number for sign, number in self.steps)


def problem(rng: random.Random, level: int) -> Problem:
    """Draw a problem of `level` operations, in which every running total lies within 0..99."""
    if level < 1:
        raise ValueError(
            f"level must be at least 1: got {level}. It is the number of operations in the problem."
        )
    start = total = rng.randint(1, MAX_TOTAL)
    steps: list[tuple[str, int]] = []
    while len(steps) < level:
        sign, number = rng.choice("+-"), rng.randint(1, MAX_OPERAND)
        reached = total + number if sign == "+" else total - number
        if 0 <= reached <= MAX_TOTAL:
            steps.append((sign, number))
            total = reached
    return Problem(start, tuple(steps))


def draw(split: str, level: int, rng: random.Random) -> Problem:
    """Draw a problem of one level from one split."""
    return draw_from(split, lambda: problem(rng, level))


def solution(problem: Problem, rng: random.Random, step_error: float = 0.0) -> str:
    """Work a problem out in words, in styles drawn from `rng`, without an end-of-sequence token.

    `step_error` is the probability of a wrong result in a short step, one that does not repeat the
    running total. The chain goes on from the wrong number; all other steps are right.
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

    No problem is in both splits, "train" and "test", whatever the seeds. A larger `size` (default:
    that of `SIZES`) only appends. Columns: `prompt`, `solution` (the answer as text, "17") and
    `level` (1 to 5).
    """
    return make_dataset(split, SIZES.get(split, 0) if size is None else size, seed, LEVELS, draw)


def build_tokenizer(own_phrases: Iterable[str] = OPENERS) -> "PreTrainedTokenizerFast":
    """Build a tokenizer with a token per number 0..99 and per phrase; other ASCII text goes
    character by character.

    Decoding gives ASCII text back exactly. There is no beginning-of-sequence token: all prompts
    begin alike.
    """
    phrases = [QUESTION, ASK, SEPARATOR, END, *own_phrases, *EQUALS, *CLOSERS]
    for ways in OPERATORS.values():
        phrases += [*ways, *(way.lstrip() for way in ways)]
    return word_tokenizer([str(number) for number in range(MAX_TOTAL + 1)], phrases, "[1-9][0-9]")


def pick(ways: Mapping[str, float], rng: random.Random) -> str:
    """Draw one of several wordings, by their shares."""
    return rng.choices(list(ways), weights=list(ways.values()))[0]


def wrong_total(total: int, remaining: tuple[tuple[str, int], ...], rng: random.Random) -> int:
    """Draw a wrong result, not far off, that keeps all later totals within 0..99."""
    shifts = [
        *accumulate((number if sign == "+" else -number for sign, number in remaining), initial=0)
    ]
    low, high = -min(shifts), MAX_TOTAL - max(shifts)
    return rng.choice(
        [slip for slip in range(total - 10, total + 11) if low <= slip <= high and slip != total]
    )


# What other worlds share


def draw_from(split: str, draw_one: Callable[[], Any]) -> Any:
    """Draw problems of any world until one belongs to the split."""
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test": got {split!r}. There is no other.')
    while True:
        drawn = draw_one()
        # one in ten belongs to the test split, by a hash of its text, on every machine
        is_test = hashlib.sha256(drawn.prompt.encode()).digest()[0] % 10 == 0
        if is_test == (split == "test"):
            return drawn


def make_dataset(
    split: str,
    size: int,
    seed: int,
    levels: Sequence[int],
    draw: Callable[[str, int, random.Random], Any],
) -> "Dataset":
    """Return different problems of one split, with alternating levels; see `load_dataset`."""
    from datasets import Dataset

    rng = random.Random(f"{split} {seed}")
    seen: set[Any] = set()
    rows: list[dict[str, Any]] = []
    for index in range(size):
        level = levels[index % len(levels)]
        for _ in range(1000):
            drawn = draw(split, level, rng)
            if drawn not in seen:
                break
        else:
            raise ValueError(
                f"size must not exceed the different problems: got {size}, level {level} has"
                f" {index} in {split}."
            )
        seen.add(drawn)
        rows.append({"prompt": drawn.prompt, "solution": str(drawn.answer), "level": level})
    return Dataset.from_list(rows)


def word_tokenizer(
    numbers: Sequence[str], phrases: Iterable[str], *patterns: str
) -> "PreTrainedTokenizerFast":
    """Build a tokenizer with a token for each of `numbers`, `phrases` and ASCII characters.

    `patterns` are regular expressions of the numbers that have more than one character.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The longest match first, or " - " would be split at its space.
    phrases = sorted(
        {phrase for phrase in phrases if phrase}, key=lambda phrase: (-len(phrase), phrase)
    )
    characters = [chr(code) for code in (9, 10, 13, *range(32, 127))]
    tokens = list(dict.fromkeys([PAD, EOS, UNKNOWN, *numbers, *phrases, *characters]))

    tokenizer = Tokenizer(
        models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN)
    )
    pattern = "|".join([*(re.escape(phrase) for phrase in phrases), *patterns, r"[\s\S]"])
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
