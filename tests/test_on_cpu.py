"""A small model runs on one thread, and bf16 on a CPU that is slow in it is warned of before hours
are lost."""

import platform
import resource

import pytest
import torch
from harness import config, in_a_fork, mixed_reward, problems

from trl_miner.trainer import on_cpu
from trl_miner.trainer.on_cpu import SMALL, keep_memory, product_seconds, tuned_for_cpu
from trl_miner.training import RunTrainer


class Model(torch.nn.Module):
    device = torch.device("cpu")

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=torch.bool), requires_grad=False)


@pytest.mark.parametrize(("size", "expected"), [(SMALL, 1), (SMALL + 1, 2)])
def test_a_small_model_runs_on_one_thread(size, expected):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with tuned_for_cpu(Model(size)):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("bf16", "seconds"), [(True, 1.8), (True, 0.6), (False, 1.8)])
def test_bf16_is_warned_of_where_the_cpu_is_slow_in_it(
    policy, tmp_path, caplog, monkeypatch, bf16, seconds
):
    assert product_seconds(torch.float32) > 0
    monkeypatch.setattr(
        on_cpu, "product_seconds", {torch.bfloat16: seconds, torch.float32: 1.0}.get
    )
    RunTrainer(policy, mixed_reward, config(tmp_path, bf16=bf16), problems())
    warning = "bf16 takes 1.8 times as long as float32 on this CPU. Set bf16: false."
    assert (warning in caplog.text) == (bf16 and seconds > 1)


def faults_of_tensors():
    """Return how many pages the system has handed out for 20 tensors of 16 MiB, one after the
    other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**22)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def compare_faults():
    before = faults_of_tensors()
    keep_memory()
    faults_of_tensors()  # takes the memory
    assert faults_of_tensors() < before / 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory")
def test_memory_that_a_tensor_has_freed_is_the_next_ones():
    code, said = in_a_fork(compare_faults)
    assert code == 0, said
