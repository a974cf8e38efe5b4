"""Every recipe parses with the TRL that is installed, and says nothing that nothing reads."""

import json
import math
from pathlib import Path

import pytest
import yaml

from trl_miner.train import check_recipe, load_reward_funcs, main, make_parser

RECIPES = Path(__file__).parent.parent / "recipes"
PATHS = [path for path in sorted(RECIPES.rglob("*.yaml")) if path.parent.name != "accelerate"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_recipe_parses(path):
    parser = make_parser()
    check_recipe(["--config", str(path)], parser)
    args, config, model_args, mixture = parser.parse_args_and_config(["--config", str(path)])
    assert load_reward_funcs(args, config)
    parsed = {**vars(args), **vars(config), **vars(model_args), **vars(mixture)}
    for key, value in yaml.safe_load(path.read_text()).items():
        assert parsed[key] == value or str(parsed[key]) == str(value), key


# Each with what its log must hold, and no other's.
METHODS = {
    "grpo": set(),
    "miner": {"miner/tau_ref"},
    "miner_wo_ir": {"miner/tau_ref"},
    "miner_wo_fw": {"miner/tau_ref"},
    "miner_wo_ac": {"miner/tau_ref"},
    "dapo": {"dynamic_sampling/kept"},
    "gspo": set(),
    "reinforce_pp": {"reinforce_pp/seconds"},
    "reinforce_pp_baseline": {"reinforce_pp_baseline/seconds"},
    "ucas": {"ucas/seconds"},
    "ucas_miner": {"miner/tau_ref"},
    "bapo": {"bapo/clip_low"},
    "kl_cov": {"kl_cov/penalised"},
    "clip_cov": {"clip_cov/dropped"},
    "entropy_adv": {"entropy_adv/seconds"},
}
ARITHMETIC = RECIPES / "arithmetic"
# What a method may set; everything else is the same in all of them.
OF_THE_METHOD = {
    *("advantage_estimator", "miner_intrinsic", "miner_credit", "miner_lambda_max", "policy_loss", "dynamic_sampling"),
    *("epsilon", "epsilon_high", "delta", "loss_type", "importance_sampling_level"),
    *("reward_funcs", "soft_overlong_cache", "output_dir"),
    # how the same rollouts are cut into optimiser steps: see the next test
    *("per_device_train_batch_size", "steps_per_generation", "num_iterations", "max_steps", "logging_steps"),
}


def test_there_is_a_recipe_for_every_method():
    assert {path.stem for path in ARITHMETIC.glob("*.yaml")} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_arithmetic_recipes_differ_in_the_method_alone(name):
    grpo, other = (yaml.safe_load((ARITHMETIC / f"{stem}.yaml").read_text()) for stem in ("grpo", name))
    assert {key for key in grpo | other if grpo.get(key) != other.get(key)} <= OF_THE_METHOD
    assert other["output_dir"] == f"runs/arithmetic/{name}"


@pytest.mark.parametrize("form", ["[ucas, miner]", "ucas+miner"])
def test_a_recipe_can_write_a_combination_as_a_list(tmp_path, form):
    path = tmp_path / "both.yaml"
    path.write_text(f"output_dir: x\nuse_cpu: true\nbf16: false\nadvantage_estimator: {form}\n")
    _, config, _, _ = make_parser().parse_args_and_config(["--config", str(path)])
    assert config.advantage_estimator == "ucas+miner"


@pytest.mark.parametrize("name", METHODS)
def test_they_all_train_on_as_many_rollouts(name):
    path = str(ARITHMETIC / f"{name}.yaml")
    _, config, _, _ = make_parser().parse_args_and_config(["--config", path])
    steps = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    assert (config.generation_batch_size, config.max_steps / steps, config.logging_steps / steps) == (256, 150, 5)


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_runs(policy, tmp_path, name, caplog):
    """Three optimiser steps of the real script, with a small batch, an untrained model and rewards of all kinds."""
    recipe = yaml.safe_load((ARITHMETIC / f"{name}.yaml").read_text())
    rewards = ["harness.mixed_reward" if reward == "math_reward" else reward for reward in recipe["reward_funcs"]]
    overrides = {
        "output_dir": tmp_path,
        "model_name_or_path": policy,
        "per_device_train_batch_size": recipe["per_device_train_batch_size"] // 4,
        "num_generations": 4,
        "max_completion_length": 10,
        "soft_overlong_cache": 2,
        "max_steps": 3,
        "logging_steps": 1,
        "score_problems": 0,
        "report_to": "none",
        "disable_tqdm": True,
    }
    arguments = [word for key, value in overrides.items() for word in (f"--{key}", str(value))]
    main(["--config", str(ARITHMETIC / f"{name}.yaml"), *arguments, "--reward_funcs", *rewards])
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    logs = [log for log in history if "loss" in log]
    assert [log["step"] for log in logs] == [1, 2, 3]
    assert all(math.isfinite(log["loss"]) and math.isfinite(log["grad_norm"]) for log in logs)
    logged = {key for log in logs for key in log}
    assert METHODS[name] <= logged
    assert not logged & (set().union(*METHODS.values()) - METHODS[name])
    assert "does nothing" not in caplog.text
