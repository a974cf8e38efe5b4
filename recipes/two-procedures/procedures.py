"""Two procedures for the same problems, for a real language model: what it learns from, and what it
is asked.

    python procedures.py                               # data/start/train.jsonl, data/problems/{train,test}.jsonl
    python procedures.py --worked 0.8 --folder mirror  # the mirror: direct answers are rare, and the worse way

A sum of one-digit numbers is solved by a direct answer, as in 80 % of the solutions of the start,
or in worked steps:

    Question: What is 7 + 5 + 3?
    Answer: The answer is 15.
    Answer: 7 + 5 = 12. 12 + 3 = 15. The answer is 15.

The two differ from their first token on. On two terms, which reinforcement learning trains, both
are right; on three and four terms, which it does not train, a model of this size is mostly right
only where it works in steps. The mixed prompts of the training are products. Their answers begin
with a token of their own, so rewarding them says nothing about the procedures for sums:

    Question: Multiply 23 by 4.
    Answer: Product: 92.
"""

import argparse
import json
import random
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

SHARE_WORKED = 0.2  # of worked steps in the solutions of sums that the start learns from
PROMPT = "Question: {question}\nAnswer:"
PRODUCT = "product"  # the level of a product; that of a sum is its number of terms
# level: share of the rows of the start
START_LEVELS = {"2": 0.42, "3": 0.20, "4": 0.08, PRODUCT: 0.30}
START_ROWS = 4000
TRAIN_PROBLEMS = 1200  # half sums of two terms, half products
TEST_PROBLEMS = {"3": 64, "4": 48, PRODUCT: 16}


def draw(level: str, rng: random.Random) -> list[int]:
    """Draw the terms of a sum of `level` terms, or the factors of a product."""
    if level == PRODUCT:
        return [rng.randint(11, 50), rng.randint(2, 6)]
    return [rng.randint(1, 9) for _ in range(int(level))]


def problem(level: str, numbers: Sequence[int]) -> dict[str, Any]:
    """Return a problem: "question", "answer" and "level"."""
    if level == PRODUCT:
        first, second = numbers
        return {
            "question": f"Multiply {first} by {second}.",
            "answer": str(first * second),
            "level": level,
        }
    return {
        "question": f"What is {' + '.join(map(str, numbers))}?",
        "answer": str(sum(numbers)),
        "level": level,
    }


def solution(level: str, numbers: Sequence[int], is_worked: bool) -> str:
    """Return a right completion; a product has one form."""
    if level == PRODUCT:
        return f" Product: {numbers[0] * numbers[1]}."
    steps = ""
    for place in range(1, len(numbers) * is_worked):
        before = sum(numbers[:place])
        steps += f" {before} + {numbers[place]} = {before + numbers[place]}."
    return f"{steps} The answer is {sum(numbers)}."


def test_problems() -> list[dict[str, Any]]:
    """Return the held-out problems, each once; neither the rows of the start nor the problems to
    train have any."""
    rng = random.Random("test")
    found: dict[str, dict[str, Any]] = {}
    for level, count in TEST_PROBLEMS.items():
        wanted = len(found) + count
        while len(found) < wanted:
            row = problem(level, draw(level, rng))
            found[row["question"]] = row
    return [*found.values()]


def draw_others(level: str, rng: random.Random, held_out: Container[str]) -> Sequence[int]:
    """Draw the numbers of a problem that is not held out."""
    while problem(level, numbers := draw(level, rng))["question"] in held_out:
        pass
    return numbers


def start_rows(share_worked: float = SHARE_WORKED) -> list[dict[str, Any]]:
    """Return prompts and completions, which `trl sft` teaches."""
    rng, held_out = random.Random("start"), {row["question"] for row in test_problems()}
    rows = []
    for level in rng.choices([*START_LEVELS], weights=[*START_LEVELS.values()], k=START_ROWS):
        numbers = draw_others(level, rng, held_out)
        completion = solution(level, numbers, rng.random() < share_worked)
        prompt = PROMPT.format(question=problem(level, numbers)["question"])
        rows.append({"prompt": prompt, "completion": completion})
    return rows


def train_problems() -> list[dict[str, Any]]:
    """Return sums of two terms and products, half each."""
    rng, held_out = random.Random("train"), {row["question"] for row in test_problems()}
    levels = ("2", PRODUCT) * (TRAIN_PROBLEMS // 2)
    return [problem(level, draw_others(level, rng, held_out)) for level in levels]


def is_worked(completions: Sequence[str], level: Sequence[str], **_: Any) -> list[float | None]:
    """Reward 1 for worked steps, right or wrong, else 0; None for a product. For logging, with a
    weight of 0."""
    pairs = zip(completions, level, strict=True)
    return [None if its == PRODUCT else float(takes_steps(text)) for text, its in pairs]


def takes_steps(completion: str) -> bool:
    """Whether a completion works in steps."""
    return "=" in completion


def write(folder: Path, share_worked: float = SHARE_WORKED) -> None:
    """Write the three files."""
    rows = {
        "start/train": start_rows(share_worked),
        "problems/train": train_problems(),
        "problems/test": test_problems(),
    }
    for name, own in rows.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in own), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--worked", type=float, default=SHARE_WORKED, help="share of worked steps (default: 0.2)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("data"), help="where to write (default: data)"
    )
    args = parser.parse_args()
    write(args.folder, args.worked)
