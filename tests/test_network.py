"""Whether the Hub is asked at all: one try before the libraries, which would try each file six
times."""

import os
import socket
import subprocess
import sys

import pytest

from trl_miner.common.network import OFFLINE, go_offline_without_network


@pytest.fixture
def endpoint(monkeypatch):
    """Names a Hub on a port of this machine: `endpoint(port)`."""
    for name in (OFFLINE, "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return lambda port: monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")


def test_a_hub_that_answers_is_asked_and_one_that_does_not_is_told_once(endpoint, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        endpoint(port)
        go_offline_without_network()
        assert OFFLINE not in os.environ and not capsys.readouterr().err
    for _ in range(2):  # nothing listens there now
        go_offline_without_network()
    assert os.environ[OFFLINE] == "1"
    assert capsys.readouterr().err.count("127.0.0.1 cannot be reached") == 1


def test_a_proxy_is_asked_in_the_place_of_the_hub(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{server.getsockname()[1]}")
        go_offline_without_network()
    assert OFFLINE not in os.environ


@pytest.mark.slow
def test_a_command_without_network_says_so_in_a_few_lines(endpoint, tmp_path):
    endpoint(1)
    words = ["openai/gsm8k", "--dataset_config", "main", "--model", "Qwen/Qwen3-0.6B"]
    command = [sys.executable, "-m", "trl_miner.cli", "train", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    note, error = done.stderr.splitlines()
    assert "cannot be reached" in note and "trl-miner train: error: " in error
