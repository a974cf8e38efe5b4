"""The paper's training sets (arXiv 2601.04731): a Parquet file, and a data card with counts.

There are DeepScaleR-Preview, and a medical one: MedQA, and of MedMCQA the questions that a model
does not answer. The paper lets Llama-3.1-8B-Instruct answer all of them by greedy decoding, and
drops those that it answers right. Here `evaluation.evaluate.sample_filter` draws an answer to each
of `medmcqa_train_problems`, and `build_medical` grades the answers and writes what is left.
"""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common.progress import Progress, track
from ..common.redaction import redact
from ..grading import grade
from ..runs.eval_folder import SAMPLES, SETTINGS, read_samples
from ..runs.files import read_optional, write_whole
from .benchmarks import BENCHMARKS
from .problems import Benchmark, Problem, accepts_gold, read_problems, read_rows
from .prompts import Kind, Message, PromptForm, Style, build_prompt, token_ids

DEEPSCALER = Benchmark(
    "deepscaler", "DeepScaleR", "agentica-org/DeepScaleR-Preview-Dataset", "train", None, "math", 1,
    question="problem", solution="answer",
)  # fmt: skip
MEDQA_TRAIN, MEDMCQA_TRAIN = (
    replace(
        test, name=f"{test.name}_train", title=f"{test.title} (train)", split="train", problems=None
    )
    for test in (BENCHMARKS["medqa"], BENCHMARKS["medmcqa"])
)
TRAIN, CARD = "train.parquet", "README.md"


@dataclass(frozen=True)
class Options:
    """How to make a training set."""

    tokenizer: str  # name or path; counts the tokens of prompts
    style: Style
    max_prompt_tokens: int = 1000  # longer prompts are dropped


def build_deepscaler(
    folder: str | Path, options: Options, source: str | Path | None = None
) -> dict[str, int]:
    """Write DeepScaleR, with the columns `prompt`, `question`, `solution`, `id` and `source`.

    `source` is a local file or folder; without one, the Hub is read. Returns the rows "written",
    and those dropped by reason.
    """
    dropped: Counter[str] = Counter()
    problems, about = _read(DEEPSCALER, source, dropped)
    return _write(
        Path(folder), "DeepScaleR-Preview", {DEEPSCALER.name: problems}, [about], options, dropped
    )


def medmcqa_train_problems(source: str | Path | None = None) -> list[Problem]:
    """Read MedMCQA's training questions, without bad rows, as `build_medical` does."""
    return _read(MEDMCQA_TRAIN, source, Counter())[0]


def build_medical(
    folder: str | Path,
    options: Options,
    *,
    samples_folder: str | Path,
    medqa_source: str | Path | None = None,
    medmcqa_source: str | Path | None = None,
) -> dict[str, int]:
    """Write the medical set, as `build_deepscaler` does, with a letter as `solution` and the column
    `options`.

    `samples_folder` is a result folder of `trl-miner eval` with greedy answers to
    `medmcqa_train_problems`.
    """
    dropped: Counter[str] = Counter()
    medqa, *facts = _read(MEDQA_TRAIN, medqa_source, dropped)
    medmcqa, about = _read(MEDMCQA_TRAIN, medmcqa_source, dropped)
    easy = answered_right(samples_folder, medmcqa)
    dropped["answered right by the filtering model"] = len(easy)
    facts += [about, f"filtered by `{read_optional(Path(samples_folder) / SETTINGS).get('model')}`"]
    problems = {
        MEDQA_TRAIN.name: medqa,
        MEDMCQA_TRAIN.name: [problem for problem in medmcqa if problem.id not in easy],
    }
    return _write(Path(folder), "MedQA and MedMCQA", problems, facts, options, dropped)


def answered_right(samples_folder: str | Path, questions: Sequence[Problem]) -> set[str]:
    """Return the ids of the questions to which the first answers in a folder are right; each must
    have one."""
    path = Path(samples_folder) / MEDMCQA_TRAIN.name / SAMPLES
    samples = read_samples(path)[0] if path.is_file() else {}
    texts = [samples[problem.id, 0]["text"] for problem in questions if (problem.id, 0) in samples]
    if len(texts) < len(questions):
        raise ValueError(
            "Every training question of MedMCQA needs a greedy answer:"
            f" {len(questions) - len(texts)} of {len(questions)} have none in {path}. Run"
            " `trl-miner data medical` again: it goes on where it stopped."
        )
    golds, options = (
        [problem.solution for problem in questions],
        [problem.options for problem in questions],
    )
    with Progress("grading the filter's answers", len(texts), unit="answers") as progress:
        verdicts = grade("choice", texts, golds, options=options, advance=progress.update)
    return {
        problem.id
        for problem, verdict in zip(questions, verdicts, strict=True)
        if verdict.is_correct
    }


def prompt_lengths(prompts: Sequence[str | list[Message]], options: Options) -> list[int]:
    """Count the tokens of each prompt as training sees it: with what the chat template or the
    tokenizer adds."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    if options.style == "chat" and not tokenizer.chat_template:
        raise ValueError(
            f"Chat prompts need a chat template: {options.tokenizer} has none. Use --prompt-style"
            " plain."
        )
    counted = track(prompts, "counting tokens", unit="prompts")
    return [len(token_ids(prompt, tokenizer)) for prompt in counted]


def _read(
    benchmark: Benchmark, source: str | Path | None, dropped: Counter[str]
) -> tuple[list[Problem], str]:
    """Return the problems of a source, and what it is; rows without a question or answer are
    dropped and counted."""
    rows, record = read_rows(benchmark, source)
    unreadable: list[int] = []
    problems = read_problems(benchmark, rows, unreadable)
    dropped["no question or no valid answer"] += len(unreadable)
    return problems, f"{benchmark.name}: {len(rows)} rows of `{json.dumps(redact(record))}`"


def _write(
    folder: Path,
    title: str,
    problems: Mapping[str, Sequence[Problem]],
    facts: Sequence[str],
    options: Options,
    dropped: Counter[str],
) -> dict[str, int]:
    """Write a training set of problems by source, and its card with `facts` and counts.

    Dropped are, in this order: repeated questions (the first stays), golds that the grader does not
    accept as their own answer (training would never score them), and prompts that are too long.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    different: dict[tuple[str, ...], tuple[str, Problem]] = {}
    for source, of_source in problems.items():
        for problem in of_source:
            # With the options: "Which of the following is true?" is a different question each time.
            key = (" ".join(problem.question.split()), problem.context, *problem.options)
            different.setdefault(key, (source, problem))
    dropped["repeated question"] += sum(map(len, problems.values())) - len(different)
    is_choice = any(problem.options for _, problem in different.values())
    is_good = accepts_gold(
        "choice" if is_choice else "math", [problem for _, problem in different.values()]
    )
    dropped["reference answer not accepted by the grader"] += is_good.count(False)
    kept = [row for row, is_kept in zip(different.values(), is_good, strict=True) if is_kept]
    rows = [_row(source, problem, options.style, is_choice) for source, problem in kept]
    limit = options.max_prompt_tokens
    fits = [length <= limit for length in prompt_lengths([row["prompt"] for row in rows], options)]
    dropped[f"prompt over {limit} tokens"] += fits.count(False)
    rows = [row for row, is_kept in zip(rows, fits, strict=True) if is_kept]
    if not rows:
        raise ValueError(
            f"A training set must have rows: all were dropped ({dict(dropped)}). Check the source"
            " and the limits."
        )
    folder.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    write_whole(folder / TRAIN, [file.getvalue()])
    counts = {
        "written": len(rows),
        **{f"dropped: {reason}": count for reason, count in dropped.items()},
    }
    # No `configs` here, though the Hub likes them: with them `load_dataset(folder)` caches by the
    # folder's last name (datasets 5.2), and gives the old rows of a rewritten folder. It finds the
    # split by the file's name anyway.
    lines = [
        f"# {title} for trl_miner",
        "",
        *(f"- {fact}" for fact in facts),
        *(f"- {name}: {count}" for name, count in counts.items()),
    ]
    write_whole(folder / CARD, "\n".join(lines) + "\n")
    return counts


def _row(source: str, problem: Problem, style: Style, is_choice: bool) -> dict[str, Any]:
    kind: Kind = "choice" if is_choice else "math"
    asked = problem.question, problem.options, problem.context
    prompt = build_prompt(kind, *asked, form=PromptForm(style))
    columns = {"prompt": prompt, "question": problem.question, "solution": problem.solution}
    options = {"options": list(problem.options)} if is_choice else {}
    return {**columns, **options, "id": problem.id, "source": source}
