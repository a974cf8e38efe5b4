"""Measure Pass@1, Pass@K and Maj@K on benchmarks.

The model runs in vLLM, on a running server, or in transformers. The defaults are the paper's:
temperature 0.7, top_p 0.95, 8192 tokens, and its number of completions. If you run the same command
again, it resumes an interrupted evaluation; with more --samples it generates only the new ones.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..common.progress import Progress
from ..data.settings import DATA_SETTINGS
from ..runs.training_record import read_run_record
from . import add_command, positive, score


def add(commands: Any) -> None:
    parser = add_command(commands, "eval", __doc__, run)
    add_model(parser)
    option = parser.add_argument_group("problems").add_argument
    option(
        "--benchmarks", nargs="*", default=[], metavar="NAME",
        help="Benchmarks: aime24 aime25 amc23 hmmt25 gsm8k math500 olympiadbench medqa medmcqa pubmedqa medxpertqa "
        "mmlu_pro arithmetic strategies forks forks_mirror reasoning_gym/FAMILY, or NAME=PATH for a JSONL, Parquet or "
        "CSV file: your own, or a known benchmark. NAME:200 and NAME=PATH:200 take the first 200 problems.",
    )  # fmt: skip
    group = parser.add_argument_group("what a file of your own holds (by default, this is guessed)")
    for name, about in DATA_SETTINGS.items():
        options: dict[str, Any] = {"help": about.replace("%", "%%")}
        if name.endswith("_columns"):
            options |= {"nargs": "+", "metavar": "COLUMN"}
        elif name == "decimal_comma":
            options |= {"action": "store_true", "default": None}
        else:
            options |= {"type": int if name == "first_option" else str, "metavar": "X"}
        group.add_argument(f"--{name}", **options)
    option = parser.add_argument_group("sampling").add_argument
    option(
        "--samples",
        type=positive,
        metavar="N",
        help="Completions per problem (default: as in the paper).",
    )
    option(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="Temperature; 0 is greedy (default: 0.7).",
    )
    option("--top-p", type=float, default=0.95, metavar="P", help="Nucleus (default: 0.95).")
    option(
        "--max-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="Limit of a completion, in tokens (default: 8192).",
    )
    option("--seed", type=int, default=0, help="Seed of the sampling (default: 0).")
    parser.add_argument("--output", metavar="FOLDER", help="Where to write (default: evals/MODEL).")
    score.add_options(parser)


def add_model(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the options that choose a model and its backend. `prefix` goes before those of the
    model."""
    group = parser.add_argument_group("model")

    def of_model(name: str, **options: Any) -> None:
        group.add_argument(f"--{prefix}{name}", dest=name.replace("-", "_"), **options)

    of_model(
        "model", required=True, metavar="ID",
        help="A Hub id, a folder (also of a LoRA adapter), or an embedded world such as trl_miner/arithmetic.",
    )  # fmt: skip
    of_model("revision", metavar="NAME", help="Branch, tag or commit on the Hub.")
    of_model("adapter", metavar="ID", help="A LoRA adapter on top of the model.")
    of_model(
        "style", choices=("auto", "plain", "chat"), default="auto",
        help="Prompts as plain text or with the chat template (default: as the model was trained, else guessed).",
    )  # fmt: skip
    of_model(
        "system-prompt",
        metavar="TEXT",
        help="System prompt in place of the training's; '' takes the benchmark's instruction.",
    )
    of_model(
        "prompt-template",
        metavar="TEXT",
        help="Template with {question} in it, in place of the training's; '' is none.",
    )
    of_model(
        "chat-template-kwargs", metavar="JSON", type=_json_object,
        help='What the chat template gets in place of the training\'s: \'{"enable_thinking": false}\'.',
    )  # fmt: skip
    group = parser.add_argument_group("backend")
    one_of, option = group.add_mutually_exclusive_group().add_argument, group.add_argument
    one_of(
        "--backend", choices=("auto", "vllm", "transformers"), default="auto",
        help="What runs the model (default: vllm if it is installed, else transformers).",
    )  # fmt: skip
    one_of(
        "--base-url",
        metavar="URL",
        help="Ask a server with OpenAI's API instead, such as http://localhost:8000/v1.",
    )
    option(
        "--served-model",
        metavar="NAME",
        help="The server's name for the model (default: its only one).",
    )
    option(
        "--api-key-env",
        metavar="NAME",
        help="Variable that holds the server's key, such as OPENAI_API_KEY (default: no key is sent).",
    )
    option(
        "--batch-size",
        type=positive,
        default=32,
        metavar="N",
        help="Completions that transformers generates at a time (default: 32).",
    )
    option("--dtype", default="auto", help="Type of the weights (default: as stored).")
    option(
        "--tensor-parallel-size",
        type=positive,
        metavar="N",
        help="GPUs that share the model, for vllm.",
    )
    option(
        "--gpu-memory-utilization",
        type=float,
        metavar="X",
        help="Share of the GPU's memory, for vllm.",
    )
    option(
        "--max-model-len",
        type=positive,
        metavar="N",
        help="Limit of prompt and completion together, in tokens, for vllm.",
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        advice = "Example: '{\"enable_thinking\": false}'."
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object. {advice}") from error


def run(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):  # importing transformers takes seconds
        from ..evaluation.evaluate import evaluate, load_problem_sets, options_of
        from ..evaluation.generate import Sampling

    tools = (read_run_record(Path(args.model)).get("settings") or {}).get("tool functions", "none")
    if tools != "none":
        print(
            f"{args.model} was trained with tools ({tools}), and this command calls none. Its"
            " README.md has its scores with them.",
            file=sys.stderr,
        )
    sampling = Sampling(args.temperature, args.top_p, args.max_tokens, args.seed)
    given = {name: getattr(args, name) for name in DATA_SETTINGS}
    given = {name: value for name, value in given.items() if value is not None}
    problem_sets = load_problem_sets(args.benchmarks, args.samples, given)
    output = Path(args.output or Path("evals") / args.model.strip("/.").replace("/", "--"))
    evaluate(output, options_of(args), problem_sets, sampling)
    return score.score_and_print([output], args)
