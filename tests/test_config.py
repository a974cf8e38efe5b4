"""The settings: the paper's defaults, values that are refused, and the sizes of batches."""

import inspect
import itertools
import logging
import math
import re

import pytest
import torch
from harness import OF_FORKS, config, mixed_reward, problems
from trl import GRPOConfig

from trl_miner import MinerGRPOConfig
from trl_miner.methods import ENTROPY, MINER
from trl_miner.methods.entropy import entropy_bonus_advantages
from trl_miner.methods.miner import miner_advantages
from trl_miner.training import RunTrainer

NAN, INF = math.nan, math.inf


def test_the_defaults_are_the_papers(tmp_path):
    args = config(tmp_path)
    assert (args.advantage_estimator, args.miner_gamma, args.miner_lambda_max) == (
        "miner",
        2.0,
        1.5e-3,
    )
    assert (args.miner_intrinsic, args.correct_threshold) == ("nll", 1.0)
    for function, method in ((miner_advantages, MINER), (entropy_bonus_advantages, ENTROPY)):
        parameters = inspect.signature(function).parameters
        assert args.knobs(method) == {name: parameters[name].default for name in method.settings}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            dict(advantage_estimator="minor"),
            "No method named 'minor' for advantage_estimator. Did you mean 'miner'.*entropy_adv, grpo,",
        ),
        (
            dict(entropy_weight=-0.1),
            "entropy_weight is -0.1. It must be at least 0; the default is 0.001",
        ),
        (dict(miner_gamma=None), "miner_gamma is None. It must be at least 0; the default is 2"),
        (dict(temperature=0), "temperature is 0. It must be above 0; the default is 1"),
        (
            dict(policy_loss="ppo"),
            "policy_loss is 'ppo'. It must be one of clip, clip_cov, kl_cov, bapo; the default is clip",
        ),
        (
            dict(policy_loss="bapo", policy_loss_kwargs={"ratio": 1}),
            "policy_loss_kwargs: unknown knob 'ratio'",
        ),
        (
            dict(policy_loss="kl_cov", policy_loss_kwargs={"ratio": 2}),
            "kwargs.ratio is 2. It must be less than or equal to 1",
        ),
        (
            dict(
                policy_loss="clip_cov", per_device_train_batch_size=1, gradient_accumulation_steps=4
            ),
            "got one alone",
        ),
        (
            dict(policy_loss="kl_cov", importance_sampling_level="sequence"),
            "kl_cov works on the ratio of each token",
        ),
        (
            dict(policy_loss="bapo", loss_type="cispo"),
            "works inside a clipped loss.*got loss_type='cispo'",
        ),
        (dict(policy_loss="kl_cov", delta=3.0), "no clipping for delta to bound: got delta=3.0"),
        (
            dict(
                policy_loss="bapo",
                steps_per_generation=3,
                gradient_accumulation_steps=2,
                num_iterations=2,
            ),
            "Make steps_per_generation a multiple of gradient_accumulation_steps",
        ),
        (dict(dynamic_sampling=True), "drops the all-right prompts that MINER learns from"),
        (
            dict(advantage_estimator="ucas", dynamic_sampling=True),
            (
                "drops the all-right and all-wrong prompts that UCAS learns from .*='ucas'.. Leave it"
                " out; or, to learn from mixed prompts alone, set `advantage_estimator: ucas` and"
                " `all_right: none` and `all_wrong: none`."
            ),
        ),
        (
            dict(all_right="ucas"),
            (
                "all_right='ucas' with advantage_estimator='miner', which gives all-right prompts"
                " to MINER. Set `advantage_estimator: grpo` and `all_right: ucas`"
            ),
        ),
        (
            dict(all_wrong="entropy_adv"),
            "acts on all-wrong prompts: got 'entropy_adv', which gives them nothing",
        ),
        (
            dict(all_wrong="ucsa"),
            "No method named 'ucsa' for all_wrong. Did you mean 'ucas'.*Methods: none, ",
        ),
        (dict(advantage_estimator="ucas+miner"), "No method named 'ucas.miner'"),
        (dict(advantage_estimator="none"), "No method named 'none'"),
        (dict(dose_share=0.0), "dose_share is 0.0. It must be above 0 and below 1"),
        (dict(dose_share=True), "dose_share is True. It must be "),
        (
            dict(dose_share=0.1, advantage_estimator="grpo"),
            "has nothing to scale .advantage_estimator='grpo'.. Set",
        ),
        (dict(dose_share=0.1, advantage_estimator="ucas"), "beside another one of mixed prompts"),
        (dict(miner_lambda_max=-1e-3), "miner_lambda_max is -0.001. It must be at least 0"),
        (
            dict(miner_lambda_max=float("nan")),
            "miner_lambda_max is nan. It must be at least 0, or None",
        ),
        (
            dict(miner_intrinsic="entropy"),
            "miner_intrinsic is 'entropy'. It must be one of nll, certainty, constant",
        ),
        (dict(correct_threshold=float("nan")), "correct_threshold must be a number"),
        (
            dict(loss_type="dapoo"),
            "loss_type is 'dapoo'. Did you mean 'dapo'. It must be one of grpo, ",
        ),
        (
            dict(reward_weights=[1.0, float("nan")]),
            r"reward_weights must be finite numbers: got \[1.0, nan\]",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_would_do(tmp_path, change, named):
    with pytest.raises(ValueError, match=named):
        config(tmp_path, **change)


@pytest.mark.parametrize(
    ("names", "values", "rule"),
    [
        ("learning_rate beta epsilon max_grad_norm", (-1e-6, "-1", NAN, INF), "at least 0"),
        ("delta num_train_epochs logging_steps top_p", (0, -1, NAN, INF), "above 0"),
        (
            "per_device_train_batch_size gradient_accumulation_steps num_iterations"
            " max_completion_length",
            (0, -1),
            "at least 1",
        ),
        ("max_steps", (0, -5), "at least 1, or -1 for whole epochs"),
        ("num_generations", (1, -4), "at least 2"),
        ("seed", (-1, 2**32), "between 0 and 4294967295"),
        ("adam_beta1 min_p", (-0.1, 1.5, NAN), "between 0 and 1"),
        ("entropy_weight dose_share vespo_k_pos", (NAN,), ""),
    ],
)
def test_a_number_that_trains_nothing_is_named(tmp_path, names, values, rule):
    """Those of TRL and transformers too, which take them."""
    for name, value in itertools.product(names.split(), values):
        with pytest.raises(ValueError, match=f"^{name} is .*It must be (a number|.*{rule})"):
            config(tmp_path, **{name: value})


def test_an_infinite_cap_is_no_cap(tmp_path):
    assert config(tmp_path, miner_lambda_max=float("inf")).miner_lambda_max is None


@pytest.mark.parametrize(("processes", "steps"), [(1, 16), (2, 8), (16, 1)])
def test_the_batch_of_an_optimizer_step_does_not_depend_on_the_processes(
    tmp_path, monkeypatch, processes, steps
):
    """64 rollouts: 4 a micro-batch, 16 / processes micro-batches. (On real processes:
    tests/test_accelerate.py.)"""
    monkeypatch.setattr(MinerGRPOConfig, "num_processes", processes)
    args = config(
        tmp_path, per_device_train_batch_size=4, optimizer_batch_size=64, generation_batch_size=64
    )
    assert args.gradient_accumulation_steps == steps


def test_an_optimizer_batch_sets_the_accumulation(tmp_path):
    args = config(tmp_path, per_device_train_batch_size=4, optimizer_batch_size=64)
    assert (args.gradient_accumulation_steps, args.generation_batch_size) == (16, 64)
    settings = dict(
        per_device_train_batch_size=4, optimizer_batch_size=16, generation_batch_size=64
    )
    args = config(tmp_path, **settings)  # off-policy: four steps for each generation
    assert (args.gradient_accumulation_steps, args.steps_per_generation) == (4, 16)
    with pytest.raises(ValueError, match="got 62 for 4 x 1. Change the batch per device"):
        config(tmp_path, per_device_train_batch_size=4, optimizer_batch_size=62)
    with pytest.raises(ValueError, match="gradient_accumulation_steps=8. Leave one of them out"):
        config(
            tmp_path,
            per_device_train_batch_size=4,
            optimizer_batch_size=64,
            gradient_accumulation_steps=8,
        )


def test_every_own_field_has_help_text():
    own = set(MinerGRPOConfig.__dataclass_fields__) - set(GRPOConfig.__dataclass_fields__)
    for name in own:
        assert MinerGRPOConfig.__dataclass_fields__[name].metadata["help"].endswith("."), name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            dict(advantage_estimator="grpo", miner_lambda_max=0.5),
            r"miner_lambda_max=0.5 \(of miner, which has no part",
        ),
        (dict(entropy_weight=0.1, adaptive_sampling_rounds=1), "entropy_weight=0.1 .of entropy"),
        (
            dict(dose_share=0.1, miner_lambda_max=0.01),
            "miner_lambda_max=0.01 .dose_share takes its place",
        ),
        (
            dict(advantage_estimator=f"{OF_FORKS}passk", scale_rewards="none"),
            r"scale_rewards='none' \(as trl_miner.data.forks_methods.passk scales",
        ),
        (dict(policy_loss="bapo"), "does nothing strictly on-policy"),
        (
            dict(dose_share=0.1, gradient_accumulation_steps=6, steps_per_generation=2),
            "an optimizer step has 3",
        ),
        (
            dict(prompt_selection="greso"),
            "generates less often the all-right prompts that MINER learns from",
        ),
        (
            dict(
                prompt_selection="greso",
                advantage_estimator="grpo",
                all_right=f"{OF_FORKS}placebo",
                all_wrong="rl_zvp",
            ),
            (
                "all-right and all-wrong prompts that Placebo: MINER's credit dealt out at random"
                " and RL-ZVP"
            ),
        ),
        (
            dict(prompt_selection="greso", advantage_estimator="own_estimators.by_length"),
            "the all-right and all-wrong prompts that own_estimators.by_length learns from",
        ),
        # None of:
        (dict(miner_lambda_max=0.5, miner_gamma=1.0, miner_intrinsic="constant"), None),
        (
            dict(
                advantage_estimator="grpo",
                all_right=f"{OF_FORKS}placebo",
                miner_lambda_max=0.01,
                scale_rewards="none",
            ),
            None,
        ),
        (dict(prompt_selection="greso", advantage_estimator="grpo"), None),
        (
            dict(
                dynamic_sampling=True,
                advantage_estimator="ucas",
                all_right="none",
                all_wrong="none",
            ),
            None,
        ),
    ],
)
def test_settings_without_effect_or_against_each_other_are_warned_of(
    tmp_path, caplog, change, told
):
    with caplog.at_level(logging.WARNING, logger="trl_miner.trainer.config"):
        config(tmp_path, **change)
    assert re.search(told, caplog.text) if told else not caplog.text


SECRETS = dict(
    hub_token="hf_" + "a1" * 17,
    model_init_kwargs={"token": "tangerine-42"},
    vllm_server_base_url="http://me:mandarin-42@host:8000",
)


def test_a_trainer_keeps_its_secrets_and_saves_its_settings_without(policy, tmp_path):
    """That no file of a run holds one is in tests/test_hub.py."""
    args = config(tmp_path, max_steps=2, **SECRETS)
    trainer = RunTrainer(policy, mixed_reward, args, problems())
    trainer.train()
    trainer.save_model()
    assert {name: getattr(trainer.args, name) for name in SECRETS} == SECRETS
    saved = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert saved.max_steps == 2 and saved.hub_token is None
