"""The settings: the paper's defaults, values that are refused, and the sizes of batches."""

import re

import pytest
from harness import config
from trl import GRPOConfig

from trl_miner import MinerGRPOConfig
from trl_miner.config import accumulation_steps


def test_the_defaults_are_the_papers(tmp_path):
    args = config(tmp_path)
    assert (args.advantage_estimator, args.miner_gamma, args.miner_lambda_max) == ("miner", 2.0, 1.5e-3)
    assert (args.miner_credit, args.miner_intrinsic, args.correct_threshold) == ("focal", "nll", 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(num_generations=1), "num_generations must be at least 2.*got 1"),
        (
            dict(advantage_estimator="minor"),
            "advantage_estimator must be one of .*entropy_adv, f_grpo, grpo,.*: got 'minor'",
        ),
        (dict(ucas_beta_pos=-0.1), "ucas_beta_pos must be at least 0: got -0.1. The default is 0.25"),
        (dict(miner_gamma=None), "miner_gamma must be a number: got None. The default is 2"),
        (dict(top_p=1.5), "top_p must be at most 1: got 1.5"),
        (dict(reward_weights=["a"]), "reward_weights must hold numbers: got 'a'"),
        (dict(policy_loss="ppo"), "policy_loss must be one of clip, clip_cov, kl_cov, bapo: got 'ppo'"),
        (dict(clip_cov_low=6.0), "clip_cov_high must be at least 6: got 5.0"),
        (dict(policy_loss="kl_cov", importance_sampling_level="sequence"), "kl_cov works on the ratio of each token"),
        (dict(policy_loss="bapo", loss_type="cispo"), "works inside a clipped loss.*got loss_type='cispo'"),
        (dict(policy_loss="kl_cov", delta=3.0), "no clipping for delta to bound: got delta=3.0"),
        (
            dict(policy_loss="bapo", steps_per_generation=3, gradient_accumulation_steps=2, num_iterations=2),
            "Make steps_per_generation a multiple of gradient_accumulation_steps",
        ),
        (dict(dynamic_sampling=True), "drops the all-right prompts that MINER learns from"),
        (dict(miner_lambda_max=-1e-3), "miner_lambda_max must be at least 0.*got -0.001"),
        (dict(miner_lambda_max=float("nan")), "miner_lambda_max must be at least 0.*got nan"),
        (dict(miner_intrinsic="entropy"), "miner_intrinsic must be one of nll, certainty, constant: got 'entropy'"),
        (dict(correct_threshold=float("nan")), "correct_threshold must be a number"),
    ],
)
def test_a_bad_value_is_named_with_what_would_do(tmp_path, change, named):
    with pytest.raises(ValueError, match=named):
        config(tmp_path, **change)


def test_an_infinite_cap_is_no_cap(tmp_path):
    assert config(tmp_path, miner_lambda_max=float("inf")).miner_lambda_max is None


def test_a_grpo_config_keeps_what_it_derived(tmp_path):
    plain = config(tmp_path, cls=GRPOConfig, steps_per_generation=2)
    taken = MinerGRPOConfig.from_grpo_config(plain)
    kept = vars(plain).keys() - {"distributed_state"}  # made anew
    assert {name: getattr(taken, name) for name in kept} == {name: getattr(plain, name) for name in kept}
    assert taken.generation_batch_size == 24 and taken.miner_gamma == 2.0
    assert MinerGRPOConfig.from_grpo_config(taken) is taken


@pytest.mark.parametrize(("processes", "steps"), [(1, 16), (2, 8), (16, 1)])
def test_the_batch_of_an_optimizer_step_does_not_depend_on_the_processes(processes, steps):
    """64 rollouts: 4 a micro-batch, 16 / processes micro-batches. (On real processes: tests/test_accelerate.py.)"""
    assert accumulation_steps(64, 4, processes) == steps


def test_an_optimizer_batch_sets_the_accumulation(tmp_path):
    args = config(tmp_path, per_device_train_batch_size=4, optimizer_batch_size=64)
    assert (args.gradient_accumulation_steps, args.generation_batch_size) == (16, 64)
    settings = dict(per_device_train_batch_size=4, optimizer_batch_size=16, generation_batch_size=64)
    args = config(tmp_path, **settings)  # off-policy: four steps for each generation
    assert (args.gradient_accumulation_steps, args.steps_per_generation) == (4, 16)
    with pytest.raises(ValueError, match="got 62 for 4 x 1. Change the batch per device"):
        config(tmp_path, per_device_train_batch_size=4, optimizer_batch_size=62)
    with pytest.raises(ValueError, match="gradient_accumulation_steps=8. Leave one of them out"):
        config(tmp_path, per_device_train_batch_size=4, optimizer_batch_size=64, gradient_accumulation_steps=8)


def test_every_own_field_has_help_text():
    own = set(MinerGRPOConfig.__dataclass_fields__) - set(GRPOConfig.__dataclass_fields__)
    for name in own:
        assert MinerGRPOConfig.__dataclass_fields__[name].metadata["help"].endswith("."), name
        assert re.search(rf"^ +(\w+, )*{name}(, \w+)* \(`", MinerGRPOConfig.__doc__, re.M), name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            dict(advantage_estimator="grpo", miner_lambda_max=0.5),
            r"miner_lambda_max=0.5 \(of miner, which has no part",
        ),
        (
            dict(miner_credit="uniform", miner_gamma=5.0),
            r"miner_gamma=5.0 \(which needs miner_credit: focal",
        ),
        (dict(bapo_target=2.0, entropy_weight=0.1), "entropy_weight=0.1 .*; bapo_target=2.0"),
        (dict(advantage_estimator="ngrpo", scale_rewards="none"), r"scale_rewards='none' \(as ngrpo scales"),
    ],
)
def test_settings_without_effect_are_warned_of(tmp_path, caplog, change, told):
    config(tmp_path, **change)
    assert re.search(told, caplog.text)


@pytest.mark.parametrize(
    "change",
    [
        dict(miner_lambda_max=0.5, miner_gamma=1.0),
        dict(advantage_estimator="grpo", all_right="placebo", miner_lambda_max=0.01, scale_rewards="none"),
        dict(policy_loss="bapo", bapo_target=2.0),
        dict(miner_intrinsic="constant", miner_credit="focal", miner_gamma=1.0),
    ],
)
def test_settings_that_have_one_are_not(tmp_path, caplog, change):
    config(tmp_path, **change)
    assert "effect" not in caplog.text
