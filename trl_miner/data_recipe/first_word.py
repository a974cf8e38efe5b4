"""What the first word of a command names: a recipe, or a data set for which one is made.

Recipes are the common case: this module loads neither PyTorch nor TRL, which takes six seconds of
processor time, and which the process that trains loads anyway.
"""

from collections.abc import Sequence
from pathlib import Path

from ..data.reading import SUFFIXES
from ..data.reasoning_gym import is_task
from ..data.worlds import WORLDS
from ..recipe.files import shipped


def with_made_recipe(words: Sequence[str]) -> list[str]:
    """Return the words of a training whose first one may be a recipe or a data set, with `--config
    RECIPE` instead; for a data set a recipe is written.

    Raises:
        ValueError: None can be: see `making.write_recipe`.
    """
    if not words or words[0].startswith("-"):
        return list(words)
    name, *rest = words
    if not is_data(name):
        return ["--config", name, *rest]
    from .making import write_recipe

    return write_recipe(name, rest)


def is_data(name: str) -> bool:
    """Return whether a word names a data set rather than a recipe: a data file, a folder, a task,
    or OWNER/NAME on the Hub."""
    if Path(name).suffix.lower() in SUFFIXES or name in WORLDS or is_task(name):
        return True
    folders = {shipped_name.partition("/")[0] for shipped_name in shipped()}
    is_recipe = Path(name).suffix in (".yaml", ".yml") or any(
        Path(f"{name}{end}").is_file() for end in ("", ".yaml")
    )
    is_on_hub = name.count("/") == 1 and name.partition("/")[0] not in {*folders, "recipes"}
    return not is_recipe and (is_on_hub or Path(name).is_dir())
