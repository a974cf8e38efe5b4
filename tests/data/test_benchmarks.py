"""The table of benchmarks, on small files in the forms of the data sets on the Hub."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parent))
from strangers import lines  # noqa: E402

from trl_miner.data import benchmarks  # noqa: E402
from trl_miner.data.benchmarks import BENCHMARKS, PUBMEDQA_TEST, read_problems  # noqa: E402
from trl_miner.data.settings import DataArguments  # noqa: E402
from trl_miner.grading import describe_reference  # noqa: E402

SMALL = Path(__file__).parent / "benchmarks"


@pytest.fixture
def small(monkeypatch):
    """Read a benchmark from its small file, which has three of its problems."""

    def read(name, path=None):
        row = dataclasses.replace(BENCHMARKS[name], problems=3)
        monkeypatch.setitem(benchmarks.BENCHMARKS, name, row)
        (own,) = (each for each in SMALL.iterdir() if each.stem == name)
        return read_problems(f"{name}={path or own}")[1]

    return read


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "arithmetic"])
def test_a_small_file_in_the_real_form_is_read(name, small):
    problems = small(name)
    assert len({problem.id for problem in problems}) == 3
    is_choice = BENCHMARKS[name].grader == "choice"
    for problem in problems:
        assert bool(problem.options) == is_choice and problem.question
        assert not describe_reference(problem.solution, problem.options or None).fault


def test_rows_that_need_work(small):
    def of(name, field):
        return [getattr(problem, field) for problem in small(name)]

    assert of("aime24", "solution")[0] == "84"
    assert of("aime25", "id") == ["aime25-0", "aime25-1", "aime25-2"]
    assert of("amc23", "solution") == ["27", "-3", "3.5"]  # 27.0 there
    assert of("gsm8k", "solution") == ["12", "1,400", "-3"]
    assert len(of("olympiadbench", "solution")) == 3  # of 4: one has two answers
    assert of("olympiadbench", "question")[2].startswith("All lines lie in a plane.\n\n")
    assert of("medqa", "options")[0][-1] == "Vitamin K"  # the sixth is padding
    assert of("medmcqa", "solution")[1] == "D"  # cop 3, counted from 0
    assert len(PUBMEDQA_TEST) == 500 and len(of("pubmedqa", "id")) == 3
    assert of("pubmedqa", "options")[0] == ("yes", "no", "maybe")
    assert of("pubmedqa", "question")[0].startswith("Tea is drunk.\nAll stayed awake.\n\nDoes ")
    assert of("medxpertqa", "question")[1] == "Which bone carries the leg on the foot?"
    assert of("mmlu_pro", "solution") == ["B", "J", "A"]


def test_a_wrong_number_of_problems_and_a_damaged_row_are_refused(small, tmp_path):
    with pytest.raises(ValueError, match="aime24.jsonl must have 30 problems, and has 3"):
        read_problems(f"aime24={SMALL / 'aime24.jsonl'}")
    rows = [json.loads(line) for line in (SMALL / "aime24.jsonl").read_text().splitlines()]
    with pytest.raises(ValueError, match="1 of 2 rows have no .*reference answer that can be read"):
        small("aime24", lines(tmp_path / "a.jsonl", [rows[0], rows[1] | {"Answer": None}]))


@pytest.mark.parametrize("entry", ["aime99", "aime24:", ""])
def test_an_unknown_name_is_told_with_those_there_are(entry):
    with pytest.raises(ValueError, match="There is no benchmark .*aime24, aime25, .*NAME=PATH"):
        read_problems(entry)


# One's own


def test_a_file_of_ones_own(tmp_path):
    rows = [{"q": "1+1?", "a": 2, "id": "x"}, {"q": "2+2?", "a": "It is\n#### 4"}]
    benchmark, problems = read_problems(f"mine={lines(tmp_path / 'a.jsonl', rows)}")
    assert (benchmark.name, benchmark.grader, benchmark.samples) == ("mine", "math", 8)
    assert [(one.id, one.solution) for one in problems] == [("mine-0", "2"), ("mine-1", "4")]
    assert len(read_problems(f"mine={tmp_path / 'a.jsonl'}:1")[1]) == 1


def test_its_columns_are_named_as_in_training(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"x": "1+1?", "y": "so 2"}])
    with pytest.raises(ValueError, match="for the prompt, but x, y. Name one"):
        read_problems(f"mine={path}")
    args = DataArguments(
        dataset_prompt_column="x", dataset_solution_column="y", answer_pattern=r"\d+"
    )
    assert read_problems(f"mine={path}", args)[1][0].solution == "2"


def test_a_folder_with_train_and_test_files_is_its_test_files(tmp_path):
    """The trained ones would be scored in silence."""
    for split, count in (("train", 10), ("test", 4)):
        rows = [{"q": f"{split} {n}?", "a": n} for n in range(count)]
        Dataset.from_list(rows).to_parquet(tmp_path / f"{split}.parquet")
    problems = read_problems(f"mine={tmp_path}")[1]
    assert len(problems) == 4 and problems[0].question == "test 0?"
    args = DataArguments(dataset_test_split="train")
    assert len(read_problems(f"mine={tmp_path}", args)[1]) == 10
    (tmp_path / "test.parquet").rename(tmp_path / "validation.parquet")
    with pytest.raises(ValueError, match="no split test, but train, validation: .*test_split"):
        read_problems(f"mine={tmp_path}")
