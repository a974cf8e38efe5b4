"""Which problems are trained on, and which are scored: none is on both sides."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from strangers import lines, load, table, text_of, tokenizer  # noqa: E402

from trl_miner.data.own import load_training_data  # noqa: E402
from trl_miner.data.prompts import PromptForm  # noqa: E402
from trl_miner.data.settings import DataArguments  # noqa: E402


def sides(data):
    return [{*map(text_of, rows["prompt"])} for rows in (data.train, data.problems)]


@pytest.mark.parametrize("held_out, count", [(3, 3), (0.1, 3), (0.01, 1), ("3", 3), ("0.1", 3)])
def test_a_number_or_a_share_is_held_out(tmp_path, held_out, count):
    path = table(tmp_path / "a.csv", ",", ["q", "a"], lambda n: [f"{n} + 8?", str(n + 8)])
    data = load(path, held_out)
    train, problems = sides(data)
    assert (len(train), len(problems)) == (30 - count, count) and not train & problems
    assert data.problems.column_names == data.train.column_names
    assert load(path, held_out).problems["prompt"][:] == data.problems["prompt"][:]
    assert load(path, None).problems is None


def test_what_stands_twice_is_on_one_side(tmp_path):
    """15 problems, each in 2 rows."""
    path = table(tmp_path / "a.csv", ",", ["q", "a"], lambda n: [f"{n // 2} + 8?", str(n // 2 + 8)])
    data = load(path, 3)
    train, problems = sides(data)
    assert len(train | problems) == 15 and not train & problems and len(data.problems) == 3


def test_held_out_problems_that_leave_none_are_refused(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"q": "1?", "a": 1}, {"q": "2?", "a": 2}])
    with pytest.raises(ValueError, match="held_out: 2 leaves no problem to train on"):
        load(path, 2)


def test_a_folder_has_splits_and_the_test_split_is_scored(tmp_path):
    """The problem that is in both files is scored, and not trained on."""
    lines(tmp_path / "train.jsonl", [{"q": f"{n}?", "a": n} for n in range(10)])
    lines(tmp_path / "test.jsonl", [{"q": f"{n}?", "a": n} for n in range(9, 13)])
    data = load(tmp_path, 100)
    train, problems = sides(data)
    assert (len(train), len(problems)) == (9, 4) and not train & problems
    assert len(load(tmp_path).train) == 10
    with pytest.raises(
        ValueError, match="no split dev, but train, test: set --dataset_train_split"
    ):
        load(tmp_path, dataset_train_split="dev")


def test_a_benchmark_is_held_out_by_its_name(tmp_path):
    """Its problems are asked as those that are trained on; one of both is not trained on."""
    rows = [{"q": "Compute 35 + 4.\n", "a": 39}, {"q": "2?", "a": 2}]
    data = load(lines(tmp_path / "a.jsonl", rows), "arithmetic:3")
    assert len(data.problems) == 3 and data.problems["solution"][0] == "39"
    assert data.train["solution"][:] == ["2"]
    assert text_of(data.problems[0]["prompt"]).endswith("User: Compute 35 + 4.\n\n\nAssistant:")


def test_a_file_is_held_out_as_a_benchmark(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"question": f"{n}?", "answer": n} for n in range(5)])
    other = lines(tmp_path / "b.jsonl", [{"problem": "3?", "solution": 3}])
    data = load(path, f"mine={other}")
    assert data.problems["solution"][:] == ["3"] and len(data.train) == 4
    with pytest.raises(ValueError, match="There is no benchmark 'aime99': write one of aime24, "):
        load(path, "aime99")


def test_the_embedded_world_is_asked_as_it_stands_by_its_own_model_alone():
    args = DataArguments(dataset_name="trl_miner/arithmetic")
    data = load_training_data(args, "trl_miner/arithmetic", tokenizer(), 100)
    assert (len(data.train), len(data.problems)) == (2000, 100)
    assert data.form.style == "verbatim" and data.train["prompt"][0].startswith("Compute")
    data = load_training_data(args, "some/model", tokenizer(), template_kwargs={"x": 1})
    assert data.form == PromptForm("chat", template_kwargs={"x": 1})
    assert data.train[0]["prompt"][1]["content"].startswith("Compute")


def test_a_run_that_rewards_by_itself_needs_no_answers_and_keeps_prompts(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"prompt": f"Write {n} words.\n"} for n in range(3)])
    args = DataArguments(dataset_name=str(path))
    data = load_training_data(args, "some/model", tokenizer(), needs_answers=False)
    assert data.train["prompt"][:] == [f"Write {n} words.\n" for n in range(3)]
    with pytest.raises(ValueError, match="usual name for the solution, but prompt"):
        load_training_data(args, "some/model", tokenizer())


def test_a_mixture_is_trls_own(tmp_path):
    from trl import DatasetMixtureConfig

    paths = [lines(tmp_path / f"{n}.jsonl", [{"q": f"{n}?", "a": n}] * 2) for n in (1, 2)]
    entries = [{"path": "json", "data_files": str(path)} for path in paths]
    mixture = DatasetMixtureConfig(datasets=entries)
    data = load_training_data(DataArguments(), "m", tokenizer(), mixture=mixture)
    assert sorted(data.train["solution"]) == ["1", "1", "2", "2"]
    with pytest.raises(ValueError, match="There is no data: name a file, or a data set"):
        load_training_data(DataArguments(), "m", tokenizer())
