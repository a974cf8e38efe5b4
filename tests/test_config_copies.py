"""A copy of a configuration is the same configuration, and files hold none of its secrets."""

import copy
import dataclasses
import pickle

import pytest
import torch
from harness import config, mixed_reward, problems
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_miner import MinerGRPOConfig, MinerGRPOTrainer

SECRETS = dict(
    hub_token="hf_" + "a1" * 17,
    model_init_kwargs={"token": "tangerine-42", "revision": "main"},
    vllm_server_base_url="http://me:mandarin-42@host:8000",
)
DOSES = [{}, dict(dose_share=0.01), dict(dose_share="0.05")]
BATCHES = [{}, dict(steps_per_generation=2), dict(generation_batch_size=24), dict(optimizer_batch_size=24)]
BATCHES += [dict(gradient_accumulation_steps=4)]
OTHERS = dict(
    miner_gamma=st.sampled_from([0, "2", 3.5]),
    correct_reward_func=st.sampled_from([None, ["math_reward", "choice_reward"]]),
    report_to=st.sampled_from(["none", "tensorboard", ["tensorboard", "wandb"]]),
    eval_strategy=st.sampled_from(["no", "steps"]),
    save_strategy=st.sampled_from(["no", "steps", "epoch"]),
    pad_to_multiple_of=st.sampled_from([None, "8"]),
    scale_rewards=st.sampled_from([True, False, "batch"]),
    all_wrong=st.sampled_from([None, "rl_zvp"]),
)
SECRET_FIELDS = [{}, SECRETS, *({name: value} for name, value in SECRETS.items())]


@st.composite
def configs(draw, secrets=SECRET_FIELDS):
    parts = [draw(st.sampled_from(part)) for part in (DOSES, BATCHES, secrets)]
    given = draw(st.fixed_dictionaries({}, optional=OTHERS))
    return config("unused", per_device_eval_batch_size=4, **given, **{k: v for part in parts for k, v in part.items()})


def rebuilt(args):
    return type(args)(**{field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init})


def knobs_of(args):
    return {method.name: args.knobs(method.name) for method in args.methods}


def assert_same(found, expected):
    assert found == expected and type(found) is type(expected)
    assert knobs_of(found) == knobs_of(expected)


@settings(max_examples=60, deadline=None)
@given(configs())
def test_a_copy_is_the_same_configuration(args):
    pickled = pickle.loads(pickle.dumps(args))
    for found in (copy.copy(args), copy.deepcopy(args), pickled, dataclasses.replace(args), rebuilt(args)):
        assert_same(found, args)
    without_dose = dataclasses.replace(args, dose_share=None)
    given_to_another = {name: value for name, value in vars(args).items() if name.endswith("lambda_max")}
    assert {name: getattr(without_dose, name) for name in given_to_another} == given_to_another
    assert without_dose.knobs("miner")["lambda_max"] == args.miner_lambda_max


@settings(max_examples=30, deadline=None)
@given(configs(secrets=[{}]))
def test_a_configuration_without_secrets_comes_back_from_its_dictionary(args):
    assert_same(MinerGRPOConfig(**args.to_dict()), args)


def test_a_batch_that_contradicts_its_parts_is_refused():
    args = config("unused", per_device_train_batch_size=12, steps_per_generation=2)  # 24 rollouts
    with pytest.raises(ValueError, match="generation_batch_size.*got 24 and 6 x 1 x 2"):
        dataclasses.replace(args, per_device_train_batch_size=6)
    smaller = dataclasses.replace(args, per_device_train_batch_size=6, generation_batch_size=None)
    assert smaller.generation_batch_size == 12


def test_no_file_of_a_run_holds_a_secret(policy, tmp_path):
    secrets = {**SECRETS, "model_init_kwargs": {"token": "tangerine-42"}}
    args = config(tmp_path, max_steps=2, save_strategy="steps", save_steps=1, report_to="tensorboard", **secrets)
    trainer = MinerGRPOTrainer(policy, mixed_reward, args, problems())
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = [path.name for path in files]
    assert names.count("training_args.bin") == 3 and any("tfevents" in name for name in names)
    for path in files:
        for secret in (SECRETS["hub_token"], "tangerine", "mandarin"):
            assert secret.encode() not in path.read_bytes(), path
    assert {name: getattr(trainer.args, name) for name in secrets} == secrets
    saved = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert saved.max_steps == 2 and saved.hub_token is None
