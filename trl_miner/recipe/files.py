"""Find the files that come with the package: recipes, accelerate's configurations, the Slurm
script."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ..common.names import did_you_mean

HOME = "recipes"
_SUFFIXES = (".yaml", ".yml")
_NO_RECIPES = ("accelerate", "slurm")  # folders of other files


def shipped_folder() -> Path:
    """Return the folder of the shipped files: `recipes` of a checkout, `trl_miner/recipes` of a
    wheel."""
    package = Path(__file__).parents[1]
    inside = package / HOME
    return inside if inside.is_dir() else package.parent / HOME


def shipped() -> dict[str, Path]:
    """Return the shipped files by name, such as `arithmetic/miner` or `accelerate/zero3`."""
    folder = shipped_folder()
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".slurm"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def find(target: str) -> Path | None:
    """Return the file of a recipe: a path, NAME.yaml or recipes/NAME.yaml in the current folder,
    else a shipped one. None: the target is data, a file, a folder or a name on the Hub.

    Raises:
        ValueError: There is neither such a recipe nor such a file.
    """
    name = key_of(target)
    known = {key: path for key, path in shipped().items() if is_recipe(key)}
    for path in (Path(target), Path(f"{target}.yaml"), Path(HOME, f"{name}.yaml")):
        if path.is_file() and path.suffix in _SUFFIXES:
            return path
    if name in known:
        return known[name]
    hint = did_you_mean(name, known, likeness=0.8)  # openai/gsm8k means no recipe
    looks_like_a_file = Path(target).suffix or target.startswith((".", "/", "~"))
    if not target or (not Path(target).exists() and (hint or looks_like_a_file)):
        raise ValueError(
            f"No recipe or file named {target!r}.{hint} `trl-miner recipes` shows all recipes."
        )
    return None


def is_recipe(name: str) -> bool:
    """Return whether a name of `shipped` is a recipe's."""
    return PurePosixPath(name).parent.name not in _NO_RECIPES


def select(name: str) -> list[str]:
    """Return the names of the shipped files that are meant, by name or by folder.

    Raises:
        ValueError: There is none.
    """
    names, key = [*shipped()], key_of(name).rstrip("/")
    matched = [each for each in names if each == key or each.startswith(f"{key}/")]
    if not matched:
        folders = {each.rpartition("/")[0] for each in names}
        hint = did_you_mean(key, [*names, *folders])
        raise ValueError(
            f"No recipe or folder named {name!r}.{hint} `trl-miner recipes` shows all."
        )
    return matched


def described(names: Sequence[str]) -> str:
    """Return a line for each shipped file: its name, and the first comment in it."""
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {_first_comment(shipped()[name])}" for name in names)


def _first_comment(path: Path) -> str:
    found = re.search(r"^# (.*)", path.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else ""


def key_of(name: str) -> str:
    """Return a name as `shipped` has it: without `recipes/` and the suffix."""
    key = PurePosixPath(name).as_posix().removeprefix(f"{HOME}/")
    return key.removesuffix(".yaml").removesuffix(".slurm")


def copy_out(names: Sequence[str], to: Path) -> list[Path]:
    """Copy shipped files into a folder, each with the accelerate configuration that it names, and
    with the scripts and the README of its folder. Return the copies.

    Raises:
        ValueError: A file there has other contents. Then nothing is written.
    """
    sources = set()
    for path in (shipped()[name] for name in names):
        sources |= {path, *path.parent.glob("*.py"), *path.parent.glob("README.md")}
        named = re.search(r"^accelerate_config: (\S+)", path.read_text("utf-8"), re.MULTILINE)
        if named:
            sources.add(path.parent.joinpath(named[1]).resolve())
    folder = shipped_folder().resolve()
    copies = {to / path.resolve().relative_to(folder): path for path in sorted(sources)}
    for copy, path in copies.items():
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise ValueError(f"{copy} differs from the shipped file. Move it: nothing was copied.")
    for copy, path in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return [*copies]
