"""`trl-miner data`: the paper's training sets, from the Hub or from local files, and parts of a run's own."""

import argparse
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.by_ledger import KEEP
from ..importing import did_you_mean
from ..progress import Progress, finish
from . import evaluate, set_run, without_option

_OF_THE_SOURCE = ("dataset_config", "dataset_revision", "task_config", "tasks", "datasets")  # settings


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
    deepscaler.add_argument("--revision", metavar="NAME", help="revision on the Hub (default: main)")
    medical = sets.add_parser(
        "medical",
        help="MedQA, and the MedMCQA questions that a model gets wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write MedQA (5 options) and MedMCQA, without the MedMCQA questions that --filter-model answers\n"
        "correctly with greedy decoding (the paper used Llama-3.1-8B-Instruct), as Parquet, and a card with counts\n"
        "and hashes.",
        epilog="The same command again resumes the filtering, whose answers are kept in OUTPUT-filter.",
    )
    _add_options(medical, "data/medical", run_medical)
    medical.add_argument("--medqa-revision", metavar="NAME", help="revision on the Hub (default: main)")
    medical.add_argument("--medmcqa-revision", metavar="NAME", help="revision on the Hub (default: main)")
    evaluate.add_model(medical, prefix="filter-")
    _add_select(sets)


def _add_select(sets: Any) -> None:
    parser = sets.add_parser(
        "select",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="the prompts of a run's training set that it has not solved, or that came out mixed",
        description="Write those rows of a training set whose prompts came out as you ask in a run, when it last\n"
        "generated for them: unsolved (all rollouts wrong), mixed (some right), solved (all right), or unseen (not\n"
        "generated for, or never judged). The rows keep their columns; the test split comes along as it is.",
        epilog="Other options are those of trl-miner train, and go before what the recipe says.",
    )
    option = parser.add_argument
    option("--ledger", required=True, metavar="RUN", help="output_dir of the run, which has a prompt_ledger.jsonl")
    option("--keep", required=True, nargs="+", choices=KEEP, help="one or several: %(choices)s")
    option("--config", required=True, metavar="RECIPE", help="recipe of that run, which says what its training set is")
    option("--output", metavar="FOLDER", help="a new folder (default: data/RUN-KEPT, such as data/miner-unsolved)")
    set_run(parser, run_select)


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
        help="benchmarks to compare every question with (default: all of its field); none: no check",
    )  # fmt: skip
    option(
        "--decontaminate", action="store_true",
        help="remove questions that overlap with a benchmark instead of only reporting them",
    )  # fmt: skip
    option("--output", default=output, metavar="FOLDER", help=f"default: {output}")
    set_run(parser, run)


def run_deepscaler(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from ..data.deepscaler import MATH_BENCHMARKS, build_deepscaler

    local = evaluate.local_files(args.local)
    benchmarks = _benchmarks(args, local, MATH_BENCHMARKS)
    written = build_deepscaler(
        args.output, _options(args), benchmarks=benchmarks, source=local.get("deepscaler"), revision=args.revision
    )
    return _report(written, args.tokenizer, "math_reward")


def run_medical(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from ..data.medical import MEDICAL_BENCHMARKS, build_medical
        from ..evaluation.evaluate import ModelOptions, sample_filter

    local = evaluate.local_files(args.local)
    options = _options(args)
    benchmarks = _benchmarks(args, local, MEDICAL_BENCHMARKS)
    answers = Path(args.output.rstrip("/") + "-filter")  # not inside: `load_dataset(output)` would find it
    # --tokenizer belongs to the model to train, not to the one that filters
    model = ModelOptions.from_arguments(argparse.Namespace(**{**vars(args), "tokenizer": None}))
    sample_filter(model, answers, local.get("medmcqa_train"), args.medmcqa_revision)
    written = build_medical(
        args.output, options, samples_folder=answers, benchmarks=benchmarks, medqa_source=local.get("medqa_train"),
        medqa_revision=args.medqa_revision, medmcqa_source=local.get("medmcqa_train"),
        medmcqa_revision=args.medmcqa_revision,
    )  # fmt: skip
    return _report(written, args.tokenizer, "choice_reward")


def run_select(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):
        from trl import DatasetMixtureConfig, ModelConfig

        from ..data.by_ledger import rows_to_keep, say_counts
        from ..data.reasoning_gym import is_task
        from ..recipe import MinerScriptArguments, as_parsed, prompt_form, read_recipe
        from ..training_data import arrange_data, read_data

    output = Path(args.output or f"data/{Path(args.ledger).resolve().name}-{'-'.join(args.keep)}")
    if output.exists():
        raise ValueError(f"--output must be a new folder: {output} is there. Give another one, or delete it.")
    settings = vars(read_recipe(args.config, rest))
    # not the trainer's settings, which ask for the recipe's machine
    kinds = (MinerScriptArguments, ModelConfig, DatasetMixtureConfig)
    script, model_args, mixture = (as_parsed(kind, settings) for kind in kinds)
    if script.dataset_streaming:
        raise ValueError("trl-miner data select needs all rows at hand: got dataset_streaming: true. Leave it out.")
    form = prompt_form(script, model_args, trusts=bool(settings.get("trust_remote_code")))
    data = read_data(script, mixture, form)
    train, test = script.dataset_train_split, script.dataset_test_split
    if train not in data:
        raise ValueError(f"dataset_train_split must be one of {', '.join(data)}: got {train!r}. Correct it.")
    places, counts = rows_to_keep(arrange_data(data, script, mixture, form)[train], args.ledger, args.keep)
    splits = {train: data[train].select(places)}
    _write_splits(output, splits | ({test: data[test]} if test in data and test != train else {}))
    print(f"{len(places):,} of {len(data[train]):,} rows in {output}. All: {say_counts(counts)}.")
    # a data set of tasks has another default than one of rows
    own_rewards = [] if script.reward_funcs or not is_task(script.dataset_name) else ["--reward_funcs", "task_reward"]
    own = [name for name in _OF_THE_SOURCE if getattr(mixture if name == "datasets" else script, name)]
    if own:
        print(f"Leave out of the recipe that trains on them: {', '.join(own)}.")
    finish([output], shlex.join(_train_command(args, [*rest, *own_rewards], output)))
    return 0


def _write_splits(folder: Path, splits: dict[str, Any]) -> None:
    """Write a folder as the Hub has them, in which `datasets` finds the splits by name; whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.building-", dir=folder.parent) as building:
        part = Path(building, "data")
        for split, rows in splits.items():
            part.mkdir(exist_ok=True)
            rows.to_parquet(part / f"{split}-00000-of-00001.parquet")
        folder.mkdir()
        part.rename(folder / "data")


def _train_command(args: argparse.Namespace, rest: list[str], output: Path) -> list[str]:
    """Return the command that trains on what was written, as the run was trained."""
    if any(word.partition("=")[0] == "--dataset_name" for word in rest):
        rest = without_option(rest, "--dataset_name")
    return [
        "trl-miner",
        "train",
        "--config",
        args.config,
        *rest,
        "--dataset_name",
        str(output),
        "--output_dir",
        f"runs/{output.name}",
    ]


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
    if list(names) == ["none"]:
        return {}
    if unknown := [name for name in names if name not in BENCHMARKS]:
        hint = did_you_mean(unknown[0], BENCHMARKS)
        raise ValueError(
            f"--check-against must name benchmarks, or be none: got {unknown[0]!r}.{hint} Known: "
            f"{', '.join(BENCHMARKS)}."
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
