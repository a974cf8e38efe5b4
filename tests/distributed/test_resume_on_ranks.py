"""Resumes on several processes: exact on as many, and told on another number."""

import pytest
import torch
from distributed.worker import build, on_a_rank
from harness import call_on_ranks, largest_difference

pytestmark = pytest.mark.slow

SAVING = dict(
    save_strategy="steps", save_steps=1, max_steps=6, num_iterations=2, micro_batches=2,
    steps_per_generation=4, optim="adamw_torch", learning_rate=1e-3,
)  # fmt: skip


def test_on_as_many_it_is_exact_and_on_one_it_is_told(policy, tmp_path, caplog):
    """Steps 1 to 4 train on one batch: the checkpoint of step 3 lies inside."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    for folder in (whole, again):
        folder.mkdir()
    call_on_ranks(2, on_a_rank, {}, policy, whole, {"run": SAVING})
    checkpoint = whole / "run" / "checkpoint-3"
    assert len([*checkpoint.glob("generation_cycle_*.pt")]) == 2
    resumed = {"run": {**SAVING, "resume": str(checkpoint)}}
    call_on_ranks(2, on_a_rank, {}, policy, again, resumed)
    expected, found = (torch.load(folder / "found.pt")["run"] for folder in (whole, again))
    assert largest_difference(found["weights"], expected["weights"]) == 0
    assert found["logs"] == expected["logs"]

    alone = build(policy, tmp_path / "alone", **{**SAVING, "save_strategy": "no"})
    alone.train(resume_from_checkpoint=str(checkpoint))
    assert "another number of processes" in caplog.text
    assert alone.state.global_step == 6
