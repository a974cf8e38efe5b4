"""What ends a run with a reason before it goes wrong, and what is kept away from it."""

import math

import pytest
import torch
from harness import build_tokenizer, build_trainer, largest_difference, train, weights
from transformers import AutoModelForCausalLM, GenerationConfig, GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer

from trl_miner.trainer.generation_settings import NEUTRAL, neutralize


class Spoiled(torch.autograd.Function):
    """The tensor as it is, and a gradient that is not finite, as cuDNN's attention makes it."""

    @staticmethod
    def forward(ctx, value, fault):
        ctx.fault = fault
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient.view(-1)[0] = ctx.fault
        return gradient, None


@pytest.mark.parametrize("clip", [1.0, 0.0])
@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_moves_no_weight(policy, tmp_path, fault, clip):
    trainer = build_trainer(policy, tmp_path, max_grad_norm=clip)
    norm, before = trainer.model.model.norm, {}

    def spoil(module, args, output):
        if trainer.state.global_step == 2 and torch.is_grad_enabled():
            before.update(weights(trainer))
            return Spoiled.apply(output, fault)
        return output

    norm.register_forward_hook(spoil)
    with pytest.raises(FloatingPointError, match="The gradient of step 3 must be finite"):
        trainer.train()
    assert largest_difference(weights(trainer), before) == 0


def test_a_models_own_generation_settings_do_not_shape_samples(policy, tmp_path, caplog):
    """With min_new_tokens and a forbidden token the model would sample otherwise."""
    own = dict(min_new_tokens=9, suppress_tokens=[7, 8, 9], no_repeat_ngram_size=1)
    model = AutoModelForCausalLM.from_pretrained(policy)
    for name, value in own.items():
        setattr(model.generation_config, name, value)
    found = train(model, tmp_path / "own", max_steps=2)
    assert "without the {'min_new_tokens': 9" in caplog.text or "'min_new_tokens': 9" in caplog.text
    expected = train(policy, tmp_path / "none", max_steps=2)
    for ours, theirs in zip(found.batches, expected.batches, strict=True):
        assert torch.equal(ours.output["completion_ids"], theirs.output["completion_ids"])
    # the saved model keeps them
    assert found.model.generation_config.min_new_tokens == 9


def test_settings_that_the_training_states_stay():
    training = GenerationConfig(min_p=0.2)
    neutralize(training, GenerationConfig(min_p=0.5, typical_p=0.9, top_k=3))
    assert training.min_p == 0.2 and training.typical_p == 1.0
    assert training.top_k is None  # TRL states it


@pytest.mark.parametrize("name", NEUTRAL)
def test_each_neutral_value_is_one_that_transformers_takes(name):
    training = GenerationConfig()
    neutralize(training, GenerationConfig(**{name: 2 if isinstance(NEUTRAL[name], int) else [5]}))
    assert getattr(training, name) == NEUTRAL[name]
    training.validate()


def test_a_quantized_model_with_vllm_is_refused(policy, tmp_path, monkeypatch):
    """Neither vLLM nor bitsandbytes is here: TRL's link to vLLM stands in, and says that the model
    is quantized."""
    from trl.trainer import grpo_trainer

    model = AutoModelForCausalLM.from_pretrained(policy)

    def link(*args, **kwargs):
        model.is_quantized = True

    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", link)
    with pytest.raises(ValueError, match="use_vllm does not get the weights of a model in 4 or 8"):
        build_trainer(model, tmp_path, use_vllm=True, vllm_mode="colocate")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A model with absolute positions, which padding on the left moves."""
    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    ids = dict(pad_token_id=0, eos_token_id=1, bos_token_id=1)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=2, n_head=2, **ids
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_model_that_sees_padding_keeps_trls_step_bit_for_bit(gpt2, tmp_path, caplog):
    settings = dict(per_device_train_batch_size=6, gradient_accumulation_steps=2, beta=0.05)
    expected = train(gpt2, tmp_path / "a", cls=GRPOTrainer, config_cls=GRPOConfig, **settings)
    found = train(gpt2, tmp_path / "b", advantage_estimator="grpo", **settings)
    assert largest_difference(weights(found), weights(expected)) == 0
    assert "micro-batches stay TRL's, because model_type=gpt2" in caplog.text
