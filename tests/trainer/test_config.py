"""`MinerGRPOConfig`: its settings on a command line, and what is refused."""

import math

import pytest
from harness import config
from transformers import HfArgumentParser
from trl import GRPOConfig

from trl_miner.trainer.config import MinerGRPOConfig


def test_a_command_line_sets_each_of_them(tmp_path):
    words = f"""--output_dir {tmp_path} --use_cpu --bf16 false --advantage_estimator reinforce_pp
        --all_right miner --correct_threshold 0.5 --correct_reward_func math --miner_gamma 1
        --advantage_estimator_kwargs {{}} --miner_lambda_max inf --miner_intrinsic constant
        --policy_loss kl_cov --policy_loss_kwargs {{"ratio":0.1}} --num_iterations 2
        --optimizer_batch_size 16 --compute_less false --max_tokens_per_micro_batch 4096
        --delta inf"""
    (args,) = HfArgumentParser(MinerGRPOConfig).parse_args_into_dataclasses(words.split())
    assert args.miner_lambda_max is None and args.gradient_accumulation_steps == 2
    assert args.composition.mixed.name == "reinforce_pp"
    assert args.policy_loss_method[1] == {"ratio": 0.1}


def test_a_plain_configuration_gets_the_defaults(tmp_path):
    plain = config(tmp_path, GRPOConfig, beta=0.1)
    args = MinerGRPOConfig.of(plain)
    assert args.beta == 0.1 and args.miner_gamma == 2.0 and args.compute_less
    assert MinerGRPOConfig.of(args) is args
    assert not hasattr(plain, "miner_gamma")


REFUSED = {
    "advantage_estimator": (dict(advantage_estimator="minor"), "minor.*miner"),
    "policy_loss": (dict(policy_loss="kl-cov"), "kl-cov.*kl_cov"),
    "miner_gamma": (dict(miner_gamma=-1.0), "miner_gamma must be at least 0: got -1.0"),
    "miner_lambda_max": (dict(miner_lambda_max=math.nan), "miner_lambda_max must be at least 0"),
    "miner_intrinsic": (
        dict(miner_intrinsic="doubt"),
        "one of .*constant.*: got 'doubt'",
    ),
    "correct_threshold": (
        dict(correct_threshold=math.nan),
        "correct_threshold must be at least -inf: got nan",
    ),
    "budget": (dict(max_tokens_per_micro_batch=1), "max_tokens_per_micro_batch must be at least 2"),
    "batch": (dict(optimizer_batch_size=20), "multiple of per_device_train_batch_size.*20 for 12"),
    "two batches": (
        dict(optimizer_batch_size=24, gradient_accumulation_steps=3),
        "makes gradient_accumulation_steps 2: got 3",
    ),
    "sequence ratios": (
        dict(policy_loss="bapo", importance_sampling_level="sequence"),
        "policy_loss=bapo needs importance_sampling_level: token",
    ),
    "loss": (dict(policy_loss="clip_cov", loss_type="cispo"), "needs a clipped loss_type, grpo"),
    "delta": (dict(policy_loss="kl_cov", delta=2.0), "needs delta left out"),
    "entropy": (
        dict(policy_loss="bapo", use_adaptive_entropy=True, entropy_coef=0.1),
        "needs use_adaptive_entropy left out",
    ),
    "dynamic sampling": (dict(dynamic_sampling=True), "drops the all-right prompts that MINER"),
    "knob": (
        dict(advantage_estimator="ucas", advantage_estimator_kwargs={"beta": 1.0}),
        "beta",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_make_no_sense_are_refused_with_their_value(tmp_path, name):
    settings, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


def test_dynamic_sampling_goes_with_methods_of_mixed_prompts(tmp_path):
    assert config(tmp_path, dynamic_sampling=True, advantage_estimator="grpo").dynamic_sampling
    without = dict(advantage_estimator="ucas", all_right="none")
    assert config(tmp_path, dynamic_sampling=True, **without).dynamic_sampling


def test_what_has_no_effect_is_said(tmp_path, caplog):
    config(tmp_path, policy_loss="bapo", loss_type="grpo")
    assert "policy_loss=bapo does nothing strictly on-policy" in caplog.text
    config(tmp_path, importance_sampling_level="sequence")
    assert "MINER's do not reach single tokens" in caplog.text


def test_nothing_is_said_of_the_defaults(tmp_path, caplog):
    config(tmp_path)
    config(tmp_path, advantage_estimator="grpo", importance_sampling_level="sequence")
    assert not caplog.text


def test_its_text_hides_secrets(tmp_path):
    args = config(tmp_path, hub_token="hub-secret")
    assert "hub-secret" not in f"{args} {args!r}" and "miner_gamma=2.0" in repr(args)
