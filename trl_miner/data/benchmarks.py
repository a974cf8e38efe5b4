"""The benchmarks: one table. Adding a benchmark means adding a row.

Columns, ids and numbers of problems are those of the data sets on the Hub; titles and samples per
problem are the paper's, which does not ask GSM8K. Where a row needs work before its columns can be
read, `prepare` does it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from . import arithmetic
from .files import Row, as_text, load_splits
from .problems import Layout, Problem, find_layout, iterate, read_problem
from .prompts import Kind
from .settings import DataArguments


@dataclass(frozen=True)
class Benchmark:
    """Where the problems of a benchmark come from, and how they are asked and graded.

    Attributes:
        name: What users type, and the name of its folder.
        title: In the paper's tables.
        hub: Id of the data set on the Hub.
        split: Which of its splits.
        problems: How many it must have; None: any number.
        grader: The grader, and the kind of prompt.
        samples: Per problem in the paper.
        layout: Which column holds what.
        configs: Of the data set; None: the default one.
        prepare: What is done with a row before its columns are read; it returns None for a row
            that is not of the benchmark.
    """

    name: str
    title: str
    hub: str
    split: str
    problems: int | None
    grader: Kind
    samples: int
    layout: Layout
    configs: tuple[str | None, ...] = (None,)
    prepare: Callable[[Row], Row | None] = lambda row: row

    @property
    def kind(self) -> Kind:
        """The kind of prompt, for `build_prompt`."""
        return self.grader


@cache
def pubmedqa_test_ids() -> frozenset[str]:
    """Return the ids of PubMedQA's official test set."""
    text = Path(__file__).with_name("pubmedqa_test_ids.txt").read_text(encoding="utf-8")
    return frozenset(re.sub("#.*", "", text).split())


def _pubmedqa(row: Row) -> Row | None:
    context = "\n".join(row["context"]["contexts"])
    is_test = str(row["pubid"]) in pubmedqa_test_ids()
    return row | {"context": context, "options": ["yes", "no", "maybe"]} if is_test else None


def _olympiadbench(row: Row) -> Row | None:
    # The rows with one answer are the paper's 581, though not all of their answers are numbers, as
    # it says.
    return row if as_text(row["is_multiple_answer"]) in ("False", "0") else None


def _mmlu_pro(row: Row) -> Row | None:
    return row if row["category"] in ("health", "biology") else None


def _medxpertqa(row: Row) -> Row:
    return row | {"question": row["question"].split("\nAnswer Choices:")[0]}


# fmt: off
_TABLE = (
    Benchmark("aime24", "AIME2024", "Maxwell-Jia/AIME_2024", "train", 30, "math", 128,
              Layout("Problem", "Answer")),
    Benchmark("aime25", "AIME2025", "opencompass/AIME2025", "test", 30, "math", 128,
              Layout("question", "answer"), configs=("AIME2025-I", "AIME2025-II")),
    Benchmark("amc23", "AMC23", "zwhe99/amc23", "test", 40, "math", 128,
              Layout("question", "answer")),
    Benchmark("hmmt25", "HMMT25", "MathArena/hmmt_feb_2025", "train", 30, "math", 128,
              Layout("problem", "answer", level="problem_type")),
    Benchmark("gsm8k", "GSM8K", "openai/gsm8k", "test", 1319, "math", 4,
              Layout("question", "answer"), configs=("main",)),
    Benchmark("math500", "MATH500", "HuggingFaceH4/MATH-500", "test", 500, "math", 16,
              Layout("problem", "answer", level="level")),
    Benchmark("olympiadbench", "OlympiadBench", "Hothan/OlympiadBench", "train", 581, "math", 16,
              Layout("question", "final_answer", context="context", level="subfield"),
              configs=("OE_TO_maths_en_COMP",), prepare=_olympiadbench),
    # In Parquet: the original, bigbio/med_qa, is a script, which `datasets` no longer runs.
    Benchmark("medqa", "MedQA", "mkieffer/MedQA-USMLE", "test", 1273, "choice", 4,
              Layout("question", "answer", "options", level="meta_info")),
    Benchmark("medmcqa", "MedMCQA", "openlifescienceai/medmcqa", "validation", 4183, "choice", 4,
              Layout("question", "cop", ("opa", "opb", "opc", "opd"), first_option=0,
                     level="subject_name")),
    Benchmark("pubmedqa", "PubMedQA", "qiaojin/PubMedQA", "train", 500, "choice", 4,
              Layout("question", "final_decision", "options", "context"),
              configs=("pqa_labeled",), prepare=_pubmedqa),
    Benchmark("medxpertqa", "MedXpertQA", "TsinghuaC3I/MedXpertQA", "test", 2450, "choice", 4,
              Layout("question", "label", "options", level="question_type"),
              configs=("Text",), prepare=_medxpertqa),
    Benchmark("mmlu_pro", "MMLU-Pro", "TIGER-Lab/MMLU-Pro", "test", 1535, "choice", 4,
              Layout("question", "answer", "options", level="category"),
              prepare=_mmlu_pro),
    # The embedded world: nothing to download.
    Benchmark("arithmetic", "Arithmetic", arithmetic.MODEL, "test", 200, "math", 8,
              Layout("prompt", "solution", level="level")),
)
# fmt: on
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _TABLE}


def read_problems(
    entry: str, args: DataArguments | None = None
) -> tuple[Benchmark, list[Problem], dict[str, Any]]:
    """Read the problems of a benchmark: NAME, NAME=PATH for a file or folder, `:N` behind either
    for its first N problems.

    Args:
        entry: Such as `aime24`, `math500:100`, `mine=problems.csv`. A known name with a path reads
            the benchmark's own form from there.
        args: What the columns of one's own file are called; the usual names without it.

    Returns:
        The benchmark, its problems, and a record of their {"source"}.

    Raises:
        ValueError: There is no such benchmark or file, or a row is not understood.
    """
    match = re.fullmatch(r"([\w.-]+)(?:=(.+?))?(?::(\d+))?", entry)
    name, path, count = match.groups("") if match else (entry, "", "")
    if not path and name not in BENCHMARKS:
        raise ValueError(
            f"There is no benchmark {entry!r}: write one of {', '.join(BENCHMARKS)}, or NAME=PATH for"
            " your own; with :N behind it, its first N problems."
        )
    args, benchmark = args or DataArguments(), BENCHMARKS.get(name)
    split = benchmark.split if benchmark else args.dataset_test_split
    source, rows = path or BENCHMARKS[name].hub, list[Row]()
    for config in benchmark.configs if benchmark and not path else [None]:
        at: dict[str, Any] = {
            "dataset_name": source,
            "dataset_config": config,
            "dataset_revision": None,
        }
        splits = load_splits(replace(args, **at))
        if len(splits) > 1 and split not in splits:
            raise ValueError(
                f"{source} has no split {split}, but {', '.join(splits)}: name a file, or set"
                " --dataset_test_split."
            )
        rows += iterate(splits.get(split) or [*splits.values()][0])
    if benchmark is None:
        layout = find_layout(rows[:1000], args)
        benchmark = Benchmark(name, name, source, split, None, layout.kind, 8, layout)
    rows = [row for each in rows if (row := benchmark.prepare(each))]
    problems = [read_problem(r, benchmark.layout, f"{name}-{n}") for n, r in enumerate(rows)]
    for problem in problems:
        if not problem.solution:
            raise ValueError(f"{source}: {problem.id} has no reference answer that can be read.")
    if benchmark.problems not in (None, len(rows)):
        raise ValueError(
            f"{benchmark.title} must have {benchmark.problems} problems: {source} has {len(rows)}."
        )
    return benchmark, problems[: int(count or len(rows))], {"source": source, "split": split}
