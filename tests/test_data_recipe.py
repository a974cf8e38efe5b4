"""A recipe made from a data set: `trl-miner train problems.csv --model MODEL`."""

import json
from pathlib import Path

import pytest
import yaml
from datasets import load_dataset
from trl import DatasetMixtureConfig, ModelConfig

from trl_miner import cli, train
from trl_miner.data_recipe import is_data, make_recipe, with_made_recipe
from trl_miner.recipe import MinerScriptArguments
from trl_miner.training_data import held_out_problems, load_data

SUMS = "question,result\n" + "".join(f"{a} + 1 =,{a + 1}\n" for a in range(20))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sums.csv").write_text(SUMS)


ROWS = [{"Problem": "1 + 1", "id": 7, "Answer": "2"}, {"Problem": "1 + 2", "id": 8, "Answer": "3"}]
WORKED = [{"question": "1 + 1?", "answer": "One and one.\n#### 2"}]
CHOICES = [{"question": "Which?", "choices": ["red", "blue"], "answer": "B"}]


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [
        (ROWS, {}, ["Problem", "Answer", None, None, ["math_reward"]]),
        (WORKED, {}, ["question", "answer", None, r"####\s*(.+)", ["math_reward"]]),
        (CHOICES, {}, ["question", "answer", "choices", None, ["choice_reward"]]),
        # `prompt` comes after `question`; what is left is the answer, whatever it is called
        ([{"prompt": "2 + 2", "wert": "4"}], {}, ["prompt", "wert", None, None, ["math_reward"]]),
        (
            [{"question": "1 + 1", "hint": "2", "answer": "wrong"}],
            {"dataset_solution_column": "hint", "reward_funcs": ["my_rewards.own"]},
            ["question", "hint", None, None, ["my_rewards.own"]],
        ),
    ],
)
def test_columns_and_verifier_are_guessed_where_the_user_does_not_say_them(rows, given, expected):
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe, _ = make_recipe("data.jsonl", {"model_name_or_path": "some/model", **given})
    keys = (
        "dataset_prompt_column",
        "dataset_solution_column",
        "dataset_options_column",
        "answer_pattern",
    )
    assert [recipe.get(key) for key in (*keys, "reward_funcs")] == expected
    # prompts stay as they are: here none asks for a box
    assert recipe.get("math_accept_unboxed", False) == (expected[0] == "prompt")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (
            "a,b,c\n1,2,3\n",
            [],
            "looks like the question: there are a, b, c.*--dataset_prompt_column",
        ),
        (
            "question,b,c\n1,2,3\n",
            [],
            "looks like the answer: there are b, c.*--dataset_solution_column",
        ),
        ("question,answer\n", [], "data.csv has no rows"),
        (
            "question,answer\nWhy?,Because it is so.\\nYes\nHow?,So.\n",
            ["--answer_pattern", "x"],
            "answer_pattern",
        ),
        ("question,answer\n1,2\n", ["--dataset_train_split", "dev"], "no split 'dev', but train"),
    ],
)
def test_what_cannot_be_guessed_is_told_with_the_option_that_says_it(text, words, said):
    Path("data.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        with_made_recipe(["data.csv", "--model", "trl_miner/arithmetic", *words])


def test_a_file_that_is_not_there_and_a_missing_model_are_told():
    with pytest.raises(ValueError, match="nothing.csv could not be loaded"):
        with_made_recipe(["nothing.csv", "--model", "m"])
    with pytest.raises(ValueError, match="--model MODEL"):
        with_made_recipe(["sums.csv"])
    with pytest.raises(ValueError, match="^arithmatic/miner is no recipe here, and"):
        with_made_recipe(["arithmatic/miner"])


def test_a_recipe_for_a_gpu_scores_as_many_rollouts_at_once_as_it_trains_on(monkeypatch):
    """The cache of 256 would take more memory than a GPU of 24 GB has."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    recipe, _ = make_recipe("sums.csv", {"model_name_or_path": "some/model"})
    assert (
        recipe["score_batch_size"] == recipe["per_device_train_batch_size"]
        and "use_cpu" not in recipe
    )
    with_made_recipe(["sums.csv", "--model", "trl_miner/arithmetic"])
    assert "without a GPU" not in Path("runs/sums.yaml").read_text()


def test_a_data_set_is_told_from_a_recipe():
    data_sets = ["sums.csv", "openai/gsm8k", "reasoning_gym/chain_sum", "trl_miner/arithmetic"]
    recipes = ["arithmetic/miner", "arithmetic/typo", "recipes/arithmetic/miner.yaml", "mine.yaml"]
    assert [is_data(name) for name in data_sets + recipes] == [True] * 4 + [False] * 4


def test_a_recipe_may_stand_first():
    assert with_made_recipe(["arithmetic/miner", "--seed", "2"]) == [
        "--config",
        "arithmetic/miner",
        "--seed",
        "2",
    ]
    assert with_made_recipe(["--config", "a.yaml"]) == ["--config", "a.yaml"]


def test_the_recipe_is_kept_and_never_overwritten(capsys):
    words = ["sums.csv", "--model", "trl_miner/arithmetic", "--seed", "2"]
    assert (
        with_made_recipe(words)
        == ["--config", "runs/sums.yaml", "--seed", "2"]
        == with_made_recipe(words)
    )
    assert "dataset_solution_column: result\n" in capsys.readouterr().err
    Path("runs/sums.yaml").write_text(
        Path("runs/sums.yaml").read_text().replace("held_out: 2", "held_out: 3")
    )
    with pytest.raises(ValueError, match="trl-miner train runs/sums.yaml"):
        with_made_recipe(words)
    assert with_made_recipe([*words, "--output_dir", "other/"])[1] == "other.yaml"


def test_the_recipe_trains_and_scores_what_it_holds_out(policy):
    words = [
        "sums.csv",
        "--model",
        str(policy),
        "--max_steps",
        "1",
        "--save_steps",
        "1",
        "--report_to",
        "none",
    ]
    options = [
        "--score_samples",
        "1",
        "--max_completion_length",
        "4",
        "--save_strategy",
        "no",
        "--quiet",
    ]
    train.main(with_made_recipe([*words, *options]))
    held_out = json.loads(Path("runs/sums/held_out.json").read_text())
    assert len(held_out["moments"]["after"]["num_correct"]) == 2  # a tenth of 20
    assert yaml.safe_load(Path("runs/sums.yaml").read_text())["held_out"] == 2


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ("20", "must leave problems to train on"),
        ("-1", "held_out must be a whole number, or a share"),
    ],
)
def test_a_part_that_cannot_be_held_out_is_told(policy, held_out, said):
    with pytest.raises(ValueError, match=said):
        train.main(with_made_recipe(["sums.csv", "--model", str(policy), "--held_out", held_out]))


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (dict(held_out=5), (15, 5)),
        (dict(held_out=0.1), (18, 2)),  # of 20
        # a test split: its first 5
        (dict(dataset_name="trl_miner/arithmetic", held_out=5, task_size=8), (8, 200)),
    ],
)
def test_problems_are_split_off_where_there_is_no_test_split(settings, sizes):
    args = MinerScriptArguments(**{"dataset_name": "sums.csv", **settings})
    data = load_data(args, DatasetMixtureConfig(), ModelConfig(model_name_or_path=None))
    assert (len(data["train"]), len(data["test"]) if "test" in data else None) == sizes
    if sizes[1]:
        questions = [
            {
                *map(
                    str,
                    data[split]["prompt" if "prompt" in data[split].column_names else "question"],
                )
            }
            for split in data
        ]
        assert not set.intersection(*questions)


def test_a_test_split_that_is_named_must_be_there():
    args = MinerScriptArguments(
        dataset_name="sums.csv", dataset_test_split="validation", held_out=5
    )
    with pytest.raises(
        ValueError, match="dataset_test_split must be a split of the data set: got 'validation'"
    ):
        load_data(args, DatasetMixtureConfig(), ModelConfig(model_name_or_path=None))


def test_a_stream_has_problems_to_score():
    data = load_dataset(
        "csv", data_files=dict.fromkeys(("train", "test"), "sums.csv"), streaming=True
    )
    data = data.rename_column("question", "prompt")
    problems, _ = held_out_problems(MinerScriptArguments(held_out=3), data, None)
    assert problems["prompt"] == ["0 + 1 =", "1 + 1 =", "2 + 1 ="]


@pytest.mark.parametrize("command", ["launch", "doctor"])
def test_launch_and_doctor_take_a_data_set_as_train_does(policy, command, capsys):
    words = ["sums.csv", "--model", str(policy), "--max_completion_length", "8"]
    assert cli.main([command, *words, *["--dry-run"] * (command == "launch")]) == 0
    assert yaml.safe_load(Path("runs/sums.yaml").read_text())["dataset_name"] == "sums.csv"
    assert (
        "--config runs/sums.yaml" if command == "launch" else "and what they are read as"
    ) in capsys.readouterr().out
