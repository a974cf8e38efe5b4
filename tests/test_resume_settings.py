"""A run goes on with the settings of its checkpoint, or not at all: the error names what differs,
with both values."""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
from harness import call_on_ranks, config, mixed_reward, never_all_right, problems
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import ModelConfig

from trl_miner import MinerGRPOTrainer
from trl_miner.recipe import MinerScriptArguments
from trl_miner.runs.history import read_run
from trl_miner.runs.settings import differences, settings_of
from trl_miner.train import main

SAVED = dict(max_steps=2, save_strategy="steps", save_steps=2)


def trainer(policy, folder, reward=mixed_reward, rows=48, change=None, peft=None, **settings):
    args = config(folder, **{**SAVED, **settings})
    data = problems(rows) if change is None else problems(rows).map(change)
    return MinerGRPOTrainer(policy, reward, args, data, peft_config=peft)


@pytest.fixture(scope="module")
def trained(policy, tmp_path_factory):
    """A trainer of two steps, and its folder with checkpoint-2."""
    made = trainer(policy, tmp_path_factory.mktemp("run"))
    made.train()
    return made


@pytest.fixture
def run(trained, tmp_path):
    """A copy of its folder."""
    return Path(shutil.copytree(trained.args.output_dir, tmp_path / "run"))


def test_any_setting_is_compared_but_for_those_that_are_harmless():
    args, others = config("run"), (MinerScriptArguments(dataset_name="a/b"), ModelConfig("a/b"))
    fields = {
        field.name for one in (args, *others) for field in dataclasses.fields(one) if field.init
    }
    compared = settings_of(args, others).keys()
    left_out = fields - compared
    assert not [
        name
        for name in left_out
        if re.match("miner|dose|advantage|policy|prompt|seed|data_seed|beta", name)
    ]
    assert {
        "learning_rate",
        "temperature",
        "held_out",
        "loss_type",
        "dataset_name",
        "dtype",
    } <= compared
    assert {
        "max_steps",
        "save_steps",
        "hub_token",
        "eval_steps",
        "per_device_train_batch_size",
    } <= left_out


def test_reports_read_the_settings_that_the_trainer_has_recorded(run):
    settings = read_run(run).settings
    assert (settings["learning_rate"], settings["miner_gamma"]) == (
        "0.001",
        "2.0",
    ) and "max_steps" not in settings
    assert settings["advantage_estimator"] == "miner"


# What the trainer was given is compared, too.

OTHERS = {
    "learning_rate: 0.001 -> 0.01": dict(learning_rate=0.01),
    "train_dataset: 48.*24": dict(rows=24),
    # the same prompts with other golds
    "train_dataset": dict(change=lambda row: {"solution": "0"}),
    "reward functions": dict(reward=never_all_right),
    "adapter": dict(peft=LoraConfig(r=2, target_modules=["q_proj"])),
    "optimizer_batch_size": dict(gradient_accumulation_steps=2),
    "generation_batch_size": dict(steps_per_generation=2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_told_with_the_one_way_to_go_on(policy, run, name):
    before = (run / "training.json").read_bytes()
    with pytest.raises(ValueError, match=f"{name}.* model_name_or_path: .*checkpoint-2"):
        trainer(policy, run, max_steps=4, **OTHERS[name]).train(resume_from_checkpoint="latest")
    assert (run / "training.json").read_bytes() == before


def test_the_same_adapter_is_no_change(policy, tmp_path):
    lora = dict(r=2, target_modules=["q_proj", "v_proj", "o_proj"])
    trainer(policy, tmp_path, max_steps=1, save_steps=1, peft=LoraConfig(**lora)).train()
    again = trainer(policy, tmp_path, peft=LoraConfig(**lora))
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 2
    with pytest.raises(ValueError, match="adapter"):
        trainer(policy, tmp_path, max_steps=4, peft=LoraConfig(**lora, lora_alpha=99)).train(
            "latest"
        )


def test_the_same_model_by_another_path_is_no_change(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(policy, "model")
    trainer("model", "run").train()
    trainer(str(tmp_path / "model"), "run", max_steps=3).train(resume_from_checkpoint="latest")
    model = AutoModelForCausalLM.from_pretrained("model")
    model.lm_head.weight.data += 1
    model.save_pretrained("model")
    with pytest.raises(ValueError, match="model: "):
        trainer("model", "run", max_steps=5).train(resume_from_checkpoint="latest")


@pytest.mark.parametrize(
    "first, second",
    [
        (dict(beta=0, temperature=1), dict(beta=0.0, temperature=1.0)),
        (
            dict(generation_kwargs={"processor": object()}),
            dict(generation_kwargs={"processor": object()}),
        ),
        (
            dict(optimizer_batch_size=12),
            dict(optimizer_batch_size=12, per_device_train_batch_size=6),
        ),
    ],
    ids=["numbers", "objects", "batches"],
)
def test_another_spelling_of_a_setting_is_no_change(tmp_path, first, second):
    assert not differences(
        settings_of(config(tmp_path, **first)), settings_of(config(tmp_path, **second))
    )


def test_a_checkpoint_that_does_not_say_its_settings_is_told(policy, run):
    (run / "training.json").unlink()
    with pytest.raises(ValueError, match="does not say with which settings checkpoint-2 was made"):
        trainer(policy, run, max_steps=4).train(resume_from_checkpoint="latest")


def test_another_number_of_processes_is_no_change_where_the_batches_stay(policy, tmp_path):
    settings = dict(
        per_device_train_batch_size=6, optimizer_batch_size=12, num_generations=2, **SAVED
    )
    call_on_ranks(2, on_a_rank, policy, str(tmp_path), settings)
    again = MinerGRPOTrainer(
        policy, mixed_reward, config(tmp_path, **settings | {"max_steps": 4}), problems()
    )
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 4
    del settings["optimizer_batch_size"]
    with pytest.raises(ValueError, match="rollouts per optimizer step .*: 12.0 -> 6.0"):
        MinerGRPOTrainer(
            policy, mixed_reward, config(tmp_path, **settings | {"max_steps": 6}), problems()
        ).train("latest")


def on_a_rank(policy, folder, settings, resume=None):
    MinerGRPOTrainer(policy, mixed_reward, config(folder, **settings), problems()).train(resume)


def test_the_command_line_tells_other_settings_of_its_own_too(policy, tmp_path, capsys):
    recipe = [
        "--config",
        "arithmetic/miner",
        "--model_name_or_path",
        policy,
        "--output_dir",
        str(tmp_path),
    ]
    recipe += "--use_cpu true --bf16 false --held_out 0 --task_size 12 --quiet true".split()
    recipe += "--save_strategy steps --save_steps 1".split()
    recipe += (
        "--max_steps 1 --num_generations 4 --per_device_train_batch_size 12"
        " --max_completion_length 8".split()
    )
    recipe += ["--resume_from_checkpoint", "latest"]
    main(recipe)
    main(recipe)
    assert "No step is left: checkpoint-1 has done 1 of 1." in capsys.readouterr().out
    for name, more in {
        "learning_rate": "--learning_rate 1e-3",
        "task_seed": "--max_steps 2 --task_seed 5",
    }.items():
        with pytest.raises(ValueError, match=name):
            main([*recipe, *more.split()])
