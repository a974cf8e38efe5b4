"""TRL's side of the graders: shapes of completions, None, what is logged."""

import threading

import pytest

from trl_miner import grading
from trl_miner.rewards import choice_reward, math_reward

BOMB = r"\boxed{\int_0^\infty \frac{\sin(x^3)}{\ln(2+x^5)} dx}"  # sympy computes for ever


def test_plain_strings_and_conversations_score_alike():
    parts = [
        {"type": "text", "text": r"so \boxed"},
        {"type": "image"},
        {"type": "text", "text": "{17}"},
    ]
    completions = [
        r"so \boxed{17}",
        [{"role": "assistant", "content": r"so \boxed{17}"}],
        [{"role": "assistant", "content": parts}],
        # the last assistant message counts, not what a tool or an earlier turn said
        [
            {"role": "assistant", "content": r"\boxed{16}"},
            {"role": "tool", "content": r"\boxed{15}"},
            {"role": "assistant", "content": r"\boxed{17}"},
            {"role": "tool", "content": r"\boxed{14}"},
        ],
    ]
    assert math_reward(completions, ["17"] * 4) == [1.0] * 4


@pytest.mark.parametrize(
    "completion", [None, "", [], [{"role": "assistant", "content": None}], [{"role": "user"}]]
)
def test_an_empty_completion_is_wrong(completion):
    assert math_reward([completion], ["17"]) == [0.0]
    assert choice_reward([completion], ["A"], [["x", "y"]]) == [0.0]


def test_a_batch_keeps_its_order_and_ignores_other_columns():
    texts = [r"\boxed{1}"] * 4
    assert math_reward(texts, ["1", "2", "", None], prompts=["?"] * 4, trainer_state=None) == [
        1.0,
        0.0,
        None,
        None,
    ]
    assert math_reward([], []) == []


def test_a_comma_may_be_a_decimal_point():
    assert math_reward([r"\boxed{1,5}"], ["1,50"], decimal_comma=True) == [1.0]
    assert math_reward([r"\boxed{1,5}"], ["1,50"]) == [0.0]  # two lists


def test_choices_by_letter_or_text():
    said = ["The answer is A.", "The answer is y.", "The answer is B. y", "A"]
    assert choice_reward(said, ["A", "B", "y", "A"], [["x", "y"]] * 4, prompts=None) == [
        1.0,
        1.0,
        1.0,
        0.0,
    ]
    assert choice_reward(said[:1], ["A"], [None]) == [None]


@pytest.fixture(scope="module")
def one_second():
    """One worker, which has a second for an answer."""
    grading.configure(workers=1, seconds=1.0)
    yield
    grading.configure()


def test_what_is_not_graded_is_none_counted_and_said(one_second, caplog):
    """In a thread, where limits by signals do not work. An answer that takes too long is wrong,
    because its reference takes no time."""
    logged, found = {}, []
    completions = [r"\boxed{1 - 0.5}", BOMB, r"\boxed{1}", r"\boxed{17}"]

    def reward():
        found.extend(
            math_reward(completions, ["1/2", "17", "", "17"], log_metric=logged.__setitem__)
        )

    thread = threading.Thread(target=reward)
    thread.start()
    thread.join(60)
    assert found == [1.0, 0.0, None, 1.0]
    # of 4, one is not graded, one over its limit
    assert logged == {"math_reward/not_judged": 0.25, "math_reward/timed_out": 0.25}
    assert "1 of 4 answers were not graded" in caplog.text


def test_the_time_of_a_batch_is_limited(one_second):
    """Ten bombs of 1 s each; the answer that needs no mathematics is graded all the same."""
    completions = [BOMB.replace("x^5", f"x^5+{i}") for i in range(10)] + [r"\boxed{17}"]
    assert math_reward(completions, ["17"] * 11, batch_seconds=0.5) == [None] * 10 + [1.0]
