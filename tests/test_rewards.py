"""The verifier's verdicts, compared with what a reader of the rule would say."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner import rewards
from trl_miner.rewards import boxes, judge, judge_by_math_verify, math_reward


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        (r"so it is \boxed{17}.", "17", 1.0),
        (r"so it is \boxed{18}.", "17", 0.0),
        (r"\boxed{17}", r"\boxed{17}", 1.0),  # the gold is already boxed
        (r"\boxed{ 17 }", r"Hence $x=\boxed{17}$, as claimed.", 1.0),  # the gold is a whole solution
        (r"\boxed{\dfrac{2}{4}}", r"\frac12", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\frac{1}{3}}", r"\frac{1}{2}", 0.0),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0),
        (r"\boxed{x = 5}", "5", 1.0),
        (r"\boxed{007}", "7", 1.0),  # not plain integers: math-verify decides
        (r"\boxed{1,000}", "1000", 1.0),
        (r"\boxed {17}", "17", 1.0),
    ],
)
def test_verdicts(answer, gold, verdict):
    assert judge(answer, gold) == verdict


@pytest.mark.parametrize("gold", ["17", "-3", r"\frac{1}{2}", "(1, 2)", r"\{1, 2\}", r"\text{blue}", "x^2 + 1", "@#"])
def test_a_gold_is_its_own_right_answer(gold):
    assert judge(rf"The answer is \boxed{{{gold}}}.", gold) == 1.0


@pytest.mark.parametrize("answer", ["17", "The answer is 17.", "$17$", "", r"\boxed 17", r"\boxed{}"])
def test_without_a_filled_box_nothing_is_right(answer):
    assert judge(answer, "17") == 0.0


def test_a_box_cut_off_at_the_length_limit_is_no_answer():
    assert judge(r"The answer is \boxed{17", "17") == 0.0
    assert judge(r"First \boxed{17}, so \boxed{1", "17") == 0.0
    assert boxes(r"First \boxed{17}, so \boxed{1") == []


@pytest.mark.parametrize("answer", [r"\boxed{17} or \boxed{18}", r"\boxed{18} or \boxed{17}", r"\boxed{1} \boxed{x}"])
def test_boxes_that_disagree_are_wrong_even_if_one_is_right(answer):
    assert judge(answer, "17") == 0.0


def test_one_value_in_two_boxes_is_one_answer():
    assert judge(r"\boxed{17}, that is \boxed{17}", "17") == 1.0
    assert judge(r"\boxed{0.5}, that is \boxed{\frac{1}{2}}", "0.5") == 1.0
    assert judge(r"\boxed{0.5}, that is \boxed{\frac{1}{3}}", "0.5") == 0.0


@pytest.mark.parametrize("gold", ["", "  ", None, r"\frac{1}{", "1}", r"\boxed{}", r"\boxed{1"])
def test_an_unparsable_gold_is_unscorable_not_wrong(gold):
    assert judge(r"\boxed{1}", gold) is None


def test_boxes_come_last_first_without_repeats_and_balanced():
    assert boxes(r"\boxed{1} \boxed{\frac{1}{2}} \boxed{1} \boxed{\{2\}}") == [r"\{2\}", "1", r"\frac{1}{2}"]
    assert boxes(r"\boxed{\}}") == [r"\}"]


def test_plain_strings_and_conversations_score_alike():
    parts = [{"type": "text", "text": r"so \boxed"}, {"type": "image"}, {"type": "text", "text": "{17}"}]
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


@pytest.mark.parametrize("completion", [None, "", [], [{"role": "assistant", "content": None}], [{"role": "user"}]])
def test_an_empty_completion_is_wrong(completion):
    assert math_reward([completion], ["17"]) == [0.0]


def test_a_batch_keeps_its_order_and_ignores_other_columns():
    assert math_reward([r"\boxed{1}"] * 3, ["1", "2", ""], prompts=["?"] * 3, trainer_state=None) == [1.0, 0.0, None]


def test_a_missing_gold_is_named():
    with pytest.raises(ValueError, match=r"one gold answer per completion: got 1 for 2 completions. Repeat"):
        math_reward(["a", "b"], ["1"])


numbers = st.integers(-(10**9) + 1, 10**9 - 1) | st.integers(-20, 20)


@settings(max_examples=150, deadline=None)
@given(gold=numbers, others=st.lists(numbers, max_size=2), repeat=st.booleans())
def test_the_integer_shortcut_agrees_with_math_verify(gold, others, repeat):
    found = others + [gold] * repeat
    answer = " then ".join(rf"\boxed{{{number}}}" for number in found)
    assert judge(answer, str(gold)) == judge_by_math_verify(boxes(answer), str(gold))


def test_plain_integers_never_reach_math_verify(monkeypatch):
    monkeypatch.setattr(rewards, "judge_by_math_verify", None)
    assert judge(r"\boxed{17}", "17") == 1.0
    with pytest.raises(TypeError):
        judge(r"\boxed{017}", "17")


def test_works_outside_the_main_thread():
    verdicts = []
    golds = ["17", r"\frac{1}{2}", ""]
    worker = threading.Thread(
        target=lambda: verdicts.extend(math_reward([r"\boxed{17}", r"\boxed{0.5}", r"\boxed{1}"], golds))
    )
    worker.start()
    worker.join(60)
    assert verdicts == [1.0, 1.0, None]


def test_math_verify_failing_makes_the_answer_wrong_and_the_gold_unscorable(monkeypatch):
    import math_verify
    from math_verify.errors import TimeoutException

    parse = math_verify.parse
    for failure in (TimeoutException("too slow"), RecursionError("too deep"), ValueError("what")):

        def fail_on_letters(text, *args, failure=failure, **kwargs):
            if "hostile" in text:
                raise failure
            return parse(text, *args, **kwargs)

        monkeypatch.setattr(math_verify, "parse", fail_on_letters)
        rewards._parse_gold.cache_clear()
        assert judge(r"\boxed{hostile}", "17") == 0.0
        assert judge(r"\boxed{17}", "hostile") is None
    rewards._parse_gold.cache_clear()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_passes_through(monkeypatch, interruption):
    import math_verify

    def interrupt(*args, **kwargs):
        raise interruption

    monkeypatch.setattr(math_verify, "verify", interrupt)
    with pytest.raises(interruption):
        judge(r"\boxed{x}", "y")


def test_a_gold_is_parsed_once_for_all_rollouts(monkeypatch):
    import math_verify

    parsed = []
    parse = math_verify.parse

    def counting(text, *args, **kwargs):
        parsed.append(text)
        return parse(text, *args, **kwargs)

    monkeypatch.setattr(math_verify, "parse", counting)
    rewards._parse_gold.cache_clear()
    math_reward([r"\boxed{x}"] * 16, [r"\frac{7}{9}"] * 16)
    assert parsed.count(r"\boxed{\frac{7}{9}}") == 1


def test_the_main_threads_time_limit_holds(monkeypatch):
    monkeypatch.setattr(rewards, "TIMEOUT_SECONDS", 1)
    # A product that sympy starts to work out; without a limit this runs for minutes.
    assert judge(r"\boxed{\sum_{i=1}^{10^7} \frac{1}{i!}}", "1") == 0.0
