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
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.progress import track
from ..data.base_model import find_model
from ..data.benchmarks import read_problems
from ..data.prompts import PromptForm, build_prompt, guess_style, load_form, token_ids
from .backends import by_server, by_transformers, by_vllm
from .sampling import sample_seed

# Options that decide on the samples, beside the model's weights and the form of the prompts.
OPTIONS = "model revision adapter base_url served_model dtype max_model_len seed".split()
SAMPLING = "temperature top_p max_tokens".split()
Samples = dict[tuple[str, int], dict[str, Any]]  # by problem and number


def evaluate(args: Namespace) -> None:
    """Draw the samples that the folder `args.output` lacks.

    Args:
        args: The options of `trl-miner eval`.

    Raises:
        ValueError: There is no such benchmark, or a file has samples of another kind.
        OSError: There is no such model, or the server does not answer.
    """
    form, todo = load_model(args), []
    weights = sorted(Path(args.adapter or args.found).glob("*.safetensors"))
    for entry in args.benchmarks:
        benchmark, problems, source = read_problems(entry, args.data)
        path = Path(args.output, f"{benchmark.name}.jsonl")
        settings = {name: getattr(args, name) for name in OPTIONS + SAMPLING} | {
            # another training step changes them
            "weights": [file.stat().st_mtime for file in weights],
            "prompt_form": asdict(form), "decimal_comma": args.data.decimal_comma,
            "title": benchmark.title, "grader": benchmark.grader, "source": source,
            "num_problems": len(problems),
            "problems": hashlib.sha256(repr(problems).encode()).hexdigest(),
        }  # fmt: skip
        known = find_samples(path, settings)
        for one in problems:
            prompt = build_prompt(benchmark.grader, one.question, one.options, form=form)
            ids = token_ids(prompt, args.tokenizer, form.template_kwargs)
            numbers = range(args.samples or benchmark.samples)
            todo += [(path, one, n, ids) for n in numbers if (one.id, n) not in known]
    prompts = [ids for *_, ids in todo]
    seeds = [sample_seed(args.seed, one.id, number) for _, one, number, _ in todo]
    sampled = args.sample(args, prompts, seeds) if todo else ()
    tracked = track(sampled, "sampling", total=len(todo))
    for (path, one, number, _), (text, is_cut) in zip(todo, tracked, strict=True):
        row = {
            "problem": one.id,
            "sample": number,
            "text": text,
            "truncated": is_cut,
            **asdict(one),
        }
        with path.open("a") as file:  # a kill may have cut the last line: this one begins anew
            file.write(f"\n{json.dumps(row)}")


def load_model(args: Namespace) -> PromptForm:
    """Find the model that the options name, and add to them its place, its tokenizer, and what
    samples. Return the form in which it is asked: as the options say, else as it was trained, else
    as its name suggests; and say it where the model was not trained in it."""
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a line for each loading of weights
    args.found = find_model(args.model)
    args.sampling = {name: getattr(args, name) for name in SAMPLING}
    args.tokenizer = AutoTokenizer.from_pretrained(args.found, revision=args.revision)
    args.tokenizer.pad_token = args.tokenizer.pad_token or args.tokenizer.eos_token
    is_vllm = args.backend == "vllm" or (args.backend == "auto" and find_spec("vllm"))
    args.sample = by_server if args.base_url else by_vllm if is_vllm else by_transformers
    trained = load_form(args.adapter or args.model)
    form = trained or PromptForm(guess_style(args.model, args.tokenizer))
    form = PromptForm(
        args.style or form.style,
        args.system_prompt or form.system,
        args.prompt_template or form.template,
        form.template_kwargs,
    )
    if form != trained:
        print(f"{args.model} is asked with {form}, trained with {trained}.", file=sys.stderr)
    return form


def find_samples(path: Path, settings: dict[str, Any]) -> Samples:
    """Return the samples of a file; where there is none, it gets its first line.

    Raises:
        ValueError: They were drawn otherwise.
    """
    text = json.dumps(settings, default=str)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before, known = read_samples(path)
    for name, value in json.loads(text).items():
        if before[name] != value:
            raise ValueError(
                f"{path} has samples with another {name}: {before[name]}, and this is {value}. Give"
                " the same, or another --output."
            )
    return known


def read_samples(path: Path) -> tuple[dict[str, Any], Samples]:
    """Return how the samples of a file are drawn, and the samples. A line that a kill has cut is
    none."""
    first, *lines = path.read_text().splitlines()
    samples: Samples = {}
    for line in lines:
        with suppress(ValueError):
            row = json.loads(line)
            samples[row["problem"], row["sample"]] = row
    return json.loads(first), samples
