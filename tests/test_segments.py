"""Where a run goes on with other settings, it says so, or does not go on."""

import html
import json
import shutil
from pathlib import Path

import pytest
from harness import call_on_ranks, config, mixed_reward, never_all_right, problems
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from trl_miner import MinerGRPOTrainer
from trl_miner.runs import checkpoints
from trl_miner.runs.history import read_run
from trl_miner.runs.settings import changes, settings_of
from trl_miner.runs.training_record import read_run_record
from trl_miner.train import main

SAVED = dict(max_steps=2, save_strategy="steps", save_steps=2)


def trainer(policy, folder, reward=mixed_reward, rows=48, peft=None, **settings):
    args = config(folder, **{**SAVED, **settings})
    return MinerGRPOTrainer(policy, reward, args, problems(rows), peft_config=peft)


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


# What the trainer was given is compared, too.

OTHERS = {
    "train_dataset": dict(rows=24),
    "reward functions": dict(reward=never_all_right),
    "adapter": dict(peft=LoraConfig(r=2, target_modules=["q_proj"])),
    "optimizer_batch_size": dict(gradient_accumulation_steps=2),
    "generation_batch_size": dict(steps_per_generation=2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_trainer_was_given_is_told(policy, run, name):
    with pytest.raises(ValueError, match=f"(?s){name}.*resume_with_changes"):
        trainer(policy, run, max_steps=4, **OTHERS[name]).train(resume_from_checkpoint="latest")


def test_the_same_adapter_is_no_change(policy, tmp_path):
    lora = dict(r=2, target_modules=["q_proj", "v_proj", "o_proj"])
    trainer(policy, tmp_path, max_steps=1, save_steps=1, peft=LoraConfig(**lora)).train()
    again = trainer(policy, tmp_path, peft=LoraConfig(**lora))
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 2
    with pytest.raises(ValueError, match="adapter"):
        trainer(policy, tmp_path, max_steps=4, peft=LoraConfig(**lora, lora_alpha=99)).train("latest")


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
        (dict(beta=0, temperature=1, reward_weights=[1]), dict(beta=0.0, temperature=1.0, reward_weights=[1.0])),
        (dict(lr_scheduler_kwargs={}, chat_template_kwargs={}), {}),
        (dict(generation_kwargs={"processor": object()}), dict(generation_kwargs={"processor": object()})),
        (dict(optimizer_batch_size=12), dict(optimizer_batch_size=12, per_device_train_batch_size=6)),
    ],
    ids=["numbers", "nothing", "objects", "batches"],
)
def test_another_spelling_of_a_setting_is_no_change(tmp_path, first, second):
    assert changes(settings_of(config(tmp_path, **first)), settings_of(config(tmp_path, **second))) == {}


def test_a_checkpoint_that_does_not_say_its_settings_is_told(policy, run):
    path = run / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["RunState"]["attributes"]["segments"]
    path.write_text(json.dumps(state))
    checkpoints.finish(path.parent)
    with pytest.raises(ValueError, match="does not, as it is another trainer's"):
        trainer(policy, run, max_steps=4).train(resume_from_checkpoint="latest")


def test_another_number_of_processes_is_no_change_where_the_batches_stay(policy, tmp_path, caplog):
    settings = dict(per_device_train_batch_size=6, optimizer_batch_size=12, num_generations=2, **SAVED)
    call_on_ranks(2, on_a_rank, policy, str(tmp_path), settings)
    again = MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, **settings | {"max_steps": 4}), problems())
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 4 and "was made by 2 process(es), and there are 1" in caplog.text
    del settings["optimizer_batch_size"]
    with pytest.raises(ValueError, match="rollouts per optimizer step .*: 12 -> 6"):
        MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, **settings | {"max_steps": 6}), problems()).train(
            "latest"
        )


def on_a_rank(policy, folder, settings, resume=None):
    MinerGRPOTrainer(policy, mixed_reward, config(folder, **settings), problems()).train(resume)


# Confirmed, it goes on, and record, card and report tell both parts.


def test_record_card_and_report_tell_both_parts(policy, run):
    changes = dict(learning_rate=0.01, advantage_estimator="grpo", num_generations=6, resume_with_changes=True)
    made = trainer(policy, run, max_steps=4, **changes)
    made.train(resume_from_checkpoint="latest")
    made.save_state()
    made.create_model_card()
    record = read_run_record(run)
    assert [segment["step"] for segment in record["segments"]] == [0, 2]
    assert record["methods"] == ["miner", "grpo"]
    assert [segment["settings"]["learning_rate"] for segment in record["segments"]] == ["0.001", "0.01"]
    card = (run / "README.md").read_text()
    (told,) = (line for line in card.splitlines() if "After step 2 the run went on with other settings" in line)
    assert "learning_rate: 0.001 -> 0.01" in html.unescape(told)
    assert "advantage_estimator: miner -> grpo" in html.unescape(told) and "arXiv 2601.04731" in card
    assert any("After step 2" in note and "learning_rate: 0.001 -> 0.01" in note for note in read_run(run).notes)
    settings = read_run(run).settings  # of the last part; what is not set is not there
    assert (settings["learning_rate"], settings["max_steps"]) == ("0.01", "4.0") and "all_right" not in settings
    with pytest.raises(ValueError, match="learning_rate: 0.01 -> 0.001"):  # the last part counts
        trainer(policy, run, max_steps=6).train(resume_from_checkpoint="latest")
    assert read_run_record(run)["segments"] == record["segments"]


def test_other_settings_from_an_earlier_checkpoint_leave_no_later_one_beside_them(policy, run):
    trainer(policy, run, max_steps=4).train(resume_from_checkpoint="latest")
    with pytest.raises(ValueError, match="checkpoint-4"):
        trainer(policy, run, learning_rate=0.01, resume_with_changes=True).train(str(run / "checkpoint-2"))


# The command line.


def test_a_finished_run_asked_for_with_other_settings_is_told(policy, tmp_path):
    recipe = ["--config", "arithmetic/miner", "--model_name_or_path", policy, "--output_dir", str(tmp_path)]
    recipe += "--use_cpu true --bf16 false --held_out 0 --task_size 12 --quiet true".split()
    recipe += "--save_strategy steps --save_steps 1".split()
    recipe += "--max_steps 1 --num_generations 4 --per_device_train_batch_size 12 --max_completion_length 8".split()
    recipe += ["--resume_from_checkpoint", "latest"]
    main(recipe)
    main(recipe)  # has finished, and stays as it is
    assert len(read_run_record(tmp_path)["segments"]) == 1
    for name, more in {"learning_rate": "--learning_rate 1e-3", "task_seed": "--max_steps 2 --task_seed 5"}.items():
        with pytest.raises(ValueError, match=name):
            main([*recipe, *more.split()])
