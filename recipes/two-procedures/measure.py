"""What trl-miner compare does not record: which procedure a run's last model takes, and where its
credit went.

    python measure.py runs/arms           # the output of trl-miner compare
    python measure.py models/start-1      # a model: prints its line

For each finished run that still has its model, a line is added to measures.jsonl of that folder:
how many samples of each held-out problem, and of 32 sums of two terms, are right, work in steps,
and do both, at temperature 0.7 with top_p 0.95; and of a run with token records, the share of the
credit on all-right sums that its first tokens got, which choose the procedure. A run that has a
line is passed over; its model, of 540 MB, may be deleted.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from procedures import draw, problem, takes_steps, test_problems
from sampling import sample
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.evaluation.generate import sample_seed
from trl_miner.prompt_kinds import PromptKind
from trl_miner.rewards import math_reward
from trl_miner.runs.history import read_run
from trl_miner.runs.token_credit import read_credit
from trl_miner.runs.training_record import run_folders

NAME = "measures.jsonl"
PROMPT = "Question: {question}\nAnswer:"


def count(folder: Path, num_samples: int) -> dict[str, Any]:
    """Return how many samples of each problem are right, work in steps, and do both."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    rng = random.Random("two terms")
    problems = [*(problem("2", draw("2", rng)) for _ in range(32)), *test_problems()]
    prompts = tokenizer([PROMPT.format(question=each["question"]) for each in problems])[
        "input_ids"
    ]
    rows = [
        (place, sample_seed(0, str(place), number))
        for place in range(len(problems))
        for number in range(num_samples)
    ]
    sampled = [
        tokens
        for at_once in (rows[start : start + 640] for start in range(0, len(rows), 640))
        for tokens in sample(
            model, [prompts[place] for place, _ in at_once], [seed for _, seed in at_once],
            end=tokenizer.eos_token_id, max_new_tokens=48, temperature=0.7, top_p=0.95,
        )
    ]  # fmt: skip
    texts_of = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    counts: dict[str, list[int]] = {"correct": [], "worked": [], "both": []}
    for place, each in enumerate(problems):
        texts = texts_of[place * num_samples : (place + 1) * num_samples]
        right = [
            reward == 1
            for reward in math_reward(texts, [each["answer"]] * num_samples, accept_unboxed=True)
        ]
        worked = [takes_steps(text) for text in texts]
        counts["correct"].append(sum(right))
        counts["worked"].append(sum(worked))
        counts["both"].append(sum(map(all, zip(right, worked, strict=True))))
    return {"num_samples": num_samples, "level": [each["level"] for each in problems], **counts}


def choice_share(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the first tokens in the sum of |credit| on all-right sums; None: no
    credit was given.

    `records` are rows of `read_credit`: of them, "kind", "prompt" and "advantages" count.
    """
    own = [
        row["advantages"]
        for row in records
        if row["kind"] == PromptKind.ALL_RIGHT and "Multiply" not in row["prompt"]
    ]
    total = sum(abs(value) for advantages in own for value in advantages)
    return sum(abs(advantages[0]) for advantages in own) / total if total else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the output of trl-miner compare, or a model")
    parser.add_argument("--samples", type=int, default=4, help="of each problem (default: 4)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if (args.output / "config.json").is_file():
        print(json.dumps(count(args.output, args.samples)))
        return
    path = args.output / NAME
    lines = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.is_file()
        else []
    )
    known = {(line["method"], line["seed"]) for line in lines}
    for folder in run_folders(args.output):
        # it has not finished, or has been measured
        if not (folder / "model.safetensors").is_file():
            continue
        run = read_run(folder)
        if run.finished and (run.method, run.seed) not in known:
            found = {
                "method": run.method,
                "seed": run.seed,
                "learning_rate": float(run.settings["learning_rate"]),
            }
            found |= count(folder, args.samples)
            if (folder / "credit").is_dir():
                found["choice_share"] = choice_share(read_credit(folder).table.to_pylist())
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
