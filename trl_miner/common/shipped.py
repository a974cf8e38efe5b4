"""Where the recipes, and the code beside them, are: the repository's folder `recipes`.

A wheel holds it as `trl_miner/recipes`; a checkout uses its own.
"""

from pathlib import Path

HOME = "recipes"


def shipped_folder() -> Path:
    """Return the folder of the files that come with the package."""
    package = Path(__file__).parent.parent
    inside = package / HOME
    return inside if inside.is_dir() else package.parent / HOME
