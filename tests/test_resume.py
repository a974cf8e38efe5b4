"""A run that was stopped, or killed, goes on as if it had not been."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import config, metrics_of, mixed_reward, problems
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from trl_miner import MinerGRPOTrainer

HERE = Path(__file__).parent


class Keeping(MinerGRPOTrainer):
    """Keeps the advantages of every batch."""

    def __init__(self, *args, **kwargs):
        self.advantages = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.advantages.append(batch["advantages"])
        return batch


class At(TrainerCallback):
    """Do something when a step has ended, before it is saved."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(control)


def stop_training(control):
    control.should_training_stop = True


def kill_process(control):
    os.kill(os.getpid(), signal.SIGKILL)


def run(policy, folder, callbacks=(), resume=None):
    args = config(folder, max_steps=6, save_strategy="steps", save_steps=3)
    trainer = Keeping(policy, mixed_reward, args, problems(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(policy, tmp_path_factory):
    return run(policy, tmp_path_factory.mktemp("whole"))


def assert_went_on(resumed, uninterrupted):
    """Steps 4 to 6: advantages, metrics, and the weights at the end."""
    assert any(advantages.dim() == 2 for advantages in resumed.advantages)
    for found, expected in zip(resumed.advantages, uninterrupted.advantages[3:], strict=True):
        assert torch.equal(found, expected)
    assert metrics_of(resumed)[:6] == metrics_of(uninterrupted)[:6]
    for found, expected in zip(resumed.model.parameters(), uninterrupted.model.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_three_steps_and_three_more_are_six(policy, tmp_path, uninterrupted):
    run(policy, tmp_path, callbacks=[At(3, stop_training)])
    assert_went_on(run(policy, tmp_path, resume=str(tmp_path / "checkpoint-3")), uninterrupted)


def test_a_killed_run_goes_on_from_its_last_checkpoint(policy, tmp_path, uninterrupted):
    """SIGKILL after step 5: the work since checkpoint 3 is done again, and comes out the same."""
    command = [sys.executable, __file__, policy, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    checkpoint = get_last_checkpoint(str(tmp_path))
    assert checkpoint.endswith("checkpoint-3")
    assert_went_on(run(policy, tmp_path, resume=checkpoint), uninterrupted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(sys.argv[1], sys.argv[2], callbacks=[At(5, kill_process)])
