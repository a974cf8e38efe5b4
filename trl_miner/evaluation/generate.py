"""`trl-miner eval`, the first half: sample answers to benchmarks into a folder. `score.py` is the second.

Called again, it draws what is missing: samples that a kill took, more samples per problem, and, with a larger token
budget, the rest of those that were cut off.
"""

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.problems import Benchmark, Problem, fingerprint
from ..data.prompts import Style, build_prompt, guess_style, prompt_text
from ..progress import Progress
from ..runs import eval_folder
from ..runs.samples import Key, SampleWriter
from .backends import Backend, Draw, Drawn

TEMPERATURE, TOP_P, MAX_TOKENS = 0.7, 0.95, 8192  # the paper's evaluation


@dataclass(frozen=True)
class Sampling:
    """How to sample; the defaults are the paper's.

    Attributes:
        temperature: 0 is greedy.
        top_p: Nucleus.
        max_tokens: Cutoff of a completion, in tokens.
        seed: Every sample's own seed is a hash of this, its problem's id and its number.
    """

    temperature: float = TEMPERATURE
    top_p: float = TOP_P
    max_tokens: int = MAX_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0: got {self.temperature}. The paper's is {TEMPERATURE}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1: got {self.top_p}. The paper's is {TOP_P}.")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1: got {self.max_tokens}. The paper's is {MAX_TOKENS}.")


@dataclass(frozen=True)
class Task:
    """A benchmark with its problems, and how many samples of each."""

    benchmark: Benchmark
    problems: Sequence[Problem]
    samples: int
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """Return the content of `benchmark.json`."""
        return {
            **{name: getattr(self.benchmark, name) for name in ("name", "title", "grader")},
            "samples": self.samples,
            "fingerprint": fingerprint(self.problems),
            "source": dict(self.source),
        }


class Prompts:
    """Problems as the model sees them.

    Args:
        tokenizer: The model's.
        style: "plain" or "chat"; "auto": guessed from the name of the model.
        model: That name.
    """

    def __init__(self, tokenizer: Any, style: str, model: str) -> None:
        self.tokenizer = tokenizer
        self.style: Style = guess_style(model, tokenizer) if style == "auto" else style  # type: ignore[assignment]
        if self.style == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ValueError("--style chat needs a tokenizer with a chat template: this one has none. Use plain.")

    def text(self, benchmark: Benchmark, problem: Problem) -> str:
        """The prompt's text, less the begin-of-sequence token that the tokenizer adds by itself."""
        prompt = build_prompt(benchmark.kind, problem.question, problem.options, problem.context, style=self.style)
        return prompt_text(prompt, self.tokenizer)

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a prompt's text, special tokens as the tokenizer adds them."""
        return tuple(self.tokenizer(text)["input_ids"])


def sample_seed(seed: int, problem: str, sample: int) -> int:
    """A sample's own seed, 31 bits: some servers take no more."""
    digest = hashlib.blake2b(json.dumps([seed, problem, sample]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33


def generate(
    output: str | Path,
    tasks: Sequence[Task],
    load_backend: Callable[[], Backend],
    prompts: Prompts,
    sampling: Sampling,
    settings: Mapping[str, Any],
    *,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> int:
    """Draw the samples that a folder lacks.

    Args:
        output: The folder.
        tasks: What to sample.
        load_backend: Loads the model; called only if there is something to do.
        prompts: Renders problems.
        sampling: How.
        settings: What else decides on the samples: the model's name, revision and fingerprint, the backend. All but
            "versions" must be the same when the folder is continued.
        say: Takes messages for the user.

    Returns:
        How many samples were drawn.

    Raises:
        ValueError: The folder holds samples that were drawn otherwise, or of other problems, or another process is
            sampling into it.
    """
    output = Path(output)
    with eval_folder.lock_eval(output):
        eval_folder.write_settings(output, {**settings, **dataclasses.asdict(sampling), "style": prompts.style})
        for task in tasks:
            problems = map(dataclasses.asdict, task.problems)
            eval_folder.write_benchmark(output / task.benchmark.name, task.about(), problems)
        todo = []
        for task in tasks:
            writer = SampleWriter(output / task.benchmark.name / eval_folder.SAMPLES)
            for repair in writer.repairs:
                say(repair)
            todo.append((task, writer, _missing(task, writer, sampling.max_tokens)))
        count = sum(len(keys) for _, _, keys in todo)
        backend = _load(load_backend) if count else None
        total = sum(len(task.problems) * task.samples for task in tasks)
        with Progress("sampling", total, unit="samples", initial=total - count, quiet=not count) as progress:
            for task, writer, keys in todo:
                if backend is not None:
                    draws = _draws(task, writer, keys, prompts, sampling)
                    _sample(backend, task, writer, draws, sampling, say, progress)
                writer.finish([problem.id for problem in task.problems])
    return count


def _load(load_backend: Callable[[], Backend]) -> Backend:
    # on a terminal transformers, vLLM and huggingface_hub show what they load
    with Progress("loading the model", unit="", quiet=sys.stderr.isatty()):
        return load_backend()


def _missing(task: Task, writer: SampleWriter, limit: int) -> list[Key]:
    """Samples that are not there, and those that were cut off under a smaller budget, in the order of the problems."""
    keys = ((problem.id, number) for problem in task.problems for number in range(task.samples))
    return [key for key in keys if key not in writer or writer.is_short(key, limit)]


def _draws(task: Task, writer: SampleWriter, keys: Sequence[Key], prompts: Prompts, sampling: Sampling) -> list[Draw]:
    problems = {problem.id: problem for problem in task.problems}
    rendered: dict[str, tuple[str, tuple[int, ...]]] = {}
    draws = []
    for key in keys:
        if key[0] not in rendered:
            text = prompts.text(task.benchmark, problems[key[0]])
            rendered[key[0]] = text, prompts.ids(text)
        text, ids = rendered[key[0]]
        offset, budget = 0, sampling.max_tokens
        if key in writer:
            done = writer.read(key)
            budget -= done["tokens"]
            # A server does not tell its tokens; the tokenizer may cut the text otherwise than the model wrote it.
            before = tuple(done.get("token_ids") or prompts.ids(text + done["text"])[len(ids) :])
            text, ids, offset = text + done["text"], ids + before, len(before)
        seed = sample_seed(sampling.seed, *key)
        draws.append(Draw(key, seed, text, ids, offset, budget))
    return draws


def _sample(
    backend: Backend,
    task: Task,
    writer: SampleWriter,
    draws: list[Draw],
    sampling: Sampling,
    say: Callable[[str], None],
    progress: Progress,
) -> None:
    fitting, full, short = _fit(draws, backend.context)
    if short:
        say(
            f"{task.benchmark.name}: {short} of {len(draws)} samples have less room than --max-tokens "
            f"{sampling.max_tokens}: the model holds {backend.context} tokens with the prompt."
        )
    for draw in full:
        writer.append(_line(Drawn(draw, "", 0, True, ()), writer, sampling.max_tokens))
        progress.advance()
    tokens, begin = 0, time.monotonic()
    for drawn in backend.sample(fitting, sampling.temperature, sampling.top_p):
        writer.append(_line(drawn, writer, sampling.max_tokens))
        tokens += drawn.tokens
        progress.note = f"{tokens / max(0.001, time.monotonic() - begin):.0f} tokens/s"
        progress.advance()


def _fit(draws: list[Draw], context: int | None) -> tuple[list[Draw], list[Draw], int]:
    """Cut budgets to the model's context.

    Returns:
        The draws with some room, those without any, and how many have less than they were to have.
    """
    if context is None:
        return draws, [], 0
    rooms = [context - len(draw.ids) for draw in draws]
    short = sum(room < draw.budget for draw, room in zip(draws, rooms, strict=True))
    fitting = [
        dataclasses.replace(draw, budget=min(draw.budget, room))
        for draw, room in zip(draws, rooms, strict=True)
        if room >= 1
    ]
    return fitting, [draw for draw, room in zip(draws, rooms, strict=True) if room < 1], short


def _line(drawn: Drawn, writer: SampleWriter, limit: int) -> dict[str, Any]:
    draw = drawn.draw
    before: dict[str, Any] = writer.read(draw.key) if draw.key in writer else {"text": "", "tokens": 0}
    sample = {
        "problem": draw.key[0],
        "sample": draw.key[1],
        "seed": draw.seed,
        "text": before["text"] + drawn.text,
        "tokens": before["tokens"] + drawn.tokens,
        "truncated": drawn.truncated,
        "limit": limit,
    }
    if drawn.truncated and drawn.ids is not None:
        sample["token_ids"] = [*draw.ids[len(draw.ids) - draw.offset :], *drawn.ids]
    return sample
