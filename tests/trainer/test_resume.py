"""A training that goes on from a checkpoint is the one that never stopped, bit for bit."""

import logging
import shutil
from pathlib import Path

import pytest
from harness import build_trainer, crc, largest_difference, logs, problems, train, weights
from trl import GRPOConfig, GRPOTrainer

SAVING = dict(save_strategy="steps", save_steps=1, max_steps=6)
# Four steps on each generation batch. The data of 9 prompts, 3 or 6 in a batch, begin anew.
CASES = {
    "miner": dict(num_iterations=2, steps_per_generation=2, per_device_train_batch_size=6),
    "shuffled, from the second pass on": dict(shuffle_dataset=True, data=problems(9)),
    "metrics of three steps": dict(num_iterations=4, logging_steps=3),
    "dynamic sampling": dict(
        advantage_estimator="grpo",
        dynamic_sampling=True,
        num_iterations=2,
        data=problems(18).filter(lambda row: crc(row["prompt"]) % 3),  # all wrong or mixed
    ),
    "policy loss": dict(
        advantage_estimator="grpo", policy_loss="clip_cov", num_iterations=3, loss_type="grpo"
    ),
    "several generations a step": dict(
        per_device_train_batch_size=4, steps_per_generation=3, gradient_accumulation_steps=2
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_exactly_also_between_two_steps_on_one_batch(policy, tmp_path, name):
    settings = {**SAVING, **CASES[name]}
    whole = train(policy, tmp_path, **settings)
    shutil.rmtree(tmp_path / "checkpoint-6")
    for checkpoint in (tmp_path / "checkpoint-2", True):  # True: the newest, of step 5
        resumed = build_trainer(policy, tmp_path, **{**settings, "save_strategy": "no"})
        resumed.train(resume_from_checkpoint=checkpoint)
        assert largest_difference(weights(resumed), weights(whole)) == 0, checkpoint
        # the last log sums up; the loss of a window that a checkpoint parts is transformers', and
        # over the steps behind the checkpoint
        without = ("time", "loss") if "logging_steps" in settings else ("time",)
        assert logs(resumed, without)[:-1] == logs(whole, without)[:-1], checkpoint


def test_a_plain_checkpoint_of_trl_resumes(policy, tmp_path):
    settings = {**SAVING, "max_steps": 2, "save_steps": 2}
    train(policy, tmp_path, cls=GRPOTrainer, config_cls=GRPOConfig, **settings)
    resumed = build_trainer(policy, tmp_path, **{**settings, "max_steps": 3})
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3
    assert not [*Path(tmp_path, "checkpoint-2").glob("generation_cycle_*")]


def test_with_other_batches_the_run_goes_on_with_new_completions_and_says_so(
    policy, tmp_path, caplog
):
    settings = {**SAVING, "num_iterations": 2}
    train(policy, tmp_path, **{**settings, "max_steps": 3})
    resumed = build_trainer(policy, tmp_path, **settings, steps_per_generation=2)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=True)
    assert "checkpoint-3 was saved with other batches" in caplog.text
    assert resumed.state.global_step == 6


def test_a_checkpoint_without_optimizer_keeps_no_batch(policy, tmp_path):
    train(policy, tmp_path, **{**SAVING, "max_steps": 1}, save_only_model=True)
    assert not [*Path(tmp_path, "checkpoint-1").glob("generation_cycle_*")]
