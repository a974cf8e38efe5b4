"""Which completions are correct, and what reward functions may return."""

import asyncio
import math

import numpy as np
import pytest
import torch
from harness import build_trainer, train

from trl_miner.trainer.correctness import check_returned, find_verifier

NAN = math.nan


def right(completions, **kwargs):
    return [1.0] * len(completions)


def polite(completions, **kwargs):
    return [0.5] * len(completions)


def verdicts(verifier, rows):
    return verifier.rewards(torch.tensor(rows)).tolist()


def test_the_only_function_decides(caplog):
    verifier = find_verifier(["right"])
    assert verdicts(verifier, [[0.0], [1.0]]) == [0.0, 1.0]
    assert not caplog.text


def test_the_named_function_decides_alone(caplog):
    verifier = find_verifier(["polite", "right"], "right")
    assert verdicts(verifier, [[0.5, 1.0], [0.5, 0.0]]) == [1.0, 0.0]
    assert not caplog.text


def test_of_several_named_ones_those_that_score_a_completion_must_agree():
    """Each task has its own; a completion that none scores is unscorable."""
    verifier = find_verifier(["math", "form", "choice"], "math + choice")
    rows = [[1.0, 0.0, NAN], [NAN, 0.0, 1.0], [1.0, 0.0, 0.0], [NAN, 1.0, NAN]]
    assert verdicts(verifier, rows)[:3] == [1.0, 1.0, 0.0]
    assert math.isnan(verdicts(verifier, rows)[3])


def test_without_a_name_all_that_have_a_weight_decide_together_with_a_warning(caplog):
    """The smallest of their rewards; a completion that one of them leaves out is unscorable, as the
    others may only judge its form."""
    verifier = find_verifier(["right", "polite", "logged"], None, [1.0, 0.5, 0.0])
    assert verdicts(verifier, [[1.0, 0.5, 0.0], [1.0, 1.0, 0.0]]) == [0.5, 1.0]
    assert math.isnan(verdicts(verifier, [[NAN, 1.0, 1.0]])[0])
    assert "each of right, polite scores it" in caplog.text
    assert "Set correct_reward_func" in caplog.text


def test_an_unknown_name_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="named wright for correct_reward_func: got right, polite"):
        find_verifier(["right", "polite"], "wright")


def test_the_threshold_decides_what_is_correct(policy, tmp_path):
    """Every completion has 0.5: at 0.5 all prompts are all right, at 1 all wrong."""
    for threshold, right_share in ((0.5, 1.0), (1.0, 0.0)):
        trainer = train(policy, tmp_path, reward=polite, correct_threshold=threshold, max_steps=1)
        log = trainer.state.log_history[0]
        assert log["groups/ph"] == right_share and log["groups/nh"] == 1 - right_share
        assert log["correctness/mean"] == right_share


@pytest.mark.parametrize(
    "returned",
    [
        {"a": 1.0, "b": 0.0},  # a dict's keys may be numbers, too
        {1: 1.0, 2: 0.0},
        {1.0, 0.0},
        "10",
        1.0,
        None,
        [1.0, "wrong"],
        [1.0, [0.0]],
        [1.0],
        [1.0, 0.0, 1.0],
        [NAN, NAN],
    ],
    ids=repr,
)
def test_what_is_no_list_of_rewards_is_refused_with_the_functions_name(returned):
    with pytest.raises(ValueError, match="'my_reward' must return a list of 2 numbers"):
        check_returned("my_reward", returned, 2)


@pytest.mark.parametrize(
    "returned",
    [[1.0, 0], (True, None), np.array([1.0, 0.0]), torch.tensor([1.0, 0.0]), pytest.param(iter([1, 0]), id="iterator"),
     [None, None], [NAN, 1.0]],
    ids=repr,
)  # fmt: skip
def test_all_that_holds_a_reward_for_each_completion_in_order_is_taken(returned):
    assert len(check_returned("my_reward", returned, 2)) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_training_ends_with_the_name_of_a_function_that_returns_something_else(
    policy, tmp_path, is_async
):
    def as_dict(completions, **kwargs):
        return dict.fromkeys(range(len(completions)), 1.0)

    async def later(completions, **kwargs):
        await asyncio.sleep(0)
        return dict.fromkeys(range(len(completions)), 1.0)

    name = "later" if is_async else "as_dict"
    with pytest.raises(ValueError, match=f"'{name}' must return a list of 12 numbers"):
        train(policy, tmp_path, reward=later if is_async else as_dict)


def test_functions_that_wait_and_callables_keep_their_names(policy, tmp_path):
    class Judge:
        __name__ = "judge"

        async def __call__(self, completions, **kwargs):
            return [1.0] * len(completions)

    trainer = train(policy, tmp_path, reward=[Judge(), right], max_steps=1)
    assert trainer.reward_func_names == ["judge", "right"]
    assert trainer.state.log_history[0]["rewards/judge/mean"] == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e30])
def test_an_infinite_reward_ends_the_run_with_the_functions_name(policy, tmp_path, value):
    def explodes(completions, **kwargs):
        return [value, *[1.0] * (len(completions) - 1)]

    with pytest.raises(ValueError, match="A reward of 'explodes' must be a number of at most 1e"):
        train(policy, tmp_path, reward=[right, explodes], correct_reward_func="right")


def test_unscorable_completions_make_their_prompt_neither_right_nor_wrong(policy, tmp_path):
    """One of each four completions has no reward, and the others are right."""

    def some(completions, **kwargs):
        return [None if i % 4 == 0 else 1.0 for i in range(len(completions))]

    trainer = train(policy, tmp_path, reward=some, max_steps=1)
    log = trainer.state.log_history[0]
    assert log["groups/unscorable"] == 1 and log["groups/ph"] == 0
    assert log["correctness/mean"] == 1
    (batch,) = trainer.batches
    assert (batch.output["advantages"] == 0).all()
    assert batch.rollouts.rewards_N.isnan().tolist() == [True, False, False, False] * 3


def test_a_reward_for_length_alone_makes_a_right_group_mixed(policy, tmp_path):
    """All completions are correct, and their totals differ: GRPO has the prompt."""

    def length(completions, **kwargs):
        return [len(text) / 100 for text in completions]

    trainer = build_trainer(
        policy, tmp_path, reward=[right, length], correct_reward_func="right", max_steps=1
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert (
        log["groups/he"] == 1 and log["correctness/mean"] == 1 and log["completions/recovered"] == 0
    )


def test_equal_totals_of_rewards_that_are_normalized_one_by_one_may_be_mixed(policy, tmp_path):
    """1 or 0, and half of 0 or 2: each total is 1. Normalized, the second one counts half."""

    def first(completions, **kwargs):
        return [float(place % 2) for place, _ in enumerate(completions)]

    def second(completions, **kwargs):
        return [2.0 - 2.0 * (place % 2) for place, _ in enumerate(completions)]

    settings = dict(multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5])
    settings |= dict(correct_reward_func="first", correct_threshold=0.0, max_steps=1)
    trainer = train(policy, tmp_path, reward=[first, second], **settings)
    log = trainer.state.log_history[0]
    assert log["correctness/mean"] == log["groups/he"] == 1
