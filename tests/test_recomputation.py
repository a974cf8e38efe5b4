"""`gradient_checkpointing_mode: auto`: the same step, with as few layers recomputed as memory allows."""

import itertools

import numpy as np
import pytest
import torch
from harness import config
from test_step import STEP, assert_same_training, run

from trl_miner.distributed import World
from trl_miner.trainer import recomputation
from trl_miner.trainer.micro_batches import _split_by_memory
from trl_miner.trainer.recomputation import LayerMemory, _forward_bytes


def test_a_micro_batch_keeps_no_more_than_the_largest_with_all_layers_checkpointed():
    """Four layers, base .5: 100 tokens come to 100 * (.5 + 1), and .25 of gradients: 175."""
    sizes = np.array([100, 75, 60, 50, 33, 1])
    # 75 * (.75 + 1): 1 layer; 60 * (.75 + 2); 50 * (.75 + 2.75): 2; 33 * (.75 + 4) = 157
    assert LayerMemory(num_layers=4, base=0.5).plain_layers(sizes, most=100).tolist() == [1, 1, 2, 2, 4, 4]
    # With a head of 2, 100 tokens come to 100 * (.5 + 2) while it runs: no layer fits beside it, and at 60 tokens
    # (250 - 60 * 2) / 60 - .5 = 1.7. Below 50 it is the layers that decide.
    assert LayerMemory(num_layers=4, base=0.5, head=2.0).plain_layers(sizes, most=100).tolist() == [0, 0, 1, 2, 4, 4]


@pytest.mark.parametrize("overhead", [0, 10, 1000])
def test_the_split_is_the_cheapest_of_all(overhead):
    lengths = np.array([[2, 3], [10, 40], [5, 5], [10, 90], [4, 6], [10, 5]])  # 5, 50, 10, 100, 10, 15 tokens
    layers, cpu = LayerMemory(num_layers=4, base=0.5, overhead=overhead), torch.device("cpu")
    parts, plain = _split_by_memory(lengths, 100, layers, 1, World(), cpu)
    by_length = [3, 1, 5, 2, 4, 0]
    assert sum(parts, []) == by_length and plain == [int(layers.plain_layers(n, 100)) for n in tokens(lengths, parts)]

    def cost(split):
        return layers.costs(np.array(tokens(lengths, split)), 100).sum()

    splits = [np.split(by_length, cuts) for r in range(6) for cuts in itertools.combinations(range(1, 6), r)]
    assert cost(parts) == min(map(cost, splits))
    five, _ = _split_by_memory(lengths, 100, layers, 5, World(), cpu)  # as another process may need
    assert cost(five) == min(cost(split) for split in splits if len(split) == max(5, len(parts)))


def tokens(lengths, split):
    return [len(part) * int(lengths[part].max(axis=0).sum()) for part in split]


def test_a_process_without_rows_keeps_in_step():
    layers, none = LayerMemory(num_layers=4, base=0.5), np.zeros((0, 2), dtype=np.int64)
    assert _split_by_memory(none, 0, layers, 3, World(), torch.device("cpu")) == ([[], [], []], [4, 4, 4])


def test_a_step_that_recomputes_less_is_the_same_step(policy, tmp_path, monkeypatch):
    """What the formula says of the memory of a forward is what its graph keeps."""
    monkeypatch.setattr(recomputation, "_OVERHEAD_ON_CPU", 0)  # or rows of a few tokens would share micro-batches
    settings = dict(gradient_checkpointing=True, max_steps=2)
    found = run(policy, tmp_path / "auto", gradient_checkpointing_mode="auto", **settings)
    expected = run(policy, tmp_path / "all", **settings)
    assert_same_training(found, expected)
    assert len(found.taught) > len(expected.taught)  # to leave out more checkpointing
    layers = found.forwards.layout.layers
    assert layers.num_layers == 2 and all(layer.gradient_checkpointing for layer in found.model.model.layers)
    with found.undoing_draws():
        found.model.train()
        of_48 = [np.subtract(_forward_bytes(found, 96, m), _forward_bytes(found, 48, m)) for m in (0, 1, 2)]
    (none, _), (one, _), (two, head) = np.array(of_48) / of_48[0][0] * layers.base
    assert [none, one, two] == pytest.approx(layers.base + np.arange(3), rel=0.03)
    assert head == pytest.approx(layers.head, rel=0.03)
    if recomputation._HEAD_TOKENS < 96 * 96:  # TRL's tiles: 32,768 logits of 4 bytes for each token
        assert of_48[2][1] == pytest.approx(48 * 32_768 * 4, rel=0.03)


def test_what_cannot_be_measured_stays_checkpointed(policy, tmp_path, caplog, monkeypatch):
    def broken(*args):
        raise TypeError("no text")

    monkeypatch.setattr(recomputation, "_forward_bytes", broken)
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
