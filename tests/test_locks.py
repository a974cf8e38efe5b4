"""The lock of a folder: whose it is, when a dead process's is taken over, and what a training does with it."""

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from harness import config, mixed_reward, problems
from transformers import TrainerCallback

from trl_miner import MinerGRPOTrainer
from trl_miner.runs import locks
from trl_miner.runs.locks import TRAINING_LOCK, FolderLock, hold_run, lock_folder

ME = f"process {os.getpid()} on {socket.gethostname()}"
HOLDER = """
import os, pathlib, signal, sys
from trl_miner.runs.locks import TRAINING_LOCK, FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]), TRAINING_LOCK)
lock.acquire("{holder}")
print("held", flush=True)
os.kill(os.getpid(), signal.SIGKILL) if len(sys.argv) > 2 else sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Seconds for tests."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(locks, "LEASE_SECONDS", 2.0)


def hold_elsewhere(folder):
    """Hold a folder as if from another machine, whose processes are not seen here; return the lock and its file."""
    lock = FolderLock(folder, TRAINING_LOCK)
    lock.acquire("")
    name = socket.gethostname()
    lock.path.write_text(lock.path.read_text().replace(f"host={name}", "host=node7").replace("pid=", "pid=9"))
    return lock


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    with lock_folder(tmp_path, ""):
        with pytest.raises(ValueError, match=f"{tmp_path} is held by {ME}"):
            with lock_folder(tmp_path, "{folder} is held by {holder}"):
                pass
    with lock_folder(tmp_path, ""):
        pass
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--output must be a folder that can be written: .*file"):
        with lock_folder(tmp_path / "file" / "inside", ""):
            pass
    with hold_run(tmp_path / "file" / "out"):  # a training may save nothing
        pass


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_holder_on_another_machine_counts_while_it_lives(tmp_path, is_alive, caplog):
    elsewhere = hold_elsewhere(tmp_path)
    if is_alive:
        with pytest.raises(ValueError, match=r"process 9\d+ on node7"):
            FolderLock(tmp_path, TRAINING_LOCK).acquire("{holder}")
        return
    elsewhere._lease._stop_heartbeat()
    lock = FolderLock(tmp_path, TRAINING_LOCK)
    lock.acquire("{holder}")
    assert "on node7, which has ended. It is taken over" in caplog.text
    with pytest.raises(RuntimeError, match=f"was taken over by {ME}"):
        elsewhere.check()
    lock.release()


def test_of_several_that_start_at_once_one_gets_the_folder(tmp_path):
    """Also where one was killed before; the others are refused while it lives."""
    killed = subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path), "kill"])
    assert killed.returncode == -signal.SIGKILL and (tmp_path / TRAINING_LOCK).exists()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started = [subprocess.Popen(command, **pipes) for _ in range(4)]
    refused = []
    while len(refused) < 3:
        refused += [one for one in started if one.poll() is not None and one not in refused]
    (holder,) = [one for one in started if one not in refused]
    assert holder.stdout.readline() == "held\n"
    for one in refused:
        assert f"ValueError: process {holder.pid} on" in one.communicate()[1]
    holder.communicate()


class During(TrainerCallback):
    """Do something once, at the end of the first step."""

    def __init__(self, action):
        self.action = action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.action()


def trainer(policy, folder, *callbacks, **settings):
    args = config(folder, **{**dict(max_steps=3, save_strategy="steps", save_steps=2), **settings})
    return MinerGRPOTrainer(policy, mixed_reward, args, problems(), callbacks=list(callbacks))


def test_two_trainings_in_one_folder_are_refused(policy, tmp_path):
    second = trainer(policy, tmp_path)

    def start_again():
        held, locks._held = locks._held, {}  # another process
        try:
            with pytest.raises(ValueError, match=f"is in use by {ME}.*another out"):
                second.train()
        finally:
            locks._held = held

    first = trainer(policy, tmp_path, During(start_again))
    first.train()
    assert first.state.global_step == 3 and second.state.global_step == 0
    second.train(resume_from_checkpoint="latest")  # in the same process, after the first
    assert not (tmp_path / TRAINING_LOCK).exists()


def test_a_folder_deleted_while_it_trains_is_made_anew(policy, tmp_path):
    folder = tmp_path / "out"
    trained = trainer(policy, folder, During(lambda: shutil.rmtree(folder)))
    trained.train()
    assert trained.state.global_step == 3 and (folder / "checkpoint-2" / "trainer_state.json").is_file()


def test_a_training_whose_folder_was_taken_over_ends(policy, tmp_path):
    def take_over():
        (tmp_path / TRAINING_LOCK).unlink()
        others.append(hold_elsewhere(tmp_path))

    others = []
    with pytest.raises(RuntimeError, match=r"was taken over by process 9\d+ on node7"):
        trainer(policy, tmp_path, During(take_over)).train()
