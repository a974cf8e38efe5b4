"""What the package brings, and what imports what."""

import ast
import configparser
from pathlib import Path

import pytest

import trl_miner

ROOT = Path(__file__).parents[2]
# Imports go down this list; parts of one row know nothing of each other.
FLOORS = [
    ("train",),
    ("cli",),
    ("commands",),
    ("probe", "doctor"),
    ("launching",),
    ("hub",),
    ("report",),
    ("run",),
    ("recipe",),
    ("evaluation",),
    ("data",),
    ("rewards",),
    ("grading",),
    ("trainer",),
    ("methods",),
    ("common",),
]
FLOOR_OF = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}


def imported_parts(path):
    """Return the parts of the package that a file imports when it is imported."""
    depth = len(path.relative_to(ROOT / "trl_miner").parts)
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            yield from [node.module.split(".")[0]] if node.module else [n.name for n in node.names]


@pytest.mark.parametrize("part", FLOOR_OF)
def test_imports_go_down_the_map(part):
    path = ROOT / "trl_miner" / part
    files = [*path.rglob("*.py")] or [path.with_suffix(".py")]
    above = {
        (file.name, other)
        for file in files
        for other in imported_parts(file)
        if other != part and FLOOR_OF.get(other, len(FLOORS)) <= FLOOR_OF[part]
    }
    assert not above


def test_setup_lists_every_folder():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = set(config["options"]["packages"].split()) - {"trl_miner.recipes", "trl_miner"}
    assert listed == {
        f"trl_miner.{path.parent.name}" for path in ROOT.glob("trl_miner/*/__init__.py")
    }


@pytest.mark.parametrize("name", trl_miner.__all__)
def test_a_public_name_is_there(name):
    assert getattr(trl_miner, name) is not None


def test_an_unknown_public_name_is_refused():
    with pytest.raises(AttributeError, match="MinerTrainer"):
        trl_miner.MinerTrainer  # noqa: B018
