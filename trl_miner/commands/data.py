"""Show what a training would learn from your data, and build the paper's training sets."""

import argparse
from pathlib import Path
from typing import Any

from ..common.network import not_loaded
from ..common.progress import Progress, finish
from . import add_command, evaluate

DEEPSCALER = "Write DeepScaleR, 40,000 mathematical problems, as prompts and reference answers."
MEDICAL = """\
Write MedQA, and the MedMCQA questions that a model gets wrong, as prompts and reference answers.

--filter-model answers MedMCQA by greedy decoding (the paper used Llama-3.1-8B-Instruct). Its
answers are kept in OUTPUT-filter: if you run the same command again, it resumes there.
"""


SHOW = """\
Show what `trl-miner train DATA --model MODEL` would train, and train nothing.

You see which columns it takes and why, prompts with their tokens, reference answers as the verifier
reads them, and rewards. All options of `trl-miner train` are accepted. The exit code is 1 if the
training would refuse the data.
"""


def add(commands: Any) -> None:
    parser = commands.add_parser("data", description=__doc__)
    sets = parser.add_subparsers(dest="dataset", required=True, metavar="SET")
    shown = add_command(sets, "show", SHOW, show, passes_on=True)
    shown.add_argument("data", metavar="DATA", help="A file, a folder, or a data set on the Hub.")
    for name, text in (("deepscaler", DEEPSCALER), ("medical", MEDICAL)):
        one = add_command(sets, name, text, run)
        _add_options(one, f"data/{name}")
        if name == "medical":
            evaluate.add_model(one, prefix="filter-")


def _add_options(parser: argparse.ArgumentParser, output: str) -> None:
    option = parser.add_argument
    option(
        "--tokenizer",
        required=True,
        metavar="ID",
        help="Tokenizer of the model to train: a Hub id or a folder.",
    )
    option(
        "--prompt-style",
        choices=("auto", "plain", "chat"),
        default="auto",
        help="Form of the prompts; auto guesses it from the tokenizer.",
    )
    option(
        "--max-prompt-tokens",
        type=int,
        default=1000,
        metavar="N",
        help="Drop longer prompts (default: 1000).",
    )
    option(
        "--local", nargs="+", type=_named_path, default=[], metavar="NAME=PATH",
        help="Read local files instead of the Hub: deepscaler, medqa_train or medmcqa_train.",
    )  # fmt: skip
    option(
        "--output", default=output, metavar="FOLDER", help=f"Where to write (default: {output})."
    )


def show(args: argparse.Namespace, rest: list[str]) -> int:
    """Print the preview of a data set. `rest` are options of the training."""
    with Progress(f"looking at {args.data}", unit="", leave=False):
        from ..data_recipe.making import explained, look_at, plan_recipe

        planned = plan_recipe(args.data, rest)
        shown = look_at(planned.recipe)
    print(f"{explained(planned.recipe, planned.reasons)}\n{shown}")
    for text in shown.warnings:
        print(f"Warning: {text}")
    for text in shown.refusals:
        print(f"Refused: {text}")
    return int(bool(shown.refusals))


def run(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from transformers import AutoTokenizer

        from ..data import training_set
        from ..data.prompt_form import style_of
        from ..evaluation.evaluate import options_of, sample_filter

    local = dict(args.local)
    style = args.prompt_style
    if style == "auto":
        try:
            style = style_of(args.tokenizer, AutoTokenizer.from_pretrained(args.tokenizer))
        except (OSError, ValueError) as error:
            raise ValueError(not_loaded("tokenizer", args.tokenizer, error)) from error
    options = training_set.Options(args.tokenizer, style, args.max_prompt_tokens)
    if args.dataset == "deepscaler":
        return _report(
            training_set.build_deepscaler(args.output, options, local.get("deepscaler")), args
        )
    # not inside: `load_dataset(output)` would find it
    answers = Path(args.output.rstrip("/") + "-filter")
    sample_filter(options_of(args), answers, local.get("medmcqa_train"))
    sources = {f"{name}_source": local.get(f"{name}_train") for name in ("medqa", "medmcqa")}
    return _report(
        training_set.build_medical(args.output, options, samples_folder=answers, **sources), args
    )


def _named_path(entry: str) -> tuple[str, str]:
    name, _, path = entry.partition("=")
    if not (name and path):
        raise argparse.ArgumentTypeError(f"{entry} is not NAME=PATH")
    return name, path


def _report(counts: dict[str, int], args: argparse.Namespace) -> int:
    from ..data.training_set import CARD, TRAIN

    for name, count in counts.items():
        print(f"{name}: {count}")
    finish([Path(args.output) / name for name in (TRAIN, CARD)])
    return 0
