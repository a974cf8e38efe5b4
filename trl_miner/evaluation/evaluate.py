"""Sample completions of benchmarks, a file for each: what `trl-miner eval` does before it scores.

    {"model": "Qwen/Qwen3-4B", "temperature": 0.7, ...}     how the samples of the file are drawn
    {"problem": "aime24-3", "sample": 0, "text": "...", ...}          a line for each as it is done

Called again, it draws what is missing: samples that a kill took, and more of them per problem.
"""

import fcntl
import hashlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.progress import track
from ..data.base_model import find_model
from ..data.benchmarks import read_problems
from ..data.prompts import PromptForm, build_prompt, guess_style, load_form, token_ids
from .backends import by_server, by_transformers, by_vllm
from .seeded import sample_seed

# Options that decide on the samples, beside the model's weights and the form of the prompts.
OPTIONS = """model revision adapter base_url served_model dtype max_model_len temperature top_p
    max_tokens seed""".split()
Samples = dict[tuple[str, int], dict[str, Any]]  # by problem and number


def evaluate(args: Namespace) -> None:
    """Draw the samples that the folder `args.output` lacks.

    Args:
        args: The options of `trl-miner eval`.

    Raises:
        ValueError: There is no such benchmark, or a file has samples of another kind.
        OSError: There is no such model, or the server does not answer.
    """
    load_model(args)
    weights = [*Path(args.base).glob("*.safetensors"), *Path(args.adapter or "").glob("adapter_*")]
    common = {name: getattr(args, name) for name in OPTIONS} | {
        # another training step changes them
        "weights": {path.name: path.stat().st_mtime for path in sorted(weights)},
        "prompt_form": asdict(args.form),
        "decimal_comma": args.data.decimal_comma,
    }
    keys, prompts = [], []
    with ExitStack() as stack:
        for entry in dict.fromkeys(args.benchmarks):
            benchmark, problems, source = read_problems(entry, args.data)
            settings = common | {
                "title": benchmark.title, "grader": benchmark.grader, "source": source,
                "num_problems": len(problems),
                "problems": hashlib.sha256(repr(problems).encode()).hexdigest(),
            }  # fmt: skip
            opened = open_samples(Path(args.output, f"{benchmark.name}.jsonl"), settings)
            file, known = stack.enter_context(opened)
            for one in problems:
                prompt = build_prompt(
                    benchmark.kind, one.question, one.options, one.context, form=args.form
                )
                ids = token_ids(prompt, args.tokenizer, args.form.template_kwargs)
                for number in range(args.samples or benchmark.samples):
                    if (one.id, number) not in known:
                        keys.append((file, one, number))
                        prompts.append(ids)
        seeds = [sample_seed(args.seed, one.id, number) for _, one, number in keys]
        sampled = args.sample(args, prompts, seeds) if keys else ()
        for place, completion in track(sampled, "sampling", total=len(keys)):
            file, one, number = keys[place]
            row = {"problem": one.id, "sample": number, **asdict(one), **completion}
            file.write(json.dumps(row) + "\n")


def load_model(args: Namespace) -> None:
    """Find the model that the options name, and add to them its tokenizer, the form in which it is
    asked, its base where it is an adapter, and what samples: as the options say, else as it was
    trained, else as its name suggests. Say the form where the model was not trained in it."""
    from transformers import AutoTokenizer
    from transformers.utils import find_adapter_config_file
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a line for each loading of weights
    args.base = find_model(args.model)
    args.tokenizer = AutoTokenizer.from_pretrained(args.base, revision=args.revision)
    args.tokenizer.pad_token = args.tokenizer.pad_token or args.tokenizer.eos_token
    trained = load_form(args.adapter or args.model)
    given = {"style": args.style, "system": args.system_prompt, "template": args.prompt_template}
    args.form = replace(
        trained or PromptForm(guess_style(args.model, args.tokenizer)),
        **{name: value for name, value in given.items() if value is not None},
    )
    if args.form != trained:
        print(f"{args.model} is asked with {args.form}, trained with {trained}.", file=sys.stderr)
    if config := find_adapter_config_file(args.base, revision=args.revision):
        args.adapter = args.base
        args.base = json.loads(Path(config).read_text())["base_model_name_or_path"]
    is_vllm = args.backend == "vllm" or (args.backend == "auto" and find_spec("vllm"))
    args.sample = by_server if args.base_url else by_vllm if is_vllm else by_transformers


@contextmanager
def open_samples(path: Path, settings: dict[str, Any]) -> Iterator[tuple[Any, Samples]]:
    """Open a file of samples to append to, for one process, and yield it with what it has.

    Raises:
        ValueError: Its samples were drawn otherwise.
        OSError: Another process draws some.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", buffering=1) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        text = json.dumps(settings, default=str)
        # a kill may have cut the last line
        file.write("\n" if path.stat().st_size else f"{text}\n")
        before, known = read_samples(path)
        for name, value in json.loads(text).items():
            if before.get(name) != value:
                raise ValueError(
                    f"{path} has samples of another kind: {name} was {before.get(name)!r}, and is"
                    f" {value!r}. Give the same, or another --output."
                )
        yield file, known


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
