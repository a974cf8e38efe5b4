"""A small model runs on one thread, and bf16 on a CPU that is slow in it is warned of before hours are lost."""

from types import SimpleNamespace

import pytest
import torch
from harness import config, mixed_reward, problems

from trl_miner import MinerGRPOTrainer
from trl_miner.on_cpu import SMALL, fitting_threads


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
        with fitting_threads(Model(size)):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("bf16", "is_supported"), [(True, False), (True, True), (False, False)])
def test_bf16_is_warned_of_where_the_cpu_is_slow_in_it(policy, tmp_path, caplog, monkeypatch, bf16, is_supported):
    known = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: is_supported)
    monkeypatch.setattr(torch.ops, "mkldnn", known)
    MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, bf16=bf16), problems())
    assert ("Set bf16: false." in caplog.text) == (bf16 and not is_supported)
