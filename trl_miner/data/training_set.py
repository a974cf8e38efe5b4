"""Make a training set from problems: a Parquet file, a data card, and a report of its overlaps with benchmarks."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..progress import Progress, track
from ..redaction import redact
from ..runs.files import write_whole
from ..text import code_for_markdown, for_markdown
from .contamination import NGRAM, Overlap, find_overlaps
from .golds import accepts_gold
from .problems import Benchmark, Problem, fingerprint, read_problems
from .prompts import Kind, Message, PromptForm, Style, build_prompt
from .reading import read_rows

MAX_PROMPT_TOKENS = 1000
TRAIN, CONTAMINATION, CARD = "train.parquet", "contamination.jsonl", "README.md"
_BATCH = 1000  # prompts tokenized at once


@dataclass(frozen=True)
class Part:
    """The problems from one source."""

    name: str  # in the column `source`
    record: Mapping[str, Any]  # where they came from, as `read_rows` returns it
    read: int  # rows in the source
    problems: Sequence[Problem]  # that are left of them
    dropped: Mapping[str, int] = field(default_factory=dict)  # rows so far, by reason


@dataclass(frozen=True)
class Options:
    """How to make a training set."""

    tokenizer: str  # name or path; counts the tokens of prompts
    style: Style
    max_prompt_tokens: int = MAX_PROMPT_TOKENS  # longer prompts are dropped
    decontaminate: bool = False  # drop questions that overlap with a benchmark; otherwise only report them


@dataclass(frozen=True)
class Written:
    """A training set on disk."""

    folder: Path
    rows: int
    dropped: Mapping[str, int]  # rows by reason, in the order of the stages
    overlaps: Sequence[Overlap]  # dropped or not; `row` counts the rows that were compared
    content_sha256: str  # of the rows, whatever version wrote the Parquet file


@dataclass
class _Row:
    source: str
    problem: Problem
    prompt: str | list[Message] = ""


def read_part(benchmark: Benchmark, source: str | Path | None, revision: str | None) -> Part:
    """Read the problems of a source; rows without a question or an answer are dropped and counted."""
    rows, record = read_rows(benchmark.source(revision), source, flag=f"--local {benchmark.name}=PATH")
    unreadable: list[int] = []
    problems = read_problems(benchmark, rows, unreadable)
    return Part(benchmark.name, record, len(rows), problems, {"no question or no valid answer": len(unreadable)})


def write_training_set(
    folder: str | Path,
    title: str,
    parts: Sequence[Part],
    options: Options,
    *,
    grader: Kind,
    benchmarks: Mapping[str, Sequence[Problem]],
) -> Written:
    """Write `train.parquet`, `README.md` (the data card) and `contamination.jsonl` into a folder.

    These are dropped, in this order: repeated questions (the first stays), golds that the grader does not accept as
    their own answer (training would never score them), prompts that are too long, and, on request, overlaps with
    benchmarks. The grader, "math" or "choice", is also the kind of prompt; "choice" adds the column `options`.
    """
    if options.decontaminate and not benchmarks:
        raise ValueError("Decontamination needs benchmarks to compare with: got none. Name some, or leave it out.")
    dropped: Counter[str] = Counter()
    for part in parts:
        dropped.update(part.dropped)
    rows = _cleaned_rows(parts, options, grader, dropped)
    questions = [row.problem.question for row in rows]
    compared = track(questions, "comparing with the benchmarks", unit="questions", quiet=not benchmarks)
    overlaps = find_overlaps(compared, benchmarks)
    overlapping = {overlap.row for overlap in overlaps}
    reports = [
        asdict(overlap) | {"id": rows[overlap.row].problem.id, "source": rows[overlap.row].source}
        for overlap in overlaps
    ]
    if options.decontaminate:
        is_clean = [index not in overlapping for index in range(len(rows))]
        rows = _keep(rows, is_clean, "overlap with a benchmark", dropped)
    if not rows:
        raise ValueError(
            f"A training set must have rows: all were dropped ({dict(dropped)}). Check the source and the limits."
        )
    records = [
        {"prompt": row.prompt, "question": row.problem.question, "solution": row.problem.solution}
        | ({"options": list(row.problem.options)} if grader == "choice" else {})
        | {"id": row.problem.id, "source": row.source}
        for row in rows
    ]
    content = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = Written(folder, len(records), dict(dropped), overlaps, hashlib.sha256(content.encode()).hexdigest())
    _write_parquet(folder / TRAIN, records)
    write_whole(folder / CONTAMINATION, "".join(json.dumps(report) + "\n" for report in reports))
    write_whole(folder / CARD, _data_card(title, parts, options, written, benchmarks))
    return written


def _cleaned_rows(parts: Sequence[Part], options: Options, grader: Kind, dropped: Counter[str]) -> list[_Row]:
    rows = [_Row(part.name, problem) for part in parts for problem in part.problems]
    distinct: dict[tuple[str, ...], _Row] = {}
    for row in rows:
        asked = row.problem
        # With the options: "Which of the following is true?" is a different question each time.
        distinct.setdefault((" ".join(asked.question.split()), asked.context, *asked.options), row)
    dropped["repeated question"] += len(rows) - len(distinct)
    rows = list(distinct.values())
    has_good_gold = accepts_gold(grader, [row.problem for row in rows])
    rows = _keep(rows, has_good_gold, "gold not accepted by the grader", dropped)
    for row in rows:
        asked = row.problem
        row.prompt = build_prompt(grader, asked.question, asked.options, asked.context, form=PromptForm(options.style))
    limit = options.max_prompt_tokens
    is_short = [length <= limit for length in prompt_lengths([row.prompt for row in rows], options)]
    return _keep(rows, is_short, f"prompt over {limit} tokens", dropped)


def prompt_lengths(prompts: Sequence[str | list[Message]], options: Options) -> list[int]:
    """Count the tokens of each prompt as training sees it: with what the chat template or the tokenizer adds."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    if options.style == "chat" and not tokenizer.chat_template:
        raise ValueError(
            f"Chat prompts need a chat template: the tokenizer of {options.tokenizer} has none. Use the plain style."
        )
    lengths: list[int] = []
    with Progress("counting tokens", len(prompts), unit="prompts") as progress:
        for start in range(0, len(prompts), _BATCH):
            batch = list(prompts[start : start + _BATCH])
            if options.style == "chat" and not isinstance(batch[0], str):
                texts = tokenizer.apply_chat_template(batch, add_generation_prompt=True, tokenize=False)
                tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]  # the template has added them
            else:
                tokens = tokenizer(batch)["input_ids"]
            lengths += map(len, tokens)
            progress.advance(len(batch))
    return lengths


def _keep(rows: Sequence[_Row], keep: Sequence[bool], reason: str, dropped: Counter[str]) -> list[_Row]:
    dropped[reason] += len(keep) - sum(keep)
    return [row for row, is_kept in zip(rows, keep, strict=True) if is_kept]


def _write_parquet(path: Path, records: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.Table.from_pylist(records), temporary)
    os.replace(temporary, path)


def _data_card(
    title: str, parts: Sequence[Part], options: Options, written: Written, benchmarks: Mapping[str, Sequence[Problem]]
) -> str:
    parquet_sha256 = hashlib.sha256((written.folder / TRAIN).read_bytes()).hexdigest()
    records = [code_for_markdown(json.dumps(redact(part.record))) for part in parts]
    sources = [[for_markdown(part.name), record, part.read] for part, record in zip(parts, records, strict=True)]
    stages = [["read", sum(part.read for part in parts)]]
    stages += [[f"dropped: {reason}", count] for reason, count in written.dropped.items()]
    settings = "".join(f"- {name}: {for_markdown(value)}\n" for name, value in asdict(options).items())
    # No `configs` here, though the Hub likes them: with them `load_dataset(folder)` caches by the folder's last name
    # (datasets 5.2), and gives the old rows of a rewritten folder. It finds the split by the file's name anyway.
    return (
        "---\ntags:\n- trl_miner\n---\n\n"
        f"# {title}\n\nWritten by trl_miner.\n\n"
        f"## Sources\n\n{_table(['source', 'read from', 'rows'], sources)}\n"
        f"## Rows\n\n{_table(['stage', 'rows'], [*stages, ['written', written.rows]])}\n"
        f"## Contamination\n\n{_contamination(options, written, benchmarks)}\n"
        f"## Settings\n\n{settings}\n"
        f"## Hashes\n\n- sha256 of {TRAIN}: {parquet_sha256}\n- sha256 of the content: {written.content_sha256}\n"
    )


def _contamination(options: Options, written: Written, benchmarks: Mapping[str, Sequence[Problem]]) -> str:
    if not benchmarks:
        return "Not compared with any benchmark.\n"
    rows_of = {name: {o.row for o in written.overlaps if o.benchmark == name} for name in benchmarks}
    lines = [
        [for_markdown(name), len(known), len(rows_of[name]), f"`{fingerprint(known)}`"]
        for name, known in benchmarks.items()
    ]
    table = _table(["benchmark", "problems", "overlapping rows", "fingerprint"], lines)
    return (
        f"{len(set().union(*rows_of.values()))} rows overlap with a problem of a benchmark (the same question, or "
        f"{NGRAM} words in a row) and were {'dropped' if options.decontaminate else 'kept'}; `{CONTAMINATION}` lists "
        f"them.\n\n{table}"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
