"""The paper's training sets (arXiv 2601.04731): a Parquet file, a data card, and a report of overlaps with benchmarks.

There are DeepScaleR-Preview, and a medical one: MedQA, and of MedMCQA the questions that a model does not answer. The
paper lets Llama-3.1-8B-Instruct answer all of them by greedy decoding, and drops those that it answers right. Here
`evaluation.evaluate.sample_filter` draws an answer to each of `medmcqa_train_problems`, and `build_medical` grades the
answers and writes what is left.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..grading import grade
from ..progress import Progress, track
from ..redaction import redact
from ..runs.eval_folder import SAMPLES, SETTINGS, read_samples
from ..runs.files import read_optional, write_whole
from .benchmarks import BENCHMARKS
from .contamination import NGRAM, Overlap, find_overlaps
from .problems import Benchmark, Problem, accepts_gold, read_problems, read_rows
from .prompts import Kind, Message, PromptForm, Style, build_prompt, prompt_text

DEEPSCALER = Benchmark(
    "deepscaler", "DeepScaleR", "agentica-org/DeepScaleR-Preview-Dataset", "train", None, "math", 1,
    question="problem", solution="answer",
)  # fmt: skip
MEDQA_TRAIN, MEDMCQA_TRAIN = (
    replace(test, name=f"{test.name}_train", title=f"{test.title} (train)", split="train", problems=None)
    for test in (BENCHMARKS["medqa"], BENCHMARKS["medmcqa"])
)
MATH_BENCHMARKS = ("aime24", "aime25", "amc23", "hmmt25", "math500", "olympiadbench")
MEDICAL_BENCHMARKS = ("medqa", "medmcqa", "pubmedqa", "medxpertqa", "mmlu_pro")
TRAIN, CONTAMINATION, CARD = "train.parquet", "contamination.jsonl", "README.md"

Benchmarks = Mapping[str, Sequence[Problem]]


@dataclass(frozen=True)
class Options:
    """How to make a training set."""

    tokenizer: str  # name or path; counts the tokens of prompts
    style: Style
    max_prompt_tokens: int = 1000  # longer prompts are dropped
    decontaminate: bool = False  # drop questions that overlap with a benchmark; otherwise only report them


@dataclass(frozen=True)
class Written:
    """A training set on disk."""

    folder: Path
    rows: int
    dropped: Mapping[str, int]  # rows by reason
    overlaps: Sequence[Overlap]  # dropped or not; `row` counts the rows that were compared


class _Part(NamedTuple):
    """The problems from one source."""

    name: str  # in the column `source`
    about: str  # for the card
    problems: list[Problem]


class _Row(NamedTuple):
    source: str
    problem: Problem
    prompt: str | list[Message]


def build_deepscaler(
    folder: str | Path, options: Options, *, benchmarks: Benchmarks, source: str | Path | None = None
) -> Written:
    """Write DeepScaleR, with the columns `prompt`, `question`, `solution`, `id` and `source`.

    `source` is a local file or folder; without one, the Hub is read.
    """
    dropped: Counter[str] = Counter()
    part = _read(DEEPSCALER, source, dropped)
    return _write(folder, "DeepScaleR-Preview", "math", [part], options, benchmarks, dropped)


def medmcqa_train_problems(source: str | Path | None = None) -> list[Problem]:
    """Read MedMCQA's training questions, without bad rows, as `build_medical` does."""
    return _read(MEDMCQA_TRAIN, source, Counter()).problems


def build_medical(
    folder: str | Path,
    options: Options,
    *,
    samples_folder: str | Path,
    benchmarks: Benchmarks,
    medqa_source: str | Path | None = None,
    medmcqa_source: str | Path | None = None,
) -> Written:
    """Write the medical set, as `build_deepscaler` does, with a letter as `solution` and the column `options`.

    `samples_folder` is a result folder of `trl-miner eval` with greedy answers to `medmcqa_train_problems`.
    """
    dropped: Counter[str] = Counter()
    medqa = _read(MEDQA_TRAIN, medqa_source, dropped)
    medmcqa = _read(MEDMCQA_TRAIN, medmcqa_source, dropped)
    easy = answered_right(samples_folder, medmcqa.problems)
    dropped["answered right by the filtering model"] = len(easy)
    model = read_optional(Path(samples_folder) / SETTINGS).get("model")
    kept = [problem for problem in medmcqa.problems if problem.id not in easy]
    left = _Part(medmcqa.name, f"{medmcqa.about}, filtered by `{model}`", kept)
    return _write(folder, "MedQA and MedMCQA", "choice", [medqa, left], options, benchmarks, dropped)


def answered_right(samples_folder: str | Path, questions: Sequence[Problem]) -> set[str]:
    """Return the ids of the questions to which the first answers in a folder are right; each must have one."""
    path = Path(samples_folder) / MEDMCQA_TRAIN.name / SAMPLES
    samples = read_samples(path)[0] if path.is_file() else {}
    texts = [samples[problem.id, 0]["text"] for problem in questions if (problem.id, 0) in samples]
    if len(texts) < len(questions):
        raise ValueError(
            f"Every training question of MedMCQA needs a greedy answer: {len(questions) - len(texts)} of "
            f"{len(questions)} have none in {path}. Run `trl-miner data medical` again: it goes on where it stopped."
        )
    golds, options = [problem.solution for problem in questions], [problem.options for problem in questions]
    with Progress("grading the filter's answers", len(texts), unit="answers") as progress:
        verdicts = grade("choice", texts, golds, options=options, advance=progress.advance)
    return {problem.id for problem, verdict in zip(questions, verdicts, strict=True) if verdict.is_correct}


def prompt_lengths(prompts: Sequence[str | list[Message]], options: Options) -> list[int]:
    """Count the tokens of each prompt as training sees it: with what the chat template or the tokenizer adds."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    if options.style == "chat" and not tokenizer.chat_template:
        raise ValueError(
            f"Chat prompts need a chat template: the tokenizer of {options.tokenizer} has none. Use the plain style."
        )
    counted = track(prompts, "counting tokens", unit="prompts")
    return [len(tokenizer(prompt_text(prompt, tokenizer))["input_ids"]) for prompt in counted]


def _read(benchmark: Benchmark, source: str | Path | None, dropped: Counter[str]) -> _Part:
    """Read the problems of a source; rows without a question or an answer are dropped and counted."""
    rows, record = read_rows(benchmark, source)
    unreadable: list[int] = []
    problems = read_problems(benchmark, rows, unreadable)
    dropped["no question or no valid answer"] += len(unreadable)
    return _Part(benchmark.name, f"{len(rows)} rows of `{json.dumps(redact(record))}`", problems)


def _write(
    folder: str | Path,
    title: str,
    grader: Kind,
    parts: Sequence[_Part],
    options: Options,
    benchmarks: Benchmarks,
    dropped: Counter[str],
) -> Written:
    """Write a training set, its card and the report of overlaps.

    These are dropped, in this order: repeated questions (the first stays), golds that the grader does not accept as
    their own answer (training would never score them), prompts that are too long, and, on request, overlaps with
    benchmarks.
    """
    if options.decontaminate and not benchmarks:
        raise ValueError("Decontamination needs benchmarks to compare with: got none. Name some, or leave it out.")
    rows = _cleaned_rows(parts, options, grader, dropped)
    questions = [row.problem.question for row in rows]
    compared = track(questions, "comparing with the benchmarks", unit="questions", quiet=not benchmarks)
    overlaps = find_overlaps(compared, benchmarks)
    reports = [
        asdict(overlap) | {"id": rows[overlap.row].problem.id, "source": rows[overlap.row].source}
        for overlap in overlaps
    ]
    if options.decontaminate:
        overlapping = {overlap.row for overlap in overlaps}
        rows = _keep(rows, [row not in overlapping for row in range(len(rows))], "overlap with a benchmark", dropped)
    if not rows:
        raise ValueError(
            f"A training set must have rows: all were dropped ({dict(dropped)}). Check the source and the limits."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = Written(folder, len(rows), dict(dropped), overlaps)
    _write_parquet(folder / TRAIN, [_record(row, grader) for row in rows])
    write_whole(folder / CONTAMINATION, "".join(json.dumps(report) + "\n" for report in reports))
    write_whole(folder / CARD, _card(title, parts, options, written, benchmarks))
    return written


def _cleaned_rows(parts: Sequence[_Part], options: Options, grader: Kind, dropped: Counter[str]) -> list[_Row]:
    distinct: dict[tuple[str, ...], _Row] = {}
    form = PromptForm(options.style)
    for part in parts:
        for asked in part.problems:
            # With the options: "Which of the following is true?" is a different question each time.
            key = (" ".join(asked.question.split()), asked.context, *asked.options)
            prompt = build_prompt(grader, asked.question, asked.options, asked.context, form=form)
            distinct.setdefault(key, _Row(part.name, asked, prompt))
    dropped["repeated question"] += sum(len(part.problems) for part in parts) - len(distinct)
    rows = list(distinct.values())
    has_good_gold = accepts_gold(grader, [row.problem for row in rows])
    rows = _keep(rows, has_good_gold, "gold not accepted by the grader", dropped)
    limit = options.max_prompt_tokens
    is_short = [length <= limit for length in prompt_lengths([row.prompt for row in rows], options)]
    return _keep(rows, is_short, f"prompt over {limit} tokens", dropped)


def _keep(rows: Sequence[_Row], keep: Sequence[bool], reason: str, dropped: Counter[str]) -> list[_Row]:
    dropped[reason] += len(keep) - sum(keep)
    return [row for row, is_kept in zip(rows, keep, strict=True) if is_kept]


def _record(row: _Row, grader: Kind) -> dict[str, Any]:
    asked = row.problem
    options = {"options": list(asked.options)} if grader == "choice" else {}
    columns = {"prompt": row.prompt, "question": asked.question, "solution": asked.solution}
    return {**columns, **options, "id": asked.id, "source": row.source}


def _write_parquet(path: Path, records: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.Table.from_pylist(records), temporary)
    os.replace(temporary, path)


def _card(title: str, parts: Sequence[_Part], options: Options, written: Written, benchmarks: Benchmarks) -> str:
    rows = {name: len({o.row for o in written.overlaps if o.benchmark == name}) for name in benchmarks}
    lines = [
        *(f"{part.name}: {part.about}" for part in parts),
        *(f"dropped: {reason}: {count}" for reason, count in written.dropped.items()),
        f"written: {written.rows}",
        f"overlaps, by the whole question or {NGRAM} words in a row, {'dropped' if options.decontaminate else 'kept'}:"
        f" {', '.join(f'{name}: {count} rows' for name, count in rows.items()) or 'compared with no benchmark'}",
        *(f"{name}: `{value}`" for name, value in asdict(options).items()),
    ]
    # No `configs` here, though the Hub likes them: with them `load_dataset(folder)` caches by the folder's last name
    # (datasets 5.2), and gives the old rows of a rewritten folder. It finds the split by the file's name anyway.
    head = f"---\ntags:\n- trl_miner\n---\n\n# {title} for trl_miner\n\nWritten by trl_miner.\n"
    return head + "".join(f"\n- {line}" for line in lines) + "\n"
