"""`trl-miner launch` with vLLM's real server and the real training."""

import json
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from harness import free_port


@pytest.fixture
def launch(policies, vllm_environment, tmp_path):
    """The arithmetic recipe with a vLLM server, launched: its process, and what it prints."""
    port = free_port()
    settings = dict(
        model_name_or_path=policies["tied"], output_dir=tmp_path / "out", held_out=0, logging_steps=1,
        learning_rate=1e-3, use_vllm="true", vllm_mode="server", vllm_server_port=port,
        vllm_max_model_length=128, prompt_style="verbatim", vllm_tensor_parallel_size=1,
    )  # fmt: skip
    launched = []

    def start(copies=1, **more):
        flags = f"--enforce-eager --num-gpu-blocks-override 64 --data_parallel_size {copies}"
        command = [sys.executable, "-m", "trl_miner.cli", "launch", "arithmetic/miner"]
        command += [f"--server_args={flags}"]
        for name, value in (settings | more).items():
            command += [f"--{name}", str(value)]
        with open(tmp_path / "printed", "w") as out:
            process = subprocess.Popen(
                command, env=vllm_environment, stdout=out, stderr=out, cwd=tmp_path
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


def test_launch_trains_with_its_own_server(launch, tmp_path):
    """The server gets the weights, and samples."""
    process, printed, port = launch(max_steps=3, copies=1)
    assert process.wait(timeout=400) == 0, printed.read_text()[-5000:]
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    steps = [log for log in history if "reward" in log]
    assert len(steps) == 3 and all("grad_norm" in step for step in steps)
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps) < 1e-4
    assert (tmp_path / "out" / "model.safetensors").is_file() and not is_listening(port)


def test_a_server_that_is_killed_ends_the_training(launch):
    process, printed, port = launch(max_steps=100_000)
    until = time.monotonic() + 300
    while "reward" not in printed.read_text():  # of the first step
        assert process.poll() is None and time.monotonic() < until, printed.read_text()[-5000:]
        time.sleep(0.5)
    parts = psutil.Process(process.pid).children(recursive=True)
    next(part for part in parts if "serve" in part.cmdline()).send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == 1
    assert "vLLM's server has ended first" in printed.read_text()
    assert not psutil.wait_procs(parts, timeout=10)[1] and not is_listening(port)
