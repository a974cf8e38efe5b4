"""The result of a method does not depend on the number of processes, nor on where groups are cut."""

import pytest
import torch
from harness import call_on_ranks
from methods.batches import METHODS, make_batch
from methods.test_policy_losses import SETTINGS, random_batch, run

from trl_miner import miner_advantages
from trl_miner.methods.compose import estimate, find_composition
from trl_miner.methods.micro_batch import MicroBatch
from trl_miner.methods.processes import World, current_world

NAN = float("nan")


def whole_batch():
    """Five prompts of four, 20 rows: on two processes ten each, on four five, which cuts prompts.
    Some processes have no all-right row, and their longest rows differ."""
    rewards = [1.0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, NAN, 1, 1, 1, 1]
    lengths = [3, 1, 7, 2, 5, 0, 4, 6, 1, 2, 3, 4, 7, 7, 2, 1, 3, 3, 6, 2]
    return make_batch(rewards, lengths, 4)


def compare(folder):
    """Compare every method on this process's rows with what one process makes of all."""
    torch.distributed.init_process_group("gloo")
    world = current_world()
    expected = torch.load(folder / "expected.pt", weights_only=False)
    batch = whole_batch()
    rows = world.local_slice(len(batch.rewards) // world.size)
    for name, (settings, _) in METHODS.items():
        rollouts, _ = batch.part(rows, world.rank, world.size)
        found = estimate(find_composition(**settings), rollouts)
        advantages_BT, advantages_N, metrics = expected[name]
        assert torch.allclose(found.advantages_BT, advantages_BT[rows], rtol=1e-6, atol=1e-9), name
        assert torch.allclose(found.advantages_N, advantages_N, rtol=1e-6, atol=1e-9), name
        assert found.metrics == pytest.approx(metrics, rel=1e-9), name
    # rows padded to a length of their own
    width = 7 if batch.mask[rows][:, 6:].any() else 6
    tokens = (batch.scores["old_logps"][rows, :width], batch.mask[rows, :width])
    found = miner_advantages(batch.rewards, *tokens, num_generations=4, world=world)
    assert torch.allclose(found.advantages_NT, expected["miner"][0][rows, :width], rtol=1e-6)
    whole = random_batch()
    rows = world.local_slice(8 // world.size)
    tensors = (whole.logps_BT, whole.old_logps_BT, whole.advantages_BT, whole.mask_BT)
    part = MicroBatch(*(x[rows] for x in tensors), world=world)
    for name in SETTINGS:
        found = run(name, part)
        assert torch.allclose(found.advantages_BT, expected[name][0][rows], rtol=1e-6), name
        assert found.metrics == pytest.approx(expected[name][1], rel=1e-6), name
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_the_number_of_processes_does_not_matter(size, tmp_path):
    batch, expected = whole_batch(), {}
    for name, (settings, _) in METHODS.items():
        found = batch.estimate(**settings)
        expected[name] = found.advantages_BT, found.advantages_N, dict(found.metrics)
    for name in SETTINGS:
        found = run(name, random_batch())
        expected[name] = found.advantages_BT, dict(found.metrics)
    torch.save(expected, tmp_path / "expected.pt")
    call_on_ranks(size, compare, tmp_path)


def test_without_other_processes_the_world_is_this_one():
    assert current_world() == World(1, 0)
