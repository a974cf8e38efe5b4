"""List, print or copy the recipes that come with the package.

Without a name you see all of them, with accelerate's configurations and the Slurm script. The name
of a folder lists that, and the name of a file prints it. All commands that take a recipe take these
names: trl-miner train arithmetic/quick.

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="A folder to list, or a file to print.")
    parser.add_argument("--copy", action="store_true", help="Copy it to recipes/ (default: all).")


def run(args: argparse.Namespace, words: list[str]) -> int:
    names = files.select(args.name) if args.name else [*files.shipped()]
    if args.copy:
        finish(files.copy_out(names, Path(files.HOME)))
    elif args.name and names == [files.key_of(args.name)]:
        print(files.shipped()[names[0]].read_text("utf-8"), end="")
    else:
        print(files.described(names))
    return 0
