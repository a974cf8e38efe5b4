"""`trl-miner data`: from local files in the real format to a training set, with a model that
filters."""

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from harness import write_recipe

from trl_miner import cli

FILES = Path(__file__).parent / "benchmarks"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def test_a_rewritten_folder_is_read_anew(base_model_folder, tmp_path, capsys):
    """`datasets` keeps a copy of what it has read; a card with `configs` would make it give the old
    one."""
    for count in (1, 2):
        rows = [
            {"problem": f"What is {n} + {count}?", "answer": "4", "solution": ""}
            for n in range(count)
        ]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments = [
            "data",
            "deepscaler",
            "--tokenizer",
            str(base_model_folder),
            "--output",
            str(tmp_path / "out"),
        ]
        assert cli.main([*arguments, "--local", f"deepscaler={tmp_path / 'rows.jsonl'}"]) == 0
        assert len(load_dataset(str(tmp_path / "out"), split="train")) == count
        assert f"written: {count}\n" in capsys.readouterr().out


def test_medical_drops_what_the_model_answers_and_goes_on_after_a_kill(
    base_model_folder, tmp_path, capsys, monkeypatch
):
    """The model knows no letters; its answers are replaced by right ones for the first two
    questions of MedMCQA."""
    from trl_miner.evaluation.backends import Completion, TransformersBackend

    asked = []

    def answer(self, draws, temperature, top_p):
        assert temperature == 0
        for index, draw in enumerate(draws):
            if len(asked) == 1:
                raise KeyboardInterrupt  # in the middle
            asked.append(draw.key[0])
            yield Completion(
                draw, f"The answer is {golds[draw.key[0]]}." if index == 0 else "?", 3, False
            )

    from trl_miner.data.training_set import medmcqa_train_problems

    problems = medmcqa_train_problems(FILES / "medmcqa_train.jsonl")
    golds = {problem.id: problem.solution for problem in problems}
    monkeypatch.setattr(TransformersBackend, "sample", answer)
    arguments = [
        "data",
        "medical",
        "--tokenizer",
        str(base_model_folder),
        "--filter-model",
        str(base_model_folder),
    ]
    arguments += ["--output", str(tmp_path / "out"), "--backend", "transformers", "--local"]
    arguments += [f"{name}={FILES / name}.jsonl" for name in ("medqa_train", "medmcqa_train")]
    assert cli.main(arguments) == 130
    first = list(asked)
    asked += ["go on"]
    assert cli.main(arguments) == 0
    assert first + asked[2:] == [problem.id for problem in problems]  # each was asked once
    rows = load_dataset(str(tmp_path / "out"), split="train")
    right = {first[0], asked[2]}  # the first of each run
    assert not {f"medmcqa_train/{i}" for i in right} & set(rows["id"]) and not right & set(
        rows["id"]
    )
    assert (
        len([source for source in rows["source"] if source == "medmcqa_train"]) == len(problems) - 2
    )
    assert "dropped: answered right by the filtering model: 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deepscaler"], "--local deepscaler=PATH"),
        (["deepscaler", "--max-prompt-tokens", "0"], "prompt"),
    ],
)
def test_what_is_missing_is_named_with_its_flag(
    base_model_folder, tmp_path, arguments, message, capsys
):
    if "--max-prompt-tokens" in arguments:
        arguments = [*arguments, "--local", f"deepscaler={FILES / 'deepscaler.jsonl'}"]
    command = [
        "data",
        *arguments,
        "--tokenizer",
        str(base_model_folder),
        "--output",
        str(tmp_path / "out"),
    ]
    assert cli.main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_the_medical_set_trains_with_choice_reward(base_model_folder, tmp_path):
    """The options reach the reward, and what cannot be judged is logged."""
    from trl_miner.recipe.parsing import make_parser
    from trl_miner.train import run as train

    words = "Which? A. Ear B. Knee\nThe answer is"
    row = {"prompt": words, "solution": "B", "options": ["Ear", "Knee"]}
    (tmp_path / "medical.jsonl").write_text(4 * (json.dumps(row) + "\n"))
    settings = dict(
        model_name_or_path=base_model_folder, dataset_name=tmp_path / "medical.jsonl", max_steps=1
    )
    settings |= dict(
        output_dir=tmp_path / "run", per_device_train_batch_size=4, reward_funcs=["choice_reward"]
    )
    path = write_recipe(tmp_path / "recipe.yaml", **settings)
    trainer = train(*make_parser().parse_args_and_config(["--config", path]))
    log = next(log for log in trainer.state.log_history if "reward" in log)
    assert log["rewards/choice_reward/mean"] == 0.0 and log["choice_reward/not_judged"] == 0.0
