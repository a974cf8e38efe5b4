"""From problems to a training set: a Parquet file, a data card, and a report of what benchmarks it touches."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..progress import Progress, track
from ..runs.files import write_whole
from .contamination import NGRAM, Overlap, find_overlaps
from .golds import accepts_gold
from .problems import Problem, fingerprint
from .prompts import Kind, Message, Style, build_prompt

MAX_PROMPT_TOKENS = 1000
TRAIN, CONTAMINATION, CARD = "train.parquet", "contamination.jsonl", "README.md"
_BATCH = 1000  # prompts tokenized at once


@dataclass(frozen=True)
class Part:
    """The problems from one source.

    Attributes:
        name: In the column `source`.
        record: Where they came from, as `read_rows` tells.
        read: Rows there were.
        problems: Those that are left.
        dropped: Rows dropped so far, by reason.
    """

    name: str
    record: Mapping[str, Any]
    read: int
    problems: Sequence[Problem]
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How to make a training set.

    Attributes:
        tokenizer: Name or path; its tokens are counted.
        style: Of the prompts, "plain" or "chat".
        max_prompt_tokens: Longer prompts are dropped.
        decontaminate: Drop questions that overlap with a benchmark; False: report them only.
    """

    tokenizer: str
    style: Style
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    decontaminate: bool = False


@dataclass(frozen=True)
class Written:
    """A training set on disk.

    Attributes:
        folder: Where it is.
        rows: How many it has.
        dropped: Rows dropped, by reason, in the order of the stages.
        overlaps: With benchmarks, whether dropped or not; `row` counts the rows that were compared.
        content_sha256: Of the rows, whatever the version that wrote the Parquet file.
    """

    folder: Path
    rows: int
    dropped: Mapping[str, int]
    overlaps: Sequence[Overlap]
    content_sha256: str


def write_training_set(
    folder: str | Path,
    title: str,
    parts: Sequence[Part],
    options: Options,
    *,
    kind: Kind,
    grader: str,
    benchmarks: Mapping[str, Sequence[Problem]],
) -> Written:
    """Write `train.parquet`, `README.md` (the data card) and `contamination.jsonl` into a folder.

    Dropped, in this order: repeated questions (the first stays), golds that the grader does not accept as their own
    (training would never get a score for them), prompts that are too long, and, if asked for, overlaps with
    benchmarks.

    Args:
        folder: Made if missing; the three files in it are replaced, each at once.
        title: Of the data card.
        parts: The problems, by source.
        options: How to make it.
        kind: Of prompt; "choice" adds the column `options`.
        grader: "math" or "choice".
        benchmarks: What to compare with, by name; empty: nothing is compared, and the card says so.

    Raises:
        ValueError: Nothing is left, decontamination without benchmarks, or a chat style without a chat template.
    """
    if options.decontaminate and not benchmarks:
        raise ValueError("Decontamination needs benchmarks to compare with: got none. Name some, or leave it out.")
    dropped: dict[str, int] = {}
    for part in parts:
        for reason, count in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    rows = [(part.name, problem) for part in parts for problem in part.problems]

    rows = _keep(rows, _is_first(rows), "repeated question", dropped)
    rows = _keep(rows, _has_good_gold(rows, grader), "gold not accepted by the grader", dropped)
    prompts = [
        build_prompt(kind, problem.question, problem.options, problem.context, style=options.style)
        for _, problem in rows
    ]
    lengths = prompt_lengths(prompts, options)
    is_short = [length <= options.max_prompt_tokens for length in lengths]
    prompts = [prompt for prompt, keep in zip(prompts, is_short, strict=True) if keep]
    rows = _keep(rows, is_short, f"prompt over {options.max_prompt_tokens} tokens", dropped)
    questions = [problem.question for _, problem in rows]
    overlaps = find_overlaps(
        track(questions, "comparing with the benchmarks", unit="questions", quiet=not benchmarks), benchmarks
    )
    overlapping = {overlap.row for overlap in overlaps}
    reports = [
        asdict(overlap) | {"id": rows[overlap.row][1].id, "source": rows[overlap.row][0]} for overlap in overlaps
    ]
    if options.decontaminate:
        is_clean = [row not in overlapping for row in range(len(rows))]
        prompts = [prompt for prompt, keep in zip(prompts, is_clean, strict=True) if keep]
        rows = _keep(rows, is_clean, "overlap with a benchmark", dropped)
    if not rows:
        raise ValueError(
            f"A training set must have rows: all were dropped ({dropped}). Check the source and the limits."
        )

    records = [_record(name, problem, prompt, kind) for (name, problem), prompt in zip(rows, prompts, strict=True)]
    content = hashlib.sha256()
    for record in records:
        content.update(json.dumps(record, sort_keys=True).encode() + b"\n")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = Written(folder, len(records), dropped, overlaps, content.hexdigest())
    _write_parquet(folder / TRAIN, records, options.style, kind)
    write_whole(folder / CONTAMINATION, "".join(json.dumps(report) + "\n" for report in reports))
    write_whole(folder / CARD, _card(title, parts, options, written, benchmarks, len(overlapping)))
    return written


def prompt_lengths(prompts: Sequence[str | list[Message]], options: Options) -> list[int]:
    """Tokens of each prompt, as training sees it: with what the chat template or the tokenizer adds.

    Raises:
        ValueError: Chat prompts, and a tokenizer without a chat template.
    """
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


def _is_first(rows: Iterable[tuple[str, Problem]]) -> list[bool]:
    seen: set[tuple[str, ...]] = set()
    firsts: list[bool] = []
    for _, problem in rows:
        # With the options: "Which of the following is true?" is a question of its own each time.
        key = (" ".join(problem.question.split()), problem.context, *problem.options)
        firsts.append(key not in seen)
        seen.add(key)
    return firsts


def _has_good_gold(rows: Sequence[tuple[str, Problem]], grader: str) -> list[bool]:
    return accepts_gold(grader, [problem for _, problem in rows])


def _keep(
    rows: Sequence[tuple[str, Problem]], keep: Sequence[bool], reason: str, dropped: dict[str, int]
) -> list[tuple[str, Problem]]:
    dropped[reason] = dropped.get(reason, 0) + len(keep) - sum(keep)
    return [row for row, is_kept in zip(rows, keep, strict=True) if is_kept]


def _record(name: str, problem: Problem, prompt: str | list[Message], kind: Kind) -> dict[str, Any]:
    record: dict[str, Any] = {"prompt": prompt, "solution": problem.solution}
    if kind == "choice":
        record["options"] = list(problem.options)
    return record | {"id": problem.id, "source": name}


def _write_parquet(path: Path, records: Sequence[Mapping[str, Any]], style: Style, kind: Kind) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    prompt = pa.string() if style == "plain" or kind == "verbatim" else pa.list_(message)
    options = [("options", pa.list_(pa.string()))] if kind == "choice" else []
    schema = pa.schema(
        [("prompt", prompt), ("solution", pa.string()), *options, ("id", pa.string()), ("source", pa.string())]
    )
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.Table.from_pylist(list(records), schema=schema), temporary)
    os.replace(temporary, path)


def _card(
    title: str,
    parts: Sequence[Part],
    options: Options,
    written: Written,
    benchmarks: Mapping[str, Sequence[Problem]],
    overlapping: int,
) -> str:
    parquet_sha256 = hashlib.sha256((written.folder / TRAIN).read_bytes()).hexdigest()
    sources = [[part.name, f"`{json.dumps(part.record)}`", part.read] for part in parts]
    stages = [["read", sum(part.read for part in parts)]]
    stages += [[f"dropped: {reason}", count] for reason, count in written.dropped.items()]
    if benchmarks:
        fate = "dropped" if options.decontaminate else "kept"
        compared = (
            f"{overlapping} rows overlap with a problem of a benchmark (the same question, or {NGRAM} words in a row) "
            f"and were {fate}; `{CONTAMINATION}` lists them.\n\n"
            + _table(["benchmark", "problems", "overlapping rows", "fingerprint"], [
                [name, len(problems), len({o.row for o in written.overlaps if o.benchmark == name}),
                 f"`{fingerprint(problems)}`"]
                for name, problems in benchmarks.items()
            ])
        )  # fmt: skip
    else:
        compared = "Not compared with any benchmark.\n"
    settings = "".join(f"- {name}: {value}\n" for name, value in asdict(options).items())
    # No `configs` here, though the Hub likes them: with them `load_dataset(folder)` caches by the folder's last name
    # (datasets 5.2), and gives the old rows of a rewritten folder. It finds the split by the file's name anyway.
    return (
        "---\ntags:\n- trl_miner\n---\n\n"
        f"# {title}\n\nWritten by trl_miner.\n\n"
        f"## Sources\n\n{_table(['source', 'read from', 'rows'], sources)}\n"
        f"## Rows\n\n{_table(['stage', 'rows'], [*stages, ['written', written.rows]])}\n"
        f"## Contamination\n\n{compared}\n"
        f"## Settings\n\n{settings}\n"
        f"## Hashes\n\n- sha256 of {TRAIN}: {parquet_sha256}\n- sha256 of the content: {written.content_sha256}\n"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
