"""A generation batch: its advantages, what is logged of it, and who looks at it."""

from functools import partial

import pytest
import torch
from harness import (
    AS_TRL,
    build_trainer,
    crc,
    fixed_rollouts,
    largest_difference,
    logs,
    mixed_reward,
    problems,
    train,
    weights,
)
from peft import LoraConfig
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from trl_miner.methods import ESTIMATORS
from trl_miner.methods.miner import miner_advantages


def batches_of(trainer):
    """Yield of each scored batch the advantages by token and the log of its step."""
    for batch, log in zip(trainer.batches, logs(trainer), strict=False):
        mask = batch.rollouts.mask_BT != 0
        advantages = batch.output["advantages"].view(len(mask), -1) * mask
        yield batch, advantages, log


def logps_of(model, output):
    """Return (B, T) log-probs of each row alone, without padding; 0 at padding."""
    scores = torch.zeros(output["completion_ids"].shape)
    for i, is_token in enumerate(output["completion_mask"].bool()):
        prompt = output["prompt_ids"][i, output["prompt_mask"][i].bool()]
        completion = output["completion_ids"][i, is_token]
        with torch.no_grad():
            logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        found = logits.log_softmax(1).gather(1, completion[:, None])[:, 0]
        scores[i, is_token] = found
    return scores


def test_the_advantages_are_those_of_the_public_function(policy, tmp_path):
    trainer = build_trainer(policy, tmp_path, learning_rate=0.0)  # the old policy stays
    trainer.train()
    found = 0
    for batch, advantages, log in batches_of(trainer):
        rollouts = batch.rollouts
        expected = miner_advantages(
            rollouts.rewards_N,
            logps_of(trainer.model, batch.output),
            rollouts.mask_BT,
            num_generations=4,
        ).advantages_NT
        assert torch.allclose(advantages, expected.float(), atol=2e-6)
        found += int((advantages[rollouts.kinds.is_ph_N] != 0).sum())
        used = (advantages != 0).any(1).float().mean().item()
        assert log["completions/used"] == pytest.approx(used)
        assert log["completions/used"] == pytest.approx(
            log["completions/grpo"] + log["completions/recovered"]
        )
    assert found


def test_observers_see_each_batch_before_its_first_step(policy, tmp_path):
    """Five steps, two on each batch: the batches of steps 1, 3 and 5."""
    trainer = build_trainer(policy, tmp_path, num_iterations=2)
    before = []
    trainer.observers.append(lambda batch: before.append(weights(trainer)))
    first = weights(trainer)
    trainer.train()
    assert [batch.step for batch in trainer.batches] == [1, 3, 5]
    assert largest_difference(before[0], first) == 0
    assert largest_difference(before[1], first) > 0
    batch = trainer.batches[0]
    assert batch.output["completion_ids"].shape == batch.rollouts.mask_BT.shape
    assert batch.estimate.advantages_N.shape == (12,)


def test_what_an_observer_scores_changes_nothing(policy, tmp_path):
    """Nor with dropout, which draws."""

    def build(folder):
        set_seed(0)  # of the adapter
        lora = LoraConfig(target_modules="all-linear", lora_dropout=0.3)
        return build_trainer(policy, folder, more={"peft_config": lora}, num_iterations=2)

    plain = build(tmp_path / "plain")
    plain.train()
    asked = build(tmp_path / "asked")
    every = torch.ones(12, dtype=torch.bool)
    seen = []
    for name in ("old_logps", "entropies", "token_logits", "self_certainty"):
        asked.observers.append(
            lambda batch, name=name: seen.append(batch.rollouts.score(name, every))
        )
    asked.train()
    assert len(seen) == 12
    assert largest_difference(weights(asked), weights(plain)) == 0


def test_evaluation_is_plain_grpo(policy, tmp_path):
    """No MINER, no observers, no metrics of ours."""
    trainer = build_trainer(
        policy,
        tmp_path,
        more={"eval_dataset": problems(6)},
        per_device_eval_batch_size=12,
        num_generations_eval=2,
    )
    metrics = trainer.evaluate()
    assert not trainer.batches
    assert "eval_reward" in metrics
    assert not [name for name in metrics if name.startswith(("eval_groups", "eval_miner"))]


def never_all_right(prompts, completions, **kwargs):
    """0.5 for the all-right third: alike, and not correct."""
    rewards = mixed_reward(prompts, completions)
    return [0.5 if crc(p) % 3 == 0 else r for p, r in zip(prompts, rewards, strict=True)]


def test_without_all_right_prompts_miner_is_grpo_bit_for_bit(policy, tmp_path):
    expected = train(
        policy, tmp_path / "a", cls=GRPOTrainer, config_cls=GRPOConfig, reward=never_all_right
    )
    found = train(policy, tmp_path / "b", reward=never_all_right, **AS_TRL)
    assert largest_difference(weights(found), weights(expected)) == 0


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_trains(policy, tmp_path, name):
    trainer = train(policy, tmp_path, advantage_estimator=name, max_steps=2)
    assert trainer.composition.methods[0].name == name
    for _, advantages, _ in batches_of(trainer):
        assert advantages.isfinite().all()
    assert any(advantages.any() for _, advantages, _ in batches_of(trainer))


def test_an_own_estimator_by_its_import_path(policy, tmp_path, monkeypatch):
    (tmp_path / "own_lib.py").write_text(
        "def doubled(rollouts, *, factor=2.0):\n    return rollouts.advantages_N * factor\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trainer = train(
        policy,
        tmp_path / "run",
        advantage_estimator="own_lib.doubled",
        advantage_estimator_kwargs={"factor": 3.0},
        max_steps=1,
    )
    (batch,) = trainer.batches
    expected = 3 * batch.rollouts.local(batch.rollouts.advantages_N)
    assert torch.allclose(batch.output["advantages"], expected)


def test_tokens_of_tools_have_no_advantage_and_no_log_prob(policy, tmp_path):
    def rolled(prompts, trainer):
        found = fixed_rollouts(prompts, trainer, shortest=4)
        masks = [[int(i % 3 != 1) for i, _ in enumerate(ids)] for ids in found["completion_ids"]]
        return {**found, "env_mask": masks}

    trainer = build_trainer(policy, tmp_path, more={"rollout_func": rolled}, learning_rate=0.0)
    trainer.train()
    for batch, _, _ in batches_of(trainer):
        output = batch.output
        is_tool = (output["completion_mask"] * (1 - output["tool_mask"])).bool()
        assert is_tool.any() and (batch.rollouts.mask_BT[is_tool] == 0).all()
        expected = miner_advantages(
            batch.rollouts.rewards_N,
            logps_of(trainer.model, output),
            batch.rollouts.mask_BT,
            num_generations=4,
        ).advantages_NT
        assert torch.allclose(batch.estimate.advantages_BT, expected.float(), atol=2e-6)
        assert (batch.estimate.advantages_BT[is_tool] == 0).all()


def test_completions_are_written_with_their_rewards(policy, tmp_path):
    import pandas as pd

    trainer = train(policy, tmp_path, log_completions=True, max_steps=2)
    for step, batch in enumerate(trainer.batches, 1):
        table = pd.read_parquet(tmp_path / "completions" / f"completions_{step:05d}.parquet")
        assert table["mixed_reward"].tail(12).tolist() == batch.rollouts.rewards_N.tolist()


def test_with_two_reward_functions_the_weighted_sum_is_the_total(policy, tmp_path):
    def second(completions, **kwargs):
        return [None if i % 5 == 0 else 0.25 for i, _ in enumerate(completions)]

    rolled = partial(fixed_rollouts, shortest=2)
    trainer = train(
        policy,
        tmp_path,
        reward=[mixed_reward, second],
        reward_weights=[2.0, 4.0],
        correct_reward_func="mixed_reward",
        more={"rollout_func": rolled},
        max_steps=1,
    )
    (batch,) = trainer.batches
    # 2 x 0 or 1, and 4 x 0.25 where there is one
    first = batch.rollouts.is_correct_N
    expected = 2 * first + torch.tensor([0.0 if i % 5 == 0 else 1.0 for i in range(12)])
    assert torch.equal(batch.rollouts.rewards_N, expected)
