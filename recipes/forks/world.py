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
on. The mirror is the same world with the shares of the ways exchanged in the base model's lessons:
there the rare way is the shortcut, which fails on harder problems.

    python world.py                  # writes data/{train,test}.jsonl; both worlds have the same problems
    python world.py --model forks    # trains a base model anew; models/ has those of the studies
"""

import argparse
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Digits = tuple[int, ...]

LEVELS = (0, 1)  # of the training set
# of the solutions that the base model learns from, with their shares
PRETRAINED_LEVELS = (0, 1, 1, 2, 3, 3, 4, 4)
TEST_LEVELS = (0, 1, 1, 1, 2, 3, 4, 6, 7, 7)
SIZES = {"train": 4800, "test": 512}
SHARES = {"sound": 0.3, "fast": 0.7}  # of the ways in the solutions that the base model learns from
STEP_ERROR = 0.9  # the share of skipped operations where the shortcut may skip one
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
    while True:
        start = tuple(rng.randrange(10) for _ in range(LENGTH))
        problem = Problem(start, "".join(rng.choices([*SURE], k=level)) or rng.choice([*UNSURE]))
        # one in ten belongs to the test split, by a hash of its text, on every machine
        is_test = hashlib.sha256(problem.prompt.encode()).digest()[0] % 10 == 0
        if is_test == (split == "test"):
            return problem


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
    way = rng.choices([*shares], [*shares.values()])[0]
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


def rows(split: str) -> list[dict[str, Any]]:
    """Return problems of a split, "train" (4800 of levels 0 and 1) or "test" (512 of 0 to 7)."""
    levels = TEST_LEVELS if split == "test" else LEVELS
    rng, problems = random.Random(f"{split} 0"), dict[Problem, int]()
    while len(problems) < SIZES[split]:  # all different
        level = levels[len(problems) % len(levels)]
        problems.setdefault(draw(split, level, rng), level)
    return [
        {"prompt": each.prompt, "solution": each.answer, "level": level}
        for each, level in problems.items()
    ]


def build_model(shares: Mapping[str, float], folder: Path) -> None:
    """Train a base model on the CPU with TRL's SFTTrainer, on solutions with these shares of the
    ways. The tokenizer and the model's size are those of models/forks."""
    import torch
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(0)
    torch.set_num_threads(1)  # the order of sums, hence the weights, then is the same everywhere
    rng = random.Random(0)
    problems = (draw("train", level, rng) for level in PRETRAINED_LEVELS * 5000)
    examples = [
        {"prompt": problem.prompt, "completion": solution(problem, rng, STEP_ERROR, shares)}
        for problem in problems
    ]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("models/forks"))
    tokenizer = AutoTokenizer.from_pretrained("models/forks")
    args = SFTConfig(
        output_dir=str(folder),
        max_steps=2000,
        per_device_train_batch_size=64,
        learning_rate=4e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        adam_beta2=0.98,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
    )
    SFTTrainer(
        model, args, train_dataset=Dataset.from_list(examples), processing_class=tokenizer
    ).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Write the problems, or train a base model."""
    parser = argparse.ArgumentParser(
        description="Write data/{train,test}.jsonl, or train a base model."
    )
    parser.add_argument(
        "--model", choices=("forks", "mirror"), help="train it, into models/new-..."
    )
    name = parser.parse_args().model
    if name:
        shares = (
            SHARES if name == "forks" else dict(zip(SHARES, [*SHARES.values()][::-1], strict=True))
        )
        return build_model(shares, Path(f"models/new-{name}"))
    Path("data").mkdir(exist_ok=True)
    for split in SIZES:
        text = "".join(json.dumps(row) + "\n" for row in rows(split))
        Path("data", f"{split}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
