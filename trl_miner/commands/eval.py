"""Measure Pass@1, Pass@K and Maj@K on benchmarks, and compare models.

The model runs in vLLM, on a running server, or in transformers. The defaults are the paper's:
temperature 0.7, top_p 0.95, 8192 tokens, and its number of completions. The same command goes on
with an interrupted evaluation; with more --samples it draws only the new ones.

Without --model it scores folders that it has written, and compares the others with the first.
"""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..data.settings import DataArguments

NAME = "eval"
HELP = "Measure Pass@1, Pass@K and Maj@K on benchmarks, and compare models."
# What a file of one's own holds, and how a model is asked: the settings of a recipe.
SETTINGS = """prompt_style system_prompt prompt_template dataset_prompt_column
    dataset_solution_column dataset_options_column options_columns first_option answer_pattern
    decimal_comma dataset_test_split sheet""".split()
OTHER_THAN_TEXT: dict[str, Any] = {
    "options_columns": {"nargs": "+"},
    "first_option": {"type": int},
    "decimal_comma": {"action": "store_true"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `trl-miner eval`."""

    def option(name: str, help: str, default: Any = None, **more: Any) -> None:
        if isinstance(default, int | float):
            more = {"type": type(default), "metavar": "N"} | more
        shown = "" if default is None else f" (default: {default})"
        parser.add_argument(f"--{name}", default=default, help=f"{help}{shown}.", **more)

    add = parser.add_argument
    add("folders", nargs="*", metavar="FOLDER", help="Outputs of this command, to score again.")
    option("model", "A Hub id, a folder (an adapter's, too), or trl_miner/arithmetic")
    option("benchmarks", "NAME, NAME:200 for the first 200 problems, or NAME=PATH for a file",
           [], nargs="+")  # fmt: skip
    option("output", "Where samples and scores are kept (default: evals/MODEL)")
    option("samples", "Completions per problem (default: as in the paper)", type=int)
    option("temperature", "Temperature; 0 is greedy", 0.7)
    option("top-p", "Nucleus", 0.95)
    option("max-tokens", "Limit of a completion, in tokens", 8192)
    option("seed", "Seed of the sampling", 0)
    option("revision", "Branch, tag or commit of the model on the Hub")
    option("backend", "What runs the model (default: vllm if it is installed)", "auto",
           choices=("auto", "vllm", "transformers"))  # fmt: skip
    option("base-url", "A server with OpenAI's API, such as http://localhost:8000/v1")
    option("served-model", "The server's name for the model (default: its only one)")
    option("batch-size", "Completions that transformers generates at a time", 32)
    option("dtype", "Type of the weights (default: as stored)", "auto")
    option("tensor-parallel-size", "GPUs that share the model, for vLLM", 1)
    option("max-model-len", "Limit of prompt and completion, for vLLM", type=int)
    option("paper", "Show the paper's rows for a base model",
           choices=("Qwen3-4B-Base", "Qwen3-8B-Base", "Qwen3-14B-Base", "Llama3.1-8B-Instruct",
                    "OctoThinker-8B-Hybrid-Base"))  # fmt: skip
    for field in fields(DataArguments):
        if field.name in SETTINGS:
            help, more = field.metadata["help"], OTHER_THAN_TEXT.get(field.name, {})
            add(f"--{field.name}", default=field.default, help=help, **more)


def run(args: argparse.Namespace, words: list[str]) -> int:
    """Sample what is missing, score, and print."""
    from ..common.progress import finish
    from ..evaluation.evaluate import evaluate
    from ..evaluation.scores import FILE, score_folders

    if not args.folders and not (args.model and args.benchmarks):
        raise ValueError("Give --model and --benchmarks, or folders that were evaluated.")
    folders = [Path(folder) for folder in args.folders]
    if args.model:
        args.data = DataArguments(**{name: getattr(args, name) for name in SETTINGS})
        args.output = args.output or Path("evals", args.model.strip("/.").replace("/", "--"))
        evaluate(args)
        folders.append(Path(args.output))
    print(score_folders(folders, args.paper))
    finish([folder / FILE for folder in folders])
    return 0
