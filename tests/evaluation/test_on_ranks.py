"""Two processes score as one does: every process takes its share, of odd numbers of
batches, too."""

import json

import harness
import pytest

from trl_miner.evaluation.held_out import read_held_out
from trl_miner.evaluation.in_training import EvaluationCallback

pytestmark = pytest.mark.slow


def coins(completions, **kwargs):
    return [float(harness.crc(text) % 2) for text in completions]


def score(policy, folder, environment, size, rank_ends=True):
    """Score five problems before, in, and after a training of four steps that move nothing: the
    rollouts of two processes are others."""
    harness.os.environ.update(environment)
    trainer = harness.build_trainer(
        policy, folder, reward=coins, max_steps=4, per_device_train_batch_size=12 // size,
        gradient_accumulation_steps=1, learning_rate=1e-15,
    )  # fmt: skip
    evaluation = EvaluationCallback(
        trainer, harness.problems(5), 4, every_steps=2, batch_size=8
    )  # batches of two problems
    trainer.add_callback(evaluation)
    trainer.train()
    evaluation.record("after")
    rank = trainer.accelerator.process_index
    counts = {name: one.num_correct for name, one in evaluation.moments.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(counts))
    if rank_ends:
        harness.leave()


@pytest.mark.parametrize("environment", [{}, harness.FSDP2], ids=["DDP", "FSDP2"])
def test_two_processes_score_as_one(policy, tmp_path, environment):
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    score(policy, folders[0], {}, 1, rank_ends=False)
    harness.call_on_ranks(2, score, policy, folders[1], environment, 2, seconds=200)
    ranks = [json.loads((folders[1] / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    counts = {name: one.num_correct for name, one in read_held_out(folders[0]).items()}
    assert counts == ranks[0] == ranks[1] and [*counts] == ["before", "step 2", "after"]
    assert len({*counts["before"]}) > 1
    assert read_held_out(folders[1]) == read_held_out(folders[0])
