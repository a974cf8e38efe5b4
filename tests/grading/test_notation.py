"""The table of rewrites, row by row, and what is taken off a value."""

import pytest

from trl_miner.grading import with_points
from trl_miner.grading.notation import REWRITES, plain, plain_number, rewrite
from trl_miner.grading.units import factor, split_unit


@pytest.mark.parametrize("row", REWRITES, ids=lambda row: row[0])
def test_a_row_makes_of_its_example_what_it_says(row):
    _, pattern, new, before, after = row
    assert rewrite(pattern, new, before) == after


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        (r"$\left( 1,\, 2 \right)$.", "( 1, 2 )"),
        ("１２", "12"),
        (r"5\text{ cm}", r"5\text{ cm}"),
    ],
)
def test_many_notations_become_one(text, expected):
    assert plain(text) == expected


@pytest.mark.parametrize(
    "text", [r"3\frac{1}{2}", "1 2", "1e400", "0.123456", "1/0", "", "x", "1" * 31]
)
def test_only_plain_numbers_are_compared_without_the_parser(text):
    assert plain_number(text) is None


def test_decimal_commas_become_points():
    assert with_points("15,50 €, 1.234,5 und 1 234,56") == "15.50 €, 1234.5 und 1234.56"


# A rule of units: two cases for it, one against.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"5\text{ cm}^2", ("5", "cm^2")),
        ("12 apples", ("12", "apples")),
        ("2 xy", ("2 xy", "")),  # unknowns
        (r"5\text{ or more}", (r"5\text{ or more}", "")),  # it changes the value
    ],
)
def test_a_unit_is_split_off_unless_it_changes_the_value(text, expected):
    assert split_unit(text) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("hours", "minutes", 1 / 60),
        ("cm", "m", 100),
        ("m/s", "km per hour", 1 / 3.6),
        ("dollars", "cents", 1 / 100),
        ("", "cm", 1),
        ("cm", "kg", 0),
        ("apples", "pears", 0),
        ("dollar", "euro", 0),
    ],
)
def test_units_of_one_kind_are_converted(first, second, expected):
    assert float(factor(first, second)) == pytest.approx(expected)
