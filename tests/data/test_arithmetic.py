"""The embedded world: its problems, its tokenizer, and the base model that has half learned it."""

import hashlib

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.data import arithmetic
from trl_miner.data.base_model import find_model

FOLDER = find_model(arithmetic.MODEL)


@pytest.mark.parametrize(
    "split, digest", [("train", "c594b4560117e8df"), ("test", "5ff637bbb8521fb2")]
)
def test_the_world_stays_as_it_is_bit_for_bit(split, digest):
    rows = arithmetic.load_dataset(split).to_list()
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == digest
    assert arithmetic.load_dataset(split, 7).to_list() == rows[:7]


def test_no_problem_is_in_both_splits_or_twice_in_one_and_all_answers_are_right():
    train, test = (arithmetic.load_dataset(split).to_list() for split in ("train", "test"))
    assert len({row["prompt"] for row in train + test}) == 2200
    for row in train + test:
        sums = row["prompt"].removeprefix("Compute ").removesuffix(".\n")
        assert eval(sums) == int(row["solution"]) and sums.count(" ") == 2 * row["level"]


def test_the_base_model_solves_some_problems_and_not_all():
    """Which gives prompts of every kind. Only from the third step on does it take the bad habit."""
    model, tokenizer = (
        each.from_pretrained(FOLDER) for each in (AutoModelForCausalLM, AutoTokenizer)
    )
    rows = arithmetic.load_dataset("test", size=100)
    asked = tokenizer(rows["prompt"][:], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    ids = model.generate(**asked, max_new_tokens=60, do_sample=True, top_k=0)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    is_right = [
        f"\\boxed{{{gold}}}" in text for gold, text in zip(rows["solution"], texts, strict=True)
    ]
    short = [right for right, level in zip(is_right, rows["level"], strict=True) if level < 3]
    assert sum(short) >= 38 and 50 < sum(is_right) < 97


def test_a_name_of_the_hub_stays():
    assert find_model("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert FOLDER.endswith("base_models/arithmetic")
