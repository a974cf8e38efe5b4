"""The facade: thinking, choices, references, votes, wrong calls."""

import time

import pytest

from trl_miner.grading import describe_reference, grade, option_index, with_points

DRUGS = ("Aspirin", "Ibuprofen", "St. John's wort", "0.5 mg of digoxin", "None of the above")


def graded(text, gold, **kwargs):
    return grade("math", [text], [gold], **kwargs)[0]


@pytest.mark.parametrize(
    ("text", "is_correct"),
    [
        (r"<think>\boxed{3}? No.</think>It is \boxed{4}.", True),
        ("So \\boxed{3}? No. \n</think>\n\nIt is \\boxed{4}.", True),  # the template opened it
        (r"<think>\boxed{4}</think>It is \boxed{3}.", False),
        (r"<think>\boxed{4}</think>It is four.", False),
        (r"<think>It is \boxed{4}. Let me check", False),  # cut off
        (r"[THINK]\boxed{3}[/THINK]\boxed{4}", True),
        (r"It is \boxed{3}, no, \boxed{4}", False),  # nobody thinks: all boxes count
    ],
)
def test_the_answer_of_a_thinking_model_follows_its_thinking(text, is_correct):
    assert graded(text, "4").is_correct is is_correct


@pytest.mark.parametrize(
    "gold", ["17", r"\frac{1}{2}", "(1, 2)", r"\{1, 2\}", r"\text{blue}", "x^2 + 1", "@#"]
)
def test_a_reference_is_its_own_right_answer(gold):
    assert graded(rf"The answer is \boxed{{{gold}}}.", gold).is_correct is True
    assert graded(rf"\boxed{{ {gold} }} and $\boxed{{{gold}.}}$", gold).is_correct is True


@pytest.mark.parametrize("gold", ["", None, r"\frac{1}{", r"\boxed{}"])
def test_a_reference_that_cannot_be_read_is_not_graded(gold):
    assert graded(r"\boxed{1}", gold) == (None, None, "gold")


@pytest.mark.parametrize(
    "piece",
    [
        "\n",
        " ",
        "<answer>",
        r"\boxed{",
        r"\boxed{1}",
        "! ",
        "^ ",
        ".111",
        "answer ",
        "the answer is ",
        "so ",
    ],
)
def test_what_no_process_limits_takes_no_longer_than_its_text(piece):
    """What is decided without a worker, a million characters of it. Nothing here may be quadratic."""
    text = piece * (10**6 // len(piece))
    start = time.process_time()
    assert graded(text, "17x", unboxed=True).is_correct is False
    assert grade("choice", [text], ["B"], options=[DRUGS])[0].is_correct is False
    assert with_points(text)
    assert time.process_time() - start < 10


def test_boxes_that_disagree_are_wrong_and_do_not_vote():
    for text in (r"\boxed{17} or \boxed{18}", r"\boxed{18} or \boxed{17}", r"\boxed{1} \boxed{x}"):
        assert graded(text, "17", votes=True) == (False, None, None)


def test_equal_answers_vote_alike():
    texts = [
        r"\boxed{0.25}",
        r"\boxed{\frac14}",
        r"\boxed{x+1}",
        r"\boxed{1+x}",
        r"\boxed{12}",
        r"\boxed{12.0}",
    ]
    votes = [verdict.answer for verdict in grade("math", texts, ["7"] * 6, votes=True)]
    assert votes[0] == votes[1] != votes[2] == votes[3] and votes[4] == votes[5] == "12"
    right = grade("math", [r"\boxed{0.5}", r"\boxed{\frac24}", "no box"], ["1/2"] * 3, votes=True)
    assert [verdict.answer for verdict in right] == ["1/2", "1/2", None]


def test_a_choice_is_right_by_letter_or_text_of_the_reference():
    for gold in ("B", "b", "ibuprofen", " Ibuprofen. ", "B) ibuprofen", "(B)", "Option B", 1, 1.0):
        verdicts = grade(
            "choice", ["The answer is B.", "The answer is A."], [gold] * 2, options=[DRUGS] * 2
        )
        assert [verdict[:2] for verdict in verdicts] == [(True, "B"), (False, "A")]


def test_a_reference_that_is_no_option_is_not_graded():
    assert grade("choice", ["The answer is A."], ["F"], options=[DRUGS])[0].reason == "gold"
    assert option_index("x", ("x", "X")) is None  # two options alike
    assert option_index("2", ("x", "y"), first=1) == 1 and option_index(2, ("x", "y")) is None


@pytest.mark.parametrize(
    ("grader", "golds", "options", "message"),
    [
        ("maths", ["1"], None, "No grader named 'maths'"),
        ("math", [], None, r"differ: \[1, 0\]"),
        ("choice", ["A"], None, r"differ: \[1, 1, 0\]"),
    ],
)
def test_bad_calls_are_named(grader, golds, options, message):
    with pytest.raises(ValueError, match=message):
        grade(grader, ["x"], golds, options=options)


@pytest.mark.parametrize(
    ("gold", "shown", "fault"),
    [
        ("17", "17", ""),
        ("15,50 €", "{15, 50}", "comma"),
        (r"x = \frac{1}{2}", "0.5", ""),
        (r"\text{blue}", "blue", ""),
        (r"\{1, 2\}", "{1, 2}", ""),
        ("the cat sat on the mat", "the cat sat on the mat", "sentence"),
        ("3 + 4 = 7, so\n#### 7", "3 + 4 = 7, so #### 7", "sentence"),
        ("{'answer': '82'}", None, "dictionary"),
        ("  ", "nothing", "empty"),
        ("item 7b", "item 7b", "words"),
    ],
)
def test_a_reference_says_how_it_is_read(gold, shown, fault):
    reading = describe_reference(gold)
    assert reading.fault == fault and shown in (None, reading.shown)


def test_a_reference_of_a_choice_is_an_option():
    assert describe_reference("B", DRUGS) == ("Ibuprofen", "Ibuprofen", "")
    assert describe_reference("F", DRUGS).fault == "option"
