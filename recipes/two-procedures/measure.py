"""What trl-miner compare does not record of a run: how its last model solves the held-out sums, and where credit went.

    python measure.py runs/arms      # the output of trl-miner compare

For each finished run that still has its model, a line is added to measures.jsonl of that folder: the right samples of
each held-out problem and those in worked steps, at temperature 0.7 with top_p 0.95; and of a run with token records,
the share of the credit on all-right sums that its first tokens got, which choose the procedure. A run that has a line
is passed over; its model, of 540 MB, may be deleted.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from procedures import PRODUCT, takes_steps, test_problems
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.evaluation.generate import sample_seed
from trl_miner.evaluation.seeded_sampling import sample_completions
from trl_miner.rewards import math_reward
from trl_miner.runs.history import read_run
from trl_miner.runs.token_credit import read_credit
from trl_miner.runs.training_record import run_folders

NAME = "measures.jsonl"
PROMPT = "Question: {question}\nAnswer:"
SAMPLING = {"temperature": 0.7, "top_p": 0.95}


def count(folder: Path, num_samples: int, **sampling: float) -> dict[str, Any]:
    """Return how many samples of each held-out problem are right, and how many work in steps."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    problems = test_problems()
    prompts = [PROMPT.format(question=problem["question"]) for problem in problems]
    seeds = [[sample_seed(0, str(place), number) for number in range(num_samples)] for place in range(len(problems))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sampled = sample_completions(model, tokenizer, prompts, seeds, max_new_tokens=48, **sampling)
    texts = [[text for text, _ in of_problem] for of_problem in sampled]
    right = [
        sum(filter(None, math_reward(own, [problem["answer"]] * num_samples, accept_unboxed=True)))
        for own, problem in zip(texts, problems, strict=True)
    ]
    worked = [sum(map(takes_steps, own)) for own in texts]
    levels = [problem["level"] for problem in problems]
    return {**sampling, "num_samples": num_samples, "level": levels, "num_correct": right, "num_worked": worked}


def choice_share(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the first tokens in the sum of |credit| on all-right sums; None: no credit was given.

    `records` are rows of `read_credit`: of them, "kind", "prompt" and "advantages" count.
    """
    own = [row["advantages"] for row in records if row["kind"] == "ph" and "Multiply" not in row["prompt"]]
    total = sum(abs(value) for advantages in own for value in advantages)
    return sum(abs(advantages[0]) for advantages in own) / total if total else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the output of trl-miner compare, or the folder of a model")
    parser.add_argument("--samples", type=int, default=4, help="of each held-out problem (default: 4)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folders = run_folders(args.output)
    if not folders:  # of a start
        found = count(args.output, args.samples, **SAMPLING)
        print(json.dumps(summary(found)))
        return
    path = args.output / NAME
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    known = {(line["method"], line["seed"]) for line in lines}
    for folder in folders:
        run = read_run(folder)
        if not run.finished or (run.method, run.seed) in known or not (folder / "model.safetensors").is_file():
            continue
        found = {"method": run.method, "seed": run.seed, **count(folder, args.samples, **SAMPLING)}
        if (folder / "credit").is_dir():
            found["choice_share"] = choice_share(read_credit(folder).table.to_pylist())
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(run.method, run.seed, json.dumps(summary(found)), flush=True)


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shares of right and of worked samples by level."""
    shown: dict[str, Any] = {}
    for level in dict.fromkeys(found["level"]):
        places = [place for place, other in enumerate(found["level"]) if other == level]
        for name in ("correct",) if level == PRODUCT else ("correct", "worked"):
            total = sum(found[f"num_{name}"][place] for place in places)
            shown[f"{level} {name}"] = round(total / len(places) / found["num_samples"], 3)
    return shown | {name: found[name] for name in ("choice_share",) if name in found}


if __name__ == "__main__":
    main()
