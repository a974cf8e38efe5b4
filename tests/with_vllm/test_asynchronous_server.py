"""The asynchronous trainer beside vLLM's real server: its worker asks it, and each step's weights
reach it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "async_worker.py"


@pytest.fixture(scope="module")
def trained(policies, serve, vllm_environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("asynchronous")
    model = policies["tied"]
    with serve(model, folder) as (url, _):
        command = [sys.executable, WORKER, model, url, folder / "run"]
        done = subprocess.run(
            [*map(str, command)], env=vllm_environment, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((folder / "run" / "result.json").read_text())


def test_the_first_rollouts_are_the_policys(trained):
    steps = trained["steps"]
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert abs(steps[0]["kl"]) < 1e-6 and abs(steps[0]["ratio"] - 1) < 1e-4


def test_all_kinds_of_prompts_train(trained):
    steps = trained["steps"]
    # Which groups a step trains on is a matter of timing, and one without a mixed group has no
    # gradient: MINER's cap is a share of theirs.
    assert sum(step["grad_norm"] > 0 for step in steps) >= len(steps) // 2
    kinds = ("groups/ph", "groups/he", "groups/nh")
    assert all(sum(step[kind] for step in steps) > 0 for kind in kinds)


def test_the_server_has_the_weights_of_the_last_step(trained):
    assert trained["from_trained"] < 1e-4 and trained["from_start"] > 0.01
