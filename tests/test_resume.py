"""A run that was stopped, or killed, goes on as if it had not been."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from harness import config, metrics_of, mixed_reward, problems
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from trl_miner import MinerGRPOTrainer
from trl_miner.runs import checkpoints

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


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint(policy, tmp_path, uninterrupted):
    """SIGKILL after step 5: the work since checkpoint 3 is done again, and comes out the same."""
    killed = in_a_process(policy, tmp_path, "after step 5")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    checkpoint = get_last_checkpoint(str(tmp_path))
    assert checkpoint.endswith("checkpoint-3")
    assert_went_on(run(policy, tmp_path, resume=checkpoint), uninterrupted)


# A checkpoint that lies inside a generation cycle.

CYCLES = {
    "mini-batches": dict(per_device_train_batch_size=3, steps_per_generation=4),
    "iterations": dict(num_iterations=3),
    "accumulation": dict(per_device_train_batch_size=3, steps_per_generation=8, gradient_accumulation_steps=2),
    "bapo": dict(
        per_device_train_batch_size=3, steps_per_generation=4, num_iterations=2, policy_loss="bapo", loss_type="dapo"
    ),
    "dynamic sampling": dict(
        per_device_train_batch_size=3, steps_per_generation=4, dynamic_sampling=True, advantage_estimator="grpo"
    ),
}


@pytest.mark.parametrize("name", CYCLES)
@pytest.mark.parametrize("saved", [2, 5])
def test_a_run_goes_on_inside_a_generation_cycle(policy, tmp_path, name, saved):
    """Steps 1 to 8 at once, and the same from the checkpoint of a step whose rollouts are not used up."""

    def train(folder, resume=None):
        args = config(folder, max_steps=8, save_strategy="steps", save_steps=saved, **CYCLES[name])
        trainer = Keeping(policy, mixed_reward, args, problems())
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train(tmp_path)
    checkpoint = tmp_path / f"checkpoint-{saved}"
    assert (checkpoint / "rollouts_0.pt").is_file()
    resumed = train(tmp_path, str(checkpoint))
    assert metrics_of(resumed)[:8] == metrics_of(whole)[:8]
    assert len(resumed.advantages) < len(whole.advantages)
    for found, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("damage", ["torn", "gone", "other processes"])
def test_rollouts_that_cannot_be_used_are_generated_anew(policy, tmp_path, damage, caplog):
    args = config(tmp_path, max_steps=4, save_strategy="steps", save_steps=2, num_iterations=3)
    Keeping(policy, mixed_reward, args, problems()).train()
    file = tmp_path / "checkpoint-2" / "rollouts_0.pt"
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "gone":
        file.unlink()
    else:
        torch.save({**torch.load(file), "size": 2}, file)
    resumed = Keeping(policy, mixed_reward, args, problems())
    resumed.train(resume_from_checkpoint=str(file.parent))
    assert len(resumed.advantages) == 1 and resumed.state.global_step == 4
    assert ("generated anew" in caplog.text) == (damage != "gone")


# A checkpoint that is not whole.


class DiesWhileSaving(Keeping):
    """SIGKILL in the second checkpoint, when the model is written and the optimizer is not."""

    def _save_optimizer_and_scheduler(self, output_dir):
        if self.state.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


def in_a_process(policy, folder, what):
    command = [sys.executable, __file__, policy, str(folder), what]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_checkpoint_killed_while_it_is_written_is_never_picked(policy, tmp_path, uninterrupted):
    killed = in_a_process(policy, tmp_path, "while saving")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert (tmp_path / ".unfinished" / "checkpoint-6" / "model.safetensors").is_file()
    # neither by this package nor by transformers
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-3") == str(checkpoints.newest(tmp_path))
    assert_went_on(run(policy, tmp_path, resume="latest"), uninterrupted)
    assert not (tmp_path / ".unfinished").exists()
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-6"


def test_a_kill_between_the_renames_of_a_repeated_checkpoint_loses_nothing(tmp_path):
    for folder in ("checkpoint-3", ".unfinished/checkpoint-3"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "trainer_state.json").write_text('{"global_step": 3}')
    os.replace(tmp_path / "checkpoint-3", tmp_path / ".unfinished" / "old-checkpoint-3")  # and then it was killed
    assert checkpoints.newest(tmp_path) is None
    checkpoints.recover(tmp_path)
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-3"


def test_a_folder_with_a_torn_state_is_no_checkpoint(tmp_path):
    for step, state in ((2, '{"global_step": 2}'), (4, '{"global'), (6, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-2"


def test_the_best_checkpoint_is_named_by_its_place_in_the_run_folder(policy, tmp_path):
    """transformers looks for it where the checkpoint is being written."""
    settings = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, max_steps=4)
    settings |= dict(metric_for_best_model="reward", load_best_model_at_end=True, per_device_eval_batch_size=12)
    args = config(tmp_path, save_total_limit=1, **settings)
    trainer = Keeping(policy, mixed_reward, args, problems(), eval_dataset=problems(6))
    trainer.train()  # and load the best at the end
    best = str(tmp_path / f"checkpoint-{trainer.state.best_global_step}")
    assert trainer.state.best_model_checkpoint == best and Path(best, "model.safetensors").is_file()
    saved = json.loads((checkpoints.newest(tmp_path) / "trainer_state.json").read_text())
    assert saved["best_model_checkpoint"] == best


def test_resuming_from_nothing(policy, tmp_path):
    trainer = Keeping(policy, mixed_reward, config(tmp_path, max_steps=1), problems())
    with pytest.raises(ValueError, match="there is none in"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="a folder that every process can read"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))
    trainer.train(resume_from_checkpoint="latest")
    assert trainer.state.global_step == 1


@pytest.fixture(params=["a file size limit", "a full tmpfs"])
def small_disk(request, policy, tmp_path):
    """A run folder that holds one checkpoint and a half, and a function that makes it larger."""
    if request.param == "a file size limit":
        yield tmp_path, "limited", lambda: None
        return
    folder = tmp_path / "disk"
    folder.mkdir()
    # measured: a checkpoint of the tests' policy has about 550 kB
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder, "plain", lambda: subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_loses_nothing_but_the_steps_since(policy, small_disk, uninterrupted):
    folder, what, enlarge = small_disk
    full = in_a_process(policy, folder, what)
    assert full.returncode == 1
    last = full.stderr.strip().splitlines()[-2:]
    assert "checkpoint-6 could not be written in" in last[0] and "can go on from checkpoint-3" in last[0], last
    assert last[1] == "This happened in phase 'checkpoint', after step 6."
    assert not (folder / ".unfinished").exists()  # what it held is free again
    enlarge()
    assert_went_on(run(policy, folder, resume="latest"), uninterrupted)


def test_the_hubs_token_is_in_no_checkpoint(policy, tmp_path):
    token = "hf_plantedplantedplanted"
    args = config(tmp_path, max_steps=1, save_strategy="steps", save_steps=1, hub_token=token)
    trainer = Keeping(policy, mixed_reward, args, problems())
    trainer.train()
    trainer.save_model()
    assert trainer.args.hub_token == token
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"training_args.bin", "trainer_state.json"} <= {path.name for path in files}
    for path in files:
        data = zipfile.ZipFile(path).read if zipfile.is_zipfile(path) else None
        inside = b"".join(map(data, zipfile.ZipFile(path).namelist())) if data else path.read_bytes()
        assert token.encode() not in inside, path


def limit_file_size(control):
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


if __name__ == "__main__":
    torch.set_num_threads(1)
    policy, folder, what = sys.argv[1:]
    if what == "while saving":
        args = config(folder, max_steps=6, save_strategy="steps", save_steps=3)
        DiesWhileSaving(policy, mixed_reward, args, problems()).train()
    after = {
        "after step 5": At(5, kill_process),
        "limited": At(5, limit_file_size),
        "plain": At(5, lambda control: None),
    }
    run(policy, folder, callbacks=[after[what]])
