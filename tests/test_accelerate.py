"""`accelerate launch` with two processes trains as one process does."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_miner.train import main as train

ROOT = Path(__file__).parent.parent
SETTINGS = (
    "--config recipes/arithmetic/miner.yaml --rollout_func harness.rollouts_by_place"
    " --optimizer_batch_size 64 "
)
SETTINGS += (
    "--num_generations 4 --max_steps 4 --max_completion_length 24 --logging_steps 1 --held_out 0 "
)
SETTINGS += "--disable_tqdm true"
# What a clock measured, and means over micro-batches, which are others.
DIFFERENT = ("time", "seconds", "runtime", "per_second", "micro_batches/tokens", "entropy")


def losses(folder, launch, *options):
    launch([*SETTINGS.split(), "--output_dir", str(folder), *options])
    return json.loads((folder / "trainer_state.json").read_text())["log_history"][:4]


def launched(arguments):
    """By accelerate, on two processes."""
    launcher = [
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        "recipes/accelerate/cpu_2_processes.yaml",
    ]
    command = [sys.executable, *launcher, "-m", "trl_miner.train", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_arithmetic_recipe_on_two_processes_has_the_losses_of_one(tmp_path, monkeypatch):
    """The same 64 rollouts per step: 64 x 1, and 16 x 2 processes x 2 micro-batches."""
    monkeypatch.chdir(ROOT)
    one = losses(tmp_path / "one", train, "--per_device_train_batch_size", "64")
    two = losses(tmp_path / "two", launched, "--per_device_train_batch_size", "16")
    assert max(log["groups/ph"] for log in one) > 0 and max(log["miner/tau_pos"] for log in one) > 0
    for found, expected in zip(two, one, strict=True):
        for name in expected:
            if not any(word in name for word in DIFFERENT):
                assert math.isclose(found[name], expected[name], rel_tol=1e-3, abs_tol=1e-5), (
                    name,
                    found["step"],
                )
    assert (tmp_path / "two" / "model.safetensors").is_file()
