"""The result of a method does not depend on the number of processes, nor on where groups are cut."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from harness import call_on_ranks
from methods.batches import METHODS, NAN, make_batch, settings_of
from methods.test_policy_losses import SETTINGS, random_batch, run

from trl_miner import miner_advantages
from trl_miner.methods.compose import estimate, find_composition
from trl_miner.methods.processes import World, current_world


def whole_batch():
    """Five prompts of four, 20 rows: on two processes ten each, on four five, which cuts prompts.
    Some processes have no all-right row, and their longest rows differ."""
    rewards = [1.0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, NAN, 1, 1, 1, 1]
    lengths = [3, 1, 7, 2, 5, 0, 4, 6, 1, 2, 3, 4, 7, 7, 2, 1, 3, 3, 6, 2]
    return make_batch(rewards, lengths, 4)


def compare():
    """Compare every method on this process's rows with what one process makes of all."""
    torch.distributed.init_process_group("gloo")
    world, batch, micro_batch = current_world(), whole_batch(), random_batch()
    rows = world.local_slice(20 // world.size)
    for name in METHODS:
        found = estimate(find_composition(**settings_of(name)), batch.part(rows, world))
        expected = batch.estimate(**settings_of(name))
        close = partial(torch.allclose, rtol=1e-6, atol=1e-9)
        assert close(found.advantages_BT, expected.advantages_BT[rows]), name
        assert close(found.advantages_N, expected.advantages_N), name
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-9), name
    # rows padded to a length of their own
    width = 7 if batch.mask[rows][:, 6:].any() else 6
    tokens = batch.scores["old_logps"][rows, :width], batch.mask[rows, :width]
    found = miner_advantages(batch.rewards, *tokens, num_generations=4, world=world)
    expected = batch.estimate(advantage_estimator="miner").advantages_BT[rows, :width]
    assert close(found.advantages_NT, expected)

    rows = world.local_slice(8 // world.size)
    tensors = {k: value[rows] for k, value in vars(micro_batch).items() if torch.is_tensor(value)}
    for name in SETTINGS:
        found, expected = (
            run(name, x) for x in (replace(micro_batch, **tensors, world=world), micro_batch)
        )
        assert close(found.advantages_BT, expected.advantages_BT[rows]), name
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-6), name
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_the_number_of_processes_does_not_matter(size):
    call_on_ranks(size, compare)


def test_without_other_processes_the_world_is_this_one():
    assert current_world() == World(1, 0)
