"""Rollouts of a run on a CPU share forwards, and come from the distribution that TRL draws from."""

import pytest
import torch
from harness import config, mixed_reward, problems
from peft import LoraConfig
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from trl_miner import MinerGRPOTrainer
from trl_miner.training import RunTrainer


@pytest.fixture
def generates(monkeypatch):
    """The number of rows of each call of transformers' `generate`, which stays its own."""
    rows, generate = [], MinerGRPOTrainer._generate_single_turn.__globals__["GRPOTrainer"]
    trls = generate._generate_single_turn

    def spy(self, prompt_ids, *args, **kwargs):
        rows.append(len(prompt_ids))
        return trls(self, prompt_ids, *args, **kwargs)

    monkeypatch.setattr(generate, "_generate_single_turn", spy)
    return rows


def test_rollouts_come_from_the_policy(policy, tmp_path, generates):
    """Of 4,000 rollouts of a prompt, each token begins as many as its probability says, within 4
    standard deviations."""
    args = config(tmp_path, per_device_train_batch_size=4000, num_generations=4000, max_steps=1)
    trainer = RunTrainer(policy, mixed_reward, args, problems())
    trainer.model.train()
    trainer.temperature = 0.7
    prompt = trainer.processing_class(problems()[0]["prompt"])["input_ids"]
    rows, logps = trainer._generate_single_turn([prompt] * 4000, None, {})
    assert logps is None and not generates
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = (logits / 0.7).softmax(0)
    counts = torch.tensor([row[0] for row in rows]).bincount(minlength=len(expected))
    spread = (4000 * expected * (1 - expected)).sqrt().clamp(min=1)
    assert ((counts - 4000 * expected).abs() / spread).max() < 4
    ends = set(trainer.eos_token_ids)
    assert all(row[-1] in ends or len(row) == trainer.max_completion_length for row in rows)
    assert not any(ends & {*row[:-1]} for row in rows) and len({*map(tuple, rows)}) > 100


def with_dropout(policy, **kwargs):
    return AutoModelForCausalLM.from_pretrained(policy, attention_dropout=0.1)


class OwnGenerate(Qwen3ForCausalLM):
    def generate(self, *args, **kwargs):
        return super().generate(*args, **kwargs)


@pytest.mark.parametrize(
    ("build", "settings", "is_shared"),
    [
        (None, {}, True),
        (None, {"gradient_checkpointing": True}, True),
        (None, {"bf16": True}, True),
        (None, {"peft_config": LoraConfig(lora_dropout=0.0)}, True),
        (None, {"peft_config": LoraConfig(lora_dropout=0.1)}, False),
        (None, {"top_k": 3}, False),
        (None, {"generation_kwargs": {"no_repeat_ngram_size": 1}}, False),
        (with_dropout, {}, False),
        (OwnGenerate.from_pretrained, {}, False),
    ],
)
def test_rollouts_are_shared_where_trl_draws_each_from_the_policy(
    policy, tmp_path, generates, build, settings, is_shared
):
    adapter = {"peft_config": settings.pop("peft_config", None)}
    args = config(tmp_path, max_steps=2, **settings)
    model = build(policy) if build else policy
    trainer = RunTrainer(model, mixed_reward, args, problems(), **adapter)
    trainer.train()
    assert len(generates) == (0 if is_shared else 2)


def test_the_trainer_without_a_run_folder_draws_as_trl(policy, tmp_path, generates):
    MinerGRPOTrainer(policy, mixed_reward, config(tmp_path, max_steps=2), problems()).train()
    assert len(generates) == 2
