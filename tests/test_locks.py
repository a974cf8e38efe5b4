"""The lock of a folder: whose it is, when a dead process's is taken over, and what a training does with it."""

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import pytest
from harness import config, mixed_reward, problems
from transformers import TrainerCallback

from trl_miner import MinerGRPOTrainer
from trl_miner.runs import locks
from trl_miner.runs.locks import TRAINING_LOCK, FolderLock, hold_run, lock_folder

HOST = socket.gethostname()


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from trl_miner.runs.locks import lock_folder\n"
            "with lock_folder(pathlib.Path(sys.argv[1]), ''):\n    print('locked', flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(ValueError, match=rf"{tmp_path} is held by process {holder.pid} on {HOST}, since 20"):
        with lock_folder(tmp_path, "{folder} is held by {holder}"):
            pass
    holder.communicate()
    with lock_folder(tmp_path, "") as file:
        assert not file.closed


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--output must be a folder that can be written: .*file"):
        with lock_folder(tmp_path / "file" / "inside", ""):
            pass


@pytest.fixture
def quick(monkeypatch):
    """Seconds for tests: a beat every 0.02, and 2 without one, as a busy disk may need, is dead."""
    for name, seconds in (("BEAT_SECONDS", 0.02), ("PATIENCE_SECONDS", 2.0)):
        monkeypatch.setattr(locks, name, seconds)


@pytest.fixture
def no_flock(monkeypatch):
    """A file system that cannot lock."""

    def flock(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def elsewhere(tmp_path, quick):
    """Hold a folder as if from another machine, whose locks are not seen here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "_boot", lambda: "another")
        patch.setattr(socket, "gethostname", lambda: "node7")
        lock = FolderLock(tmp_path)
        lock.acquire("")
    fcntl.flock(lock.file, fcntl.LOCK_UN)
    return lock


@pytest.mark.parametrize("how", ["killed", "killed long ago"])
def test_a_holder_on_another_machine_counts_while_it_lives(tmp_path, elsewhere, monkeypatch, how):
    with pytest.raises(ValueError, match=r"process \d+ on node7, since"), lock_folder(tmp_path, "{holder}"):
        pass
    elsewhere._ended.set()  # it is killed
    time.sleep(0.1)
    if how == "killed long ago":
        monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("there is nothing to wait for"))
        os.utime(tmp_path / ".lock", (0, 0))
    with lock_folder(tmp_path, "{holder}"):
        assert json.loads((tmp_path / ".lock").read_text())["host"] == HOST
        with pytest.raises(RuntimeError, match=f"was taken over by process {os.getpid()} on {HOST}"):
            elsewhere.check()


def test_a_file_system_without_locks_tells_by_the_sign_of_life(tmp_path, quick, no_flock):
    with lock_folder(tmp_path, "{holder}"), pytest.raises(ValueError, match=f"process {os.getpid()} on {HOST}"):
        with lock_folder(tmp_path, "{holder}"):
            pass
    with lock_folder(tmp_path, "{holder}"):
        pass


@pytest.mark.parametrize("can_lock", [True, False])
def test_of_two_that_start_at_once_one_gets_the_folder(tmp_path, quick, can_lock, request, monkeypatch):
    """However slow the disk is: a second that starts while the first one writes is refused."""
    if not can_lock:
        request.getfixturevalue("no_flock")
        write = FolderLock._write
        monkeypatch.setattr(FolderLock, "_write", lambda lock: (time.sleep(0.5), write(lock)))
    outcomes, start, end = [], threading.Barrier(2), threading.Event()

    def take():
        lock = FolderLock(tmp_path)
        lock._me["pid"] = threading.get_ident()  # two processes
        start.wait()
        try:
            lock.acquire("{holder}")
        except ValueError:
            outcomes.append("refused")
        else:
            outcomes.append("held")
        end.wait(5)

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(outcomes) < 2:
        time.sleep(0.01)
    end.set()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held", "refused"]


@pytest.mark.parametrize(("can_lock", "age", "is_taken"), [(True, 0, True), (False, 0, False), (False, 5, True)])
def test_a_claim_that_a_killed_process_left_ends(tmp_path, quick, can_lock, age, is_taken, request):
    """At once where the machine can tell, else after 2 x PATIENCE_SECONDS = 4 s."""
    if not can_lock:
        request.getfixturevalue("no_flock")
    claim = tmp_path / ".lock.claim"
    claim.write_text(json.dumps(FolderLock(tmp_path)._me))
    os.utime(claim, (time.time() - age,) * 2)
    with nullcontext() if is_taken else pytest.raises(ValueError, match=f"process {os.getpid()} on {HOST}"):
        with lock_folder(tmp_path, "{holder}"):
            assert not claim.exists()


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """Like a worker of a data loader that outlives a killed training."""
    lock = FolderLock(tmp_path)
    lock.acquire("")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        lock.file.close()  # as a kill does
        with lock_folder(tmp_path, "{holder}"):
            pass
    finally:
        os.write(go[1], b"x")
        os.waitpid(child, 0)


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
            with pytest.raises(
                ValueError, match=f"is in use by process {os.getpid()} on {HOST}, since 20.*another out"
            ):
                second.train()
        finally:
            locks._held = held

    first = trainer(policy, tmp_path, During(start_again))
    first.train()
    assert first.state.global_step == 3 and second.state.global_step == 0
    second.train(resume_from_checkpoint="latest")  # in the same process, after the first
    assert (tmp_path / TRAINING_LOCK).read_text() == ""


def test_a_training_that_was_killed_does_not_keep_its_folder(policy, tmp_path, caplog):
    code = (
        "import os, pathlib, signal, sys\nfrom trl_miner.runs.locks import TRAINING_LOCK, FolderLock\n"
        "FolderLock(pathlib.Path(sys.argv[1]), TRAINING_LOCK).acquire('')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert killed.returncode == -9 and json.loads((tmp_path / TRAINING_LOCK).read_text())["host"] == HOST
    with hold_run(tmp_path), hold_run(tmp_path):
        assert json.loads((tmp_path / TRAINING_LOCK).read_text())["pid"] == os.getpid()
    assert "which has ended. It is taken over" in caplog.text


def test_a_folder_deleted_while_it_trains_is_said_and_made_anew(policy, tmp_path, caplog):
    folder = tmp_path / "out"
    trained = trainer(policy, folder, During(lambda: shutil.rmtree(folder)))
    trained.train()
    assert trained.state.global_step == 3 and (folder / "checkpoint-2" / "manifest.json").is_file()
    assert "was deleted or moved while process" in caplog.text
    caplog.clear()
    trainer(policy, folder, During((folder / TRAINING_LOCK).unlink), overwrite_output_dir=True).train()
    assert "deleted" not in caplog.text and (folder / TRAINING_LOCK).exists()


def test_the_lock_holds_again_when_the_disk_is_back(tmp_path, monkeypatch):
    lock = FolderLock(tmp_path)
    lock.acquire("")
    with monkeypatch.context() as patch:
        patch.setattr(locks, "_read", lambda path: None)
        patch.setattr(FolderLock, "_open", lambda self: os.stat(tmp_path / "away"))
        lock.check()
    lock.check()
    with pytest.raises(ValueError, match=f"process {os.getpid()}"), lock_folder(tmp_path, "{holder}"):
        pass
    lock.release()


def test_a_training_whose_folder_was_taken_over_ends(policy, tmp_path):
    def take_over():
        (tmp_path / TRAINING_LOCK).write_text('{"host": "node7", "boot": "x", "pid": 5, "since": "noon"}')

    with pytest.raises(RuntimeError, match="was taken over by process 5 on node7, since noon"):
        trainer(policy, tmp_path, During(take_over)).train()


def test_a_folder_that_cannot_be_written_is_trained_in_with_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    with hold_run(tmp_path / "file" / "out"):
        assert "cannot be locked" in caplog.text
