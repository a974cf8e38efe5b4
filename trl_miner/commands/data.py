"""`trl-miner data`: the paper's training sets, from the Hub or from local files."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..importing import did_you_mean
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
        help="read local files instead of the Hub: deepscaler, medqa_train, medmcqa_train, or a benchmark's name",
    )  # fmt: skip
    option(
        "--check-against", nargs="*", metavar="NAME",
        help="benchmarks to compare every question with (default: all of its field); without a name: no check",
    )  # fmt: skip
    option(
        "--decontaminate", action="store_true",
        help="remove questions that overlap with a benchmark instead of only reporting them",
    )  # fmt: skip
    option("--output", default=output, metavar="FOLDER", help=f"default: {output}")
    set_run(parser, run)


def run_deepscaler(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from ..data.training_set import MATH_BENCHMARKS, build_deepscaler

    local = evaluate.local_files(args.local)
    benchmarks = _benchmarks(args, local, MATH_BENCHMARKS)
    written = build_deepscaler(args.output, _options(args), benchmarks=benchmarks, source=local.get("deepscaler"))
    return _report(written, args.tokenizer, "math_reward")


def run_medical(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from ..data.training_set import MEDICAL_BENCHMARKS, build_medical
        from ..evaluation.evaluate import options_of, sample_filter

    local = evaluate.local_files(args.local)
    options = _options(args)
    benchmarks = _benchmarks(args, local, MEDICAL_BENCHMARKS)
    answers = Path(args.output.rstrip("/") + "-filter")  # not inside: `load_dataset(output)` would find it
    sample_filter(options_of(args), answers, local.get("medmcqa_train"))
    written = build_medical(
        args.output, options, samples_folder=answers, benchmarks=benchmarks, medqa_source=local.get("medqa_train"),
        medmcqa_source=local.get("medmcqa_train"),
    )  # fmt: skip
    return _report(written, args.tokenizer, "choice_reward")


def _options(args: argparse.Namespace) -> Any:
    from transformers import AutoTokenizer

    from ..data.prompt_form import style_of
    from ..data.training_set import Options

    style = args.prompt_style
    if style == "auto":
        style = style_of(args.tokenizer, AutoTokenizer.from_pretrained(args.tokenizer))
    return Options(args.tokenizer, style, args.max_prompt_tokens, args.decontaminate)


def _benchmarks(args: argparse.Namespace, local: dict[str, str], field: tuple[str, ...]) -> dict[str, Any]:
    """Return the benchmark problems that the training set is compared with."""
    from ..data.benchmarks import BENCHMARKS, load

    names = field if args.check_against is None else args.check_against
    if unknown := [name for name in names if name not in BENCHMARKS]:
        hint = did_you_mean(unknown[0], BENCHMARKS)
        raise ValueError(
            f"--check-against must name benchmarks: got {unknown[0]!r}.{hint} Known: {', '.join(BENCHMARKS)}."
        )
    return {name: load(BENCHMARKS[name], local.get(name), strict=False) for name in names}


def _report(written: Any, model: str, reward: str) -> int:
    from ..data.training_set import CARD, CONTAMINATION, TRAIN

    print(f"{written.rows} problems in {written.folder}.")
    for reason, count in written.dropped.items():
        print(f"  dropped {count}: {reason}")
    print(f"  {len(written.overlaps)} overlaps with benchmarks; see contamination.jsonl")
    train = ["trl-miner", "train", "--model_name_or_path", model, "--dataset_name", str(written.folder)]
    train += ["--reward_funcs", reward, "--output_dir", f"runs/{written.folder.name}"]
    finish([written.folder / name for name in (TRAIN, CARD, CONTAMINATION)], shlex.join(train))
    return 0
