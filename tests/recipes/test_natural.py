"""The base rate on natural tasks: its page, and its arithmetic."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

NATURAL = Path(__file__).parents[2] / "recipes/natural"
spec = importlib.util.spec_from_file_location("natural", NATURAL / "natural.py")
natural = sys.modules["natural"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(natural)


def test_the_tables_of_the_page_are_those_of_the_counts():
    text = (NATURAL / "README.md").read_text("utf-8")
    shown = re.findall(r"<!-- table: (.*?) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert dict(shown) == natural.tables()


@pytest.mark.parametrize(("turn", "sign"), [(1, "up"), (-1, "down")])
def test_the_cosine_of_gradients_that_are_known(turn, sign):
    rng = np.random.default_rng(1)
    one, other = (rng.normal(mean, 0.01, (6, 2)) for mean in ([0.1, 0.1], [0.1, 0]))
    found = natural.cosine(turn * one @ other.T, one @ one.T, other @ other.T)
    # at 45 degrees, but for the noise
    assert found.mean == pytest.approx(turn * 2**-0.5, abs=0.05)
    assert found.sign == sign
    assert found.p < 0.05


def test_four_prompts_decide_nothing():
    found = natural.cosine(np.ones((4, 9)), np.ones((4, 4)), np.ones((9, 9)))
    assert (found.sign, found.p) == ("?", 1)
