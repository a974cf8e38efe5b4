"""Make a training set from problems: a Parquet file, a data card, and a report of its overlaps with benchmarks."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..progress import track
from ..redaction import redact
from ..runs.files import write_whole
from .contamination import NGRAM, Overlap, find_overlaps
from .golds import accepts_gold
from .problems import Benchmark, Problem, read_problems
from .prompts import Kind, Message, PromptForm, Style, build_prompt, prompt_text
from .reading import read_rows

MAX_PROMPT_TOKENS = 1000
TRAIN, CONTAMINATION, CARD = "train.parquet", "contamination.jsonl", "README.md"


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


@dataclass(frozen=True)
class _Row:
    source: str
    problem: Problem
    prompt: str | list[Message]

    def record(self, grader: Kind) -> dict[str, Any]:
        """Return the row as it is written."""
        asked = self.problem
        options = {"options": list(asked.options)} if grader == "choice" else {}
        columns = {"prompt": self.prompt, "question": asked.question, "solution": asked.solution}
        return {**columns, **options, "id": asked.id, "source": self.source}


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
    reports = [
        asdict(overlap) | {"id": rows[overlap.row].problem.id, "source": rows[overlap.row].source}
        for overlap in overlaps
    ]
    if options.decontaminate:
        overlapping = {overlap.row for overlap in overlaps}
        is_clean = [index not in overlapping for index in range(len(rows))]
        rows = _keep(rows, is_clean, "overlap with a benchmark", dropped)
    if not rows:
        raise ValueError(
            f"A training set must have rows: all were dropped ({dict(dropped)}). Check the source and the limits."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = Written(folder, len(rows), dict(dropped), overlaps)
    _write_parquet(folder / TRAIN, [row.record(grader) for row in rows])
    write_whole(folder / CONTAMINATION, "".join(json.dumps(report) + "\n" for report in reports))
    write_whole(folder / CARD, _data_card(title, parts, options, written, benchmarks))
    return written


def _cleaned_rows(parts: Sequence[Part], options: Options, grader: Kind, dropped: Counter[str]) -> list[_Row]:
    distinct: dict[tuple[str, ...], _Row] = {}
    for part in parts:
        for asked in part.problems:
            # With the options: "Which of the following is true?" is a different question each time.
            key = (" ".join(asked.question.split()), asked.context, *asked.options)
            form = PromptForm(options.style)
            prompt = build_prompt(grader, asked.question, asked.options, asked.context, form=form)
            distinct.setdefault(key, _Row(part.name, asked, prompt))
    dropped["repeated question"] += sum(len(part.problems) for part in parts) - len(distinct)
    rows = list(distinct.values())
    has_good_gold = accepts_gold(grader, [row.problem for row in rows])
    rows = _keep(rows, has_good_gold, "gold not accepted by the grader", dropped)
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
    counted = track(prompts, "counting tokens", unit="prompts")
    return [len(tokenizer(prompt_text(prompt, tokenizer))["input_ids"]) for prompt in counted]


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
    sources = [f"{part.name}: {part.read} rows of `{json.dumps(redact(part.record))}`" for part in parts]
    dropped = [f"dropped: {reason}: {count}" for reason, count in written.dropped.items()]
    settings = [f"{name}: `{value}`" for name, value in asdict(options).items()]
    overlapping = {name: {o.row for o in written.overlaps if o.benchmark == name} for name in benchmarks}
    compared = [f"{name}: {len(rows)} rows" for name, rows in overlapping.items()] or ["compared with no benchmark"]
    fate = "dropped" if options.decontaminate else "kept"
    sections = {
        "Sources": sources,
        "Rows": [*dropped, f"written: {written.rows}"],
        f"Overlaps with benchmarks, by the whole question or {NGRAM} words in a row, {fate}": compared,
        "Settings": settings,
    }
    # No `configs` here, though the Hub likes them: with them `load_dataset(folder)` caches by the folder's last name
    # (datasets 5.2), and gives the old rows of a rewritten folder. It finds the split by the file's name anyway.
    head = f"---\ntags:\n- trl_miner\n---\n\n# {title}\n\nWritten by trl_miner.\n"
    return head + "".join(f"\n## {name}\n\n- " + "\n- ".join(lines) + "\n" for name, lines in sections.items())
