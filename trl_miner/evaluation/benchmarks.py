"""The benchmarks: one table. Adding one is adding a row.

Columns, ids and numbers of problems are those of the data sets on the Hub; titles and samples per problem are the
paper's. A cell that names a column holds its name; where a column needs work, or goes by another name in a mirror, it
holds a function of the row from `columns.py`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..data.prompts import Kind
from ..data.reading import Row, Source, read_rows
from ..data.worlds import WORLDS
from . import columns as c
from .columns import Cell
from .golds import check_golds


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        id: Its own among the problems of a benchmark.
        question: Without options and context.
        solution: The gold: LaTeX text for the grader "math", a letter for "choice".
        options: Texts of the choices A, B, ...
        level: Difficulty or subject, where the data set has one.
        context: What the question is about, shown before it.
    """

    id: str
    question: str
    solution: str
    options: tuple[str, ...] = ()
    level: str | None = None
    context: str = ""


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark's problems come from, and how they are asked and graded.

    Attributes:
        name: What users type, and the name of its folder.
        title: Its column in the paper's tables.
        hub: Id of the data set; "": not on the Hub.
        split: Name of the split.
        problems: How many it must have; None: any number.
        grader: "math" or "choice".
        samples: Per problem, as in the paper.
        question: Cell of the question; so are `solution`, `options`, `context`, `id` and `level`. None: there is none.
        configs: Names of the data set's configurations; (): the default one.
        keep: Which rows belong to it; None: all.
        revision: Branch, tag or commit.
        prompt: The kind of prompt; None: as the grader is called.
        path: The local file of a benchmark that is a user's own.
    """

    name: str
    title: str
    hub: str
    split: str
    problems: int | None
    grader: Literal["math", "choice"]
    samples: int
    question: Cell
    solution: Cell
    options: Cell | None = None
    context: Cell | None = None
    id: Cell | None = None
    level: Cell | None = None
    configs: tuple[str, ...] = ()
    keep: Callable[[Row], bool] | None = None
    revision: str = "main"
    prompt: Kind | None = None
    path: str | None = None

    @property
    def kind(self) -> Kind:
        """The kind of prompt, for `build_prompt`."""
        return self.prompt or self.grader

    @property
    def source(self) -> Source:
        """The data set on the Hub."""
        return Source(self.hub, self.split, self.configs, self.revision)


# fmt: off
_TABLE = (
    Benchmark("aime24", "AIME2024", "Maxwell-Jia/AIME_2024", "train", 30, "math", 128,
              id=c.first("ID", "id"), question=c.first("Problem", "problem"),
              solution=c.number(c.first("Answer", "answer"))),
    Benchmark("aime25", "AIME2025", "opencompass/AIME2025", "test", 30, "math", 128,
              configs=("AIME2025-I", "AIME2025-II"), question=c.first("question", "problem"), solution="answer"),
    Benchmark("amc23", "AMC23", "zwhe99/amc23", "test", 40, "math", 128,
              id="id", question="question", solution=c.number("answer")),  # "27.0" there
    Benchmark("hmmt25", "HMMT25", "MathArena/hmmt_feb_2025", "train", 30, "math", 128,
              id="problem_idx", question="problem", solution="answer", level="problem_type"),
    Benchmark("math500", "MATH500", "HuggingFaceH4/MATH-500", "test", 500, "math", 16,
              id="unique_id", question="problem", solution="answer", level="level"),
    # The rows with one answer are the paper's 581, though not all of them "with a number", as it says.
    Benchmark("olympiadbench", "OlympiadBench", "Hothan/OlympiadBench", "train", 581, "math", 16,
              configs=("OE_TO_maths_en_COMP",), keep=c.is_false("is_multiple_answer"),
              id="id", question="question", context=c.optional("context"),
              solution=c.undollared(c.only("final_answer")), level="subfield"),
    # Five options, in Parquet: the original, bigbio/med_qa, is a script, which `datasets` no longer runs. The letter
    # is `answer_idx` in the original and `answer` in this mirror, which pads the options with empty ones.
    Benchmark("medqa", "MedQA", "mkieffer/MedQA-USMLE", "test", 1273, "choice", 4,
              question="question", options=c.options("options"), solution=c.letter(c.first("answer_idx", "answer")),
              level="meta_info"),
    Benchmark("medmcqa", "MedMCQA", "openlifescienceai/medmcqa", "validation", 4183, "choice", 4,
              id="id", question="question", options=c.columns("opa", "opb", "opc", "opd"), solution=c.letter("cop"),
              level="subject_name"),
    Benchmark("pubmedqa", "PubMedQA", "qiaojin/PubMedQA", "train", 500, "choice", 4, configs=("pqa_labeled",),
              keep=c.is_pubmedqa_test, id="pubid", question="question", context=c.pubmedqa_context,
              options=c.constant(c.PUBMEDQA_OPTIONS), solution=c.pubmedqa_letter),
    Benchmark("medxpertqa", "MedXpertQA", "TsinghuaC3I/MedXpertQA", "test", 2450, "choice", 4, configs=("Text",),
              id="id", question=c.before("question", "Answer Choices:"), options=c.options("options"),
              solution=c.letter("label"), level="question_type"),
    Benchmark("mmlu_pro", "MMLU-Pro", "TIGER-Lab/MMLU-Pro", "test", 1535, "choice", 4,
              keep=c.is_one_of("category", "health", "biology"), id="question_id", question="question",
              options=c.options("options"), solution=c.letter("answer_index"), level="category"),
    # The embedded worlds of `trl_miner.data.worlds`: nothing to download. Their prompts are the questions.
    Benchmark("arithmetic", "Arithmetic", "", "test", 200, "math", 8,
              question="prompt", solution="solution", level="level", prompt="verbatim"),
    Benchmark("strategies", "Strategies", "", "test", 200, "math", 64,
              question="prompt", solution="solution", level="level", prompt="verbatim"),
)
# fmt: on
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _TABLE}


def load(
    benchmark: Benchmark, source: str | Path | None = None, revision: str | None = None, *, strict: bool = True
) -> list[Problem]:
    """A benchmark's problems, checked. See `load_with_record`, which also tells where they came from."""
    return load_with_record(benchmark, source, revision, strict=strict)[0]


def load_with_record(
    benchmark: Benchmark, source: str | Path | None = None, revision: str | None = None, *, strict: bool = True
) -> tuple[list[Problem], dict[str, Any]]:
    """A benchmark's problems, checked, and where they came from.

    Args:
        benchmark: A row of the table, or `user_benchmark(...)`.
        source: A local file, or a folder of files, in the format of the data set on the Hub: .jsonl, .json, .parquet
            or .csv. None: from the Hub.
        revision: Of the data set on the Hub; None: the table's.
        strict: Refuse golds that the grader does not accept as their own; False: warn, and keep them as problems that
            no answer may solve.

    Returns:
        The problems in the order of the data set, and what `read_rows` says of their source.

    Raises:
        ConnectionError: The Hub cannot be reached.
        ValueError: Rows that cannot be read, ids that repeat, or another number of problems than the table says.
    """
    where = benchmark.source if revision is None else dataclasses.replace(benchmark.source, revision=revision)
    local = source if source is not None else benchmark.path
    if local is None and not benchmark.hub:
        world = WORLDS[f"trl_miner/{benchmark.name}"]
        rows: Sequence[Row] = world.load_dataset(benchmark.split).to_list()
        record: dict[str, Any] = {"built_in": world.NAME, "split": benchmark.split}
    else:
        rows, record = read_rows(where, local, flag=f"--local {benchmark.name}=PATH")
    problems = problems_of(benchmark, rows)
    if not problems or benchmark.problems not in (None, len(problems)):
        of = f"of {len(rows)} rows, from {where if local is None else local}"
        raise ValueError(
            f"{benchmark.title} must have {benchmark.problems or 'some'} problems: got {len(problems)} {of}. "
            f"Check that it is the right split, whole, and the right revision."
        )
    check_golds(benchmark.title, benchmark.grader, problems, strict=strict)
    return problems, record


def problems_of(benchmark: Benchmark, rows: Iterable[Row], unreadable: list[int] | None = None) -> list[Problem]:
    """The problems of a data set's rows, in order; all but their golds and their number checked.

    Args:
        benchmark: How to read a row.
        rows: The rows.
        unreadable: For training data, which may have some bad rows: takes the numbers of rows whose content is not
            understood, instead of an error.

    Raises:
        ValueError: A column is missing or holds something else, a question is empty, or two problems share an id. It
            names the row.
    """
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    for index, row in enumerate(rows):
        try:
            if benchmark.keep is not None and not benchmark.keep(row):
                continue
            problem = _problem(benchmark, index, row)
        except KeyError as error:
            raise ValueError(
                f"{benchmark.title} needs the column {error.args[0]}: row {index}{_named(benchmark, row)} has "
                f"{', '.join(map(str, row))}. Rename a column, or use the rows of {benchmark.hub or 'another file'}."
            ) from error
        except (TypeError, ValueError) as error:
            if unreadable is not None:
                unreadable.append(index)
                continue
            raise ValueError(f"{benchmark.title}, row {index}{_named(benchmark, row)}: {error}") from error
        if problem.id in row_of_id:
            raise ValueError(
                f"Every problem of {benchmark.title} needs an id of its own: rows {row_of_id[problem.id]} and {index} "
                f"are both {problem.id}. Drop one, or give it another id."
            )
        row_of_id[problem.id] = index
        problems.append(problem)
    return problems


def user_benchmark(
    name: str,
    path: str | Path,
    *,
    problem: str = "problem",
    answer: str = "answer",
    id: str = "id",  # noqa: A002
    level: str = "level",
    options: str = "options",
    samples: int = 8,
    title: str | None = None,
) -> Benchmark:
    """A benchmark of one's own: JSONL, JSON or Parquet with a problem and an answer per row.

    With a column of options (a list of texts, or a text for each letter), the answer is a letter or the number of an
    option, counted from 0, and the grader is "choice"; else it is LaTeX or a number, and the grader is "math".

    Args:
        name: What to call it.
        path: The file.
        problem, answer: Names of the columns.
        id, level, options: Names of columns that need not be there.
        samples: Per problem.
        title: Its name in tables; None: `name`.

    Raises:
        ValueError: The name is taken or not fit for a folder, or the file is unreadable or empty.
    """
    if name in BENCHMARKS or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ValueError(
            f"A benchmark of your own needs a name of letters, digits, - _ and . that is not taken: got {name!r}. "
            f"Taken: {', '.join(BENCHMARKS)}."
        )
    rows, _ = read_rows(Source("", ""), path, flag="")
    if not rows:
        raise ValueError(f"A benchmark must have problems: got none in {path}. Write one per row.")
    has_options = options in rows[0]
    return Benchmark(
        name, title or name, "", "", None, "choice" if has_options else "math", samples,
        question=problem,
        solution=c.letter(answer) if has_options else answer,
        options=c.options(options) if has_options else None,
        id=id if id in rows[0] else None,
        level=c.optional(level),
        path=str(path),
    )  # fmt: skip


def fingerprint(problems: Iterable[Problem]) -> str:
    """sha256 of all that decides on prompts and scores: ids, questions, golds, options and contexts, in order."""
    digest = hashlib.sha256()
    for problem in problems:
        fields = [problem.id, problem.question, problem.solution, list(problem.options)]
        fields += [problem.context] if problem.context else []
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()


def _problem(benchmark: Benchmark, index: int, row: Row) -> Problem:
    level = None if benchmark.level is None else c.read(c.optional(benchmark.level), row)
    own_id = None if benchmark.id is None else c.read(c.optional(benchmark.id), row)
    question = c.read(benchmark.question, row)
    problem = Problem(
        id=f"{benchmark.name}-{index}" if own_id in (None, "") else c.text(own_id),
        question=question if benchmark.kind == "verbatim" else c.text(question),
        solution=c.text(c.read(benchmark.solution, row)),
        options=() if benchmark.options is None else tuple(c.read(benchmark.options, row)),
        level=None if level is None else c.text(level),
        context="" if benchmark.context is None else c.text(c.read(benchmark.context, row) or ""),
    )
    if not problem.question:
        raise ValueError("a question must not be empty. Drop the row, or complete it.")
    if not problem.solution:
        raise ValueError("a gold must not be empty. Drop the row, or complete it.")
    if benchmark.grader == "choice" and ord(problem.solution) - ord("A") >= len(problem.options):
        raise ValueError(
            f"the gold must be one of {len(problem.options)} options: got {problem.solution}. Correct it."
        )
    return problem


def _named(benchmark: Benchmark, row: Row) -> str:
    try:
        return "" if benchmark.id is None else f" (id {c.text(c.read(benchmark.id, row))})"
    except (KeyError, TypeError, ValueError):
        return ""
