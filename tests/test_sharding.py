"""Weights in shards, on two real processes with gloo: FSDP2, and ZeRO-2 and ZeRO-3 where DeepSpeed
is installed.

What a process alone learns, two with shards learn. All three run on a CPU once accelerate lets
them, which by itself trains without shards there: sharding/on_a_cpu.py says
why.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# the worker's
CASES = ("miner", "sampler", "ucas+miner", "bapo", "as_trl", "budget_small", "budget_large")
# The environment as `accelerate launch` makes it from recipes/accelerate/*.yaml.
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
GATHERED = {
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
KINDS = {
    "fsdp2": ("FSDP", FSDP2),
    "zero2": ("DEEPSPEED", {**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}),
    "zero3": ("DEEPSPEED", {**ZERO, **GATHERED, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}),
}


@pytest.fixture(scope="module")
def train(policy, tmp_path_factory):
    def run(environment, *launcher, checkpoint=()):
        folder = tmp_path_factory.mktemp("trained")
        path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
        common = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        worker = HERE / "sharding" / "train_worker.py"
        command = [sys.executable, *launcher, worker, policy, folder, *checkpoint]
        environment = os.environ | common | environment
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads((folder / "result.json").read_text())

    return run


@pytest.fixture(scope="module")
def alone(train):
    return train({})


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    if request.param.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        if os.environ.get("TRL_MINER_NEEDS_DEEPSPEED"):
            pytest.fail("DeepSpeed is not installed")
        pytest.skip("DeepSpeed is not installed: .ci/run installs it")
    return KINDS[request.param]


@pytest.fixture(scope="module")
def sharded(kind, train):
    name, environment = kind
    found = train(environment, *TORCHRUN, "--nproc_per_node=2")
    assert all((run["num_processes"], run["kind"]) == (2, name) for run in found.values())
    return found


@pytest.mark.parametrize("name", CASES)
def test_sharded_processes_learn_what_one_learns(alone, sharded, name):
    one, two = alone[name], sharded[name]
    assert two["shard"] == one["shard"] / 2
    assert two["scores"] == one["scores"]
    for step, same_step in zip(one["steps"], two["steps"], strict=True):
        assert same_step == pytest.approx(step, rel=1e-5, abs=1e-7)
    assert any(step.get("rollouts/used_total", 0) > 0 for step in one["steps"]) and two[
        "weights"
    ] == pytest.approx(one["weights"], rel=1e-5)


def test_a_gradient_that_is_not_finite_on_one_process_ends_the_run_and_reaches_no_weight(
    alone, sharded
):
    for runs in (alone, sharded):
        assert runs["spoiled"]["told"].startswith(
            "The gradient of step 2 must be finite: its norm is "
        )
        assert runs["spoiled"]["is_same"]


def test_every_process_makes_as_many_forwards(alone, sharded):
    """The one all-right prompt of a batch lies on the first process: 4 rows, 2 chunks of 2. The
    other makes 2 chunks of 3 rows that count nowhere. (The third batch has no mixed prompt to
    measure by: no forward.)"""
    assert alone["miner"]["forwarded"] == [[4, 4]]
    assert [(len(rows), sum(rows)) for rows in sharded["miner"]["forwarded"]] == [(4, 8), (4, 6)]


@pytest.mark.parametrize("name", ["miner", "budget_small", "budget_large"])
def test_however_the_rows_are_cut_the_shards_learn_the_same(sharded, name):
    assert sharded[name]["weights"] == pytest.approx(sharded["as_trl"]["weights"], rel=1e-6)


def test_a_run_in_shards_goes_on_inside_a_generation_cycle(alone, sharded):
    """Steps 3 to 8 after the checkpoint of step 2: the run with shards resumes as exactly as one
    process does."""
    for runs in (alone, sharded):
        assert (
            runs["resumed"]["steps"][2:] == runs["saved"]["steps"][2:]
            and len(runs["saved"]["steps"]) == 8
        )
        assert runs["resumed"]["weights"] == runs["saved"]["weights"]
        # no rollouts anew
        assert len(runs["resumed"]["forwarded"][0]) < len(runs["saved"]["forwarded"][0])


def test_a_run_in_shards_goes_on_with_another_number_of_processes(kind, train, sharded):
    """Steps 3 and 4 after the checkpoint of step 2."""
    kept = sharded["kept"]
    checkpoint = Path(kept["folder"]) / "checkpoint-2"
    files = sorted(checkpoint.glob("*/**"))
    resumed = train(kind[1], *TORCHRUN, "--nproc_per_node=1", checkpoint=[checkpoint])["kept"]
    assert resumed["num_processes"] == 1 and len(resumed["steps"]) == len(kept["steps"]) == 4
    for step, same_step in zip(kept["steps"], resumed["steps"], strict=True):
        assert same_step == pytest.approx(step, rel=1e-5, abs=1e-7)
    assert resumed["weights"] == pytest.approx(kept["weights"], rel=1e-6)
    assert sorted(checkpoint.glob("*/**")) == files  # what DeepSpeed converted is gone
