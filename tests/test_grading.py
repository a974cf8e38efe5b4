"""Verdicts, compared with what a reader of the rule would say."""

import runpy

import pytest
from harness import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner.grading import agreement, grade, math_answers, phrases, references, votes
from trl_miner.grading.choices import chosen, option_index
from trl_miner.grading.references import describe_reference


def graded(answer, gold, **kwargs):
    return grade("math", [answer], [gold], **kwargs)[0]


def rows_of(name, folder=GOLDEN):
    """The rows of a table, without its head; whoever changes a rule adds rows."""
    return [
        line.split("\t") for line in (folder / name).read_text(encoding="utf-8").splitlines()[1:]
    ]


VERDICTS = GOLDEN.parent / "verdicts"


def mistakes(rows):
    """The rows of gold, text and truth that are graded otherwise."""
    verdicts = grade("math", [text for _, text, _ in rows], [gold for gold, *_ in rows])
    return [
        row
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.is_correct != (row[2] == "1")
    ]


def test_verdicts():
    """Of infinities, tiny numbers, false statements, words, dates, units, blanks, several
    unknowns."""
    assert not mistakes(rows_of("verdicts.tsv"))


def test_given_verdicts():
    """Written by a stranger in the style of real outputs; of the one that is wrong, the mathematics
    is doubtful."""
    rows = [row[:3] for row in rows_of("given.tsv", VERDICTS)]
    assert mistakes(rows) == [["7", r"\boxed{7 \text{ (not } 8)}", "1"]]


def test_verdicts_on_what_is_right_and_what_is_nearly_so():
    """By kind: a right answer in another notation, and one that misses by little."""
    rows = [row[:4] for row in rows_of("own.tsv", VERDICTS)]
    assert not mistakes([[gold, rf"\boxed{{{text}}}", truth] for _, gold, text, truth in rows])


def test_verdicts_without_a_box():
    """What is denied, doubted, asked or taken back is no final answer."""
    wrong = []
    for gold, text, truth, _ in rows_of("unboxed.tsv", VERDICTS):
        text = text.replace(r"\n", "\n")
        wrong += [(gold, text)] * (math_answers.is_correct((), text, gold) != (truth == "1"))
    assert not wrong


@pytest.mark.parametrize(
    "gold", ["17", "-3", r"\frac{1}{2}", "(1, 2)", r"\{1, 2\}", r"\text{blue}", "x^2 + 1", "@#"]
)
def test_a_gold_is_its_own_right_answer(gold):
    assert graded(rf"The answer is \boxed{{{gold}}}.", gold).is_correct is True
    assert math_answers.is_correct((gold,), "", gold)  # not only as text


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
    forms = [v.answer for v in grade("math", answers, ["7"] * 6, votes=True)]
    assert forms[0] == forms[1] != forms[2] == forms[3] and forms[4] == forms[5] == "12"
    right = [
        v.answer
        for v in grade("math", [r"\boxed{0.5}", r"\boxed{\frac24}"], ["1/2"] * 2, votes=True)
    ]
    assert right == ["1/2", "1/2"]
    assert [v.answer for v in grade("math", ["no box", r"\boxed{7}"], ["7", "7"], votes=True)] == [
        None,
        "7",
    ]


@pytest.mark.parametrize(
    "answers",
    [
        (r"x = 3", "3", "3.0", r"\frac{6}{2}"),
        (r"50\%", "0.5", r"\frac12"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\{1, 2\}", "2, 1", r"x = 1 \text{ or } x = 2"),
        ("(1, 2)", r"\left(1, \frac{4}{2}\right)"),
    ],
)
def test_an_answer_in_several_notations_is_one_vote(answers):
    assert len({votes.form(answer) for answer in answers}) == 1
    assert votes.form(answers[0]) != votes.form("17")


@pytest.mark.parametrize(
    "box",
    [
        "{" * 61 + "17" + "}" * 61,
        "(" * 2_450 + ")" * 2_450,
        r"\left(" * 700 + "17" + r"\right)" * 700,
        r"\{" + ", ".join(map(str, range(2_000))) + r"\}",
        "17" + " + 0" * 200,
    ],
)
def test_a_box_that_only_costs_time_is_wrong_at_once(box, monkeypatch):
    monkeypatch.setattr("trl_miner.grading.shared_pool", None)  # no process sees it
    assert graded(rf"\boxed{{{box}}}", "17").is_correct is False


@pytest.mark.parametrize(
    "box",
    [
        "9^{9^{9^{9}}}", "10^{10^{9}}", "1000000000!", r"\sum_{i=1}^{10^7} \frac{1}{i!}", "2^{" * 40 + "2" + "}" * 40,
        r"(1+\sqrt{2})^{10000000}", r"\prod_{i=1}^{20000} i^{20}", "-" * 450 + "1", "|" * 400, r"\pm 1 " * 80,
        r"\sqrt{" * 50 + "x" + "}" * 50, r"\sin " * 90 + "x", r"\cos(10^{1000})", r"\lfloor 10^{9999}\pi\rfloor",
    ],
)  # fmt: skip
def test_a_hostile_box_is_read_within_its_steps(box):
    """In this process, without a limit: the evaluation counts its steps and digits."""
    assert math_answers.is_correct((box,), "", "17") is False


exact = st.fractions(min_value=-50, max_value=50, max_denominator=60)


@settings(max_examples=100, deadline=None)
@given(value=exact, other=exact, letter=st.sampled_from("abkmRrx"), power=st.integers(2, 5))
def test_another_notation_is_right_and_another_value_is_wrong(value, other, letter, power):
    above, below = value.numerator, value.denominator
    gold = rf"\frac{{{above}}}{{{below}}}"
    same = [f"{above}/{below}", rf"x = \frac{{{2 * above}}}{{{2 * below}}}", rf"{above} \cdot {below}^{{-1}}",
f"({above + below})/{below} - 1"]  # fmt: skip
    assert all(agreement.agrees(gold, answer) for answer in same)
    changed = [
        rf"\frac{{{above + 1}}}{{{below}}}",
        rf"\frac{{{above}}}{{{below + 1}}}",
        f"-({gold})",
        rf"{gold}{letter}",
    ]
    assert not any(agreement.agrees(gold, answer) for answer in changed if value)
    assert agreement.agrees(gold, str(other)) == (value == other)
    # the same as the coefficient of a letter, and under a root
    symbolic = rf"{gold} {letter}^{power} + 1"
    assert agreement.agrees(symbolic, rf"1 + {letter}^{{{power}}} \cdot ({above}/{below})")
    assert agreement.agrees(
        symbolic, symbolic.replace(f" {letter}^", f" {letter.swapcase()}^")
    ) == (value == 0)
    assert agreement.agrees(symbolic, rf"{gold} {letter}^{{{power + 1}}} + 1") == (value == 0)
    root = rf"\sqrt{{{below * below + 1}}} + {gold}"
    assert agreement.agrees(root, rf"{gold} + ({below * below + 1})^{{1/2}}")
    assert not agreement.agrees(root, rf"\sqrt{{{below * below + 2}}} + {gold}")


numbers = st.integers(-(10**9) + 1, 10**9 - 1) | st.integers(-20, 20)


@settings(max_examples=150, deadline=None)
@given(gold=numbers, others=st.lists(numbers, max_size=2), repeat=st.booleans())
def test_what_is_graded_as_text_agrees_with_its_mathematics(gold, others, repeat):
    boxes = math_answers.boxes(
        "".join(rf"\boxed{{{number}}}" for number in others + [gold] * repeat)
    )
    assert math_answers.is_correct_as_text(boxes, str(gold)) == math_answers.is_correct(
        boxes, "", str(gold)
    )


def test_an_answer_on_which_the_grading_fails_is_wrong(monkeypatch):
    for failure in (RecursionError("too deep"), ValueError("what")):

        def fail(gold, answer, failure=failure):
            raise failure

        monkeypatch.setattr(agreement, "agrees", fail)
        assert math_answers.is_correct(("18 - 1",), "", "17") is False


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
    for gold in ("B", "b", "ibuprofen", " Ibuprofen. ", "B) ibuprofen", "(B)", "Option B"):
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
    assert agreement.agrees(text, start) in (False, True)  # raises nothing
    assert references.describe_reference("so " + text).kind
    assert phrases.final_answer(text) in (None, phrases.final_answer(text))
    assert votes.form(text) != ""


@pytest.mark.parametrize(
    ("grader", "golds", "options", "message"),
    [
        ("maths", ["1"], None, "grader must be one of math, choice, task: got 'maths'"),
        ("math", [], None, "one reference answer per completion: got 0 for 1 answers"),
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
        ("list", "{15, 50}", False),
        ("number", "17", False),
        ("name", "blue", True),
    ]


def test_the_text_of_a_dictionary_is_no_reference():
    with pytest.raises(ValueError, match="Name the key that holds the answer"):
        describe_reference("{'ground_truth': '82', 'style': 'rule'}")


def test_the_guide_tells_how_often_verdicts_are_wrong(monkeypatch):
    """Its table is what tests/bench/verdicts.py makes of the tables now."""
    monkeypatch.syspath_prepend(GOLDEN.parent / "bench")
    names = runpy.run_path(str(GOLDEN.parent / "bench" / "verdicts.py"))
    guide = names["GUIDE"].read_text(encoding="utf-8")
    assert guide.split(names["START"])[1].split(names["END"])[0].strip() == names["lines"]()
