"""Verdicts, compared with what a reader of the rule would say."""

import pytest
from harness import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner.grading import grade, math_answers, notation, words
from trl_miner.grading.choices import chosen, option_index
from trl_miner.grading.references import describe_reference


def graded(answer, gold, **kwargs):
    return grade("math", [answer], [gold], **kwargs)[0]


def rows_of(name):
    """The rows of a table, without its head; whoever changes a rule adds rows."""
    return [
        line.split("\t") for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()[1:]
    ]


def test_verdicts():
    """Of infinities, tiny numbers, false statements, words, dates, units, blanks, several
    unknowns."""
    rows = rows_of("verdicts.tsv")
    verdicts = grade("math", [text for _, text, _ in rows], [gold for gold, *_ in rows])
    assert not [
        row
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.is_correct != (row[2] == "1")
    ]


@pytest.mark.parametrize(
    "gold", ["17", "-3", r"\frac{1}{2}", "(1, 2)", r"\{1, 2\}", r"\text{blue}", "x^2 + 1", "@#"]
)
def test_a_gold_is_its_own_right_answer(gold):
    assert graded(rf"The answer is \boxed{{{gold}}}.", gold).is_correct is True
    assert math_answers.is_correct((gold,), "", gold)  # not only as text: math-verify agrees


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("The final answer is $\\frac{1}{2}$.", 1.0),
        ("so we get 0.5", 1.0),
        ("The final answer is $\\frac{1}{3}$.", 0.0),
        ("", 0.0),
        (r"\boxed{0.5}", 1.0),
        (r"The answer is $\frac12$, no, \boxed{3}", 0.0),  # a box is still what counts
        (r"The answer is 0.5, \boxed{0.5", 0.0),  # cut off in its box
    ],
)
def test_answers_without_a_box_are_accepted_on_request(answer, verdict):
    assert graded(answer, r"\frac{1}{2}", unboxed=True).is_correct == verdict


INFINITE = (
    r"\infty", r"2^\infty", r"3^\infty", r"\infty^\infty", r"|\infty|", r"5+\infty-\infty", r"5\frac{\infty}{\infty}",
    r"\frac{5}{\infty}", r"5 + e^{-\infty}", r"5 \cdot 0^0", r"\frac{0}{0}", r"\frac{5}{5-5}", r"\frac{x}{0}",
    r"\log 0", r"5 + \tan(\frac{\pi}{2})", r"\Gamma(0)", r"\lim_{x\to 0}\frac{1}{x}", r"\lim_{x\to\infty}\sin x",
    r"\sum_{n=1}^{\infty} n", r"\sum_{n=0}^{\infty} (-1)^n", r"x\infty", r"x = \infty", r"\{\infty\}",
    "undefined", "nan",
)  # fmt: skip


@pytest.mark.parametrize("gold", ["5", r"\frac{1}{2}", "0", "-100", r"\pi", "x"])
def test_what_is_no_finite_number_equals_no_finite_gold(gold):
    assert not [answer for answer in INFINITE if math_answers.is_correct((answer,), "", gold)]


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_verdicts_agree_with_the_table(step):
    """The table holds a fair reader's verdict and ours, which accepts nothing that the reader
    rejects."""
    rows = rows_of("answers.tsv")
    assert len(rows) > 1500 and not [row for row in rows if (row[3], row[5]) == ("0", "1")]
    rows = rows[::step]
    verdicts = grade(
        "math", [rf"So it is \boxed{{{row[2]}}}." for row in rows], [row[1] for row in rows]
    )
    assert not [
        row for row, v in zip(rows, verdicts, strict=True) if v.is_correct != (row[5] == "1")
    ]


@pytest.mark.parametrize(
    "answer", [r"\boxed{17} or \boxed{18}", r"\boxed{18} or \boxed{17}", r"\boxed{1} \boxed{x}"]
)
def test_boxes_that_disagree_are_wrong_even_if_one_is_right(answer):
    assert graded(answer, "17").is_correct is False
    assert graded(answer, "17", votes=True).answer is None  # nor do they vote


@pytest.mark.parametrize(
    "gold", ["", "  ", None, r"\frac{1}{", "1}", r"\boxed{}", r"\boxed{1", "7" * 10_001]
)
def test_an_unparsable_gold_is_not_graded(gold):
    assert (graded(r"\boxed{1}", gold).is_correct, graded("", gold).reason) == (None, "gold")


def test_an_answer_longer_than_any_gold_is_wrong_at_once(monkeypatch):
    # also where votes are wanted, no process sees it
    monkeypatch.setattr("trl_miner.grading.shared_pool", None)
    several = "".join(rf"\boxed{{{number}}}" for number in range(3_000))
    for answer in (r"\boxed{" + "1+" * 5_001 + "1}", several):
        verdict = graded(answer, "5002", votes=True)
        assert (verdict.is_correct, verdict.answer) == (False, None)


def test_boxes_come_last_first_without_repeats_and_balanced():
    assert math_answers.boxes(r"\boxed{1} \boxed{\frac{1}{2}} \boxed{1} \boxed{\{2\}}") == (
        r"\{2\}",
        "1",
        r"\frac{1}{2}",
    )
    assert math_answers.boxes(r"\boxed{\}}") == (r"\}",)


@pytest.mark.parametrize(
    "box",
    ["10^{5000}", "-10^{5000}", r"\infty", "1 + i", r"\frac{1}{0}", "x^{1000000}", r"\emptyset"],
)
def test_any_wrong_answer_has_a_form(box):
    (verdict,) = grade("math", [rf"\boxed{{{box}}}"], ["7"], votes=True)
    assert verdict.is_correct is False and verdict.answer and len(verdict.answer) < 50


def test_equal_answers_vote_alike():
    answers = [
        r"\boxed{0.25}",
        r"\boxed{\frac14}",
        r"\boxed{x+1}",
        r"\boxed{1+x}",
        r"\boxed{12}",
        r"\boxed{12.0}",
    ]
    votes = [v.answer for v in grade("math", answers, ["7"] * 6, votes=True)]
    assert votes[0] == votes[1] != votes[2] == votes[3] and votes[4] == votes[5] == "12"
    right = [
        v.answer
        for v in grade("math", [r"\boxed{0.5}", r"\boxed{\frac24}"], ["1/2"] * 2, votes=True)
    ]
    assert right == ["1/2", "1/2"]
    assert [v.answer for v in grade("math", ["no box", r"\boxed{7}"], ["7", "7"], votes=True)] == [
        None,
        "7",
    ]


numbers = st.integers(-(10**9) + 1, 10**9 - 1) | st.integers(-20, 20)


@settings(max_examples=150, deadline=None)
@given(gold=numbers, others=st.lists(numbers, max_size=2), repeat=st.booleans())
def test_what_is_graded_as_text_agrees_with_math_verify(gold, others, repeat):
    boxes = math_answers.boxes(
        "".join(rf"\boxed{{{number}}}" for number in others + [gold] * repeat)
    )
    assert math_answers.is_correct_as_text(boxes, str(gold)) == math_answers.is_correct(
        boxes, "", str(gold)
    )


def test_math_verify_failing_makes_the_answer_wrong_and_the_gold_unscorable(monkeypatch):
    import math_verify

    parse = math_verify.parse
    for failure in (RecursionError("too deep"), ValueError("what")):

        def fail_on_letters(text, *args, failure=failure, **kwargs):
            if "hostile" in text:
                raise failure
            return parse(text, *args, **kwargs)

        monkeypatch.setattr(math_verify, "parse", fail_on_letters)
        assert math_answers.is_correct(("hostile",), "", "17") is False
        assert math_answers.is_correct(("17",), "", "hostile") is None


DRUGS = ("Aspirin", "Ibuprofen", "St. John's wort", "0.5 mg of digoxin", "None of the above")


def test_choices():
    """Of DRUGS, by letter, text or both; none where two are named, or another one is denied."""
    wrong = []
    for answer, letter in rows_of("choices.tsv"):
        index = chosen(answer.replace(r"\n", "\n"), DRUGS)
        wrong += [answer] * (("" if index is None else "ABCDE"[index]) != letter)
    assert not wrong


@pytest.mark.parametrize(
    ("answer", "is_correct"),
    [
        (r"<think>\boxed{3}? No.</think>It is \boxed{4}.", True),
        (r"So \boxed{3}? No. \n</think>\n\nIt is \boxed{4}.", True),  # the template opened it
        (r"<think>\boxed{4}</think>It is \boxed{3}.", False),
        (r"<think>\boxed{4}</think>It is four.", False),
        (r"<think>It is \boxed{4}. Let me check", False),  # cut off
        (r"[THINK]\boxed{3}[/THINK]\boxed{4}", True),
        (r"It is \boxed{3}, no, \boxed{4}", False),  # nobody thinks: all boxes count
    ],
)
def test_the_answer_of_a_thinking_model_follows_its_thinking(answer, is_correct):
    assert graded(answer, "4").is_correct is is_correct
    choice = answer.replace("\\boxed{4}", "The answer is B.").replace(
        "\\boxed{3}", "The answer is A."
    )
    assert grade("choice", [choice], ["B"], options=["ab"])[0].is_correct is (
        is_correct or "no," in answer  # of several choices the last one counts
    )


def test_a_choice_is_right_by_letter_or_text_of_the_gold():
    for gold in ("B", "b", "ibuprofen", " Ibuprofen. "):
        verdicts = grade(
            "choice", ["The answer is B.", "The answer is A."], [gold] * 2, options=[DRUGS] * 2
        )
        assert [v.is_correct for v in verdicts] == [1.0, 0.0]
        assert [v.answer for v in verdicts] == ["B", "A"]


def test_a_gold_that_is_no_option_is_not_graded():
    assert grade("choice", ["The answer is A."], ["F"], options=[DRUGS])[0].reason == "gold"
    assert option_index("x", ("x", "X")) is None  # two options alike
    assert (
        chosen("The answer is x.", ("x", "X")) is None
        and chosen("The answer is A.", ("x", "X")) == 0
    )


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), st.sampled_from(["", "The answer is ", "The answer is B"]))
def test_no_text_breaks_a_grader(text, start):
    assert grade("choice", [start + text], ["B"], options=[DRUGS])[0].is_correct in (False, True)
    assert math_answers.boxes(text) == () or "boxed" in text
    notation.bare(words.split_unit(notation.plain(text))[0])
    assert words.compare(notation.plain(text), notation.plain(start)) in (False, True, None)


def test_an_endless_exponent_is_no_unit():
    """Python refuses to read so many digits, which would end the worker."""
    assert words.split_unit("5 cm^" + "1" * 5000)[1] is None


@pytest.mark.parametrize(
    ("grader", "golds", "options", "message"),
    [
        ("maths", ["1"], None, "grader must be one of math, choice, task: got 'maths'"),
        ("math", [], None, "one gold per answer: got 0 for 1 answers"),
        ("choice", ["A"], None, "options must hold the options of every question: got none"),
        ("choice", ["A"], [], "got 0 for 1 answers"),
        (
            "choice",
            ["A"],
            [list("abcdefghijklmnopqrstuvwxyz!")],
            "at most 26 options, one letter each: got 27",
        ),
    ],
)
def test_bad_calls_are_named(grader, golds, options, message):
    with pytest.raises(ValueError, match=message):
        grade(grader, ["x"], golds, options=options)


def test_a_reference_says_how_it_is_read():
    readings = [describe_reference(text) for text in ("15,50", "17", r"\text{blue}")]
    assert [(each.kind, each.value, each.is_text) for each in readings] == [
        ("set", "{15, 50}", False),
        ("number", "17", False),
        ("text", "blue", True),
    ]


def test_the_text_of_a_dictionary_is_no_reference():
    with pytest.raises(ValueError, match="Name the key that holds the answer"):
        describe_reference("{'ground_truth': '82', 'style': 'rule'}")
