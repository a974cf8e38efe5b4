"""The study of `recipes/probe`: its tables from the raw results of this and the other studies."""

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "recipes" / "probe"


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(FOLDER / "tables.py"))


def test_the_tables_are_those_of_the_raw_results(tables):
    (_, page) = (FOLDER / "tables.md").read_text().split("raw results.\n\n")
    assert page.rstrip() == tables["text"]().rstrip(), "run recipes/probe/tables.py, read the page"


def test_a_forecast_is_what_most_probes_say(tables):
    def sign(*verdicts):
        return tables["Forecast"](verdicts, 0.0, 0.0).sign

    assert sign("up", "up", "up", "down", "down") == "up"
    assert sign("up", "up", "cannot tell", "down") == "cannot tell"  # two of four


def test_an_arm_at_another_dose_has_the_direction_of_its_method(tables):
    names = ["miner", "miner_20", "entropy_5", "grpo_2e-4", "f_grpo"]
    assert [tables["direction_of"](name) for name in names] == [
        "miner", "miner", "entropy", "grpo", "f_grpo"
    ]  # fmt: skip
    assert tables["plain_name"]("trl_miner.data.forks.oracle (the recipe's)") == "oracle"
    assert tables["plain_name"]("GRPO itself, of mixed prompts") == "grpo"


def test_the_pages_tell_what_the_tables_count():
    row = re.search(r"\| all arms +\|(.*)\|", (FOLDER / "tables.md").read_text())[1]
    _, decided, called, same = (int(cell) for cell in row.split("|"))
    assert called == same and f"{called} of {decided}" in (FOLDER / "README.md").read_text()
    for page in ("recipes/RESULTS.md", "docs/source/howto/probe.md"):
        assert f"all {called} effects" in (FOLDER.parent.parent / page).read_text()
