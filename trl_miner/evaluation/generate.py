"""Sample answers to benchmarks into a folder: the first half of `trl-miner eval`. `score.py` is the second.

Called again, it draws what is missing: samples that a kill took, more samples per problem, and, with a larger token
budget, those that were cut off.
"""

import dataclasses
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.problems import Benchmark, Problem, fingerprint
from ..data.prompts import PromptForm, build_prompt, prompt_text
from ..progress import Progress
from ..runs import eval_folder
from ..runs.eval_folder import Key, SampleWriter
from ..runs.locks import lock_folder
from .backends import Backend, Completion, Request

TEMPERATURE, TOP_P, MAX_TOKENS = 0.7, 0.95, 8192  # the paper's evaluation


@dataclass(frozen=True)
class Sampling:
    """How to sample; the defaults are the paper's."""

    temperature: float = TEMPERATURE  # 0: greedy
    top_p: float = TOP_P
    max_tokens: int = MAX_TOKENS  # of a completion
    seed: int = 0  # a sample's own seed is a hash of it, the problem's id and the sample's number

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0: got {self.temperature}. The paper's is {TEMPERATURE}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1: got {self.top_p}. The paper's is {TOP_P}.")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1: got {self.max_tokens}. The paper's is {MAX_TOKENS}.")


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
            "samples": self.samples,
            "fingerprint": fingerprint(self.problems),
            "source": dict(self.source),
        }


class PromptRenderer:
    """Turns problems into the prompts that the model sees, in a form."""

    def __init__(self, tokenizer: Any, form: PromptForm) -> None:
        self.tokenizer, self.form, self.template_kwargs = tokenizer, form, dict(form.template_kwargs)
        if form.style == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ValueError("--style chat needs a tokenizer with a chat template: this one has none. Use plain.")
        if form.style == "plain" and self.template_kwargs:
            raise ValueError(
                f"--chat-template-kwargs is for prompts in a chat template: got "
                f"{json.dumps(self.template_kwargs)} with the style plain. Leave it out, or set --style chat."
            )
        # Some tokenizers add a begin of sequence that their chat template does not write: in a chat, as in training,
        # only the template's word counts.
        self._adds_special = form.style == "plain" or self._begins_with(tokenizer.bos_token or "")
        self.is_text_enough = self._adds_special or not tokenizer("")["input_ids"]

    def _begins_with(self, begin: str) -> bool:
        text = self.tokenizer.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False)
        return str(text).startswith(begin)

    def settings(self) -> dict[str, Any]:
        """Return what `settings.json` says of the prompts."""
        own: dict[str, Any] = {"system_prompt": self.form.system, "prompt_template": self.form.template}
        own["chat_template_kwargs"] = self.template_kwargs or None
        return {"style": self.form.style, **{name: value for name, value in own.items() if value is not None}}

    def text(self, benchmark: Benchmark, problem: Problem) -> str:
        """Return the text of a prompt, without the begin-of-sequence token that the tokenizer adds by itself."""
        asked = problem.question, problem.options, problem.context
        prompt = build_prompt(benchmark.kind, *asked, form=self.form)
        return prompt_text(prompt, self.tokenizer, **self.template_kwargs)

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt's text, with the special tokens that the tokenizer adds to plain text."""
        return tuple(self.tokenizer(text, add_special_tokens=self._adds_special)["input_ids"])


def sample_seed(seed: int, problem: str, sample: int) -> int:
    """Return the seed of a sample: 31 bits, because some servers take no more."""
    digest = hashlib.blake2b(json.dumps([seed, problem, sample]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33


def generate(
    output: str | Path,
    problem_sets: Sequence[ProblemSet],
    load_backend: Callable[[], Backend],
    renderer: PromptRenderer,
    sampling: Sampling,
    settings: Mapping[str, Any],
    *,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> int:
    """Draw the samples that a folder lacks, and return their number. The model is loaded only if there are any.

    `settings` holds what else decides on the samples: the model's name, revision and fingerprint, the backend. All but
    "versions" must be the same when the folder is continued.
    """
    output = Path(output)
    with lock_folder(output):
        eval_folder.write_settings(output, {**settings, **dataclasses.asdict(sampling), **renderer.settings()})
        for problem_set in problem_sets:
            problems = map(dataclasses.asdict, problem_set.problems)
            eval_folder.write_benchmark(output / problem_set.benchmark.name, problem_set.about(), problems)
        todo = []
        for problem_set in problem_sets:
            writer = SampleWriter(output / problem_set.benchmark.name / eval_folder.SAMPLES)
            for repair in writer.repairs:
                warn(repair)
            todo.append((problem_set, writer, _missing(problem_set, writer, sampling.max_tokens)))
        count = sum(len(keys) for _, _, keys in todo)
        backend = _load(load_backend) if count else None
        total = sum(len(problem_set.problems) * problem_set.samples for problem_set in problem_sets)
        with Progress("sampling", total, unit="samples", initial=total - count, quiet=not count) as progress:
            for problem_set, writer, keys in todo:
                if backend is not None:
                    requests = _requests(problem_set, keys, renderer, sampling)
                    requests = _fit(requests, backend.context, problem_set.benchmark.name, sampling.max_tokens, warn)
                    _sample(backend, writer, requests, sampling, progress)
                writer.finish([problem.id for problem in problem_set.problems])
    return count


def _load(load_backend: Callable[[], Backend]) -> Backend:
    # on a terminal transformers, vLLM and huggingface_hub show what they load
    with Progress("loading the model", unit="", quiet=sys.stderr.isatty()):
        return load_backend()


def _missing(problem_set: ProblemSet, writer: SampleWriter, limit: int) -> list[Key]:
    """Return the samples to draw or, if they were cut off under a smaller budget, to draw again; in order."""
    keys = ((problem.id, number) for problem in problem_set.problems for number in range(problem_set.samples))
    return [key for key in keys if key not in writer or writer.is_short(key, limit)]


def _requests(
    problem_set: ProblemSet, keys: Sequence[Key], renderer: PromptRenderer, sampling: Sampling
) -> list[Request]:
    asked = {key[0] for key in keys}
    texts = {
        problem.id: renderer.text(problem_set.benchmark, problem)
        for problem in problem_set.problems
        if problem.id in asked
    }
    ids = {name: renderer.ids(text) for name, text in texts.items()}
    return [
        Request(
            (name, number),
            sample_seed(sampling.seed, name, number),
            texts[name],
            ids[name],
            sampling.max_tokens,
            renderer.is_text_enough,
        )
        for name, number in keys
    ]


def _fit(
    requests: list[Request], context: int | None, name: str, max_tokens: int, warn: Callable[[str], None]
) -> list[Request]:
    """Cut the budgets to the model's context; a request without any room gets a budget of 0."""
    if context is None:
        return requests
    fitting = [
        dataclasses.replace(request, budget=min(request.budget, max(0, context - len(request.ids))))
        for request in requests
    ]
    if short := sum(request.budget < max_tokens for request in fitting):
        warn(
            f"{name}: {short} of {len(requests)} samples have less room than --max-tokens {max_tokens}: the model "
            f"holds {context} tokens with the prompt."
        )
    return fitting


def _sample(
    backend: Backend, writer: SampleWriter, requests: list[Request], sampling: Sampling, progress: Progress
) -> None:
    tokens, begin = 0, time.monotonic()
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
                "limit": sampling.max_tokens,
            }
        )
        tokens += completion.tokens
        progress.note = f"{tokens / max(0.001, time.monotonic() - begin):.0f} tokens/s"
        progress.advance()
