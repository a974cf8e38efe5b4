"""The schematics of the documentation are those that their script draws."""

import runpy
from pathlib import Path

import pytest

IMAGES = Path(__file__).parent.parent / "docs" / "images"


@pytest.mark.parametrize("name", ["method", "processes"])
def test_a_schematic_is_what_its_script_draws(tmp_path, name):
    """The bars of MINER and GRPO are advantages that the package computes."""
    draw = runpy.run_path(str(IMAGES / "draw.py"))[f"draw_{name}"]
    draw.__globals__["HERE"] = tmp_path
    draw()
    (drawn,) = tmp_path.iterdir()
    assert drawn.read_bytes() == (IMAGES / drawn.name).read_bytes()
