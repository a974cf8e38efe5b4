"""Real trainings that are killed, stopped, run out of disk, or whose files are damaged: each goes
on as if nothing had happened, and no process stays behind."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from run.runs import recipe, same, train, weights

from trl_miner.run.folder import newest_checkpoint

pytestmark = pytest.mark.slow
LATEST = ("--resume_from_checkpoint", "latest")


def start(path, *words, **environment):
    """Start `python -m trl_miner.train` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "trl_miner.train", path, *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path, process, seconds=100):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.001)


def leaves_nothing(processes, seconds=10):
    """Return whether all processes end by themselves."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run of six steps that nothing stops, a checkpoint a step."""
    folder = tmp_path_factory.mktemp("whole")
    code, _, err = train(recipe(folder, max_steps=6, save_steps=1))
    assert code == 0, err
    return folder / "run"


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_in_a_save_ends_as_if_it_had_not_been(whole, tmp_path, seed):
    rng = random.Random(seed)
    path = recipe(tmp_path, max_steps=6, save_steps=1)
    process = start(path)
    wait_for(tmp_path / "run" / f"checkpoint-{rng.randint(1, 5)}", process)
    time.sleep(rng.uniform(0, 0.08))  # a save takes some 30 ms
    process.kill()
    process.communicate()
    code, _, err = train(path, *LATEST)
    assert code == 0, err
    assert same(weights(tmp_path / "run"), weights(whole))
    assert (tmp_path / "run" / "held_out.json").read_text() == (whole / "held_out.json").read_text()


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGTERM, 143, ""),
        (signal.SIGINT, 130, "stopped by Ctrl-C. To go on: the same command with --resume_from"),
        (signal.SIGKILL, -9, ""),
    ],
)
def test_what_stops_a_run_leaves_no_process_behind(whole, tmp_path, number, code, told):
    path = recipe(tmp_path, max_steps=6, save_steps=1)
    process = start(path)
    wait_for(tmp_path / "run" / "checkpoint-2", process)
    begun = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert told in err and "Traceback" not in err
    assert leaves_nothing(begun)
    code, _, err = train(path, *LATEST)
    assert code == 0, err
    assert same(weights(tmp_path / "run"), weights(whole))


def test_ctrl_c_before_the_training_is_code_130_and_no_traceback(tmp_path):
    process = start(recipe(tmp_path))
    wait_for(tmp_path / "run", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err


def test_two_processes_train_are_stopped_and_go_on(tmp_path):
    path = recipe(tmp_path, max_steps=60, save_steps=1, per_device_train_batch_size=8)
    words = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    words += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    words += ["-m", "trl_miner.train", "--config", path]
    environment = {**os.environ, "MASTER_PORT": "0"}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "checkpoint-3" / "checksums.json", process, 200)
    begun = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.communicate(timeout=100)
    assert process.returncode != 0 and leaves_nothing(begun)
    done = newest_checkpoint(tmp_path / "run")
    steps = int(done.name.removeprefix("checkpoint-")) + 2
    more = [*words, *LATEST, "--max_steps", str(steps)]
    ended = subprocess.run(more, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for step, times in ((steps, 1), (steps - 1, 1), (steps - 2, 0)):
        assert ended.stdout.count(f"step {step} of {steps}: ") == times
    # a mistake is told once
    told = subprocess.run(words, env=environment, capture_output=True, text=True).stderr
    assert told.count("already contains a run. Resume it") == 1


def test_a_full_disk_is_told_as_such(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small])
    if mounted.returncode:
        pytest.skip("cannot mount a small disk")
    try:
        path = recipe(tmp_path, max_steps=6, save_steps=1, output_dir=str(small / "run"))
        code, _, err = train(path)
        assert code == 1 and f"the disk of {small / 'run'} is full" in err, err
        assert err.count("\n") == 1 and "--resume_from_checkpoint latest" in err
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        code, out, err = train(path, *LATEST)
        assert "is passed over: checksums.json, which is written last, is missing." in out
        assert code == 0, err
    finally:
        subprocess.run(["umount", small])
