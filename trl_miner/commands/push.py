"""Publish a run on the Hub: its model with tokenizer, card, picture and scores.

For a run that was killed, the newest complete checkpoint is pushed. For a LoRA run, only the adapter
is pushed. Optimizer states, pickles and log files are never pushed. The token is HF_TOKEN, or the
one of `hf auth login`.
"""

import argparse
from pathlib import Path
from typing import Any

from ..common.progress import finish
from . import add_command


def add(commands: Any) -> None:
    option = add_command(commands, "push", __doc__, run).add_argument
    option("folder", metavar="RUN", help="The output_dir of a run, or one of its checkpoints.")
    option(
        "--repo-id",
        required=True,
        metavar="USER/NAME",
        help="Repository; it is created if it is missing.",
    )
    option("--private", action="store_true", help="Make a new repository private.")
    option(
        "--revision",
        metavar="BRANCH",
        help="Branch to push to; it is created if it is missing (default: main).",
    )
    option(
        "--evaluation",
        metavar="FOLDER",
        help="Scores for the card: the --output of trl-miner eval of this model.",
    )
    option(
        "--dry-run",
        metavar="FOLDER",
        help="Write what would be pushed into FOLDER, and send nothing.",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    from ..hub.folder import adapter_warning
    from ..hub.upload import check_repo_id, push_model, write_folder
    from ..runs.eval_folder import read_scores
    from ..runs.models import find_model

    check_repo_id(args.repo_id)
    benchmarks = read_scores(Path(args.evaluation)) if args.evaluation else None
    model = find_model(Path(args.folder))
    if model.weights != Path(args.folder):
        print(
            f"Warning: {args.folder} holds no finished model; this is its newest checkpoint,"
            f" {model.weights.name}."
        )
    if args.evaluation:
        _warn_of_other(model.weights, Path(args.evaluation))
    if warning := adapter_warning(model.weights):
        print(warning)
    if args.dry_run is not None:
        write_folder(model, Path(args.dry_run), args.repo_id, benchmarks)
        print(f"{args.dry_run} has what would be pushed. Without --dry-run it is sent.")
        return 0
    private = True if args.private else None
    page = push_model(
        model, args.repo_id, private=private, revision=args.revision, benchmarks=benchmarks
    )
    print(f"Pushed to {args.repo_id}.")
    finish([page])
    return 0


def _warn_of_other(weights: Path, scores: Path) -> None:
    """Warn where scores are of a folder with other files. Of a model on the Hub they have a commit,
    40 digits, of a server neither."""
    from ..evaluation.evaluate import identity
    from ..runs.eval_folder import SETTINGS, read_settings

    known = read_settings(scores) if (scores / SETTINGS).is_file() else {}
    fingerprint = known.get("fingerprint") or {}
    scored = fingerprint.get("adapter") or fingerprint.get("model") or ""
    if len(scored) == 64 and scored != identity(str(weights), None):
        print(
            f"Warning: the scores in {scores} are of {known.get('model')}, when it had other files"
            f" than {weights}. Look whether they are of the model that you push."
        )
