# ruff: noqa: E501 (a table)
"""The rules by which a value agrees with a reference: each with two cases for it and one against.

In this process, without a limit.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner.grading.agreement import agrees, form
from trl_miner.grading.extraction import answers, is_hostile, reference_content

# rule: (reference, answer) that agree; and those that do not
RULES = {
    "numbers are exact": ([("0.5", r"\frac{1}{2}"), ("2^{100}", "1267650600228229401496703205376")], [("2^{100}", "2^{100} + 1")]),
    "a thousand digits count": ([(r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), (r"\frac{\ln 8}{\ln 2}", "3")], [("1-2^{-2016}", "1"), (r"e^{\pi\sqrt{163}}", "262537412640768744")]),
    "long decimals are rounded": ([(r"\frac{1}{3}", "0.333333"), ("0.1666667", r"\frac{1}{6}")], [(r"\frac{1}{3}", "0.333"), (r"\frac{1}{3}", "0.333334"), ("0", "0.0000001")]),
    "percent": ([(r"25\%", "0.25"), (r"25\%", "25")], [(r"50\%", r"5000\%"), (r"25\%", "2.5"), (r"0.5\%", "0.5")]),
    "expressions at points": ([(r"\sin^2 x + \cos^2 x", "1"), ("(x+1)^2", "x^2+2x+1")], [("x", "|x|"), ("5x", "5")]),
    "a name is no part of a value": ([("5", "x = 5"), ("8", "f(3) = 8")], [("x = 5", "y = 5"), ("P(3, 4)", "Q(3, 4)")]),
    "a true sum is its value": ([("27", "3^3 = 27"), ("70", "m + n = 70")], [("5", "17 = 5"), ("x^2 + y^2 = 25", "25")]),
    "equations up to a factor": ([("y = 2x + 1", "2x - y = -1"), ("x + y = 2", "2x + 2y = 4")], [("x + y = 2", "x + y = 3")]),
    "lists by order": ([(r"\{1, 2\}", "2, 1"), ("x = 2, y = -2", "(2, -2)")], [("(1, 2)", "(2, 1)"), ("5, 6", "5")]),
    "intervals and inequalities": ([("(-1, 1)", "-1 < x < 1"), (r"x \ne 2", r"(-\infty, 2) \cup (2, \infty)")], [("x > 2", "y > 2"), ("[1, 2)", "[1, 2]"), (r"x < 1 \text{ or } x > 5", r"x < 1 \text{ and } x > 5")]),
    "plus-minus is two values": ([(r"\pm 2", "2, -2"), (r"1 \pm \sqrt{2}", r"1 - \sqrt{2}, 1 + \sqrt{2}")], [(r"\pm 2", "2")]),
    "ratios": ([("3:4:5", "6:8:10"), ("3:4", r"\frac{6}{8}")], [("3:4:5", "3:5:4")]),
    "times are no ratios": ([("3:45", "03:45"), (r"3:45 \text{ AM}", r"3:45\text{ a.m.}")], [("3:45", "1:15"), (r"3:45 \text{ AM}", r"3:45 \text{ PM}")]),
    "dates": ([(r"\text{July 20}", r"20\text{th of July}"), (r"\text{Tuesday}", r"\text{Tue}")], [(r"15\text{ August}", "15"), (r"\text{Mary}", r"\text{March}")]),
    "letters of options": ([("B", "(B)"), ("C", r"\text{(C) } 15")], [("A", r"\text{A or B}"), ("B", "A")]),
    "yes and no": ([(r"\text{No}", r"\text{No, it is not}"), ("Yes", r"\text{yes}")], [(r"\text{No}", r"\text{Yes}"), ("Yes", r"\text{Yes or no}")]),
    "names": ([(r"\text{blue}", r"\text{Blue}"), (r"\text{the red one}", r"\text{Red one}")], [(r"\text{blue}", r"\text{not blue}")]),
    "units": ([(r"5\text{ cm}", r"50\text{ mm}"), (r"\$5", "5")], [(r"5\text{ cm}", r"5\text{ kg}"), ("€5", r"\$5"), ("2mg", "2")]),
    "digits with a base": ([("1010_2", r"(1010)_{2}"), ("1010_2", "1010")], [("1010_2", "1010_3")]),
    "words before a value": ([("12", r"\text{There are } 12"), ("5", r"\text{The answer is } 5")], [("42", r"\text{the opposite of } 42")]),
    "matrices": ([(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & \frac{8}{2} \end{bmatrix}"), ("(3, 4)", r"\begin{pmatrix} 3 \\ 4 \end{pmatrix}")], [(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}")]),
    "what is undefined equals nothing": ([(r"\infty", r"2 \cdot \infty"), (r"\emptyset", r"\text{no solution}")], [("5", r"\frac{5}{0}"), ("0", r"\frac{0}{0}"), (r"\emptyset", r"\{\emptyset\}")]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_lets_right_answers_in_and_keeps_wrong_ones_out(rule):
    right, wrong = RULES[rule]
    assert len(right) >= 2 and wrong
    assert not [pair for pair in right if not agrees(*pair)]
    assert not [pair for pair in wrong if agrees(*pair)]


fractions = st.fractions(min_value=-50, max_value=50, max_denominator=60)


@settings(max_examples=20, deadline=None)
@given(value=fractions, other=fractions, letter=st.sampled_from("abkmRrx"))
def test_another_notation_is_right_and_another_value_is_wrong(value, other, letter):
    above, below = value.numerator, value.denominator
    gold = rf"\frac{{{above}}}{{{below}}}"
    assert agrees(gold, f"{above}/{below}") and agrees(gold, f"({above + below})/{below} - 1")
    assert not agrees(gold, rf"\frac{{{above + 1}}}{{{below}}}")
    assert agrees(gold, str(other)) == (value == other)
    symbolic = rf"{gold} {letter}^2 + 1"
    assert agrees(symbolic, rf"1 + {letter}^{{2}} \cdot ({above}/{below})")
    swapped = symbolic.replace(f" {letter}^", f" {letter.swapcase()}^")
    assert agrees(symbolic, swapped) == (value == 0)


@pytest.mark.parametrize(
    "texts",
    [
        ("x = 3", "3", "3.0", r"\frac{6}{2}"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\{1, 2\}", "2, 1", r"x = 1 \text{ or } x = 2"),
        ("(1, 2)", r"\left(1, \frac{4}{2}\right)"),
        ("x+1", "1+x"),
    ],
)
def test_an_answer_in_several_notations_is_one_vote(texts):
    assert len({form(text) for text in texts}) == 1
    assert form(texts[0]) != form("17")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=100))
def test_no_text_breaks_the_grader(text):
    assert answers(text) == () or "box" in text
    assert agrees(text, "5 + x") in (False, True)  # raises nothing
    assert form(text)[0] in (False, True)


def test_boxes_are_balanced_distinct_and_not_empty():
    assert answers(r"\boxed{1} \boxed{\frac{1}{2}} \boxed{1} \boxed{} \boxed{\{2\}}") == ("1", r"\frac{1}{2}", r"\{2\}")  # fmt: skip
    assert answers(r"\boxed{1} \boxed{2") == ()  # cut off
    assert answers(r"\boxed{\left\{1, 2\right.}") == (r"\left\{1, 2\right.",)


@pytest.mark.parametrize(
    "gold", ["", "  ", None, r"\frac{1}{", "1}", r"\boxed{}", r"\boxed{1", "7" * 10_001]
)
def test_a_reference_that_cannot_be_read_has_no_content(gold):
    assert reference_content(gold) == ""


@pytest.mark.parametrize(
    "box",
    ["9^{9^{9^{9}}}", "2^{100000}", "1000000000!", "{" * 61 + "17", "-" * 60 + "1", "1" + "+1" * 300, r"\sqrt{" * 80],
)  # fmt: skip
def test_what_no_answer_needs_is_refused_at_once(box):
    assert is_hostile(box, "17")
    assert not is_hostile("2^{100000}", "2^{100000} + 1")  # the reference needs it
