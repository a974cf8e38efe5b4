"""`trl-miner launch` with real processes: whatever ends or hangs, nothing stays behind, and launch
says what it was.

The vLLM server is played by a small HTTP server that answers /health, the training by a few lines
of Python. Both are handed to the supervisor as a plan; the commands of a real plan are tested in
test_launch.py.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from harness import gone, wait_until, write_recipe

from trl_miner.commands import launch
from trl_miner.data_recipe.first_word import with_made_recipe
from trl_miner.launching.local import launcher_arguments
from trl_miner.launching.plan import make_plan
from trl_miner.launching.server import free_port
from trl_miner.launching.supervise import SERVER_ENDED, SERVER_NOT_READY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PLANTED = {"HF_TOKEN": "hf_planted1", "WANDB_API_KEY": "planted2"}
SERVER = """
import http.server, os, sys, time
open(sys.argv[2], "w").write(str(os.getpid()))
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[3])); self.end_headers()
    def log_message(self, *args):
        pass
print("the server's first line", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
# A training that has a child in a session of its own, as torchrun's workers are, which ignores
# SIGTERM
TRAINING = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); "
                          "print('worker', flush=True); time.sleep(300)"], start_new_session=True,
                         stdout=subprocess.PIPE)
child.stdout.readline()
print("step 1\\rstep 2", file=sys.stderr, flush=True)
open(sys.argv[1] + ".new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
exec(sys.argv[2])
"""
DRIVER = """
import json, sys
from argparse import Namespace
from pathlib import Path
from trl_miner.launching.plan import Plan
from trl_miner.launching.supervise import supervise
given = json.loads(sys.argv[1])
settings = Namespace()
plan = Plan(settings, {}, 1, (), (), notes=[], train_env={}, server_env={"VLLM_SERVER_DEV_MODE": "1"}, **given)
sys.exit(supervise(plan, Path("logs"), grace=0.5))
"""


class Launched:
    """A launch in a process of its own."""

    def __init__(
        self, folder, training="time.sleep(300)", health=200, server_seconds=60.0, server=True
    ):
        self.folder, self.port = folder, free_port()
        plan = {
            "server": (
                [sys.executable, "-c", SERVER, str(self.port), "server.pid", str(health)]
                if server
                else None
            ),
            "server_url": f"http://127.0.0.1:{self.port}" if server else None,
            "server_listens": ["127.0.0.1", self.port],
            "train": [sys.executable, "-c", TRAINING, "training.pids", training],
            "server_seconds": server_seconds,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(plan)], cwd=folder, env=os.environ | PLANTED,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def pids(self, *names):
        files = [self.folder / name for name in names or ("server.pid", "training.pids")]
        wait_until(
            lambda: (
                self.process.poll() is not None or all(f.is_file() and f.read_text() for f in files)
            )
        )
        return [int(pid) for file in files for pid in file.read_text().split()]

    def end(self):
        """Exit code, standard output and error, and the logs; nothing that it has started is
        left."""
        out, err = (text.decode() for text in self.process.communicate(timeout=90))
        files = [self.folder / name for name in ("server.pid", "training.pids")]
        assert gone(
            [int(pid) for file in files if file.is_file() for pid in file.read_text().split()]
        )
        logs = "".join(path.read_text() for path in (self.folder / "logs").glob("*"))
        for secret in PLANTED.values():
            assert secret not in out + err + logs
        return self.process.returncode, out, err


@pytest.fixture
def launched(tmp_path):
    started = []

    def start(**options):
        started.append(Launched(tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()


def test_both_run_and_end(launched, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.log").write_text("an earlier run\n")
    code, out, err = launched(training="print('trained', flush=True)").end()
    assert code == 0 and out == "step 1\rstep 2\ntrained\n"
    assert "is healthy after" in err and "last lines" not in err
    log = (tmp_path / "logs" / "train.log").read_bytes().decode()
    assert (
        log.startswith("an earlier run\n==== 20") and "step 1\rstep 2" in log and "trained" in log
    )
    server_log = (tmp_path / "logs" / "server.log").read_text()
    assert (
        "VLLM_SERVER_DEV_MODE=1" in server_log
        and "first line" in server_log
        and "first line" not in out + err
    )


def test_a_training_that_fails_ends_the_server_and_shows_its_last_lines(launched):
    code, out, err = launched(training="print(*range(100), sep=chr(10)); sys.exit(7)").end()
    assert code == 7 and out.endswith("98\n99\n")
    reported = err[err.index("the training ended") :].splitlines()
    assert reported[0] == "the training ended with exit code 7."
    assert reported[1].endswith("the last lines of logs/train.log:") and len(reported) == 2 + 20
    assert reported[-1] == "99"


def test_a_training_that_is_killed_is_said_to_be(launched):
    run = launched(server=False)
    psutil.Process(run.pids("training.pids")[0]).kill()
    code, _, err = run.end()
    assert (
        code == 128 + 9
        and "the training ended by SIGKILL, which the system sends when memory runs out." in err
    )
    assert err.rstrip().split("\n")[-1] == "step 2"  # of a progress bar the last state


def test_a_server_that_dies_ends_the_training(launched):
    run = launched()
    os.kill(run.pids()[0], signal.SIGKILL)
    code, _, err = run.end()
    assert code == SERVER_ENDED == 11 and "the vLLM server ended by SIGKILL, which" in err
    assert "logs/server.log:\nthe server's first line\n" in err


def test_a_server_that_never_gets_healthy_is_given_up(launched, tmp_path):
    code, _, err = launched(health=503, server_seconds=3.0).end()
    assert code == SERVER_NOT_READY == 10
    assert (
        "did not become healthy within 3 s (vllm_server_timeout)" in err
        and "the server's first line" in err
    )
    assert not (tmp_path / "logs" / "train.log").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_both(launched, signum):
    run = launched(training="import signal; signal.signal(15, signal.SIG_IGN); time.sleep(300)")
    run.pids()
    run.process.send_signal(signum)
    code, _, err = run.end()
    assert code == 128 + signum and f"ended by {signum.name}" in err


@pytest.mark.parametrize("end", ["print('closed', flush=True)", "sys.exit(130)"])
def test_ctrl_c_reaches_the_training_as_such_and_is_told_once(launched, end):
    """So that Python raises KeyboardInterrupt, and what the script has to close is closed."""
    run = launched(training=f"try:\n time.sleep(300)\nexcept KeyboardInterrupt:\n {end}")
    run.pids()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end()
    assert code == 130 and ("closed" in out) == ("ended by" in err) == ("closed" in end)


def test_launch_that_is_killed_leaves_nothing(launched):
    run = launched(training="import signal; signal.signal(15, signal.SIG_IGN); time.sleep(300)")
    pids = run.pids()
    assert len(pids) == 3
    run.process.kill()
    wait_until(lambda: gone(pids))


@pytest.fixture
def tiny(policy, tmp_path):
    """A recipe of one step on the 2-layer policy."""
    return write_recipe(
        tmp_path / "r.yaml", model_name_or_path=policy, output_dir=tmp_path / "run", max_steps=1
    )


def test_a_real_run_leaves_its_model_and_no_secret(tiny, tmp_path):
    command = [sys.executable, "-m", "trl_miner.cli", "launch", tiny]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | PLANTED | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert f"Wrote\n  {tmp_path / 'run'}\n" in done.stdout
    texts = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(b"-m trl_miner.launching.local --config" in text for text in texts)
    for secret in PLANTED.values():
        assert not any(
            secret.encode() in text for text in [done.stdout.encode(), done.stderr.encode(), *texts]
        )


def test_train_that_is_ended_ends_accelerates_child(tiny, tmp_path):
    (tmp_path / "slow_rewards.py").write_text(
        "import os, time\nfrom pathlib import"
        " Path\nPath('pid').write_text(str(os.getpid()))\ntime.sleep(300)\n"
    )
    command = [sys.executable, "-m", "trl_miner.cli", "train", "--config", tiny]
    run = subprocess.Popen(
        [*command, "--reward_funcs", "slow_rewards.reward"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text(), run)
    worker = int((tmp_path / "pid").read_text())
    run.terminate()
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM and gone([worker])


# What stands for Slurm, which tests/slurm has, keeps what the script relies on: `scontrol show
# hostnames`, tasks with SLURM_PROCID, a step that fails when a task does, an `srun` that kills its
# tasks on SIGTERM, and a `scancel` that lets them end.
SCONTROL = "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n"
SRUN = """#!{python}
import os, signal, subprocess, sys
words, options = sys.argv[1:], {{}}
while words[0].startswith("--"):
    name, equals, value = words.pop(0).partition("=")
    options[name] = value if equals else words.pop(0)
tasks = [subprocess.Popen(words, env=os.environ | dict(SLURM_PROCID=str(rank), SLURMD_NODENAME=node))
         for rank, node in enumerate(options["--nodelist"].split(","))]
signal.signal(15, lambda *args: [task.kill() for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
"""
SCANCEL = """#!{python}
import json, os, sys
from pathlib import Path
assert sys.argv[1:] == ["--signal=TERM", "7"]
for node in ("n1", "n2", "n3"):
    try:
        os.kill(json.loads(Path(node).read_text())["pid"], 15)
    except ProcessLookupError:
        pass
"""
# In the place of trl-miner: notes how it was called. The server's task waits until it is let end,
# the others end with a code.
TASK = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
def end(*args):
    Path("ended").touch()
    sys.exit(143)
signal.signal(15, end)
node = os.environ["SLURMD_NODENAME"]
Path(node).write_text(json.dumps(dict(pid=os.getpid(), arguments=sys.argv[1:])))
while not all(Path(name).is_file() for name in ("n1", "n2", "n3")) or node == "n3":
    time.sleep(.05)
sys.exit(int(os.environ["CODE"]))
"""


@pytest.mark.parametrize("code", [0, 5])
def test_the_slurm_script_starts_each_side_on_its_nodes_and_ends_when_one_does(
    code, tmp_path, monkeypatch
):
    """On three nodes. The real commands make of the arguments what is meant."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("scontrol", SCONTROL),
        ("scancel", SCANCEL),
        ("srun", SRUN),
        ("trl-miner", TASK),
    ):
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    for name in ("SLURM_PROCID", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    path = f"{programs}:{os.environ['PATH']}"
    environment = os.environ | dict(
        PATH=path, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-3]", CODE=str(code),
        SERVER_ARGS="--seed 1 --enforce-eager",
    )  # fmt: skip
    config = ROOT / "recipes" / "accelerate" / "multi_node.yaml"
    settings = {
        "use_vllm": True,
        "vllm_mode": "server",
        "accelerate_config": str(config),
        "model_name_or_path": "m",
    }
    (tmp_path / "it's a recipe.yaml").write_text(json.dumps(settings))
    command = [
        "bash",
        ROOT / "recipes" / "slurm" / "train.slurm",
        "it's a recipe.yaml",
        "--learning_rate",
        "1e-6",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert f"The training ended with exit code {code}; ending the vLLM server." in done.stderr
    tasks = {node: json.loads((tmp_path / node).read_text()) for node in ("n1", "n2", "n3")}
    assert gone([task["pid"] for task in tasks.values()]) and (tmp_path / "ended").is_file()
    parser = argparse.ArgumentParser()
    launch.add(parser.add_subparsers())
    args, overrides = parser.parse_known_args(tasks["n3"]["arguments"])
    monkeypatch.chdir(tmp_path)
    assert args.server_args == "--seed 1 --enforce-eager"
    server = make_plan(args.recipe, overrides, num_gpus=8, only=args.only, server_host=args.host)
    assert server.train == [] and server.server_listens == ("n3", 10007)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for rank, node in enumerate(("n1", "n2")):
        command, *words = tasks[node]["arguments"]
        found = launch_command_parser().parse_args(launcher_arguments(with_made_recipe(words)))
        assert command == "train" and found.num_processes == 16
        assert (found.num_machines, found.machine_rank) == (2, rank)
        assert (found.main_process_ip, found.main_process_port) == ("n1", 20007)
        settings = " ".join(found.training_script_args)
        assert "--vllm_server_host n3" in settings and "--vllm_server_port 10007" in settings
        assert "--learning_rate 1e-6" in settings
