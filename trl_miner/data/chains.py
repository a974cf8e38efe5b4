"""Chains of additions and subtractions with running totals of 0..99: problems, their splits, and their tokens.

The worlds `arithmetic` and `strategies` (of `recipes/study`) share this; they differ in how a chain is worked out.
Splits and tokens serve `forks`, too.
"""

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

MAX_TOTAL = 99
MAX_OPERAND = 9

# Equivalent wordings with their shares. Each is one token, spaces included, and numbers have none: no token ever spans
# the end of a prompt, and joining the tokens gives the text back.
QUESTION, ASK = "Compute ", ".\n"
OPERATORS = {"+": {" + ": 0.8, " plus ": 0.2}, "-": {" - ": 0.8, " minus ": 0.2}}
EQUALS = {" = ": 0.55, " is ": 0.25, " gives ": 0.13, " makes ": 0.07}
SEPARATOR = ", "
CLOSERS = {". The answer is \\boxed{": 0.6, ". Answer: \\boxed{": 0.3, ". We get \\boxed{": 0.1}
END = "}."

Drawn = TypeVar("Drawn")

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain of operations, e.g. start 17, steps (("+", 4), ("-", 9))."""

    start: int
    steps: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        """The question, in plain notation: the wordings of "+" belong to the solutions."""
        return QUESTION + str(self.start) + "".join(f" {sign} {number}" for sign, number in self.steps) + ASK

    @property
    def answer(self) -> int:
        """The total after the last step."""
        return self.start + sum(number if sign == "+" else -number for sign, number in self.steps)


def problem(rng: random.Random, level: int) -> Problem:
    """Draw a problem of `level` operations, in which every running total lies within 0..99."""
    if level < 1:
        raise ValueError(f"level must be at least 1: got {level}. It is the number of operations in the problem.")
    start = total = rng.randint(1, MAX_TOTAL)
    steps: list[tuple[str, int]] = []
    while len(steps) < level:
        sign, number = rng.choice("+-"), rng.randint(1, MAX_OPERAND)
        reached = total + number if sign == "+" else total - number
        if 0 <= reached <= MAX_TOTAL:
            steps.append((sign, number))
            total = reached
    return Problem(start, tuple(steps))


def is_test(problem: Any) -> bool:
    """Whether a problem belongs to the test split: one in ten, by a hash of its text, on every machine."""
    return hashlib.sha256(problem.prompt.encode()).digest()[0] % 10 == 0


def draw(split: str, level: int, rng: random.Random) -> Problem:
    """Draw a problem of one level from one split."""
    return draw_from(split, lambda: problem(rng, level))


def draw_from(split: str, draw_one: Callable[[], Drawn]) -> Drawn:
    """Draw problems of any world until one belongs to the split."""
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test": got {split!r}. There is no other.')
    while True:
        drawn = draw_one()
        if is_test(drawn) == (split == "test"):
            return drawn


def load_dataset(
    split: str, size: int, seed: int, levels: Sequence[int], draw: Callable[[str, int, random.Random], Any] = draw
) -> "Dataset":
    """Return different problems of one split, with alternating levels; see `arithmetic.load_dataset`."""
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
                f"size must not exceed the different problems: got {size}, level {level} has {index} in {split}."
            )
        seen.add(drawn)
        rows.append({"prompt": drawn.prompt, "solution": str(drawn.answer), "level": level})
    return Dataset.from_list(rows)


def build_tokenizer(own_phrases: Iterable[str]) -> "PreTrainedTokenizerFast":
    """Build a tokenizer with a token per number 0..99 and per phrase; other ASCII text goes character by character.

    Decoding gives ASCII text back exactly. There is no beginning-of-sequence token: all prompts begin alike.
    """
    phrases = [QUESTION, ASK, SEPARATOR, END, *own_phrases, *EQUALS, *CLOSERS]
    for ways in OPERATORS.values():
        phrases += [*ways, *(way.lstrip() for way in ways)]
    return word_tokenizer([str(number) for number in range(MAX_TOTAL + 1)], phrases, "[1-9][0-9]")


def word_tokenizer(numbers: Sequence[str], phrases: Iterable[str], *patterns: str) -> "PreTrainedTokenizerFast":
    """Build a tokenizer with a token for each of `numbers`, `phrases` and ASCII characters.

    `patterns` are regular expressions of the numbers that have more than one character.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The longest match first, or " - " would be split at its space.
    phrases = sorted({phrase for phrase in phrases if phrase}, key=lambda phrase: (-len(phrase), phrase))
    characters = [chr(code) for code in (9, 10, 13, *range(32, 127))]
    tokens = list(dict.fromkeys([PAD, EOS, UNKNOWN, *numbers, *phrases, *characters]))

    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
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


def pick(ways: Mapping[str, float], rng: random.Random) -> str:
    """Draw one of several wordings, by their shares."""
    return rng.choices(list(ways), weights=list(ways.values()))[0]


def wrong_total(total: int, remaining: tuple[tuple[str, int], ...], rng: random.Random) -> int:
    """Draw a wrong result, not far off, that keeps all later totals within 0..99."""
    shifts = [*accumulate((number if sign == "+" else -number for sign, number in remaining), initial=0)]
    low, high = -min(shifts), MAX_TOTAL - max(shifts)
    return rng.choice([slip for slip in range(total - 10, total + 11) if low <= slip <= high and slip != total])
