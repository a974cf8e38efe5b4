"""The lock of a folder: whose it is, when a dead process's is taken over, and what a training does
with it."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from harness import At, config, mixed_reward, problems

from trl_miner.runs import locks
from trl_miner.runs.locks import TRAINING_LOCK, FolderLock, lock_folder
from trl_miner.training import RunTrainer

ME = f"process {os.getpid()} on {socket.gethostname()}"
HOLDER = """
import os, pathlib, signal, sys
from trl_miner.runs.locks import TRAINING_LOCK, FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]), TRAINING_LOCK)
lock.acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Seconds for tests."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(locks, "LEASE_SECONDS", 1.0)


def hold_elsewhere(folder, place="node7"):
    """Hold a folder as if from another place, whose processes are not seen here; return the lock
    and its file."""
    lock = FolderLock(folder, TRAINING_LOCK)
    lock.acquire()
    text = re.sub("host=.*", lambda _: f"host={place}", lock.path.read_text())
    lock.path.write_text(text.replace("pid=", "pid=9"))
    return lock


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    with lock_folder(tmp_path):
        with pytest.raises(ValueError, match=f"{tmp_path} is in use by {ME}"):
            with lock_folder(tmp_path):
                pass
    with lock_folder(tmp_path):
        pass
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/inside cannot be written .*Choose another"):
        with lock_folder(tmp_path / "file" / "inside"):
            pass


@pytest.mark.parametrize("machine, container", [("node7", ""), (socket.gethostname(), "?pidns-1")])
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_holder_on_another_machine_or_in_another_container_counts_while_it_lives(
    tmp_path, is_alive, machine, container, caplog
):
    elsewhere = hold_elsewhere(tmp_path, machine + container)
    if is_alive:
        with pytest.raises(ValueError, match=rf"process 9\d+ on {machine}"):
            FolderLock(tmp_path, TRAINING_LOCK).acquire()
        return
    elsewhere._lease._stop_heartbeat()
    lock = FolderLock(tmp_path, TRAINING_LOCK)
    lock.acquire()
    assert f"on {machine}, which has ended. It is taken over" in caplog.text
    with pytest.raises(RuntimeError, match=f"was taken over by {ME}"):
        elsewhere.check()
    lock.release()


def test_the_lock_of_a_killed_process_is_taken_over_by_one(tmp_path, caplog):
    killed = subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL and (tmp_path / TRAINING_LOCK).exists()
    with (
        lock_folder(tmp_path, TRAINING_LOCK),
        pytest.raises(ValueError, match=f"is in use by {ME}"),
    ):
        FolderLock(tmp_path, TRAINING_LOCK).acquire()
    assert "which has ended. It is taken over" in caplog.text


def trainer(policy, folder, *callbacks, **settings):
    args = config(folder, **{**dict(max_steps=2, save_strategy="steps", save_steps=1), **settings})
    return RunTrainer(policy, mixed_reward, args, problems(), callbacks=list(callbacks))


def test_two_trainings_in_one_folder_are_refused(policy, tmp_path):
    second = trainer(policy, tmp_path)

    def start_again(control):
        held, locks._held = locks._held, {}  # another process
        try:
            with pytest.raises(ValueError, match=f"is in use by {ME}.*another folder"):
                second.train()
        finally:
            locks._held = held

    first = trainer(policy, tmp_path, At(1, start_again))
    first.train()
    assert first.state.global_step == 2 and second.state.global_step == 0
    second.train(resume_from_checkpoint="latest")  # in the same process, after the first
    assert not (tmp_path / TRAINING_LOCK).exists()


def test_a_training_whose_folder_was_taken_over_ends(policy, tmp_path):
    def take_over(control):
        (tmp_path / TRAINING_LOCK).unlink()
        others.append(hold_elsewhere(tmp_path))

    others = []
    with pytest.raises(RuntimeError, match=r"was taken over by process 9\d+ on node7"):
        trainer(policy, tmp_path, At(1, take_over)).train()
