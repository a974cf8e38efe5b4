"""`gradient_checkpointing_mode: auto`: the same step, with as few layers recomputed as memory allows."""

import numpy as np
import pytest
import torch
from harness import config
from test_step import STEP, assert_same_training, run

from trl_miner.distributed import World
from trl_miner.trainer import recomputation
from trl_miner.trainer.micro_batches import _split_by_memory
from trl_miner.trainer.recomputation import LayerMemory, _kept_bytes


def test_a_micro_batch_keeps_no_more_than_the_largest_with_all_layers_checkpointed():
    """Four layers, base .5: 100 tokens come to 100 * 1.5."""
    layers = LayerMemory(num_layers=4, base=0.5)
    # 100 * (.5 + 1); 75 * (.5 + 1.5): 1 layer; 60 * (.5 + 2) ; 50 * (.5 + 2.5): 2; 33 * (.5 + 4) = 148.5
    assert [layers.plain_layers(n, most=100) for n in (120, 100, 75, 60, 50, 33, 1)] == [0, 1, 1, 2, 2, 4, 4]
    assert layers.plain_tokens(most=100) == 33


def test_rows_that_need_no_recomputation_share_micro_batches_and_the_others_are_alone():
    lengths = np.array([[2, 3], [10, 40], [5, 5], [10, 90], [4, 6], [10, 5]])  # 5, 50, 10, 100, 10, 15 tokens
    layers, cpu = LayerMemory(num_layers=4, base=0.5), torch.device("cpu")
    parts, plain = _split_by_memory(lengths, [[3], [1, 5, 4, 2, 0]], layers, 1, World(), cpu)
    # The second has five rows of 10 + 40 tokens, 250 with padding: 250 * 1.5 / 4.5 = 83 tokens need no recomputation.
    assert parts[0] == [3] and plain[0] == 3  # 100 * (.5 + 3) = 350 of 375
    assert sorted(sum(parts, [])) == list(range(6)) and plain[1:] == [4] * (len(parts) - 1)
    assert all(len(part) * lengths[part].max(axis=0).sum() <= 83 for part in parts[1:])
    none = np.zeros((0, 2), dtype=np.int64)
    assert _split_by_memory(none, [[], []], layers, 3, World(), cpu) == ([[], [], []], [4, 4, 4])


def test_a_step_that_recomputes_less_is_the_same_step(policy, tmp_path):
    """What the formula says of the memory of a forward is what its graph keeps."""
    settings = dict(gradient_checkpointing=True, max_steps=2)
    found = run(policy, tmp_path / "auto", gradient_checkpointing_mode="auto", **settings)
    assert_same_training(found, run(policy, tmp_path / "all", **settings))
    layers = found.forwards.layout.layers
    assert layers.num_layers == 2 and all(layer.gradient_checkpointing for layer in found.model.model.layers)
    with found.undoing_draws():
        found.model.train()
        kept = {m: _kept_bytes(found, 96, m) - _kept_bytes(found, 48, m) for m in (0, 1, 2)}
    unit = kept[0] / layers.base
    assert [kept[m] / unit for m in (1, 2)] == pytest.approx([layers.base + 1, layers.base + 2], rel=0.03)


def test_what_cannot_be_measured_stays_checkpointed(policy, tmp_path, caplog, monkeypatch):
    def broken(*args):
        raise TypeError("no text")

    monkeypatch.setattr(recomputation, "_kept_bytes", broken)
    trainer = run(policy, tmp_path, gradient_checkpointing=True, gradient_checkpointing_mode="auto", max_steps=1)
    assert trainer.forwards.layout.layers is None
    assert (
        "every layer stays checkpointed, because its memory could not be measured (TypeError: no text)" in caplog.text
    )


def test_settings_that_it_needs(tmp_path, caplog):
    config(tmp_path, gradient_checkpointing_mode="auto", **STEP)
    assert "does nothing without checkpointing: got gradient_checkpointing=False" in caplog.text
    with pytest.raises(ValueError, match="sorts rollouts by length: got length_aware_training=False"):
        config(tmp_path, gradient_checkpointing_mode="auto", gradient_checkpointing=True, length_aware_training=False)
