"""The tables of tests/verdicts: what a fair reader says of each answer, and where ours differs.

given: by a stranger, in the style of real outputs. own: a right answer in another notation, and one
that misses by little. answers: made up, by kind. unboxed: texts without a box, many of which deny or
doubt. choices: which of five drugs a text chooses.
"""

from pathlib import Path

import pytest

from trl_miner.grading import grade
from trl_miner.grading.choices import chosen

VERDICTS = Path(__file__).parent.parent / "verdicts"
DRUGS = ("Aspirin", "Ibuprofen", "St. John's wort", "0.5 mg of digoxin", "None of the above")


def rows_of(name):
    """The rows of a table, without its head."""
    lines = (VERDICTS / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


@pytest.mark.parametrize(
    "name",
    ["given", "unboxed", *(pytest.param(x, marks=pytest.mark.slow) for x in ("own", "answers"))],
)
def test_verdicts_are_those_of_the_table(name):
    """Whoever changes a rule sees here which verdicts move; the marks are part of the change."""
    rows = rows_of(name)
    texts = [row[1].replace(r"\n", "\n") if name == "unboxed" else row[1] for row in rows]
    verdicts = grade("math", texts, [row[0] for row in rows], unboxed=name == "unboxed")
    moved, accepted, rejected = [], 0, 0
    for (reference, text, expected, mark), verdict in zip(rows, verdicts, strict=True):
        differs = bool(verdict.is_correct) != (expected == "1")
        accepted += differs and expected == "0"
        rejected += differs and expected == "1"
        if differs != (mark == "differs"):
            moved.append((reference, text, verdict.is_correct))
    right = sum(row[2] == "1" for row in rows)
    assert not moved
    # at most 1.5 % of the wrong answers are accepted, and 11 % of the right ones rejected
    assert accepted <= 0.015 * (len(rows) - right) and rejected <= 0.11 * right


def test_choices_are_those_of_the_table():
    """By letter, text or both; none where two are named, or another one is denied."""
    wrong = []
    for text, letter in rows_of("choices"):
        index = chosen(text.replace(r"\n", "\n"), DRUGS)
        wrong += [text] * (("" if index is None else "ABCDE"[index]) != letter)
    assert not wrong


@pytest.mark.parametrize(
    ("reference", "text", "is_correct"),
    [
        ("-4, 2", r"The roots are \boxed{2} and \boxed{-4}.", True),  # a list in several boxes
        ("4, 2", r"The roots are \boxed{2} and \boxed{-4}.", False),
        ("12", r"\boxed{\text{There are } 12 \text{ ways}}", True),
        ("12", r"\boxed{\text{There are no } 12 \text{ ways}}", False),
        (r"C_5^2\mathrm{A}", r"\boxed{10}", False),
        (r"2\binom{5}{2}", r"\boxed{20}", True),  # math-verify reads 2 + 10
        (r"2\binom{5}{2}", r"\boxed{12}", False),
        ("3st", r"\boxed{3}", False),
        (r"3\frac{1}{2}", r"\boxed{3.5}", True),
        (r"3\frac{1}{2}", r"\boxed{15.5}", False),
        ("(4, -3)", r"\boxed{(3, -4)}", False),  # two empty intervals are no equal points
        ("R", r"\boxed{r}", False),
        ("2m", r"\boxed{2}", False),
    ],
)
def test_small_cases(reference, text, is_correct):
    assert grade("math", [text], [reference])[0].is_correct is is_correct


@pytest.mark.parametrize(
    "text", ["<answer>42</answer>", "#### 42", "The answer is 42.", "So x = 42."]
)
def test_a_text_without_a_box_counts_only_if_that_is_asked_for(text):
    verdicts = [
        grade("math", [text], ["42"], unboxed=unboxed)[0].is_correct for unboxed in (True, False)
    ]
    assert verdicts == [True, False]
