"""Reading a training set's sources, some rows of which may be bad."""

from pathlib import Path

from .problems import Benchmark, read_problems
from .reading import read_rows
from .training_set import Part

MATH_BENCHMARKS = ("aime24", "aime25", "amc23", "hmmt25", "math500", "olympiadbench")
MEDICAL_BENCHMARKS = ("medqa", "medmcqa", "pubmedqa", "medxpertqa", "mmlu_pro")


def read_part(table_row: Benchmark, source: str | Path | None, revision: str | None) -> Part:
    """The problems of a source; rows without a question or an answer are dropped and counted.

    Args:
        table_row: Where the rows are and how to read them; its name goes into the ids and the column `source`.
        source: A local file or folder; None: the Hub.
        revision: Of the data set on the Hub; None: the table's.

    Raises:
        ConnectionError: The Hub cannot be reached.
        ValueError: A column is missing, or two rows have one id.
    """

    rows, record = read_rows(table_row.source(revision), source, flag=f"--local {table_row.name}=PATH")
    unreadable: list[int] = []
    problems = read_problems(table_row, rows, unreadable)
    return Part(table_row.name, record, len(rows), problems, {"no question or no valid answer": len(unreadable)})
