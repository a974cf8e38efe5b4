"""Ask before you train: does a method push success up or down on the problems that matter to you?

A method for all-right prompts helps if the rarer correct completions are the better ones, and harms
if they are the worse ones. This command says which it is for your model and your problems: it
samples training prompts of the recipe and target problems, and measures the gradients of both. It
makes no training step. All settings of `trl-miner train` are accepted.

  trl-miner probe arithmetic/quick --target hard.jsonl
"""

import argparse

NAME = "probe"
HELP = "Does a method push success up or down on target problems?"
TAKES_SETTINGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `trl-miner probe`."""
    add = parser.add_argument
    add("--target", help="A benchmark, or a file like the recipe's (default: what it holds out).")
    add("--methods", nargs="+", default=[], help="Besides the recipe's (default: miner).")
    add("--prompts", type=int, default=48, help="Training prompts (default: 48).")
    add("--problems", type=int, default=48, help="Target problems (default: 48).")
    add("--samples", type=int, default=16, help="Completions of each (default: 16).")


def run(args: argparse.Namespace, words: list[str]) -> int:
    """Probe and print."""
    from ..probe import probe
    from ..recipe.reading import read

    print(
        probe(
            read(words), target=args.target, methods=args.methods, prompts=args.prompts,
            problems=args.problems, samples=args.samples,
        )
    )  # fmt: skip
    return 0
