"""Build the paper's training sets: Parquet, and a card with counts and hashes."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..importing import did_you_mean
from ..progress import Progress, finish
from . import add_command, evaluate

DEEPSCALER = "Write DeepScaleR, 40,000 mathematical problems, as prompts and golds."
MEDICAL = """\
Write MedQA, and the MedMCQA questions that a model gets wrong, as prompts and golds.

--filter-model answers MedMCQA by greedy decoding (the paper used Llama-3.1-8B-Instruct). The same
command again resumes that: its answers are kept in OUTPUT-filter.
"""


def add(commands: Any) -> None:
    parser = commands.add_parser("data", help=__doc__ and __doc__.rstrip("."), description=__doc__)
    sets = parser.add_subparsers(dest="dataset", required=True, metavar="SET")
    for name, text in (("deepscaler", DEEPSCALER), ("medical", MEDICAL)):
        one = add_command(sets, name, text, run)
        _add_options(one, f"data/{name}")
        if name == "medical":
            evaluate.add_model(one, prefix="filter-")


def _add_options(parser: argparse.ArgumentParser, output: str) -> None:
    option = parser.add_argument
    option("--tokenizer", required=True, metavar="ID", help="tokenizer of the model to train: Hub id or folder")
    option(
        "--prompt-style", choices=("auto", "plain", "chat"), default="auto", help="auto: guessed from the tokenizer"
    )
    option("--max-prompt-tokens", type=int, default=1000, metavar="N", help="drop longer prompts (default: 1000)")
    option(
        "--local", nargs="+", default=[], metavar="NAME=PATH",
        help="read local files instead of the Hub: deepscaler, medqa_train, medmcqa_train, or a benchmark's name",
    )  # fmt: skip
    option(
        "--check-against", nargs="*", metavar="NAME",
        help="benchmarks to compare every question with (default: all of its field); without a name: no check",
    )  # fmt: skip
    option("--decontaminate", action="store_true", help="remove questions that overlap with a benchmark")
    option("--output", default=output, metavar="FOLDER", help=f"default: {output}")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from transformers import AutoTokenizer

        from ..data import training_set
        from ..data.benchmarks import BENCHMARKS, load
        from ..data.prompt_form import style_of
        from ..evaluation.evaluate import ModelOptions, sample_filter

    is_medical = args.dataset == "medical"
    local = evaluate.local_files(args.local)
    names = args.check_against
    if names is None:
        names = training_set.MEDICAL_BENCHMARKS if is_medical else training_set.MATH_BENCHMARKS
    if unknown := [name for name in names if name not in BENCHMARKS]:
        hint = did_you_mean(unknown[0], BENCHMARKS)
        raise ValueError(f"--check-against must name benchmarks: got {unknown[0]!r}.{hint}")
    benchmarks = {name: load(BENCHMARKS[name], local.get(name), strict=False) for name in names}
    style = args.prompt_style
    if style == "auto":
        style = style_of(args.tokenizer, AutoTokenizer.from_pretrained(args.tokenizer))
    options = training_set.Options(args.tokenizer, style, args.max_prompt_tokens, args.decontaminate)
    if not is_medical:
        source = local.get("deepscaler")
        written = training_set.build_deepscaler(args.output, options, benchmarks=benchmarks, source=source)
        return _report(written, args.tokenizer, "math_reward")
    answers = Path(args.output.rstrip("/") + "-filter")  # not inside: `load_dataset(output)` would find it
    # --tokenizer belongs to the model to train, not to the one that filters
    model = ModelOptions.from_arguments(argparse.Namespace(**{**vars(args), "tokenizer": None}))
    sample_filter(model, answers, local.get("medmcqa_train"))
    sources = {f"{name}_source": local.get(f"{name}_train") for name in ("medqa", "medmcqa")}
    written = training_set.build_medical(
        args.output, options, samples_folder=answers, benchmarks=benchmarks, **sources
    )
    return _report(written, args.tokenizer, "choice_reward")


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
