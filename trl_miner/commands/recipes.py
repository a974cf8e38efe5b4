"""List, print or copy the recipes that come with the package.

Without a name you see the folders, and three recipes to start with. The name of a folder lists its
recipes, and the name of a recipe prints it. This also works for accelerate's configurations and the
Slurm script. All commands that take a recipe take these names: trl-miner train arithmetic/quick.

A copied recipe brings the configuration of accelerate that it names, and the scripts and README of
its folder. Nothing is overwritten. A copy in the folder recipes takes precedence over the shipped
recipe of the same name.
"""

import argparse
from pathlib import Path

from ..common.progress import finish
from ..recipe import files

NAME = "recipes"
HELP = "List, print or copy the recipes that come with the package."
_STARTERS = ("arithmetic/quick", "one-gpu/gsm8k", "Qwen3-4B-Base/miner")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="A folder to list, or a file to print.")
    parser.add_argument("--copy", action="store_true", help="Copy it to recipes/ (default: all).")


def run(args: argparse.Namespace, words: list[str]) -> int:
    if args.copy:
        names = files.select(args.name) if args.name else [*files.shipped()]
        finish(files.copy_out(names, Path(files.HOME)))
    elif args.name is None:
        print(overview())
    else:
        names = files.select(args.name)
        is_file = names == [files.key_of(args.name)]
        print(files.shipped()[names[0]].read_text("utf-8") if is_file else files.described(names))
    return 0


def overview() -> str:
    """Return recipes to start with, and the folders with how many files are in each."""
    names = [*files.shipped()]
    folders = [name.rpartition("/")[0] for name in names]
    lines = [f"  {folder} ({folders.count(folder)})" for folder in dict.fromkeys(folders)]
    return "\n".join(
        [
            "Start with one of these:",
            files.described([name for name in _STARTERS if name in names]),
            "",
            "Folders (trl-miner recipes FOLDER lists one):",
            *lines,
        ]
    )
