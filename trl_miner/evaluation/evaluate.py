"""Sample completions of benchmarks, a file for each: what `trl-miner eval` does before it scores.

    {"model": "Qwen/Qwen3-4B", "temperature": 0.7, ...}     how the samples of the file are drawn
    {"problem": "aime24-3", "sample": 0, "text": "...", ...}          a line for each as it is done

Called again, it draws what is missing: samples that a kill took, and more of them per problem.
"""

import hashlib
import json
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.progress import track
from ..data.base_model import find_model
from ..data.benchmarks import read_problems
from ..data.prompts import PromptForm, build_prompt, choose_form, token_ids
from .backends import by_server, by_transformers, by_vllm
from .sampling import sample_seed

SAMPLING = "temperature top_p max_tokens".split()
# Options that decide on the samples, beside the model's weights and the form of the prompts.
OPTIONS = "model revision base_url served_model dtype max_model_len seed".split() + SAMPLING


def evaluate(args: Namespace) -> None:
    """Draw the samples that the folder `args.output` lacks.

    Args:
        args: The options of `trl-miner eval`.

    Raises:
        ValueError: There is no such benchmark, or a file has samples of another kind.
        OSError: There is no such model, or the server does not answer.
    """
    form, todo = load_model(args), []
    data = replace(args.data, prompt_style=form.style)
    # another training step changes the weights
    changed = [file.stat().st_mtime for file in sorted(Path(args.found).glob("*.safetensors"))]
    drawn = {name: getattr(args, name) for name in OPTIONS} | {"weights": changed}
    Path(args.output).mkdir(parents=True, exist_ok=True)
    for entry in args.benchmarks:
        benchmark, problems = read_problems(entry, data)
        path = Path(args.output, f"{benchmark.name}.jsonl")
        settings = drawn | {
            "prompt_form": asdict(form), "decimal_comma": data.decimal_comma,
            "title": benchmark.title, "grader": benchmark.grader, "num_problems": len(problems),
            "problems": hashlib.sha256(repr(problems).encode()).hexdigest(),
        }  # fmt: skip
        if not path.exists():
            path.write_text(json.dumps(settings))
        before, known = read_samples(path)
        if before != settings:
            raise ValueError(
                f"{path} has samples of other problems, weights or options, which its first line"
                " tells. Choose another --output."
            )
        for one in problems:
            prompt = build_prompt(benchmark.grader, one.question, one.options, form=form)
            ids = token_ids(prompt, args.tokenizer, form.template_kwargs)
            for number in range(args.samples or benchmark.samples):
                if (one.id, number) not in known:
                    row = {"problem": one.id, "sample": number, **asdict(one)}
                    todo.append((path, row, ids, sample_seed(args.seed, one.id, number)))
    asked = [ids for *_, ids, _ in todo], [seed for *_, seed in todo]
    sampled = args.sample(args, *asked) if todo else ()
    sampled = track(sampled, "sampling", total=len(todo))
    for (path, row, *_), (text, is_cut) in zip(todo, sampled, strict=True):
        with path.open("a") as file:  # a kill may have cut the last line: this one begins anew
            file.write(f"\n{json.dumps(row | {'text': text, 'truncated': is_cut})}")


def load_model(args: Namespace) -> PromptForm:
    """Find the model that the options name, and add to them its place, its tokenizer, and what
    samples. Return and show the form in which it is asked."""
    from transformers import AutoTokenizer
    from transformers.utils import find_adapter_config_file

    args.found = find_model(args.model)
    tokenizer = args.tokenizer = AutoTokenizer.from_pretrained(args.found, revision=args.revision)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    args.sampling = {name: getattr(args, name) for name in SAMPLING}
    # an adapter runs in transformers
    runs_in_vllm = find_spec("vllm") and not find_adapter_config_file(
        args.found, revision=args.revision
    )
    is_vllm = args.backend == "vllm" or (args.backend == "auto" and runs_in_vllm)
    args.sample = by_server if args.base_url else by_vllm if is_vllm else by_transformers
    form = choose_form(args.data, args.model, tokenizer)
    print(f"{args.model} is asked in the style {form.style}.", file=sys.stderr)
    return form


def read_samples(path: Path) -> tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]:
    """Return how the samples of a file are drawn, and the samples by problem and number. A line
    that a kill has cut is none."""
    first, *lines = path.read_text().splitlines()
    samples = {}
    for line in lines:
        with suppress(ValueError):
            row = json.loads(line)
            samples[row["problem"], row["sample"]] = row
    return json.loads(first), samples
