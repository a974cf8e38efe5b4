"""A training whose held-out scores have not moved says so, and what may help."""

import pytest

from trl_miner.evaluation.in_training import say_no_gain
from trl_miner.runs.held_out import Moment


def moment(*num_correct, n=4):
    return Moment(step=0, num_samples=n, num_correct=num_correct)


def test_where_no_answer_was_right_the_last_ones_are_shown_with_a_way_out():
    said = say_no_gain(moment(0, 0, 0), moment(0, 0, 0), [{"completions/clipped_ratio": 0.75}], ["The answer is 7."])
    assert "Not one answer to the 3 held-out problems" in said and "'The answer is 7.'" in said
    assert "raise max_completion_length, at which 75% of the last rollouts" in said and "trl-miner sft" in said


def test_a_difference_that_may_be_chance_is_said_with_its_interval():
    """Of 10 problems half gain .25 and half lose it: 0 on average."""
    said = say_no_gain(moment(*[2] * 10), moment(*[3, 1] * 5), [{"rollouts/used": 0.05}], [])
    assert "Pass@1 is 0.500 before and 0.500 after the training: a difference of +0.000" in said
    assert "5% of the last rollouts had an advantage" in said


@pytest.mark.parametrize("after", [[3] * 10, [1] * 10], ids=["better", "worse"])
def test_nothing_is_said_where_the_scores_have_moved(after):
    assert say_no_gain(moment(*[2] * 10), moment(*after), [], []) is None


def test_problems_without_a_verdict_do_not_count():
    lost = Moment(step=0, num_samples=4, num_correct=(0, 3), num_scored=(3, 4))
    assert "over 1 problem(s)" in say_no_gain(lost, moment(4, 3), [], [])  # the second is 3 of 4 in both
    assert say_no_gain(Moment(0, 4, (1,), (3,)), moment(1), [], []) is None
