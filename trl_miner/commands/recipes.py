"""List or print the recipes that come with the package, or copy them out.

So for accelerate's configurations and the Slurm script. train, doctor, launch and compare take
these names, too: trl-miner train arithmetic/miner. A copied recipe brings the configuration of
accelerate that it names, and the scripts and README of its folder. Nothing is overwritten. In the
folder recipes, a copy is taken before the shipped recipe of the same name.
"""

import argparse
from pathlib import Path
from typing import Any

from ..progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "recipes", __doc__, run).add_argument
    option(
        "names",
        nargs="*",
        metavar="NAME",
        help="list this folder, or print this file (default: list all)",
    )
    option(
        "--copy",
        nargs="*",
        metavar="NAME",
        help="recipes or folders to copy to recipes/ (default: all)",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from .. import recipe_files

    if args.copy is not None:
        written = recipe_files.copy_out(recipe_files.select(args.copy), Path(recipe_files.HOME))
        finish(written)
        return 0
    names = recipe_files.select(args.names)
    print(recipe_files.shown(names[0]) if len(names) == 1 else recipe_files.listing(names))
    if not args.names:
        finish(
            [],
            [
                f"trl-miner {command} arithmetic/quick"
                for command in ("train", "doctor", "recipes --copy")
            ],
        )
    return 0
