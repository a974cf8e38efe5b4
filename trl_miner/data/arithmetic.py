r"""The embedded world: chains of additions and subtractions, and a base model that has half learned
them.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, + 8 = 20. The answer is \boxed{20}.

A problem's level is its number of operations, 1 to 5, and no running total leaves 0..99. The base
model (0.15 M parameters, `base_models/arithmetic`) words every step in several equally correct
ways, some likelier than others, so that right rollouts differ in likelihood, which is what MINER
uses. One way is a bad habit: from the third step on, the running total may be left out
(", + 8 = 20"), and half of such steps went wrong in the solutions from which it learned. So at
temperature 1 it solves some prompts always and most sometimes, and RL can correct the habit within
a hundred steps, on a CPU and without a download.

The weights are part of the package, as on another processor sums are rounded differently, and the
same training gives another model. It is `trl_miner/data/base_model.py` at commit 5715b9ef.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

MODEL = "trl_miner/arithmetic"  # the name of the data set and of its base model
LEVELS = (1, 2, 3, 4, 5)
SIZES = {"train": 2000, "test": 200}
MAX_TOTAL = 99
MAX_OPERAND = 9


class Chain(NamedTuple):
    """A chain of operations, as the base model knows it, and the total after the last step."""

    prompt: str
    answer: int


def draw_chain(rng: random.Random, level: int) -> Chain:
    """Draw a chain of `level` operations, in which every running total lies within 0..99."""
    total = rng.randint(1, MAX_TOTAL)
    prompt, left = f"Compute {total}", level
    while left:
        sign, number = rng.choice("+-"), rng.randint(1, MAX_OPERAND)
        reached = total + number if sign == "+" else total - number
        if 0 <= reached <= MAX_TOTAL:
            prompt, total, left = f"{prompt} {sign} {number}", reached, left - 1
    return Chain(f"{prompt}.\n", total)


def load_dataset(split: str, size: int | None = None, seed: int = 0) -> "Dataset":
    """Return problems of one split, "train" or "test", all different, with alternating levels.

    No problem is in both splits, whatever the seeds. A larger `size` (default: that of `SIZES`)
    only appends. Columns: `prompt`, `solution` (the answer as text, "17") and `level` (1 to 5).
    """

    def draw(split: str, level: int, rng: random.Random) -> Chain:
        return draw_from(split, lambda: draw_chain(rng, level))

    return make_dataset(split, SIZES.get(split, 0) if size is None else size, seed, LEVELS, draw)


def draw_from(split: str, draw_one: Callable[[], Any]) -> Any:
    """Draw problems of any world until one belongs to the split.

    Raises:
        ValueError: There is no such split.
    """
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
    """Return different problems of one split of any world; see `load_dataset`.

    Raises:
        ValueError: There are fewer different problems than `size`.
    """
    from datasets import Dataset

    rng = random.Random(f"{split} {seed}")
    seen: set[Any] = set()
    rows: list[dict[str, Any]] = []
    for index in range(size):
        level = levels[index % len(levels)]
        fresh = (one for _ in range(1000) if (one := draw(split, level, rng)) not in seen)
        drawn = next(fresh, None)
        if drawn is None:
            raise ValueError(
                f"size must not exceed the different problems: got {size}, level {level} has"
                f" {index} in {split}."
            )
        seen.add(drawn)
        rows.append({"prompt": drawn.prompt, "solution": str(drawn.answer), "level": level})
    return Dataset.from_list(rows)


def build_tokenizer() -> "PreTrainedTokenizerBase":
    """Return the base model's tokenizer, with a token per number 0..99 and per phrase; other ASCII
    text goes character by character.

    Decoding gives ASCII text back exactly. There is no beginning-of-sequence token.
    """
    from transformers import AutoTokenizer

    from .base_model import FOLDER

    return AutoTokenizer.from_pretrained(FOLDER)
