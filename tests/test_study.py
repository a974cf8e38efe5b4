"""The study of `recipes/study`: its script, and its page from its raw results."""

import re
import runpy
from pathlib import Path

import pytest

from trl_miner.viewing.report import write_report

STUDY = Path(__file__).parent.parent / "recipes" / "study"


@pytest.mark.slow
def test_strategies_are_counted_by_level(policy):
    """An untrained model, 10 problems, 16 rollouts each: the shares of a range of levels sum to
    1."""
    names = runpy.run_path(str(STUDY / "strategies.py"))
    taken, right = names["count"](policy, 10)
    assert sum(taken.values()) == 160 and all(right[key] <= taken[key] for key in right)
    _, _, *rows = names["table"]([policy], 10).splitlines()
    for row in rows:
        # rounded
        assert 99 <= sum(int(share) for share in re.findall(r"(\d+)%(?:,| \|)", row)) <= 101


# The results in the repository


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The rows of the tables that the raw files give, by file."""
    found = {}
    for name in ("methods", "sensitivity"):
        folder = tmp_path_factory.mktemp(name)
        # without the pictures, which are most of its time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trl_miner.viewing.pages.as_svg", lambda figure, name: "<svg></svg>")
            patch.setattr("trl_miner.viewing.pages.view_boxes", lambda figure: [])
            text = (
                write_report([STUDY / f"{name}.jsonl.gz"], folder, quiet=True)
                .with_name("report.md")
                .read_text()
            )
        found[name] = {line for line in text.splitlines() if line.startswith("|")}
    return found


@pytest.mark.slow
def test_every_row_that_the_page_quotes_follows_from_the_raw_files(tables):
    """Rows of `trl-miner report`, and nothing else between the page's marks; tables of an earlier
    report have none."""
    quoted = re.findall(
        r"<!-- (\w+) -->\n(.*?)<!-- end -->", (STUDY / "tables.md").read_text(), re.DOTALL
    )
    assert len(quoted) >= 4
    for name, block in quoted:
        assert set(block.strip().splitlines()) <= tables[name], (
            "trl-miner report again, and the page after it"
        )
