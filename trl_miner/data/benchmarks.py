"""The benchmarks: one table. Adding a benchmark means adding a row.

Columns, ids and numbers of problems are those of the data sets on the Hub; titles and samples per
problem are the paper's, which does not ask GSM8K. A cell is the name of a column. Where a column
needs work, the cell is a function of the row from `columns.py`.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..common.progress import is_quiet
from . import columns as c
from . import reasoning_gym
from .guessing import FIRST_ROWS, columns_in, guess_settings, layout_of_settings
from .problems import Benchmark, Problem, check_golds, read_problems, read_rows
from .prompts import Message
from .reading import Row, describe_file, find_files, read_file
from .worlds import WORLDS

# fmt: off
_TABLE = (
    Benchmark("aime24", "AIME2024", "Maxwell-Jia/AIME_2024", "train", 30, "math", 128,
              id="ID", question="Problem", solution=("Answer", c.number)),
    Benchmark("aime25", "AIME2025", "opencompass/AIME2025", "test", 30, "math", 128,
              configs=("AIME2025-I", "AIME2025-II"), question="question", solution="answer"),
    Benchmark("amc23", "AMC23", "zwhe99/amc23", "test", 40, "math", 128,
              id="id", question="question", solution=("answer", c.number)),  # "27.0" there
    Benchmark("hmmt25", "HMMT25", "MathArena/hmmt_feb_2025", "train", 30, "math", 128,
              id="problem_idx", question="problem", solution="answer", level="problem_type"),
    Benchmark("gsm8k", "GSM8K", "openai/gsm8k", "test", 1319, "math", 4, configs=("main",),
              question="question", solution=("answer", c.marked)),
    Benchmark("math500", "MATH500", "HuggingFaceH4/MATH-500", "test", 500, "math", 16,
              id="unique_id", question="problem", solution="answer", level="level"),
    # The rows with one answer are the paper's 581, though not all of their answers are numbers, as
    # it says.
    Benchmark("olympiadbench", "OlympiadBench", "Hothan/OlympiadBench", "train", 581, "math", 16,
              configs=("OE_TO_maths_en_COMP",),
              keep=lambda row: c.text(row["is_multiple_answer"]).casefold() in ("false", "0"),
              id="id", question="question", context=lambda row: row.get("context"),
              solution=("final_answer", c.only, c.undollared), level="subfield"),
    # In Parquet: the original, bigbio/med_qa, is a script, which `datasets` no longer runs. This
    # mirror pads the five options with empty ones.
    Benchmark("medqa", "MedQA", "mkieffer/MedQA-USMLE", "test", 1273, "choice", 4,
              question="question", options=("options", c.options), solution="answer", level="meta_info"),
    Benchmark("medmcqa", "MedMCQA", "openlifescienceai/medmcqa", "validation", 4183, "choice", 4,
              id="id", question="question", options=lambda row: [c.text(row[f"op{letter}"]) for letter in "abcd"],
              solution="cop", first_option=0, level="subject_name"),
    Benchmark("pubmedqa", "PubMedQA", "qiaojin/PubMedQA", "train", 500, "choice", 4, configs=("pqa_labeled",),
              keep=lambda row: c.text(row["pubid"]) in c.pubmedqa_test_ids(), id="pubid", question="question",
              context=lambda row: "\n".join(map(c.text, row["context"]["contexts"])),
              options=lambda row: ("yes", "no", "maybe"),
              solution=lambda row: "ABC"[["yes", "no", "maybe"].index(c.text(row["final_decision"]).casefold())]),
    Benchmark("medxpertqa", "MedXpertQA", "TsinghuaC3I/MedXpertQA", "test", 2450, "choice", 4, configs=("Text",),
              id="id", question=lambda row: c.text(row["question"]).split("Answer Choices:")[0].strip(),
              options=("options", c.options), solution="label", level="question_type"),
    Benchmark("mmlu_pro", "MMLU-Pro", "TIGER-Lab/MMLU-Pro", "test", 1535, "choice", 4,
              keep=lambda row: row["category"] in ("health", "biology"), id="question_id", question="question",
              options=("options", c.options), solution="answer_index", first_option=0, level="category"),
    # The embedded worlds of `trl_miner.data.worlds`: nothing to download. Their prompts are the
    # questions.
    *(Benchmark(name, title, "", "test", problems, "math", samples,
                question="prompt", solution="solution", level="level", prompt="verbatim")
      for name, title, problems, samples in (
          ("arithmetic", "Arithmetic", 200, 8), ("forks", "Forks", 512, 16),
          ("forks_mirror", "Forks, the mirror", 512, 16), ("strategies", "Strategies", 200, 64))),
)
# fmt: on
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _TABLE}

# of a file of the user's, beside its questions and answers
MORE_SETTINGS = """
    dataset_options_column options_columns context_columns answer_pattern answer_after
    decimal_comma
    """.split()
KNOWN = (*BENCHMARKS, "reasoning_gym/FAMILY")  # as users write them


class Entry(NamedTuple):
    """A benchmark as users write it: NAME, or NAME=PATH for a file; with :N behind it, its first N
    problems."""

    name: str
    path: str = ""
    number: int | None = None


def read_entry(text: str) -> Entry:
    """Return the parts of an entry of `trl-miner eval --benchmarks` or of `held_out`.

    Raises:
        ValueError: A number of problems below 1.
    """
    match = re.fullmatch(r"(.+):(\d+)", text)
    entry, count = (match[1], int(match[2])) if match else (text, None)
    if count == 0:
        raise ValueError(
            f"A benchmark needs at least 1 problem: got {text!r}. Write {entry}:N, or {entry} for"
            " all."
        )
    name, _, path = (entry, "", "") if reasoning_gym.is_task(entry) else entry.partition("=")
    return Entry(name, path, count)


def is_known(entry: Entry) -> bool:
    """Return whether there is such a benchmark: in the table, at a path, or a family of
    reasoning-gym.

    Raises:
        ValueError: reasoning-gym has no such family.
    """
    if reasoning_gym.is_task(entry.name):
        return bool(reasoning_gym.benchmark_parts(entry.name))
    return bool(entry.path) or entry.name in BENCHMARKS


def find_benchmark(
    name: str, path: str = "", given: Mapping[str, Any] = MappingProxyType({})
) -> Benchmark:
    """Return the benchmark of this name: a row of the table, a family of reasoning-gym, or a user's
    own at `path`, of which `given` says what its columns are called."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if not reasoning_gym.is_task(name):
        return user_benchmark(name, path, given)
    (part,) = reasoning_gym.benchmark_parts(name)
    title = reasoning_gym.benchmark_name(part).partition("/")[2]
    cells: dict[str, Any] = {cell: cell for cell in ("question", "solution", "id", "level", "task")}
    return Benchmark(re.sub(r"[^\w.,=-]", "-", name), title, name, "test", None, "task", 8, **cells)


def load(
    benchmark: Benchmark, source: str | Path | None = None
) -> tuple[list[Problem], dict[str, Any]]:
    """Load the problems of a benchmark, check them, and return them with the record of their source
    (see `read_rows`).

    `source` is a local file or a folder of files in the format of the data set on the Hub.
    """
    local = source if source is not None else benchmark.path
    if local is None and reasoning_gym.is_task(benchmark.hub):
        parts = reasoning_gym.benchmark_parts(benchmark.hub)
        rows: Sequence[Row] = reasoning_gym.make_rows(
            parts, benchmark.split, reasoning_gym.TEST_SIZE, seed=0
        )
        record: dict[str, Any] = {
            "reasoning_gym": version("reasoning-gym"),
            "split": benchmark.split,
        }
    elif local is None and not benchmark.hub:
        world = WORLDS[f"trl_miner/{benchmark.name}"]
        rows = world.load_dataset(benchmark.split).to_list()
        record = {"built_in": world.NAME, "split": benchmark.split}
    else:
        rows, record = read_rows(benchmark, local)
    problems = read_problems(benchmark, rows)
    if not problems or benchmark.problems not in (None, len(problems)):
        raise ValueError(
            f"{benchmark.title} must have {benchmark.problems or 'some'} problems: got"
            f" {len(problems)} of {len(rows)} rows, from {local or benchmark.hub}."
        )
    check_golds(benchmark.title, benchmark.grader, problems)
    return problems, record


def user_benchmark(
    name: str, path: str | Path, given: Mapping[str, Any] = MappingProxyType({})
) -> Benchmark:
    """Describe a user's own benchmark: a file with a question and an answer per row.

    Its columns are guessed as in training (see `guess_settings`), but for `given`, settings of a
    recipe. With options the grader is "choice", and the answer a letter, the text of an option, or
    its number. Otherwise it is LaTeX or a number, for "math".
    """
    if name in BENCHMARKS or not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        raise ValueError(
            "A benchmark of your own needs a new name of letters, digits, -, _ and .: got"
            f" {name!r}."
        )
    files = find_files(Path(path))
    rows = [row for file in files for row in read_file(file)]
    names = {each for row in rows[:FIRST_ROWS] for each in c.fields(row)}
    fitting = {
        key: value for key, value in given.items() if names.issuperset(columns_in(key, value))
    }
    if "dataset_solution_column" in given and "dataset_solution_column" not in fitting:
        # they are said of another file's answers
        fitting = {key: value for key, value in fitting.items() if not key.startswith("answer_")}
    settings, _ = guess_settings(str(path), rows[:FIRST_ROWS], fitting)
    layout = layout_of_settings(settings)
    has_messages = isinstance(layout.question(rows[0]), list)
    has_options = "choice_reward" in settings["reward_funcs"]
    # a wrong guess would be a wrong score
    if not is_quiet() and os.environ.get("RANK", "0") == "0":
        more = [f"{key}: {settings[key]}" for key in MORE_SETTINGS if settings.get(key)]
        more += ["of messages the user's is the question"] * has_messages
        print(
            f"{name}: questions are in the column {layout.prompt}, answers in {layout.solution}."
            f" {'; '.join([f'Read as {describe_file(files[0])}', *more])}.",
            file=sys.stderr,
        )
    return Benchmark(
        name, name, "", "", None, "choice" if has_options else "math", samples=8, id="id", level="level",
        path=str(path),
        question=lambda row: _asked(layout.question(row)),
        prompt="verbatim" if has_messages else None,
        solution=layout.gold,
        options=layout.options_of if has_options else None,
        first_option=layout.first_option,
        decimal_comma=layout.decimal_comma,
    )  # fmt: skip


def _asked(question: str | list[Message]) -> str:
    """Return the question of a prompt: its text, or that of its only message of the user."""
    if isinstance(question, str):
        return question
    texts = [message["content"] for message in question if message["role"] == "user"]
    if len(texts) != 1:
        raise ValueError(
            f"a question must be text, or one message of the user: got {len(texts)}. Give the"
            " question alone."
        )
    return texts[0]
