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
