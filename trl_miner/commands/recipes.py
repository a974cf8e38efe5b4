"""List, print or copy the recipes that come with the package.

Without a name you see the folders, and six recipes to start with. The name of a folder lists its
recipes, and the name of a recipe prints it. This also works for accelerate's configurations and the
Slurm script. All commands that take a recipe take these names: trl-miner train arithmetic/miner.

A copied recipe brings the configuration of accelerate that it names, and the scripts and README of
its folder. Nothing is overwritten. A copy in the folder recipes takes precedence over the shipped
recipe of the same name.
"""

import argparse
from pathlib import Path
from typing import Any

from ..common.progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "recipes", __doc__, run, reads_files_alone=True).add_argument
    option(
        "names",
        nargs="*",
        metavar="NAME",
        help="A folder to list, or a file to print (default: list the folders).",
    )
    option(
        "--copy",
        nargs="*",
        metavar="NAME",
        help="Recipes or folders to copy to recipes/ (default: all).",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..recipe import files as recipe_files

    if args.copy is not None:
        written = recipe_files.copy_out(recipe_files.select(args.copy), Path(recipe_files.HOME))
        finish(written)
        return 0
    names = recipe_files.select(args.names)
    if not args.names:
        print(recipe_files.overview())
    elif names == [recipe_files.key_of(args.names[0])]:
        print(recipe_files.shown(names[0]))
    else:
        print(recipe_files.listing(names))
        finish(
            [],
            [
                f"trl-miner {command} arithmetic/quick"
                for command in ("train", "doctor", "recipes --copy")
            ],
        )
    return 0
