"""Ask a trained model questions, with the prompt that it was trained with.

trl-miner try runs/sums "What is 3 + 4?" asks once. Without a question the command reads one from
each line of the standard input, until its end (Ctrl-D). The model answers each question by itself.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from ..common.progress import Progress, is_quiet
from . import add_command, positive


def add(commands: Any) -> None:
    option = add_command(commands, "try", __doc__, run, passes_on=True).add_argument
    option("model", metavar="FOLDER", help="A run folder, a checkpoint, or a model on the Hub.")
    option("questions", nargs="*", metavar="QUESTION", help="Questions (default: lines of stdin).")
    option(
        "--samples",
        type=positive,
        default=1,
        metavar="N",
        help="Completions per question (default: 1).",
    )
    option(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="Temperature; 0 takes the most probable token (default: 0.7).",
    )
    option(
        "--max-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="Limit of a completion, in tokens (default: 512).",
    )


def run(args: argparse.Namespace, rest: list[str]) -> int:
    """Ask. `rest` are the questions behind options, which argparse passes over."""
    if unknown := [word for word in rest if word.startswith("-")]:
        raise ValueError(f"Unknown option {unknown[0]}. See trl-miner try --help.")
    questions = [*args.questions, *rest]
    # takes seconds, because it imports transformers
    with Progress("loading the model", unit="", leave=False):
        from ..evaluation.asking import Asked
        from ..evaluation.generate import Sampling

        sampling = Sampling(args.temperature, 1.0, args.max_tokens)
        model = Asked(args.model)
    for question in questions or _lines():
        for answer in model.answers(question, args.samples, sampling):
            cut = f" [cut off at {args.max_tokens} tokens]" * answer.truncated
            print(f"{answer.text.strip()}{cut}", flush=True)
    return 0


def _lines() -> Iterator[str]:
    """Yield the questions of the standard input, after a sign that one is awaited."""
    is_asked = sys.stdin.isatty() and not is_quiet()
    while True:
        if is_asked:
            print("? ", end="", flush=True, file=sys.stderr)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
