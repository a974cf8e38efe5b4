"""The base rate on natural tasks: its page, and its arithmetic."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def natural(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)  # as `python -m natural.natural` has it
    return importlib.import_module("natural.natural")


def test_the_tables_of_the_page_are_those_of_the_counts(natural):
    text = (RECIPES / "natural/README.md").read_text("utf-8")
    shown = re.findall(r"<!-- table: (.*?) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert dict(shown) == natural.tables()


def test_the_cosine_of_gradients_that_are_known(natural):
    rng = np.random.default_rng(1)
    one, other = (rng.normal(mean, 0.01, (6, 2)) for mean in ([-0.1, -0.1], [0.1, 0]))
    by_problem, by_prompt = other @ one.sum(axis=0), one @ other.sum(axis=0)
    found = natural.cosine(by_problem, by_prompt, 3.6 * 0.02**0.5)
    # at 135 degrees, but for the noise
    assert found.mean == pytest.approx(-(2**-0.5), abs=0.05)
    assert found.sign == "down" and found.p < 0.05
    assert natural.cosine(by_problem, by_prompt[:4], 1) == "few"
