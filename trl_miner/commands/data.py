"""`trl-miner data`: the paper's training sets, from the Hub or from local files."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..progress import Progress, finish
from . import evaluate, set_run


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "data", help="build the paper's training sets: trl-miner data deepscaler --tokenizer ID"
    )
    sets = parser.add_subparsers(dest="dataset", required=True, metavar="SET")
    deepscaler = sets.add_parser(
        "deepscaler",
        help="DeepScaleR, 40,000 mathematical problems",
        description="Write DeepScaleR as prompts and golds: Parquet, and a card with counts and hashes.",
    )
    _add_options(deepscaler, "data/deepscaler", run_deepscaler)
    medical = sets.add_parser(
        "medical",
        help="MedQA, and the MedMCQA questions that a model gets wrong",
        description="Write MedQA, and MedMCQA without the questions that --filter-model answers correctly by greedy "
        "decoding (the paper used Llama-3.1-8B-Instruct): Parquet, and a card with counts and hashes.",
        epilog="The same command again resumes the filtering, whose answers are kept in OUTPUT-filter.",
    )
    _add_options(medical, "data/medical", run_medical)
    evaluate.add_model(medical, prefix="filter-")


def _add_options(parser: argparse.ArgumentParser, output: str, run: Callable[..., int]) -> None:
    option = parser.add_argument
    option("--tokenizer", required=True, metavar="ID", help="tokenizer of the model to train: Hub id or folder")
    option(
        "--prompt-style", choices=("auto", "plain", "chat"), default="auto",
        help="plain text for base models, messages for others (default: guessed from the tokenizer)",
    )  # fmt: skip
    option("--max-prompt-tokens", type=int, default=1000, metavar="N", help="drop longer prompts (default: 1000)")
    option(
        "--local", nargs="+", default=[], metavar="NAME=PATH",
        help="read local files instead of the Hub: deepscaler, medqa_train or medmcqa_train",
    )  # fmt: skip
    option("--output", default=output, metavar="FOLDER", help=f"default: {output}")
    set_run(parser, run)


def run_deepscaler(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from ..data.training_set import build_deepscaler

    local = evaluate.local_files(args.local)
    written = build_deepscaler(args.output, _options(args), local.get("deepscaler"))
    return _report(written, args.tokenizer, "math_reward")


def run_medical(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from ..data.training_set import build_medical
        from ..evaluation.evaluate import options_of, sample_filter

    local, options = evaluate.local_files(args.local), _options(args)
    answers = Path(args.output.rstrip("/") + "-filter")  # not inside: `load_dataset(output)` would find it
    sample_filter(options_of(args), answers, local.get("medmcqa_train"))
    sources = {f"{name}_source": local.get(f"{name}_train") for name in ("medqa", "medmcqa")}
    written = build_medical(args.output, options, samples_folder=answers, **sources)
    return _report(written, args.tokenizer, "choice_reward")


def _options(args: argparse.Namespace) -> Any:
    from transformers import AutoTokenizer

    from ..data.prompt_form import style_of
    from ..data.training_set import Options

    style = args.prompt_style
    if style == "auto":
        style = style_of(args.tokenizer, AutoTokenizer.from_pretrained(args.tokenizer))
    return Options(args.tokenizer, style, args.max_prompt_tokens)


def _report(written: Any, model: str, reward: str) -> int:
    from ..data.training_set import CARD, TRAIN

    print(f"{written.rows} problems in {written.folder}.")
    for reason, count in written.dropped.items():
        print(f"  dropped {count}: {reason}")
    train = ["trl-miner", "train", "--model_name_or_path", model, "--dataset_name", str(written.folder)]
    train += ["--reward_funcs", reward, "--output_dir", f"runs/{written.folder.name}"]
    finish([written.folder / name for name in (TRAIN, CARD)], shlex.join(train))
    return 0
