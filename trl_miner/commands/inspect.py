"""Show prompts, their completions, and the credit of each token, as one HTML page.

The darker a token, the more credit it got: blue above zero, orange below. A training records tokens
if its recipe says log_token_credit: 10. Of a run of TRL's own GRPOTrainer with log_completions=True
each completion is as dark as its advantage. The page opens from disk and loads nothing else.
"""

import argparse
import shlex

NAME = "inspect"
HELP = "Show the credit of each token as one page."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="The output_dir of a run.")
    parser.add_argument(
        "--output", metavar="FILE", help="File of the page (default: RUN/inspect.html)."
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        type=int,
        metavar="STEP",
        help="Recorded steps to show (default: all).",
    )


def run(args: argparse.Namespace, words: list[str]) -> int:
    from ..common.progress import finish
    from ..report.inspect import write_page

    path = write_page(args.folder, args.output, steps=args.steps)
    finish([path], [shlex.join(["trl-miner", "report", args.folder])])
    return 0
