"""`trl-miner recipes`: list or print the recipes that come with the package, or copy them out."""

import argparse
from pathlib import Path
from typing import Any

from ..progress import finish
from . import set_run


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "recipes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="list the recipes that come with the package; copy them out: trl-miner recipes --copy arithmetic/miner",
        description="List the recipes, accelerate's configurations and the Slurm script that come with the package,\n"
        "or print one. train, doctor, launch and compare take these names, too: trl-miner train arithmetic/miner",
        epilog="A copied recipe brings the configuration of accelerate that it names, and the scripts and README of\n"
        "its folder. Nothing is overwritten. In the folder recipes, a copy is taken before the shipped recipe of the\n"
        "same name.",
    )
    option = parser.add_argument
    option(
        "names", nargs="*", default=[], metavar="NAME", help="list this folder, or print this file (default: list all)"
    )
    option("--copy", nargs="+", metavar="NAME", help="recipes or folders to copy, such as arithmetic/miner")
    option("--to", default="recipes", metavar="FOLDER", help="where to copy to (default: recipes)")
    set_run(parser, run)


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from .. import recipe_files

    if args.copy is None:
        names = recipe_files.select(args.names)
        print(recipe_files.shown(names[0]) if len(names) == 1 else recipe_files.listing(names))
        example = next((name for name in names if recipe_files.is_recipe(name)), None)
        if not args.names:
            example = next(iter(recipe_files.STARTERS))
        do = ("doctor", "launch", "recipes --copy") if args.names else ("train", "doctor", "recipes --copy")
        finish([], [f"trl-miner {command} {example}" for command in do] if example else [])
        return 0
    if args.names:
        raise ValueError(f"Names to copy follow --copy: got {args.names[0]} before it. A folder is given with --to.")
    written = recipe_files.copy_out(recipe_files.select(args.copy), Path(args.to))
    recipe = next((path for path in written if recipe_files.is_recipe(path)), None)
    finish(written, f"trl-miner doctor {recipe}" if recipe else ())
    return 0
