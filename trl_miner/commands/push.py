"""Publish a run on the Hub: its weights with tokenizer, card, picture and scores.

Of a run that was killed, its newest whole checkpoint is pushed; of a LoRA run, the adapter alone.
Optimizer states, pickles and logs are never pushed. The token is HF_TOKEN, or that of
`hf auth login`.
"""

import argparse
from pathlib import Path

NAME = "push"
HELP = "Publish a run on the Hub, with its card and scores."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="RUN", help="The output_dir of a run, or a checkpoint."
    )
    parser.add_argument(
        "--repo-id", required=True, metavar="USER/NAME", help="Created where it is missing."
    )
    parser.add_argument("--private", action="store_true", help="Make a new repository private.")
    parser.add_argument("--revision", metavar="BRANCH", help="Branch to push to (default: main).")
    parser.add_argument(
        "--evaluation",
        type=Path,
        metavar="FOLDER",
        help="Scores for the card: the --output of trl-miner eval of this model.",
    )


def run(args: argparse.Namespace, words: list[str]) -> int:
    from ..common.progress import finish
    from ..hub.push import push

    page = push(
        args.folder, args.repo_id, private=args.private, revision=args.revision,
        evaluation=args.evaluation,
    )  # fmt: skip
    finish([page])
    return 0
