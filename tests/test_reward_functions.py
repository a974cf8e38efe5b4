"""Which reward functions decide what is correct, and which rewards are refused."""

import asyncio
import inspect
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import crc, mixed_reward, trained

from trl_miner.methods.compose import find_composition
from trl_miner.methods.groups import group_kinds
from trl_miner.trainer.correctness import BATCHES, CorrectnessWatch
from trl_miner.trainer.reward_functions import (
    RewardError,
    check_reward_columns,
    check_rewards,
    checked,
    find_verifier,
    reward_list,
)

NAN = math.nan


def think_format_reward(completions, **kwargs):
    return [1.0] * len(completions)


def accuracy_reward(prompts, completions, **kwargs):
    return mixed_reward(prompts, completions)


def my_check(prompts, completions, **kwargs):
    return mixed_reward(prompts, completions)


@pytest.mark.parametrize(
    ("names", "chosen", "weights", "decide"),
    [
        (["f"], None, [0.0], "f"),
        (["think_format_reward", "accuracy_reward"], None, None, "accuracy_reward"),
        (["accuracy_reward", "think_format_reward"], None, None, "accuracy_reward"),
        (["a", "b", "math_reward"], "a", None, "a"),
        (["a", "b", "math_reward"], "b + a", None, "a b"),
        (["a+b", "c"], "a+b", None, "a+b"),  # a reward model may be called anything
        (["math_reward", "f", "choice_reward"], None, None, "math_reward choice_reward"),
        # the other is logged
        (["math_reward", "f", "accuracy_reward"], None, [0.0, 1.0, 1.0], "accuracy_reward"),
        (["f", "math_reward"], None, [1.0, 0.0], "math_reward"),
        (["f", "g"], None, None, "f g!"),
        (["f", "g"], None, [1.0, 0.0], "f!"),
        (["f", "g"], None, [0.0, 0.0], "f g!"),
    ],
)
def test_the_verifier_decides_in_any_order_and_without_one_all_do(names, chosen, weights, decide):
    """!: a guess, which is said with the setting."""
    found = find_verifier(names, chosen, weights)
    assert " ".join(found.names) + "!" * found.is_guess == decide
    assert tuple(names[i] for i in found.columns) == found.names
    assert not found.is_guess or "Set correct_reward_func" in found.reason


def test_a_wrong_name_is_an_error():
    with pytest.raises(
        ValueError, match="No reward function named 'h' for correct_reward_func. There are f, g"
    ):
        find_verifier(["f", "g"], "h")


def test_the_smallest_reward_of_those_that_decide_counts():
    rewards_NF = torch.tensor([[1, 1], [1, 0], [1, NAN], [NAN, 0], [NAN, NAN]])
    tasks, guess = find_verifier(["math_reward", "choice_reward"]), find_verifier(["f", "g"])
    # the one that scored it decides, as each may have its own task
    assert (
        tasks.rewards(rewards_NF).tolist()[:4] == [1, 0, 1, 0]
        and tasks.rewards(rewards_NF)[4].isnan()
    )
    # the one that scored it may only judge the form
    assert (
        guess.rewards(rewards_NF)[:2].tolist() == [1, 0]
        and guess.rewards(rewards_NF)[2:].isnan().all()
    )
    assert find_verifier(["f", "g"], "g").rewards(rewards_NF)[:2].tolist() == [1, 0]


def test_a_reward_that_statistics_cannot_hold_is_an_error(policy, tmp_path):
    # inf - inf is NaN and 1e20 squared is inf: the whole group would get an advantage of 0
    named = r"A reward of 'reward' must be a number of at most 1e\+18.* for rollout 1 of 12"
    for value in (math.inf, -math.inf):
        with pytest.raises(ValueError, match=named):
            check_rewards(["reward"], torch.tensor([NAN, value, *[0.0] * 10]).unsqueeze(1))

    def reward(completions, **kwargs):
        return [None, 1e20, *[0.0] * (len(completions) - 2)]

    with pytest.raises(ValueError, match=named):
        trained(policy, tmp_path, reward=reward, max_steps=1)


def shares(trainer):
    """Of each batch: the shares of all right, mixed, all wrong and unscorable prompts."""
    logs = [log for log in trainer.state.log_history if "reward" in log]
    return [[log[f"groups/{kind}"] for kind in ("ph", "he", "nh", "unscorable")] for log in logs]


def test_well_formatted_wrong_answers_are_not_correct(policy, tmp_path, caplog, capsys):
    """TRL's own order: the verifier is found and named in one line; one that is not known is
    guessed at."""
    alone = trained(policy, tmp_path / "a", reward=[accuracy_reward], max_steps=1)
    formatted = trained(
        policy, tmp_path / "b", reward=[think_format_reward, accuracy_reward], max_steps=1
    )
    guessed = trained(policy, tmp_path / "c", reward=[think_format_reward, my_check], max_steps=1)
    assert shares(alone) == shares(formatted) == shares(guessed)  # a constant moves no advantage
    assert all(wrong > 0 for _, _, wrong, _ in shares(alone))
    said = [line for line in capsys.readouterr().out.splitlines() if "what is correct" in line]
    assert len(said) == 1 and said[0].startswith("accuracy_reward decides what is correct")
    assert [record.message for record in caplog.records].count(guessed.verifier.reason) == 1


def test_rollouts_without_a_reward_are_a_share_of_their_own(policy, tmp_path):
    def reward(prompts, completions, **kwargs):
        thirds = zip(prompts, mixed_reward(prompts, completions), strict=True)
        # of the all-right prompts
        return [None if crc(prompt) % 3 == 0 else reward for prompt, reward in thirds]

    trainer = trained(policy, tmp_path, reward=reward, max_steps=2)
    known = trained(policy, tmp_path, max_steps=1)
    for right, mixed, wrong, unscorable in shares(trainer):
        assert right == 0 and unscorable > 0 and mixed + wrong + unscorable == pytest.approx(1)
    assert (
        shares(trainer)[0][3] == shares(known)[0][0]
        and shares(trainer)[0][1] == shares(known)[0][1]
    )


def a_watch(threshold=1.0, estimator="miner"):
    args = SimpleNamespace(
        correct_threshold=threshold,
        composition=find_composition(estimator),
    )
    return CorrectnessWatch(args, find_verifier(["my_check"]), 2)


@pytest.mark.parametrize(
    ("estimator", "totals", "is_said"),
    [
        ("miner", [2.0, 1.9, 2.0, 1.8], True),  # right, but of unequal length
        ("grpo", [2.0, 1.9, 2.0, 1.8], False),
        ("miner", [2.0, 1.9, 2.0, 2.0], False),  # one prompt is all right
    ],
)
def test_a_reward_that_leaves_miner_nothing_is_said_once(caplog, estimator, totals, is_said):
    watch = a_watch(estimator=estimator)
    right = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])  # two prompts of three
    for _ in range(BATCHES + 3):
        watch.observe(right.unsqueeze(1))
        watch.end_batch(
            right, group_kinds(torch.tensor([*totals, 1, 0]), 2, verifier_rewards_N=right)
        )
    said = [record.message for record in caplog.records]
    assert len(said) == is_said and all(
        f": the rewards of {2 * BATCHES} prompts whose" in text for text in said
    )


def test_batches_without_an_all_right_prompt_do_not_count_towards_that(caplog):
    """Every third batch has two prompts with right rollouts alone, of unequal total reward: 15
    batches have ten."""
    watch = a_watch()
    for batch in range(3 * BATCHES):
        right = torch.ones(4) if batch % 3 == 2 else torch.tensor([1.0, 0.0, 0.0, 1.0])
        watch.observe(right.unsqueeze(1))
        totals = right + torch.tensor([0.0, 0.1, 0.2, 0.3])
        kinds = group_kinds(totals, 2, verifier_rewards_N=right)
        watch.end_batch(right, kinds)
        is_last = batch == 3 * BATCHES - 1
        assert ("gate_on_correctness: true" in caplog.text) == is_last
    assert (
        "After 15 generation batches, MINER has had nothing to learn from: the rewards of 10 pr"
        in caplog.text
    )


def test_a_guess_that_finds_nothing_right_names_what_looks_like_a_verifier(caplog):
    """A length reward below 1 beside a function of 0 and 1, of which neither is known."""
    args = SimpleNamespace(correct_threshold=1.0, composition=find_composition("miner"))
    names = ["my_check", "length_reward"]
    watch = CorrectnessWatch(args, find_verifier(names), 2, names)
    rewards = torch.tensor([[1.0, 0.3], [0.0, 0.2], [1.0, 0.1], [float("nan"), 0.4]])
    for _ in range(BATCHES):
        watch.observe(rewards)
        lowest = find_verifier(names).rewards(rewards)
        watch.end_batch(lowest, group_kinds(rewards.nansum(dim=1), 2, verifier_rewards_N=lowest))
    assert "no completion was correct: my_check and length_reward gave 0 to 0.3" in caplog.text
    assert "set correct_reward_func: my_check (my_check gave 0 and 1 alone" in caplog.text


@pytest.mark.parametrize(
    ("rewards", "threshold", "named"),
    [
        (
            [0.0, 0.5],
            1.0,
            (
                "no completion was correct: .* 0 to 0.5, and correct_threshold is"
                " 1.*\n  3. Does another reward decide.*correct_reward_func"
            ),
        ),
        ([0.0, 1.0], 0.0, "every completion was correct: .* 0 to 1, and correct_threshold is 0"),
        ([NAN, NAN], 1.0, "no completion has been scored: my_check returned None"),
        (
            [0.0, 0.0],
            1.0,
            (
                "no completion was correct: my_check gave 0 to 0.* end with 'I do not know'. Check,"
                " in this order:\n  1. Are they cut off.*  4. .*`trl-miner sft`."
            ),
        ),
        ([1.0, 1.0], 1.0, None),  # an easy one
        ([0.0, 1.0], 1.0, None),
        ([0.0, 0.7], 0.7, None),  # 0.7 in float32 is less than in float64
    ],
)
def test_a_threshold_that_does_not_fit_the_rewards_is_said_once(caplog, rewards, threshold, named):
    watch = a_watch(threshold)
    for batch in range(BATCHES + 3):
        assert batch >= BATCHES or not caplog.records
        watch.observe(torch.tensor(rewards).unsqueeze(1), ["I do not know"] * 2)
        watch.end_batch(torch.tensor(rewards), group_kinds(torch.tensor(rewards), 2))
    assert len(caplog.records) == (named is not None)
    if named:
        assert re.match(
            f"After {BATCHES} generation batches, {named}", caplog.records[0].message, re.DOTALL
        )


@pytest.mark.parametrize(
    "returned", [[1.0, None], (1, None), np.array([1, math.nan]), torch.tensor([1, math.nan])]
)
def test_rewards_are_numbers_one_for_each_completion(returned):
    assert reward_list("my_check", returned, 2) == [1.0, pytest.approx(math.nan, nan_ok=True)]
    with pytest.raises(ValueError, match="'my_check' must return a list of 3 numbers.*got 2"):
        reward_list("my_check", returned, 3)


def too_short(completions, **kwargs):
    return completions[0][:5000].split()[5000]


async def too_late(completions, **kwargs):
    return too_short(completions)


def lazy(completions, **kwargs):
    yield from too_late.missing


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (too_short, "failed with IndexError: list index out of range. Mend it in test_reward_f"),
        (too_late, "failed with IndexError"),
        (lazy, "failed with AttributeError: .*, line"),
        (lambda completions, **kwargs: sys.exit("done"), r"failed with sys.exit\(done\)"),
        (lambda completions, **kwargs: ["0.5"], r"a number for each completion.*got \['0.5'\]"),
        (lambda completions, **kwargs: None, "a number for each completion.*got None"),
        (lambda completions, **kwargs: 1.0, "a number for each completion.*got 1.0"),
    ],
)
def test_a_reward_function_that_fails_is_named(function, says):
    with pytest.raises(RewardError, match=f"The reward function 'my_check' .*{says}"):
        returned = checked("my_check", function)(prompts=["?"], completions=["!"])
        if inspect.isawaitable(returned):
            asyncio.run(returned)


def test_a_reward_function_must_take_what_it_does_not_use():
    def narrow(completions, solution):
        return [0.0] * len(completions)

    with pytest.raises(ValueError, match=r"'narrow' must take .* too. Add \*\*kwargs"):
        check_reward_columns(["narrow"], [narrow], ["prompt", "solution"])
