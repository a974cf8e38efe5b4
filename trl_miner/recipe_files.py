"""Find recipes, accelerate's configurations and the Slurm script: the user's own, or those that
come with the package.

The repository's folder `recipes` is their one home. A wheel holds it as `trl_miner/recipes`; a
checkout uses its own.
"""

import os
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path, PurePosixPath

from .importing import did_you_mean
from .redaction import redact
from .runs.files import read_yaml

HOME = "recipes"
NO_RECIPES = ("accelerate", "slurm", "sweeps")
STARTERS = (  # what `trl-miner recipes` shows first
    *(
        "arithmetic/quick",
        "forks/miner",
        "SmolLM2-135M-Instruct/miner",
        "calculator/grpo",
        "one-gpu/gsm8k",
    ),
    "Qwen3-4B-Base/miner",
)


def shipped_folder() -> Path:
    """Return the folder of the files that come with the package."""
    package = Path(str(resources.files(__package__)))
    return next(
        (path for path in (package / HOME, package.parent / HOME) if path.is_dir()), package / HOME
    )


def shipped() -> dict[str, Path]:
    """Return the files that come with the package by name, such as `arithmetic/miner` or
    `accelerate/zero3`."""
    folder = shipped_folder()
    paths = sorted(
        (path.parent, path) for path in folder.rglob("*") if path.suffix in (".yaml", ".slurm")
    )
    return {path.relative_to(folder).with_suffix("").as_posix(): path for _, path in paths}


def is_recipe(name: str | Path) -> bool:
    """Return whether a name of `shipped`, or a file made from it, is a recipe's."""
    return PurePosixPath(name).parent.name not in NO_RECIPES


def find_recipe(name: str | Path) -> Path:
    """Return the recipe of a name: a file, NAME.yaml or recipes/NAME.yaml in the current folder,
    else a shipped one.

    Raises ValueError with similar names if there is none.
    """
    known = {key: path for key, path in shipped().items() if is_recipe(key)}
    for path in (
        Path(name),
        Path(f"{name}.yaml"),
        Path(HOME, f"{name}.yaml"),
        known.get(_key(name), Path()),
    ):
        if path.is_file():
            return path
    raise ValueError(
        f"A recipe must be a file, or one that `trl-miner recipes` lists: got {redact(str(name))},"
        f" no such file.{did_you_mean(_key(name), known) or ' Try arithmetic/miner.'}"
    )


def with_recipe_file(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a training with the file of the recipe in place of its name behind
    `--config`.

    It becomes a word of its own behind `--config=`, too.
    """
    words = [
        part
        for word in arguments
        for part in (word.split("=", 1) if word.startswith("--config=") else [word])
    ]
    if "--config" in words[:-1]:
        place = words.index("--config") + 1
        words[place] = str(find_recipe(words[place]))
    return words


def select(names: Sequence[str]) -> list[str]:
    """Return the names of the shipped files that are meant, by name or by folder; all without a
    name."""
    known, found = shipped(), []
    for name in names:
        key = _key(name)
        matched = [other for other in known if other == key or other.startswith(f"{key}/")]
        if not matched:
            raise ValueError(
                f"A name must be one that `trl-miner recipes` lists, or a folder there: got {name}."
                f"{did_you_mean(key, known)}"
            )
        found += matched
    return list(dict.fromkeys(found)) if names else list(known)


def shown(name: str) -> str:
    """Return the text of a shipped file."""
    return shipped()[name].read_text(encoding="utf-8").rstrip()


def listing(names: Sequence[str]) -> str:
    """Return a line for each shipped file, by folder: its name, and the first comment in it.

    Before all files stand those to start with.
    """
    parts = [
        (folder, [*inside])
        for folder, inside in groupby(names, key=lambda name: name.rpartition("/")[0])
    ]
    if len(names) == len(shipped()):
        parts.insert(0, ("Start with one of these:", [*STARTERS]))
    lines: list[str] = []
    for title, inside in parts:
        lines += ["", title] if lines else [title]
        width = max(map(len, inside))
        for name in inside:
            comments = (line for line in shown(name).splitlines() if line.startswith("# "))
            lines.append(f"  {name:<{width}}  {next(comments, '').removeprefix('# ')}")
    return "\n".join(lines)


def copy_out(names: Sequence[str], to: Path) -> list[Path]:
    """Copy shipped files into a folder, each with the accelerate configuration that it names, and
    with the scripts and the README of its folder. Return the copies.

    Raises:
        ValueError: A file there has other contents. Then nothing is written.
    """
    sources = set()
    for path in (shipped()[name] for name in names):
        sources |= {path, *path.parent.glob("*.py"), *path.parent.glob("README.md")}
        if path.suffix == ".yaml" and (config := read_yaml(path).get("accelerate_config")):
            sources.add(Path(os.path.normpath(path.parent / config)))
    folder = shipped_folder()
    targets = {
        to / source.relative_to(folder): source.read_bytes()
        for source in sorted(sources)
        if source.is_file()
    }
    for path, content in targets.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise ValueError(
                f"Nothing is overwritten: {path} differs from the file that comes with trl_miner."
                " Delete or rename it."
            )
    for path, content in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return list(targets)


def _key(name: str | Path) -> str:
    """Return a name as `shipped` writes it: without `recipes/` and the suffix."""
    path = PurePosixPath(name).as_posix().removeprefix(f"{HOME}/")
    return path.removesuffix(".yaml").removesuffix(".slurm")
