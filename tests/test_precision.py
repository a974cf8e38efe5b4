"""bf16 on a CPU without instructions for it is warned of before hours are lost. A test cannot choose its CPU, so most
say in its place that it is slow."""

import logging
from types import SimpleNamespace

import pytest
import torch
from harness import config, mixed_reward, problems

from trl_miner import MinerGRPOTrainer, precision
from trl_miner.commands import sft
from trl_miner.evaluation.backends import ModelOptions, TransformersBackend

SLOW = "bf16 is many times slower than float32 on this CPU, which has no instructions for it. Set "
WEIGHTS = {"model_init_kwargs": {"dtype": "bfloat16"}}


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(precision, "is_bf16_slow", lambda: True)


def warned(caplog):
    """What the warnings say to set."""
    return [text.removeprefix(SLOW) for text in caplog.messages if text.startswith(SLOW)]


def test_whether_a_cpu_is_slow_is_what_torch_says_of_it(monkeypatch, caplog):
    model = SimpleNamespace(dtype=torch.bfloat16)
    is_slow = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    precision.warn_of_slow_bf16(model, torch.device("cpu"), weights="dtype: float32")
    assert precision.is_bf16_slow() == is_slow == bool(warned(caplog))
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())  # a build without it
    assert not precision.is_bf16_slow()


@pytest.mark.parametrize(
    ("settings", "advice"),
    [({"bf16": True}, ["bf16: false."]), ({"bf16": False} | WEIGHTS, ["dtype: float32."]), ({"bf16": False}, [])],
)
def test_a_trainer_warns_of_its_computations_and_of_its_weights(policy, tmp_path, caplog, slow, settings, advice):
    MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, **settings), problems())
    assert warned(caplog) == advice


def test_the_device_that_computes_decides_and_not_where_the_weights_lie(caplog, slow):
    """FSDP moves them to the GPU when the training begins. There is no GPU here, so a name stands for one."""
    model = SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cpu"))
    for device in ("cuda", "cpu"):
        precision.warn_of_slow_bf16(model, torch.device(device), weights="dtype: float32", autocast="bf16: false")
        assert warned(caplog) == ["bf16: false and dtype: float32."] * (device == "cpu")


def test_an_evaluation_warns_of_weights_in_bf16(policy, caplog, slow):
    for dtype in ("bfloat16", "float32"):
        TransformersBackend(ModelOptions(policy, dtype=dtype), tokenizer=None)
    assert warned(caplog) == ["--dtype float32."]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_start_warns_as_its_recipe_computes(policy, tmp_path, caplog, monkeypatch, slow, is_asked):
    monkeypatch.setattr("trl.SFTTrainer.train", lambda self: None)
    rows = problems(16).map(lambda row: {"completion": " 1"}).select_columns(["prompt", "completion"])
    args = SimpleNamespace(steps=1, lr=1e-3)
    with caplog.at_level(logging.WARNING):
        sft._train(policy, rows, tmp_path / "start", config(tmp_path, bf16=is_asked), args)
    assert warned(caplog) == ["bf16: false."] * is_asked
