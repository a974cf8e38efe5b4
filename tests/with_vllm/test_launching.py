"""`trl-miner launch` with vLLM's real server and `accelerate launch` of the real training."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness import wait_until

from trl_miner.launching.server import free_port

HERE = Path(__file__).parent
RECIPE = HERE.parent.parent / "recipes" / "arithmetic" / "miner.yaml"
SERVER_ENDED = 11  # trl-miner launch --help


@pytest.fixture
def launch(base_model_folder, vllm_environment, tmp_path):
    """The arithmetic recipe with a vLLM server, launched: its process, and the file with what it
    prints."""
    port = free_port()
    settings = dict(
        model_name_or_path=base_model_folder, output_dir=tmp_path / "out", held_out=0, logging_steps=1,
        learning_rate=1e-3, watchdog_seconds=60, use_vllm=True, vllm_mode="server", vllm_server_port=port,
        vllm_max_model_length=128,
    )  # fmt: skip
    launched = []

    def start(environment=None, copies=1, **more):
        command = [sys.executable, "-m", "trl_miner.cli", "launch", RECIPE]
        command += [f"--server-args=--enforce-eager --data-parallel-size {copies}"]
        for name, value in (settings | more).items():
            command += [f"--{name}", str(value)]
        with open(tmp_path / "printed", "w") as out:
            environment = vllm_environment | {"VLLM_SERVER_DEV_MODE": "0"} | (environment or {})
            process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, cwd=tmp_path
            )
        launched.append(process)
        return process, tmp_path / "printed", port

    yield start
    for process in launched:
        process.kill()  # its parts go with it
        process.wait()


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("copies", [1, 2])
def test_launch_trains_with_its_own_server(launch, tmp_path, copies):
    """Each copy of the model in the server gets the weights, and samples."""
    process, printed, port = launch(max_steps=3, copies=copies)
    assert process.wait(timeout=300) == 0, printed.read_text()[-5000:]
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    steps = [log for log in history if "reward" in log]
    assert len(steps) == 3 and all(step["grad_norm"] > 0 for step in steps)
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps) < 1e-4
    assert (tmp_path / "out" / "model.safetensors").is_file() and not is_listening(port)


def test_launch_names_a_server_that_was_killed(launch, tmp_path, capsys):
    gate = tmp_path / "gate"
    gate.touch()
    path = os.pathsep.join([str(HERE), str(HERE / "cpu"), str(HERE.parent)])
    environment = {
        "GATE": str(gate),
        "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]),
    }
    process, printed, port = launch(
        environment, max_steps=1000, reward_funcs="rewards_at_a_gate.reward"
    )
    wait_until(gate.with_suffix(".0").exists, process, 240)
    parts = psutil.Process(process.pid).children(recursive=True)
    server = next(part for part in parts if "vllm.entrypoints.cli.main" in part.cmdline())
    server.send_signal(signal.SIGKILL)
    gate.unlink()
    started = time.monotonic()
    assert process.wait(timeout=300) == SERVER_ENDED, printed.read_text()[-5000:]
    with capsys.disabled():
        print(f"\nSIGKILL of the launched server: {time.monotonic() - started:.1f} s to the error")
    said = printed.read_text()
    assert "vLLM server" in said and "SIGKILL" in said and "server.log" in said
    assert not psutil.wait_procs(parts, timeout=30)[1]
