"""Two processes with gloo train as one does: DDP, and weights in shards of FSDP2 and DeepSpeed."""

import importlib.util
import os
from copy import deepcopy

import pytest
import torch
from distributed.worker import CASES, on_a_rank, train
from harness import FSDP2, call_on_ranks, largest_difference

pytestmark = pytest.mark.slow

# The environment as `accelerate launch` makes it from recipes/accelerate/*.yaml.
ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
GATHERED = {
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
}
KINDS = {
    "DDP": ("MULTI_CPU", {}),
    "FSDP2": ("FSDP", FSDP2),
    "ZeRO-2": ("DEEPSPEED", {**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}),
    "ZeRO-3": ("DEEPSPEED", {**ZERO, **GATHERED, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}),
}


@pytest.fixture(scope="module")
def alone(policy, tmp_path_factory):
    """What one process makes of each case."""
    folder = tmp_path_factory.mktemp("alone")
    return {name: train(policy, folder / name, **settings) for name, settings in CASES.items()}


def on_ranks(policy, folder, environment=None, cases=None, size=2):
    call_on_ranks(size, on_a_rank, environment or {}, policy, folder, cases or CASES, seconds=500)
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize("name", KINDS)
def test_two_processes_train_as_one_does(policy, alone, tmp_path, name):
    kind, environment = KINDS[name]
    if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        # a stage that skips all its tests would pass
        missing = pytest.fail if os.environ.get("TRL_MINER_NEEDS_DEEPSPEED") else pytest.skip
        missing("DeepSpeed is not installed")
    found = on_ranks(policy, tmp_path, environment)
    start = torch.load(tmp_path / "found.pt")["nothing counts"]["weights"]
    for case, expected in deepcopy(alone).items():
        ours = found[case]
        assert (ours["kind"], ours["size"]) == (kind, 2)
        moved = largest_difference(expected["weights"], start)
        assert moved > 1e-3 or case == "nothing counts"
        apart = largest_difference(ours["weights"], expected["weights"])
        print(f"{name}, {case}: {apart:.1e} of {moved:.1e}")
        assert apart <= 2e-6, case
        for log, other in zip(ours["logs"], expected["logs"], strict=True):
            if case in (
                "as TRL",
                "bapo",
                "kl_cov",
            ):  # a mean over TRL's micro-batches, which differ
                del log["clip_ratio/region_mean"], other["clip_ratio/region_mean"]
            assert log == pytest.approx(other, abs=2e-5), case


def test_four_processes_with_fewer_groups_too(policy, alone, tmp_path):
    cases = {name: CASES[name] for name in ("miner", "as TRL", "dynamic sampling")}
    for name, found in on_ranks(policy, tmp_path, cases=cases, size=4).items():
        assert largest_difference(found["weights"], alone[name]["weights"]) <= 2e-6, name
