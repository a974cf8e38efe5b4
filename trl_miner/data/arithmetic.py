r"""The embedded world: chains of additions and subtractions, and a base model that has half learned
them.

    Compute 17 + 4 - 9 + 8.
    so 17 + 4 = 21, then 21 - 9 is 12, + 8 = 20. The answer is \boxed{20}.

A problem's level is its number of operations, 1 to 5, and no running total leaves 0..99. The base
model (0.15 M parameters, `base_models/arithmetic`) words every step in several equally correct
ways, some likelier than others, so that correct completions differ in likelihood, which is what
MINER uses. One way is a bad habit: from the third step on, the running total may be left out
(", + 8 = 20"), and half of such steps went wrong in the solutions from which it learned. So at
temperature 1 it solves some prompts always and most sometimes, and RL can correct the habit within
a hundred steps, on a CPU and without a download.

Weights and problems are part of the package: on another processor sums are rounded differently, and
the same training gives another model. What made them is `trl_miner/data/base_model.py` and
`arithmetic.py` at commit 5715b9ef. All problems are different.
"""

import json
from pathlib import Path
from typing import Any

MODEL = "trl_miner/arithmetic"  # the name of the data set and of its base model
FOLDER = Path(__file__).parent / "base_models" / "arithmetic"
SPLITS = "train", "test"  # of 2,000 and 200 problems


def load_dataset(split: str, size: int | None = None) -> Any:
    """Return the `Dataset` of a split, or its first rows, with alternating levels.

    Columns: `prompt`, `solution` (the answer as text, "17") and `level` (1 to 5).
    """
    from datasets import Dataset

    lines = (FOLDER / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([json.loads(line) for line in lines[:size]])
