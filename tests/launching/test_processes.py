"""`trl-miner launch` with real processes: whatever ends or is killed, nothing stays behind.

The vLLM server and the training are a few lines of Python, each with a child in a session of its
own, as torchrun's workers are, that ignores SIGTERM. test_plan.py has the commands of real plans,
and tests/with_vllm runs them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from harness import free_port, write_recipe

pytestmark = pytest.mark.slow

# A process writes its own and its child's number into NAME.pids, and then does what it is told.
PROCESS = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); "
                          "print(1, flush=True); time.sleep(300)"], start_new_session=True,
                         stdout=subprocess.PIPE)
child.stdout.readline()
open("part", "w").write(f"{os.getpid()} {child.pid}")
os.rename("part", sys.argv[1] + ".pids")
exec(sys.argv[2])
"""
DRIVER = """
import sys
from trl_miner.launching import supervise
from trl_miner.launching.plan import Plan
supervise.GRACE_SECONDS = 1
port, process, *jobs = sys.argv[1:]
names = ["server", "train"][2 - len(jobs):]
commands = [({"PLANNED": "1"}, [sys.executable, "-c", process, *each]) for each in zip(names, jobs)]
listens = ("127.0.0.1", int(port)) if len(jobs) == 2 else None
sys.exit(supervise.supervise(Plan(commands, listens, 0, 1, {})))
"""
WAIT = "time.sleep(300)"


class Launched:
    """A launch in a process of its own, of one job, the training, or of two."""

    def __init__(self, folder, *jobs, port=None):
        self.folder, self.names = folder, ["server", "train"][2 - len(jobs) :]
        command = [sys.executable, "-c", DRIVER, str(port or free_port()), PROCESS, *jobs]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)

    def pids(self):
        """The processes below the launch: its fork, both jobs, and their children."""
        files = [self.folder / f"{name}.pids" for name in self.names]
        until(lambda: all(file.exists() for file in files))
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def end(self):
        """Exit code and messages; nothing is left."""
        said = self.process.communicate(timeout=60)[1]
        jobs = [*self.folder.glob("*.pids")]
        assert gone([int(pid) for job in jobs for pid in job.read_text().split()])
        return self.process.returncode, said


def until(is_true, seconds=60):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def gone(pids):
    def runs(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    return not any(map(runs, pids))


@pytest.fixture
def launched(tmp_path):
    started = []

    def start(*jobs, **options):
        started.append(Launched(tmp_path, *jobs, **options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("assert os.environ['PLANNED'] == '1'", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
    ],
)
def test_the_exit_code_is_the_trainings_and_the_server_ends_with_it(launched, job, code):
    assert launched(WAIT, job).end()[0] == code


def test_a_server_that_ends_ends_the_training(launched):
    code, said = launched("sys.exit(0)", WAIT).end()
    assert code == 1 and said == "trl-miner launch: vLLM's server has ended first.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all(launched, number):
    run = launched(WAIT, WAIT)
    pids = run.pids()
    assert len(pids) == 5
    run.process.send_signal(number)
    assert run.end()[0] == 128 + number
    assert gone(pids)


def test_ctrl_c_reaches_the_training_as_such(launched):
    """So that Python raises KeyboardInterrupt, and what the script has to close is closed."""
    run = launched(f"try: {WAIT}\nexcept KeyboardInterrupt: open('closed', 'w')")
    run.pids()
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130 and (run.folder / "closed").exists()


def test_under_nohup_the_end_of_the_terminal_ends_nothing(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does, for what it starts
    try:
        run = Launched(tmp_path, "time.sleep(2)")
    finally:
        signal.signal(signal.SIGHUP, before)
    run.pids()
    run.process.send_signal(signal.SIGHUP)
    assert run.end()[0] == 0


@pytest.mark.parametrize("victim", ["launch", "its fork"])
def test_a_launch_that_is_killed_leaves_nothing(launched, victim):
    """The outer process, or the one that has started both jobs."""
    run = launched(WAIT, WAIT)
    pids = run.pids()
    fork = psutil.Process(run.process.pid).children()[0]
    os.kill(run.process.pid if victim == "launch" else fork.pid, signal.SIGKILL)
    until(lambda: gone(pids))


def test_a_port_in_use_is_told_before_anything_starts(launched):
    """Another run's server would answer in the place of ours."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        run = launched(WAIT, WAIT, port=other.getsockname()[1])
        code, said = run.end()
    assert code == 1 and "Address already in use" in said
    assert not [*run.folder.glob("*.pids")]


# Real trainings.


def trl_miner(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "trl_miner.cli", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
    )  # fmt: skip


@pytest.fixture
def tiny(policy, tmp_path):
    """A recipe of two steps on the 2-layer policy."""
    from trl_miner.recipe.files import shipped_folder

    path = tmp_path / "recipe.yaml"
    config = shipped_folder() / "accelerate" / "cpu_2_processes.yaml"
    return write_recipe(
        path, model_name_or_path=policy, output_dir=tmp_path / "run", accelerate_config=config,
        dataset_name="trl_miner/arithmetic",
    )  # fmt: skip


def test_two_processes_train_and_a_mistake_of_theirs_is_the_exit_code(tiny, tmp_path):
    run = trl_miner("launch", tiny)
    said = run.communicate(timeout=200)[0]
    assert run.returncode == 0, said
    assert (tmp_path / "run" / "model.safetensors").is_file()
    again = trl_miner("launch", tiny)
    said = again.communicate(timeout=200)[0]
    assert again.returncode == 2 and "already contains a run" in said, said
    assert "Traceback" not in said and said.count("already contains a run") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_of_two_processes_is_ended_by_a_signal(tiny, tmp_path, number):
    (tmp_path / "slow_rewards.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "def reward(completions, **kwargs):\n"
        "    Path(f'pid{os.environ[\"RANK\"]}').write_text(str(os.getpid()))\n"
        "    time.sleep(300 if kwargs['trainer_state'].max_steps else 0)\n"
        "    return [0.0] * len(completions)\n"
    )
    run = trl_miner("launch", tiny, "--reward_funcs", "slow_rewards.reward", cwd=tmp_path)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    until(lambda: run.poll() is not None or all(file.exists() for file in files), 200)
    time.sleep(1)
    run.send_signal(number)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 128 + number, said
    assert gone([int(file.read_text()) for file in files])
