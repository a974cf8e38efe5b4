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
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.progress import track
from ..data.base_model import find_model
from ..data.benchmarks import read_problems
from ..data.prompts import PromptForm, build_prompt, guess_style, load_form, token_ids
from .backends import VLLM, Server, Transformers
from .seeded import sample_seed

# Options that decide on the samples, beside the model's weights and the form of the prompts.
OPTIONS = "model revision adapter dtype max_model_len temperature top_p max_tokens seed".split()
Samples = dict[tuple[str, int], dict[str, Any]]  # by problem and number


def evaluate(args: Namespace) -> None:
    """Draw the samples that the folder `args.output` lacks.

    Args:
        args: The options of `trl-miner eval`.

    Raises:
        ValueError: There is no such model or benchmark, or a file has samples of another kind.
        ConnectionError: The server does not answer.
    """
    from transformers import AutoTokenizer

    sources = [read_problems(entry, args.data) for entry in dict.fromkeys(args.benchmarks)]
    name = find_model(args.model)
    tokenizer = AutoTokenizer.from_pretrained(name, revision=args.revision)
    form = choose_form(args, tokenizer)
    server = Server(args) if args.base_url else None
    common = {option: getattr(args, option) for option in OPTIONS} | {
        "weights": server.model if server else [*map(identity, (name, args.adapter))],
        "prompt_form": asdict(form),
    }

    @cache
    def load() -> VLLM | Transformers:
        found = Namespace(**vars(args), base=name)
        is_vllm = args.backend == "vllm" or (args.backend == "auto" and find_spec("vllm"))
        if base := is_vllm and _base_of(name, args.revision):
            found.base, found.adapter, found.revision = find_model(base), name, None
        return VLLM(found) if is_vllm else Transformers(found, tokenizer)

    for benchmark, problems, source in sources:
        digest = hashlib.sha256(repr(problems).encode()).hexdigest()[:16]
        settings = common | {
            "title": benchmark.title, "grader": benchmark.grader, "problems": len(problems),
            "fingerprint": digest, "source": source,
            "decimal_comma": bool(args.data and args.data.decimal_comma),
        }  # fmt: skip
        with open_samples(Path(args.output, f"{benchmark.name}.jsonl"), settings) as (file, known):
            keys = [
                (place, number)
                for place, problem in enumerate(problems)
                for number in range(args.samples or benchmark.samples)
                if (problem.id, number) not in known
            ]
            if not keys:
                continue
            backend, prompts = server or load(), []
            for one in problems:
                built = build_prompt(
                    benchmark.kind, one.question, one.options, one.context, form=form
                )
                prompts.append(token_ids(built, tokenizer, form.template_kwargs))
            limit = args.max_tokens
            if backend.context is not None:
                limit = min(limit, backend.context - max(map(len, prompts)))
            if limit < args.max_tokens:
                print(f"{benchmark.name}: --max-tokens is {limit}, as the model holds"
                      f" {backend.context} tokens with the prompt.", file=sys.stderr)  # fmt: skip
            sampled = backend.sample(
                [prompts[place] for place, _ in keys],
                [sample_seed(args.seed, problems[place].id, number) for place, number in keys],
                limit,
            )
            for index, completion in track(sampled, benchmark.name, total=len(keys)):
                problem, number = problems[keys[index][0]], keys[index][1]
                row = {"problem": problem.id, "sample": number, **completion._asdict()}
                row |= {key: getattr(problem, key) for key in ("solution", "options", "level")}
                file.write(json.dumps(row) + "\n")


@contextmanager
def open_samples(path: Path, settings: dict[str, Any]) -> Iterator[tuple[Any, Samples]]:
    """Open a file of samples to append to, for one process, and yield it with what it has.

    Raises:
        ValueError: Its samples were drawn otherwise, or another process draws some.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"Another process samples into {path}. Wait for it.") from error
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
    none.

    Raises:
        ValueError: It is no file of samples.
    """
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    samples: Samples = {}
    for line in lines:
        with suppress(ValueError):
            row = json.loads(line)
            samples[row["problem"], row["sample"]] = row
    return json.loads(first), samples


def choose_form(args: Namespace, tokenizer: Any) -> PromptForm:
    """Return the form of prompt to ask a model in: as the options say, else as it was trained, else
    as its name suggests, and say if it is not that of the training."""
    names = filter(None, (args.adapter, args.model))
    trained = next(filter(None, map(load_form, names)), None)
    given = {"style": args.style, "system": args.system_prompt, "template": args.prompt_template}
    form = replace(
        trained or PromptForm(guess_style(args.model, tokenizer)),
        **{name: value for name, value in given.items() if value is not None},
    )
    if form != trained:
        known = f"was trained with {trained}" if trained else "does not say how it was trained"
        print(f"{args.model} {known}. It is asked with {form}.", file=sys.stderr)
    return form


def _base_of(name: str, revision: str | None) -> str | None:
    """Return the base model of an adapter; None: it is none."""
    from transformers.utils.peft_utils import find_adapter_config_file

    path = find_adapter_config_file(name, revision=revision)
    return path and json.loads(Path(path).read_text())["base_model_name_or_path"]


def identity(name: str | None) -> list[Any]:
    """Return what tells models of one name apart: a commit of the Hub, or the sizes and times of a
    folder's weights, which another training step changes."""
    if name is None or not Path(name).is_dir():
        from huggingface_hub import try_to_load_from_cache

        path = name and try_to_load_from_cache(name, "config.json")
        return [Path(path).parent.name] if isinstance(path, str) else []
    stats = {path.name: path.stat() for path in sorted(Path(name).glob("*.safetensors"))}
    return [[file, stat.st_size, stat.st_mtime] for file, stat in stats.items()]
