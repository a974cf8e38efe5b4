"""Find the files that come with the package: recipes, accelerate's configurations, the Slurm
script."""

from pathlib import Path


def shipped_folder() -> Path:
    """Return the folder of the shipped recipes: `recipes` of a checkout, `trl_miner/recipes` of a
    wheel."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def find(target: str) -> Path | None:
    """Return the file of a recipe: a path, NAME.yaml or recipes/NAME.yaml in the current folder,
    else a shipped one. None: the target is data, a file or a name on the Hub.

    Raises:
        ValueError: There is neither such a recipe nor such a file.
    """
    raise NotImplementedError
