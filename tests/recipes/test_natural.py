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


def test_the_cosine_of_gradients_that_are_known():
    rng = np.random.default_rng(1)
    one, other = (rng.normal(mean, 0.01, (6, 2)) for mean in ([-0.1, -0.1], [0.1, 0]))
    found = natural.cosine(one @ other.T, one @ one.T, other @ other.T)
    # at 135 degrees, but for the noise
    assert found.mean == pytest.approx(-(2**-0.5), abs=0.05)
    assert found.sign == "down" and found.p < 0.05
