"""Every recipe parses with the TRL that is installed, and says nothing that nothing reads."""

import functools
import json
import math
import re
from pathlib import Path

import pytest
import yaml

from trl_miner.doctor import checks, examination
from trl_miner.doctor.context import FAILED, Context, described_machine
from trl_miner.launching.plan import make_plan
from trl_miner.recipe.files import is_recipe
from trl_miner.recipe.parsing import load_reward_funcs, make_parser
from trl_miner.train import main

RECIPES = Path(__file__).parent.parent / "recipes"
PATHS = [path for path in sorted(RECIPES.rglob("*.yaml")) if is_recipe(path)]
ON_CPU = ["--use_cpu", "true", "--bf16", "false"]  # what only a GPU has


@functools.cache
def parsed(path):
    """What the training makes of a recipe, on one process."""
    words = ["--config", str(path), *ON_CPU]
    return make_parser(words).parse_args_and_config(words)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_recipe_parses(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)  # functions of a recipe's own are found in its folder
    recipe = yaml.safe_load(path.read_text()) | {"use_cpu": True, "bf16": False}
    args, config, model_args, mixture = parsed(path)
    assert load_reward_funcs(args, config)
    found = {**vars(args), **vars(config), **vars(model_args), **vars(mixture)}
    for key, value in recipe.items():
        # TRL takes the only one of `lora_target_modules` out of its list
        assert found[key] == value or str(found[key]) == str(value) or [found[key]] == value, key


def header(path):
    """The machine that the first lines name: GPUs, their GB, those of vLLM, those that train."""
    found = re.search(
        r"^# (\d+) x (\d+) GB.*vLLM on (\d+), training on (\d+)", path.read_text(), re.MULTILINE
    )
    return dict(zip(("gpus", "gb", "server", "train"), map(int, found.groups()), strict=True))


# Each with what its log must hold, and no other's.
METHODS = {
    "grpo": set(),
    "miner": {"miner/tau_ref"},
    "miner_wo_ir": {"miner/tau_ref"},
    "miner_wo_fw": {"miner/tau_ref"},
    "miner_wo_ac": {"miner/tau_ref"},
    "dapo": {"dynamic_sampling/kept"},
    "reinforce_ada": {"adaptive_sampling/mixed"},
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
ARITHMETIC, STUDY, ONE_GPU = RECIPES / "arithmetic", RECIPES / "study", RECIPES / "one-gpu"
NO_KL = {"beta", "use_bias_correction_kl"}
STUDIED = {*METHODS, "grpo_minibatches"} - {"ucas_miner", "reinforce_pp_baseline", "reinforce_ada"}
ON_CPU_RUNS = [
    *((ARITHMETIC, name) for name in METHODS),
    *((STUDY, name) for name in sorted(STUDIED)),
]
on_cpu = pytest.mark.parametrize(
    ("folder", "name"), ON_CPU_RUNS, ids=lambda value: getattr(value, "name", value)
)
# What a method may set; everything else is the same in all of them.
OF_THE_METHOD = {
    *("advantage_estimator", "all_right", "miner_intrinsic", "miner_gamma", "miner_lambda_max"),
    *("policy_loss", "dynamic_sampling", "adaptive_sampling_rounds"),
    *("epsilon", "epsilon_high", "delta", "loss_type", "importance_sampling_level"),
    *("reward_funcs", "soft_overlong_cache", "gate_on_correctness", "output_dir"),
    # how the same rollouts are cut into optimizer steps: see the next test
    *(
        "per_device_train_batch_size",
        "steps_per_generation",
        "num_iterations",
        "max_steps",
        "logging_steps",
    ),
}


def test_there_is_a_recipe_for_every_method():
    assert {path.stem for path in ARITHMETIC.glob("*.yaml")} - {"quick"} == set(METHODS)
    assert {path.stem for path in STUDY.glob("*.yaml")} == STUDIED


@on_cpu
def test_the_recipes_of_a_world_differ_in_the_method_alone(folder, name):
    grpo, other = (yaml.safe_load((folder / f"{stem}.yaml").read_text()) for stem in ("grpo", name))
    differs = {key for key in grpo | other if grpo.get(key) != other.get(key)}
    # what records or scores, and what cuts micro-batches otherwise, changes no result
    differs -= {"log_token_credit", "score_steps", "max_tokens_per_micro_batch"}
    differs -= NO_KL if name == "dapo" else set()
    if folder == STUDY and "steps_per_generation" in differs:  # several updates for each generation
        assert other["learning_rate"] == grpo["learning_rate"] / 4
        differs.remove("learning_rate")
    assert differs <= OF_THE_METHOD
    assert other["output_dir"] == f"runs/{folder.name}/{name}"


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_runs(policy, tmp_path, name, caplog):
    """Two optimizer steps of the real script, with a small batch, an untrained model and rewards of
    all kinds."""
    recipe = yaml.safe_load((ARITHMETIC / f"{name}.yaml").read_text())
    rewards = [
        "harness.mixed_reward" if reward == "math_reward" else reward
        for reward in recipe["reward_funcs"]
    ]
    overrides = {
        "output_dir": tmp_path,
        "model_name_or_path": policy,
        "per_device_train_batch_size": recipe["per_device_train_batch_size"] // 4,
        "num_generations": 4,
        "max_completion_length": 10,
        "soft_overlong_cache": 2,
        "max_steps": 2,
        "logging_steps": 1,
        "held_out": 0,
        "report_to": "none",
        "disable_tqdm": True,
        "correct_reward_func": "mixed_reward",
    }
    arguments = [word for key, value in overrides.items() for word in (f"--{key}", str(value))]
    main(["--config", str(ARITHMETIC / f"{name}.yaml"), *arguments, "--reward_funcs", *rewards])
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    logs = [log for log in history if "loss" in log]
    assert [log["step"] for log in logs] == [1, 2]
    assert all(math.isfinite(log["loss"]) and math.isfinite(log["grad_norm"]) for log in logs)
    logged = {key for log in logs for key in log}
    assert METHODS[name] <= logged
    assert not logged & (set().union(*METHODS.values()) - METHODS[name])
    assert "does nothing" not in caplog.text


PAPER = (
    *("Qwen3-4B-Base", "Qwen3-8B-Base", "Qwen3-14B-Base", "OctoThinker-8B-Hybrid-Base"),
    "Llama-3.1-8B-Instruct",
)
OTHERS = ("authors", "colocated")  # of one method each
LARGE = [
    p for p in PATHS if p.relative_to(RECIPES).parts[0] in PAPER and p.parent.name not in OTHERS
]
# Beside OF_THE_METHOD: how the same 2048 rollouts are cut, and DAPO's missing KL term.
CUTS = {"generation_batch_size", "optimizer_batch_size", "num_iterations", "save_steps"}
large = pytest.mark.parametrize("path", LARGE, ids=lambda path: str(path.relative_to(RECIPES)))


def different(one, other):
    return {key for key in one | other if one.get(key) != other.get(key)}


@large
def test_a_model_s_recipes_differ_in_the_method_alone(path):
    folder = path.parent if path.parent.name != "paper" else path.parent.parent
    grpo, other = (yaml.safe_load(file.read_text()) for file in (folder / "grpo.yaml", path))
    if folder != path.parent:
        assert other.pop("accelerate_config") == f"../{grpo.pop('accelerate_config')}"
    # covariances among the rollouts of a micro-batch: one alone has none
    own = set() if path.stem in ("clip_cov", "kl_cov") else {"per_device_train_batch_size"}
    assert different(grpo, other) <= OF_THE_METHOD - own | CUTS | NO_KL
    assert (NO_KL <= other.keys()) != (path.stem == "dapo")
    assert other["output_dir"] == f"runs/{path.relative_to(RECIPES).with_suffix('')}"


@pytest.mark.parametrize(
    "path", [path for path in LARGE if path.parent.name == "paper"], ids=lambda path: str(path)
)
def test_the_paper_s_batches_are_the_only_change_and_make_one_update_per_generation(path):
    sibling = path.parent.parent / path.name
    paper, ours = (yaml.safe_load(file.read_text()) for file in (path, sibling))
    batches = {
        "optimizer_batch_size": 128 * 16,
        "max_steps": 314,
        "logging_steps": 1,
        "save_steps": 20,
    }
    changed = batches | {
        "accelerate_config": "../../accelerate/zero3.yaml",
        "output_dir": paper["output_dir"],
    }
    assert (
        paper
        == {key: ours[key] for key in ours.keys() - {"generation_batch_size", "num_iterations"}}
        | changed
    )
    assert header(path) == header(sibling)
    _, config, _, _ = parsed(path)
    updates = (
        config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    )
    assert (config.num_generations, config.generation_batch_size, updates) == (16, 128 * 16, 1)


@large
def test_a_run_is_the_paper_s_generations_of_2048_rollouts(path):
    """On one process by TRL's own sums, and on those of the machine that the header names by
    ours."""
    _, config, _, _ = parsed(path)
    rows = config.per_device_train_batch_size
    steps = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    assert (config.generation_batch_size, config.gradient_accumulation_steps * rows) == (
        2048,
        config.optimizer_batch_size,
    )
    generations = 85_000 // 128 if "Llama" in str(path) else 314  # its epoch is 85K questions
    assert (config.max_steps / steps, config.logging_steps / steps, config.save_steps / steps) == (
        generations,
        1,
        20,
    )
    processes = header(path)["train"]
    assert config.optimizer_batch_size % (rows * processes) == 0
    assert config.optimizer_batch_size * steps == 2048 * config.num_iterations
    assert 2048 // processes % config.num_generations == 0  # no group is split over processes


@pytest.mark.parametrize(
    ("model", "folder"), [*((model, "") for model in PAPER), ("Qwen3-14B-Base", "lora")]
)
def test_doctor_passes_a_model_s_recipes_on_the_machine_that_they_name(
    model, folder, hub_models, monkeypatch
):
    """One of each folder: the others differ in the method alone, and their batches are looked at
    above."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = RECIPES / model / folder / "miner.yaml"
    named = header(path)
    assert all(header(other) == named for other in path.parent.glob("*.yaml"))
    plan = passes(path, f"{named['gpus']}x{named['gb']}GB")
    assert (len(plan.server_gpus), len(plan.train_gpus)) == (named["server"], named["train"])
    assert plan.accelerate["mixed_precision"] == "bf16"


def passes(path, where):
    """The plan of a recipe that doctor finds no fault with on a machine."""
    findings, context = examination.examine(path, [], described_machine(where))
    assert not [finding for finding in findings if finding.status == FAILED], examination.table(
        findings
    )
    about = {finding.about: finding.status for finding in findings}
    assert about["memory"] == about["vLLM memory"] == about["trainer"] == "ok"
    return context.plan


@pytest.mark.parametrize("model", ["OctoThinker-8B-Hybrid-Base", "Llama-3.1-8B-Instruct"])
def test_the_colocated_recipes_fit_on_the_paper_s_four_gpus(model, hub_models, monkeypatch):
    """They differ from the model's recipe in where vLLM runs alone."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = RECIPES / model / "colocated" / "miner.yaml"
    plan = passes(path, "4x80GB")
    assert (len(plan.train_gpus), plan.server) == (4, None)
    usual, own = (
        yaml.safe_load(file.read_text()) for file in (RECIPES / model / "miner.yaml", path)
    )
    assert different(usual, own) == {
        *("vllm_mode", "vllm_enable_sleep_mode", "vllm_tensor_parallel_size"),
        *("vllm_gpu_memory_utilization", "accelerate_config", "output_dir"),
    }


@pytest.mark.parametrize(
    "path",
    [
        *(p for p in LARGE if "lora" not in p.parts),
        RECIPES / "Qwen3-4B-Base" / "authors" / "miner.yaml",
    ],
    ids=lambda path: str(path.relative_to(RECIPES)),
)
def test_a_run_of_the_paper_keeps_the_checkpoints_of_its_dev_curve(path):
    recipe = yaml.safe_load(path.read_text())
    assert "save_total_limit" not in recipe
    assert f"for model in {recipe['output_dir']}/checkpoint-*; do" in path.read_text()


def test_the_authors_recipe_keeps_the_prompts_that_the_paper_keeps():
    """Their data set drops prompts of more than max_prompt_length - 100 = 1100 - 100 tokens."""
    ours, theirs = (
        yaml.safe_load((RECIPES / "Qwen3-4B-Base" / name).read_text())
        for name in ("miner.yaml", "authors/miner.yaml")
    )
    for key in ("dataset_name", "vllm_max_model_length"):
        assert theirs[key] == ours[key]


@pytest.mark.parametrize("path", sorted(ONE_GPU.glob("*.yaml")), ids=lambda path: path.stem)
def test_doctor_passes_the_recipes_for_one_gpu(path, hub_models, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    title, where = path.read_text().splitlines()[:2]
    gb = re.match(r"# 1 x (\d+) GB: vLLM and training share it", where)[1]
    assert title.endswith(f", {gb} GB.")
    plan = make_plan(path, num_gpus=1)
    assert (plan.train_gpus, plan.server, plan.settings.output_dir) == (
        (0,),
        None,
        f"runs/one-gpu/{path.stem}",
    )
    # whose scorers take 16 seconds to start; tests/test_reasoning_gym.py has them
    if path.stem == "reasoning_gym":
        assert (
            checks.check_training_memory(Context(plan, described_machine(f"1x{gb}GB"))).status
            == "ok"
        )
    else:
        passes(path, f"1x{gb}GB")


@pytest.mark.parametrize("name", ["qwen3_4b", "qwen3_4b_lora", "qwen3_4b_colocated"])
def test_doctor_passes_the_recipes_for_one_node_of_eight(name, hub_models, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = passes(RECIPES / "asynchronous" / f"{name}.yaml", "8x80GB")
    if name == "qwen3_4b_colocated":
        assert (len(plan.train_gpus), plan.server) == (
            8,
            None,
        ) and plan.settings.vllm_enable_sleep_mode
        return
    assert (len(plan.server_gpus), len(plan.train_gpus)) == (4, 4)
    assert (
        plan.server_env["VLLM_SERVER_DEV_MODE"] == "1"
        and "vllm.entrypoints.cli.main" in plan.server
    )
    assert plan.server[plan.server.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert plan.server[plan.server.index("--max-model-len") + 1] == "9216"
    assert ("--enable-lora" in plan.server) == (name == "qwen3_4b_lora")
    if name == "qwen3_4b_lora":
        assert plan.server_env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert plan.server[plan.server.index("--max-lora-rank") :][1:4] == [
            "32",
            "--max-loras",
            "4",
        ]
