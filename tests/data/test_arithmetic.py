"""The embedded world: its problems, its tokenizer, and the base model that has half learned it."""

import hashlib
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_miner.data import arithmetic
from trl_miner.data.base_model import find_model


def total_of(prompt):
    """Return the result of a prompt, and all that stands between."""
    start, *steps = re.findall(r"[+-]? ?\d+", prompt)
    totals = [int(start)]
    for step in steps:
        totals.append(totals[-1] + int(step.replace(" ", "")))
    return totals


@given(seed=st.integers(0, 10**6), level=st.sampled_from(arithmetic.LEVELS))
def test_a_chain_is_right_and_stays_within_0_to_99(seed, level):
    chain = arithmetic.draw_chain(random.Random(seed), level)
    totals = total_of(chain.prompt)
    assert len(totals) == level + 1 and totals[-1] == chain.answer
    assert all(0 <= total <= 99 for total in totals)


@pytest.mark.parametrize(
    "split, digest", [("train", "c594b4560117e8df"), ("test", "5ff637bbb8521fb2")]
)
def test_the_world_stays_as_it_is_bit_for_bit(split, digest):
    rows = arithmetic.load_dataset(split).to_list()
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == digest


def test_no_problem_is_in_both_splits_or_twice_in_one_and_sizes_append():
    train, test = (arithmetic.load_dataset(split)["prompt"][:] for split in ("train", "test"))
    assert (len({*train}), len({*test}), len({*train} & {*test})) == (2000, 200, 0)
    other = arithmetic.load_dataset("train", seed=1)["prompt"][:]
    assert other != train and not {*other} & {*test}
    longer = arithmetic.load_dataset("test", size=250)
    assert longer["prompt"][:200] == test and longer["level"][:6] == [1, 2, 3, 4, 5, 1]


def test_more_rows_than_there_are_problems_and_another_split_are_refused():
    with pytest.raises(ValueError, match="size must not exceed the different problems: got 5000, "):
        arithmetic.load_dataset("test", size=5000)
    with pytest.raises(ValueError, match="split must be .train. or .test.: got 'dev'"):
        arithmetic.load_dataset("dev", size=1)


@pytest.fixture(scope="module")
def tokenizer():
    return arithmetic.build_tokenizer()


@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_any_printable_text_is_lossless(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_base_model_solves_some_problems_and_not_all(tokenizer):
    """Which gives prompts of every kind. Only from the third step on does it take the bad habit."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(find_model(arithmetic.MODEL))
    assert sum(each.numel() for each in model.parameters()) < 200_000
    rows = arithmetic.load_dataset("test", size=100)
    asked = tokenizer(rows["prompt"][:], return_tensors="pt", padding=True)
    with torch.no_grad():
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
    assert find_model("trl_miner/arithmetic").endswith("base_models/arithmetic")
