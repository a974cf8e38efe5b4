"""`trl-miner eval`: sample answers to benchmarks, and score them."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..progress import Progress
from ..runs.training_record import read_tools
from . import positive, score, set_run


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="measure Pass@1, Pass@K and Maj@K on benchmarks: trl-miner eval --model out --benchmarks aime24",
        description="Sample answers to benchmarks with vLLM, a running server or transformers, and score them.\n"
        "The defaults are the paper's: temperature 0.7, top_p 0.95, 8192 tokens, its number of samples.",
        epilog="The same command again resumes an interrupted evaluation. More --samples draw only the new ones, and\n"
        "more --max-tokens draw again only the samples that were cut off.",
    )
    add_model(parser)
    option = parser.add_argument_group("problems").add_argument
    option(
        "--benchmarks", nargs="*", default=[], metavar="NAME",
        help="aime24 aime25 amc23 hmmt25 gsm8k math500 olympiadbench medqa medmcqa pubmedqa medxpertqa mmlu_pro "
        "arithmetic strategies forks forks_mirror reasoning_gym/FAMILY, or NAME=PATH: your own JSONL, Parquet or CSV, "
        "or a known one from a file; NAME:200 and NAME=PATH:200 for the first 200 problems",
    )  # fmt: skip
    option(
        "--skip-bad-golds", action="store_true",
        help="warn about gold answers that the verifier rejects, instead of stopping",
    )  # fmt: skip
    _add_sampling(parser)
    parser.add_argument("--output", metavar="FOLDER", help="default: evals/MODEL")
    score.add_options(parser)
    set_run(parser, run)


def add_model(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the options that choose a model and its backend. `prefix` goes before those of the model."""
    option = parser.add_argument_group("model").add_argument
    option(
        f"--{prefix}model", dest="model", required=True, metavar="ID",
        help="Hub id, a folder, or an embedded world such as trl_miner/arithmetic; a LoRA adapter too",
    )  # fmt: skip
    option(f"--{prefix}revision", dest="revision", metavar="NAME", help="branch, tag or commit on the Hub")
    option(f"--{prefix}adapter", dest="adapter", metavar="ID", help="a LoRA adapter on top of the model")
    option(
        f"--{prefix}style", dest="style", choices=("auto", "plain", "chat"), default="auto",
        help="plain text, or the chat template (default: as it was trained, else guessed from name and template)",
    )  # fmt: skip
    option(
        f"--{prefix}system-prompt", dest="system_prompt", metavar="TEXT",
        help="instead of the training's, or of the benchmark's instruction; '' for the latter",
    )  # fmt: skip
    option(
        f"--{prefix}prompt-template", dest="prompt_template", metavar="TEXT",
        help="a template with {question} in it, instead of the training's or the benchmark's; '' for the latter",
    )  # fmt: skip
    option(
        f"--{prefix}chat-template-kwargs", dest="chat_template_kwargs", metavar="JSON", type=json_object,
        help='what the chat template gets instead of what it got in the training: \'{"enable_thinking": false}\'',
    )  # fmt: skip
    group = parser.add_argument_group("backend")
    one_of, option = group.add_mutually_exclusive_group().add_argument, group.add_argument
    one_of(
        "--backend", choices=("auto", "vllm", "transformers"), default="auto",
        help="default: vllm if it is installed, else transformers",
    )  # fmt: skip
    one_of("--base-url", metavar="URL", help="ask a server with OpenAI's API instead: http://localhost:8000/v1")
    option("--served-model", metavar="NAME", help="the server's name for the model (default: its only one)")
    option(
        "--api-key-env", metavar="NAME",
        help="variable with a key to send to the server, such as OPENAI_API_KEY (default: none is sent)",
    )  # fmt: skip
    option(
        "--concurrency", type=positive, default=64, metavar="N", help="requests in flight to a server (default: 64)"
    )
    option(
        "--batch-size", type=positive, default=32, metavar="N",
        help="completions at a time, for transformers (default: 32)",
    )  # fmt: skip
    option("--dtype", default="auto", help="type of the weights (default: as stored)")
    option("--tensor-parallel-size", type=positive, metavar="N", help="GPUs that share the model, for vllm")
    option("--gpu-memory-utilization", type=float, metavar="X", help="share of the GPU's memory, for vllm")
    option("--max-model-len", type=positive, metavar="N", help="limit of prompt and completion, in tokens, for vllm")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("sampling").add_argument
    option("--samples", type=positive, metavar="N", help="samples of each problem (default: as in the paper)")
    option("--temperature", type=float, default=0.7, metavar="T", help="0: greedy (default: 0.7)")
    option("--top-p", type=float, default=0.95, metavar="P", help="default: 0.95")
    option(
        "--max-tokens", type=int, default=8192, metavar="N", help="limit of a completion, in tokens (default: 8192)"
    )
    option("--seed", type=int, default=0, help="default: 0")


def json_object(text: str) -> dict[str, Any]:
    """Return an object in JSON, for argparse."""
    return dict(json.loads(text))


def local_files(entries: list[str]) -> dict[str, str]:
    """Parse NAME=PATH entries into a mapping."""
    pairs = [entry.partition("=") for entry in entries]
    for name, equals, path in pairs:
        if not (name and path):
            raise ValueError(f"--local must be NAME=PATH: got {name}{equals}{path}. Example: aime24=aime24.jsonl.")
    return {name: path for name, _, path in pairs}


def run(args: argparse.Namespace, rest: list[str]) -> int:
    with Progress("starting", unit="", leave=False):  # importing transformers takes seconds
        from ..evaluation.evaluate import evaluate, load_problem_sets, options_of
        from ..evaluation.generate import Sampling

    if tools := read_tools(Path(args.model)):
        print(
            f"{args.model} was trained with tools ({tools}), and this command calls none. Its README.md has its "
            "scores with them.",
            file=sys.stderr,
        )
    sampling = Sampling(args.temperature, args.top_p, args.max_tokens, args.seed)
    problem_sets = load_problem_sets(args.benchmarks, args.samples, strict=not args.skip_bad_golds)
    output = Path(args.output or Path("evals") / args.model.strip("/.").replace("/", "--"))
    evaluate(output, options_of(args), problem_sets, sampling)
    return score.score_and_print([output], args)
