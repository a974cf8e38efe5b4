"""The benchmarks: one table. Adding a benchmark means adding a row.

Columns have names that `columns.USUAL` knows; ids and numbers of problems are those of the data
sets on the Hub; titles and samples per problem are the paper's, which does not ask GSM8K. Where a
row needs work before it can be read, `prepare` does it.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .columns import Row, as_text, find_columns
from .files import load_splits
from .problems import Problem, read_rows
from .prompts import Kind
from .settings import DataArguments


@dataclass(frozen=True)
class Benchmark:
    """Where the problems of a benchmark come from, and how they are asked and graded.

    Attributes:
        name: What users type, and the name of its folder.
        title: In the paper's tables.
        hub: Id of the data set on the Hub.
        configs: Of the data set, with commas; "-": the default one.
        split: Which of its splits.
        grader: The grader, and the kind of prompt.
        problems: How many it must have; None: any number.
        samples: Per problem in the paper.
    """

    name: str
    title: str
    hub: str
    configs: str
    split: str
    grader: Kind
    problems: int | None
    samples: int


# Ids of PubMedQA's official test set, behind a line that says so.
_IDS = Path(__file__).with_name("pubmedqa_test_ids.txt").read_text(encoding="utf-8")
PUBMEDQA_TEST = {*_IDS.partition("\n")[2].split()}


def _pubmedqa(row: Row) -> Row:
    if str(row["pubid"]) not in PUBMEDQA_TEST:
        return {}
    context = "\n".join(row["context"]["contexts"])
    options = ["yes", "no", "maybe"]
    return row | {"context": context, "options": options, "answer": row["final_decision"]}


def _only(column: str, *values: str) -> Any:
    return lambda row: row if as_text(row[column]) in values else {}


# What is done with a row before it is read; empty for a row that is not of the benchmark.
PREPARE: dict[str, Any] = {
    # The rows with one answer are the paper's 581, though not all of their answers are numbers, as
    # it says.
    "olympiadbench": _only("is_multiple_answer", "False", "0"),
    "pubmedqa": _pubmedqa,
    "medxpertqa": lambda row: row | {"question": row["question"].split("\nAnswer Choices:")[0]},
    "mmlu_pro": _only("category", "health", "biology"),
}
# MedQA is in Parquet: the original, bigbio/med_qa, is a script, which `datasets` no longer runs.
_TABLE = """
aime24         AIME2024       Maxwell-Jia/AIME_2024        -                        train       math    30  128
aime25         AIME2025       opencompass/AIME2025         AIME2025-I,AIME2025-II   test        math    30  128
amc23          AMC23          zwhe99/amc23                 -                        test        math    40  128
hmmt25         HMMT25         MathArena/hmmt_feb_2025      -                        train       math    30  128
gsm8k          GSM8K          openai/gsm8k                 main                     test        math  1319    4
math500        MATH500        HuggingFaceH4/MATH-500       -                        test        math   500   16
olympiadbench  OlympiadBench  Hothan/OlympiadBench         OE_TO_maths_en_COMP      train       math   581   16
medqa          MedQA          mkieffer/MedQA-USMLE         -                        test        choice 1273   4
medmcqa        MedMCQA        openlifescienceai/medmcqa    -                        validation  choice 4183   4
pubmedqa       PubMedQA       qiaojin/PubMedQA             pqa_labeled              train       choice  500   4
medxpertqa     MedXpertQA     TsinghuaC3I/MedXpertQA       Text                     test        choice 2450   4
mmlu_pro       MMLU-Pro       TIGER-Lab/MMLU-Pro           -                        test        choice 1535   4
arithmetic     Arithmetic     trl_miner/arithmetic         -                        test        math   200    8
"""


BENCHMARKS: dict[str, Benchmark] = {}
for _line in _TABLE.strip().splitlines():
    _words: list[Any] = [int(word) if word.isdigit() else word for word in _line.split()]
    BENCHMARKS[_words[0]] = Benchmark(*_words)


def read_problems(entry: str, args: DataArguments | None = None) -> tuple[Benchmark, list[Problem]]:
    """Read the problems of a benchmark: NAME, NAME=PATH for a file or folder, `:N` behind either
    for its first N problems.

    Args:
        entry: Such as `aime24`, `math500:100`, `mine=problems.csv`. A known name with a path reads
            the benchmark's own form from there.
        args: What the columns of one's own file are called; the usual names without it.

    Raises:
        ValueError: There is no such benchmark or file, or a row is not understood.
    """
    [(name, path, count)] = re.findall(r"^(.*?)(?:=(.+?))?(?::([1-9]\d*))?$", entry)
    args, known = args or DataArguments(), BENCHMARKS.get(name)
    if known:
        args = DataArguments(first_option=0)
    elif not path:
        raise ValueError(
            f"There is no benchmark {entry!r}: write one of {', '.join(BENCHMARKS)}, or NAME=PATH for"
            " your own; with :N behind it, its first N problems."
        )
    benchmark = known or Benchmark(name, name, "", "-", args.dataset_test_split, "math", None, 8)
    source, split, rows = path or benchmark.hub, benchmark.split, []
    for config in "-" if path else benchmark.configs.split(","):
        subset = None if config == "-" else config
        splits = load_splits(replace(args, dataset_name=source, dataset_config=subset))
        if len(splits) > 1 and split not in splits:
            raise ValueError(
                f"{source} has no split {split}, but {', '.join(splits)}: name a file, or set"
                " --dataset_test_split."
            )
        rows += splits.get(split) or [*splits.values()][0]
    rows = [*filter(None, map(PREPARE.get(name, dict), rows))]
    kind, problems = read_rows(rows, find_columns(rows, args), args, name)
    if benchmark.problems not in (None, len(problems)):
        raise ValueError(
            f"{source} must have {benchmark.problems} problems, and has {len(problems)}."
        )
    return replace(benchmark, grader=kind), problems[: int(count or len(rows))]
