"""A run that is killed at any moment and resumed ends where an uninterrupted one does, whatever it is made of."""

import pytest
import torch
from harness import config, mixed_reward, problems
from test_resume import At, Keeping, stop_training

from trl_miner.runs.prompt_ledger import read_ledger


def train(policy, folder, num_problems=7, resume=None, callbacks=(), **settings):
    args = config(folder, save_strategy="steps", save_steps=1, **settings)
    trainer = Keeping(policy, mixed_reward, args, problems(num_problems), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def assert_same_end(found, expected):
    ledger = read_ledger(expected.args.output_dir)
    assert read_ledger(found.args.output_dir).batches == ledger.batches
    for weight, wanted in zip(found.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(weight, wanted)


# Seven prompts in threes are two steps a pass.
@pytest.mark.parametrize("saved", [1, 2, 3, 4])
def test_a_run_goes_on_in_the_order_of_its_pass(policy, tmp_path, saved):
    whole = train(policy, tmp_path / "whole", max_steps=6, shuffle_dataset=True)
    train(policy, tmp_path / "cut", max_steps=6, shuffle_dataset=True, callbacks=[At(saved, stop_training)])
    resumed = train(policy, tmp_path / "cut", max_steps=6, shuffle_dataset=True, resume="latest")
    assert_same_end(resumed, whole)


# Steps 1 to 6 of four mini-batches a generation, saved at step 2; the rollouts of steps 3 and 4 are in the checkpoint.
HALVES = dict(per_device_train_batch_size=3, steps_per_generation=4, max_steps=6)


@pytest.mark.parametrize(
    "changed",
    [
        dict(steps_per_generation=8),
        dict(num_generations=6),
        dict(num_iterations=2),
        dict(beta=0.1),
        dict(log_miner_update=True),
        dict(advantage_estimator="grpo"),
    ],
    ids=str,
)
def test_rollouts_of_other_settings_are_generated_again(policy, tmp_path, changed, caplog):
    train(policy, tmp_path, 12, **HALVES, callbacks=[At(2, stop_training)])
    resumed = train(policy, tmp_path, 12, resume="latest", **{**HALVES, **changed})
    assert resumed.state.global_step == 6
    assert "generated again" in caplog.text and next(iter(changed)) in caplog.text


def test_settings_that_leave_rollouts_alone_keep_them(policy, tmp_path, caplog):
    whole = train(policy, tmp_path / "whole", 12, **HALVES)
    train(policy, tmp_path / "cut", 12, **HALVES, callbacks=[At(2, stop_training)])
    harmless = dict(log_completions=True, watchdog_seconds=900, save_total_limit=2, logging_steps=2)
    assert_same_end(train(policy, tmp_path / "cut", 12, resume="latest", **HALVES, **harmless), whole)
    assert "generated again" not in caplog.text
