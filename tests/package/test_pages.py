"""Links of the pages lead somewhere, and the settings and options that they name exist."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from trl_miner.cli import make_parser
from trl_miner.commands import GROUPS, load
from trl_miner.recipe.reading import _check_names

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(ROOT.glob("docs/source/**/*.md")),
    *sorted(ROOT.glob("recipes/**/*.md")),
]
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def headings(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page):
    text = FENCE.sub("", page.read_text("utf-8"))
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        target = target / "README.md" if target.is_dir() else target
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"{path} has no heading #{anchor}"


def commands_of(page):
    """Yield the words behind `trl-miner` of each command that a page shows."""
    for language, text in FENCE.findall(page.read_text("utf-8")):
        if language in ("bash", ""):
            for line in text.replace("\\\n", " ").splitlines():
                found = re.search(r"(?:^|&& )trl-miner (\w.*)", line)
                if found and found[1].count('"') % 2 == 0:  # else it goes on in the next line
                    yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_known_names_and_options(page):
    for name, *words in commands_of(page):
        assert name in {each for group in GROUPS.values() for each in group}
        command = load(name)
        _, others = make_parser(command).parse_known_args(words)
        if getattr(command, "TAKES_SETTINGS", False):
            _check_names([w[2:].partition("=")[0] for w in others if w.startswith("--")])
        else:
            assert not others, f"trl-miner {name} does not know {others}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_the_pages_can_be_parsed(page):
    for language, text in FENCE.findall(page.read_text("utf-8")):
        if language == "python":
            ast.parse(text)
