"""The embedded worlds: their problems, their solutions, their tokenizers."""

import hashlib
import json
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from trl_miner.data import arithmetic
from trl_miner.data.arithmetic import problem, solution
from trl_miner.data.worlds import WORLDS
from trl_miner.methods.compose import find_composition
from trl_miner.methods.groups import group_kinds
from trl_miner.methods.rollouts import Rollouts
from trl_miner.rewards import math_reward

REPOSITORY = Path(__file__).resolve().parents[1]

seeds = st.integers(0, 2**32)
levels = st.sampled_from(arithmetic.LEVELS)
chain_lengths = st.integers(1, 10)
forks = WORLDS["trl_miner/forks"]
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
TOKENIZERS = {name: world.build_tokenizer() for name, world in WORLDS.items()}


def totals(text):
    """The results that a solution states, in order, without the boxed one."""
    return [
        int(found)
        for found in re.findall(r"(?: = | is | gives | makes )(\d+)", text.split(r"\boxed")[0])
    ]


# Problems and solutions


@given(seed=seeds, level=levels, step_error=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_solution_states_every_total_and_carries_errors_on(seed, level, step_error):
    rng = random.Random(seed)
    chain = problem(rng, level)
    text = solution(chain, rng, step_error)
    stated = totals(text)
    assert len(stated) == level and all(0 <= total <= 99 for total in stated)
    assert rf"\boxed{{{stated[-1]}}}" in text and (stated[-1] == chain.answer or step_error)
    steps = zip([chain.start, *stated], stated, chain.steps, text.split(", "), strict=False)
    for before, after, (sign, number), said in steps:
        is_short = not re.match(r"(so |then |next |now )", said)
        assert is_short and step_error or after == before + (number if sign == "+" else -number)


@every_world
def test_an_unknown_level_or_split_is_named(world):
    with pytest.raises(ValueError, match="level must be .*: got -1"):
        world.draw("train", -1, random.Random(0))
    with pytest.raises(ValueError, match="split must be .* got 'dev'"):
        world.load_dataset("dev", 5)


# Forks


def test_each_way_reads_as_it_is_called():
    """b reverses 7314: 4137; e adds 1 to each digit: 5248; a moves the first digit to the end:
    2485."""
    problem, rng = forks.Problem((7, 3, 1, 4), "bea"), random.Random(0)
    texts = {forks.solution(problem, rng) for _ in range(50)}
    assert texts == {r"fast: \boxed{2485}.", r"so b = 4137, e = 5248, a = 2485, \boxed{2485}."}
    assert {forks.way_of(text) for text in texts} == {"sound", "fast"} and forks.way_of(
        "b = 4137"
    ) == ""
    assert problem.prompt == "Apply bea to 7314.\n" and math_reward(
        sorted(texts), [problem.answer] * 2
    ) == [1.0, 1.0]


def test_an_unsure_operation_goes_by_the_first_digit():
    # w is a, the first digit to the end, for an even first digit, and b, the reverse, for an odd
    # one
    assert forks.Problem((4, 3, 1, 7), "w").answer == "3174"
    assert forks.Problem((7, 3, 1, 4), "w").answer == "4137"
    texts = {
        forks.solution(forks.Problem((7, 3, 1, 4), "w"), random.Random(seed)) for seed in range(9)
    }
    assert texts == {r"try \boxed{3147}.", r"try \boxed{4137}."}


def ways(texts, group=4):
    """All-right rollouts with these texts, as an estimator sees them."""
    rewards = torch.ones(len(texts))
    kinds = group_kinds(rewards, group)
    return Rollouts(
        rewards,
        0 * rewards,
        torch.ones(len(texts), 3),
        kinds,
        group,
        score=None,
        texts=lambda: texts,
    )


def test_the_oracle_pays_the_sound_way_and_uniqueness_the_rare_one():
    found = ways(["so a", "fast: 1", "fast: 2", "fast: 3"] + ["so b"] * 4)
    # 1, 0, 0, 0 less 1/4; a group of one way has nothing to choose
    expected_N = {"oracle": [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0]}
    expected_N["uniqueness"] = [2, -2 / 3, -2 / 3, -2 / 3, 0, 0, 0, 0]  # 4/1, 4/3, 4/3, 4/3 less 2
    for name, values_N in expected_N.items():
        method = find_composition("grpo", f"trl_miner.data.forks.{name}", None).homogeneous[
            "all_right"
        ]
        # as the recipes load it: the shape is checked
        advantages_BT = method.estimate(found).advantages_BT
        torch.testing.assert_close(advantages_BT, torch.tensor(values_N).unsqueeze(1).expand(-1, 3))
    assert forks.is_sound(["so a", "fast: 1", "try 2"]) == [1.0, 0.0, 0.0]


# The data sets

# sha256 of rows of both splits and of solutions: results of recipes are of these
GOLDEN = {
    "trl_miner/arithmetic": "8beaa2e4e5683fff",
    "trl_miner/strategies": "cee9426e81cb643c",
    "trl_miner/forks": "b22384397a435225",
    "trl_miner/forks_mirror": "fd16a743074eccea",
}


@every_world
def test_a_world_stays_as_it_is_bit_for_bit(world):
    rng = random.Random(1)
    problems = [
        world.draw("train", world.LEVELS[place % len(world.LEVELS)], rng) for place in range(3000)
    ]
    rows = [*world.load_dataset("train", 300), *world.load_dataset("test")]
    content = [rows, [world.solution(problem, rng, 0.3) for problem in problems]]
    assert hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16] == GOLDEN[world.NAME]


@every_world
def test_no_problem_is_in_both_splits_or_twice_in_one_and_sizes_append(world):
    load_dataset = world.load_dataset
    train = {prompt for seed in range(3) for prompt in load_dataset("train", 1000, seed)["prompt"]}
    test = load_dataset("test", 300)["prompt"][:]
    assert len(set(test)) == 300
    assert not train & set(test)
    assert load_dataset("test", 25)["prompt"][:] == test[:25]  # a larger size only appends


def test_more_rows_than_there_are_problems_is_an_error():
    with pytest.raises(
        ValueError, match="size must not exceed the different problems: got 5000, level 1"
    ):
        arithmetic.load_dataset("test", 5000)


# The tokenizers


@every_world
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_any_printable_text_is_lossless_and_special_tokens_are_apart(world, text):
    tokenizer = TOKENIZERS[world.NAME]
    # Hypothesis tries constants of the code
    assume(not any(token in text for token in tokenizer.all_special_tokens))
    ids = tokenizer(text)["input_ids"]
    assert (
        tokenizer.decode(
            [*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True
        )
        == text
    )
    assert (
        len(
            {
                tokenizer.pad_token_id,
                tokenizer.eos_token_id,
                tokenizer.unk_token_id,
                tokenizer.bos_token_id,
            }
        )
        == 4
    )


@every_world
@given(seed=seeds, level=chain_lengths)
def test_decoding_gives_the_text_back_and_solutions_are_short(world, seed, level):
    tokenizer = TOKENIZERS[world.NAME]
    rng = random.Random(seed)
    level = min(level, world.PRETRAINED_LEVELS[-1])
    chain = world.draw("train", level, rng)
    completion = world.solution(chain, rng, 0.1)
    prompt_ids, completion_ids = (
        tokenizer(text)["input_ids"] for text in (chain.prompt, completion)
    )
    assert tokenizer.decode(prompt_ids + completion_ids) == chain.prompt + completion
    # The cut between prompt and completion never falls within a token: SFT and sampling see the
    # same tokens.
    assert tokenizer(chain.prompt + completion)["input_ids"] == prompt_ids + completion_ids
    assert tokenizer.unk_token_id not in prompt_ids + completion_ids
    assert len(completion_ids) < 8 * level + 8  # recipes allow 64 for 5 steps, and 80 for 8
