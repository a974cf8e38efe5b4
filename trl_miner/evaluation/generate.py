"""Sample answers to benchmarks into a folder: the first half of `trl-miner eval`. `score.py` is the
second.

Called again, it draws what is missing: samples that a kill took, and more samples per problem.
"""

import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.progress import Progress
from ..data.problems import Benchmark, Problem, fingerprint
from ..data.prompts import PromptForm, build_prompt, token_ids
from ..runs import eval_folder
from ..runs.eval_folder import Key, SampleWriter
from ..runs.locks import lock_folder
from .backends import Backend, Completion, Request


@dataclass(frozen=True)
class Sampling:
    """How to sample; the defaults are the paper's."""

    temperature: float = 0.7  # 0: greedy
    top_p: float = 0.95
    max_tokens: int = 8192  # of a completion
    seed: int = 0  # a sample's own seed is a hash of it, the problem's id and the sample's number

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and 0 < self.top_p <= 1 and self.max_tokens >= 1):
            raise ValueError(
                "--temperature must be at least 0, --top-p above 0 and at most 1, --max-tokens at"
                f" least 1: got {self.temperature}, {self.top_p} and {self.max_tokens}."
            )


@dataclass(frozen=True)
class ProblemSet:
    """The problems of a benchmark that are sampled."""

    benchmark: Benchmark
    problems: Sequence[Problem]
    samples: int  # per problem
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as `read_rows` returns it

    def about(self) -> dict[str, Any]:
        """Return the content of `benchmark.json`."""
        return {
            **{name: getattr(self.benchmark, name) for name in ("name", "title", "grader")},
            **({"decimal_comma": True} if self.benchmark.decimal_comma else {}),
            "samples": self.samples,
            "fingerprint": fingerprint(self.problems),
            "source": dict(self.source),
        }


def prompt_ids(
    tokenizer: Any, form: PromptForm, benchmark: Benchmark, problem: Problem
) -> tuple[int, ...]:
    """Return the tokens of a problem's prompt."""
    prompt = build_prompt(
        benchmark.kind, problem.question, problem.options, problem.context, form=form
    )
    return tuple(token_ids(prompt, tokenizer, form.template_kwargs))


def sample_seed(seed: int, problem: str, sample: int) -> int:
    """Return the seed of a sample: 31 bits, because some servers take no more."""
    digest = hashlib.blake2b(json.dumps([seed, problem, sample]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33


def generate(
    output: str | Path,
    problem_sets: Sequence[ProblemSet],
    load_backend: Callable[[], Backend],
    prompt_ids: Callable[[Benchmark, Problem], tuple[int, ...]],
    sampling: Sampling,
    settings: Mapping[str, Any],
) -> int:
    """Draw the samples that a folder lacks, and return their number. The model is loaded only if
    there are any.

    `prompt_ids` returns the tokens of a prompt. `settings` holds what else decides on the samples:
    the model's name, revision and fingerprint, the form of the prompts, the backend. All but
    "versions" must be the same when the folder is continued.
    """
    output = Path(output)
    with lock_folder(output):
        eval_folder.write_settings(output, {**settings, **dataclasses.asdict(sampling)})
        for problem_set in problem_sets:
            problems = map(dataclasses.asdict, problem_set.problems)
            eval_folder.write_benchmark(
                output / problem_set.benchmark.name, problem_set.about(), problems
            )
        todo = []
        for problem_set in problem_sets:
            writer = SampleWriter(output / problem_set.benchmark.name / eval_folder.SAMPLES)
            for repair in writer.repairs:
                print(repair, file=sys.stderr)
            numbers = range(problem_set.samples)
            keys = [(problem.id, number) for problem in problem_set.problems for number in numbers]
            todo.append((problem_set, writer, [key for key in keys if key not in writer]))
        count = sum(len(keys) for _, _, keys in todo)
        total = sum(len(problem_set.problems) * problem_set.samples for problem_set in problem_sets)
        backend = load_backend() if count else None
        with Progress(
            "sampling", total, unit="samples", initial=total - count, quiet=not count
        ) as progress:
            for problem_set, writer, keys in todo:
                if backend is not None and keys:
                    ids = {
                        problem.id: prompt_ids(problem_set.benchmark, problem)
                        for problem in problem_set.problems
                    }
                    requests = _requests(
                        problem_set.benchmark.name, ids, keys, sampling, backend.context
                    )
                    _sample(backend, writer, requests, sampling, progress)
                writer.finish([problem.id for problem in problem_set.problems])
    return count


def _requests(
    name: str,
    ids: Mapping[str, tuple[int, ...]],
    keys: Sequence[Key],
    sampling: Sampling,
    context: int | None,
) -> list[Request]:
    """Return the requests; their budgets fit into the model's context, and are 0 where a prompt
    leaves no room."""
    limit = sampling.max_tokens
    budgets = {
        id_: limit if context is None else min(limit, max(0, context - len(own)))
        for id_, own in ids.items()
    }
    if short := sum(budgets[problem] < limit for problem, _ in keys):
        print(
            f"{name}: {short} of {len(keys)} samples have less room than --max-tokens {limit}: the"
            f" model holds {context} tokens with the prompt.",
            file=sys.stderr,
        )
    return [
        Request(key, sample_seed(sampling.seed, *key), ids[key[0]], budgets[key[0]]) for key in keys
    ]


def _sample(
    backend: Backend,
    writer: SampleWriter,
    requests: list[Request],
    sampling: Sampling,
    progress: Progress,
) -> None:
    without_room = [Completion(request, "", 0, True) for request in requests if request.budget < 1]
    with_room = [request for request in requests if request.budget >= 1]
    sampled = backend.sample(with_room, sampling.temperature, sampling.top_p)
    for completion in itertools.chain(without_room, sampled):
        problem, number = completion.request.key
        writer.append(
            {
                "problem": problem,
                "sample": number,
                "seed": completion.request.seed,
                "text": completion.text,
                "tokens": completion.tokens,
                "truncated": completion.truncated,
            }
        )
        progress.update()
