"""`trl-miner sft`: the start that a recipe's model gets, and what it refuses."""

import csv

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner import cli
from trl_miner.commands.sft import CHOICES, WORDINGS, _add_completion
from trl_miner.compare import HELD_OUT
from trl_miner.recipe.parsing import make_parser
from trl_miner.recipe.training_data import load_data
from trl_miner.rewards import choice_reward, math_reward


def write_recipe(folder, rows=32, **changes):
    with (folder / "sums.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("question", "result"), *((f"Compute {n} + 1.", n + 1) for n in range(rows))]
        )
    settings = {
        "output_dir": folder / "run",
        "model_name_or_path": folder / "start",
        "dataset_name": folder / "sums.csv",
        "dataset_prompt_column": "question",
        "dataset_solution_column": "result",
        "use_cpu": "true",
        "bf16": "false",
        "gradient_checkpointing": "false",
    } | changes
    (folder / "recipe.yaml").write_text(
        "".join(f"{key}: {value}\n" for key, value in settings.items())
    )
    return str(folder / "recipe.yaml")


def test_the_start_is_where_the_recipe_looks_for_its_model(policy, tmp_path, capsys):
    recipe = write_recipe(tmp_path)
    command = ["sft", "--config", recipe, "--model", policy, "--steps", "2", "--lr", "1e-3"]
    assert cli.main(command) == 0
    assert f"trl-miner train --config {recipe}" in capsys.readouterr().out
    start, before = (
        AutoModelForCausalLM.from_pretrained(folder) for folder in (tmp_path / "start", policy)
    )
    assert any(
        (one != other).any()
        for one, other in zip(start.parameters(), before.parameters(), strict=True)
    )
    assert len(AutoTokenizer.from_pretrained(tmp_path / "start")) == len(
        AutoTokenizer.from_pretrained(policy)
    )
    assert cli.main(command) == 2  # the start of before is kept
    assert "is there already, and this command would write a model there" in capsys.readouterr().err


def test_the_same_gold_is_taught_in_several_wordings():
    rows = [_add_completion({"prompt": "1 + 1?", "solution": " 2"}, index) for index in range(100)]
    assert {row["completion"] for row in rows} == {f" {wording % 2}" for wording in WORDINGS}
    chat = _add_completion(
        {"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2", "task": "..."}, 0
    )
    assert (
        chat["completion"][0]["role"] == "assistant"
        and "\\boxed{2}" in chat["completion"][0]["content"]
    )


def test_a_completion_of_the_data_set_is_taught_as_it_stands():
    row = {"solution": "2", "completion": " 1 + 1 = 2. The answer is 2."}
    assert _add_completion({"prompt": "1 + 1?", **row}, 0)["completion"] == row["completion"]
    chat = _add_completion({"prompt": [{"role": "user", "content": "1 + 1?"}], **row}, 0)
    assert chat["completion"] == [{"role": "assistant", "content": row["completion"]}]


def test_what_compare_holds_out_of_the_same_recipe_is_not_taught(policy, tmp_path, monkeypatch):
    recipe, taught = write_recipe(tmp_path, rows=250, prompt_style="plain"), []
    monkeypatch.setattr(
        "trl_miner.commands.sft._train",
        lambda model, rows, folder, *_: taught.extend(rows["prompt"]),
    )
    monkeypatch.setattr(
        "trl_miner.data.prompt_form.write_form", lambda folder, form: folder.mkdir()
    )
    assert cli.main(["sft", "--config", recipe, "--model", policy]) == 0
    words = ["--config", recipe, "--held_out", str(HELD_OUT)]
    script, _, model_args, mixture = make_parser(words).parse_args_and_config(words)
    assert (
        not {*load_data(script, mixture, model_args)["test"]["prompt"]} & {*taught}
        and len(taught) == 50
    )


def test_a_start_that_is_interrupted_leaves_nothing_behind_and_can_be_made_again(
    policy, tmp_path, monkeypatch
):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("trl.SFTTrainer.train", interrupt)
    assert cli.main(["sft", "--config", write_recipe(tmp_path), "--model", policy]) != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "sums.csv"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_name_or_path": "trl_miner/arithmetic"}, "trl_miner/arithmetic is there already"),
        ({"dataset_solution_column": "solution"}, "Set dataset_solution_column"),
    ],
)
def test_what_cannot_be_taught_is_refused(policy, tmp_path, capsys, changes, said):
    assert cli.main(["sft", "--config", write_recipe(tmp_path, **changes), "--model", policy]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "start").exists()


def test_what_is_taught_is_what_the_verifiers_accept():
    for index in range(40):
        chosen = _add_completion(
            {"prompt": "?", "solution": "B", "options": ["red", "blue"]}, index
        )["completion"]
        assert choice_reward([chosen], ["B"], [["red", "blue"]]) == [1.0], chosen
        boxed = _add_completion({"prompt": "?", "solution": "So it is \\boxed{17}."}, index)[
            "completion"
        ]
        assert boxed.count("boxed") == 1 and math_reward([boxed], ["17"]) == [1.0], boxed
    assert len({*CHOICES}) == len({*WORDINGS}) == 8
