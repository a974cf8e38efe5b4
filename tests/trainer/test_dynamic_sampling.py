"""Dynamic sampling: a batch of prompts with correct and wrong completions, refilled in rounds."""

import logging
from collections import Counter

import pytest
import torch
from harness import build_trainer, crc, logs, mixed_reward, problems, train
from trainer.test_as_trl import with_environment

SETTINGS = dict(advantage_estimator="grpo", dynamic_sampling=True, max_steps=3)


def groups(trainer, batch):
    """Return of each prompt of a batch its text and its completions."""
    output, decode = batch.output, trainer.processing_class.batch_decode
    prompts = decode(
        [i[m.bool()] for i, m in zip(output["prompt_ids"], output["prompt_mask"], strict=True)]
    )
    completions = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)
    ]
    return [(prompts[i : i + 4], completions[i : i + 4]) for i in range(0, len(prompts), 4)]


def test_the_batch_is_full_of_mixed_prompts(policy, tmp_path):
    """Of each three prompts at most one is mixed, so that three rounds are the least."""
    trainer = train(policy, tmp_path, **SETTINGS)
    assert len(trainer.batches) == 3
    for batch, log in zip(trainer.batches, logs(trainer), strict=False):
        assert batch.rollouts.kinds.is_he_N.all()
        assert (batch.output["advantages"] != 0).all()
        assert log["groups/he"] == log["completions/used"] == 1
        assert 2 <= log["dynamic_sampling/rounds"] <= 10
        output = batch.output
        assert output["num_items_in_batch"] == output["completion_mask"].sum()
        for prompts, _ in groups(trainer, batch):
            assert len(set(prompts)) == 1 and crc(prompts[0]) % 3 == 2  # the mixed third


def test_each_row_keeps_its_completion_its_reward_and_its_advantage(policy, tmp_path):
    given = Counter()

    def reward(prompts, completions, completion_ids, **kwargs):
        rewards = mixed_reward(prompts, completions)
        given.update((p, *c, r) for p, c, r in zip(prompts, completion_ids, rewards, strict=True))
        return rewards

    trainer = train(policy, tmp_path, reward=reward, **SETTINGS)
    for batch in trainer.batches:
        rewards = batch.rollouts.rewards_N.view(-1, 4)
        expected = (rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)
        assert torch.allclose(batch.output["advantages"], expected.flatten(), atol=1e-5)
        for (prompts, completions), own in zip(
            groups(trainer, batch), rewards.tolist(), strict=True
        ):
            for row in zip(prompts, completions, own, strict=True):
                assert given[(row[0], *row[1], row[2])]


def test_a_batch_that_is_mixed_at_once_stays_trls(policy, tmp_path):
    mixed = problems().filter(lambda row: crc(row["prompt"]) % 3 == 2)

    def halves(completions, **kwargs):
        return [float(i % 2) for i, _ in enumerate(completions)]

    trainer = train(policy, tmp_path, reward=halves, data=mixed, **SETTINGS)
    assert all(log["dynamic_sampling/rounds"] == 1 for log in logs(trainer)[:3])
    assert trainer.prompt_stream.rounds == 0


def test_after_ten_rounds_others_fill_the_batch_with_a_warning(policy, tmp_path, caplog):
    rounds = set()

    def right(prompts, completions, **kwargs):
        rounds.add(str(prompts))
        return [1.0] * len(completions)

    settings = {**SETTINGS, "max_steps": 1, "num_iterations": 2}
    with caplog.at_level(logging.WARNING):
        trainer = train(policy, tmp_path, reward=right, **settings)
    assert "dynamic_sampling found 0 of 3 mixed prompts in 10 rounds" in caplog.text
    (batch,) = trainer.batches
    assert logs(trainer)[0]["dynamic_sampling/rounds"] == len(rounds) == 10
    assert batch.output["completion_ids"].shape[0] == 12
    assert (batch.output["advantages"] == 0).all()


def test_old_and_reference_log_probs_come_along(policy, tmp_path):
    trainer = train(policy, tmp_path, beta=0.1, num_iterations=2, **SETTINGS)
    for batch in trainer.batches:
        shape = batch.output["completion_ids"].shape
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            assert batch.output[name].shape == shape
            assert (batch.output[name][batch.output["completion_mask"].bool()] < 0).all()


def test_evaluation_does_not_use_it(policy, tmp_path):
    trainer = build_trainer(
        policy,
        tmp_path,
        more={"eval_dataset": problems(6)},
        per_device_eval_batch_size=12,
        **SETTINGS,
    )
    trainer.evaluate()
    assert trainer.prompt_stream.rounds == 0


def test_a_stream_has_no_prompts_by_number(policy, tmp_path):
    stream = problems().to_iterable_dataset()
    with pytest.raises(ValueError, match="draws prompts by their number"):
        build_trainer(policy, tmp_path, data=stream, **SETTINGS)


def test_the_batch_fits_whatever_the_lengths_and_has_tools(policy, tmp_path):
    """Rounds of unlike width, on which a micro-batch is cut anew, move the weights."""
    settings = dict(per_device_train_batch_size=6, gradient_accumulation_steps=2, **SETTINGS)
    trainer = train(policy, tmp_path, more={"rollout_func": with_environment}, **settings)
    assert all(log["grad_norm"] > 0 for log in logs(trainer)[:3])
    for output in (batch.output for batch in trainer.batches):
        assert (output["prompt_mask"].diff() >= 0).all()  # padded on the left
        assert (output["completion_mask"].diff() <= 0).all()
        counted = output["completion_mask"] * output["tool_mask"]
        assert output["num_items_in_batch"] == counted.sum() < output["completion_mask"].sum()
