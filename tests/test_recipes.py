"""Every recipe parses with the TRL that is installed, and says nothing that nothing reads."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from trl_miner.config import accumulation_steps
from trl_miner.data.prompts import MATH_INSTRUCTION
from trl_miner.doctor import examination, machine, memory, memory_checks
from trl_miner.doctor.context import FAILED, Context
from trl_miner.doctor.machine import GIB
from trl_miner.launching.plan import make_plan
from trl_miner.recipe import load_reward_funcs, make_parser
from trl_miner.recipe_files import is_recipe, with_recipe_file
from trl_miner.train import main

RECIPES = Path(__file__).parent.parent / "recipes"
PATHS = [path for path in sorted(RECIPES.rglob("*.yaml")) if is_recipe(path)]
ON_CPU = ["--use_cpu", "true", "--bf16", "false"]  # what only a GPU has


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_recipe_parses(path):
    parser = make_parser(["--config", str(path)])
    recipe = yaml.safe_load(path.read_text())
    made_for_cpu = [] if recipe.get("use_cpu") else ON_CPU
    args, config, model_args, mixture = parser.parse_args_and_config(["--config", str(path), *made_for_cpu])
    assert load_reward_funcs(args, config)
    parsed = {**vars(args), **vars(config), **vars(model_args), **vars(mixture)}
    for key, value in recipe.items():
        # TRL takes the only one of `lora_target_modules` out of its list
        assert parsed[key] == value or str(parsed[key]) == str(value) or [parsed[key]] == value, key


def header(path):
    """The machine that the first lines name: GPUs, their GB, those of vLLM, those that train."""
    found = re.search(r"^# (\d+) x (\d+) GB.*vLLM on (\d+), training on (\d+)", path.read_text(), re.MULTILINE)
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
ON_CPU_RUNS = [*((ARITHMETIC, name) for name in METHODS), *((STUDY, name) for name in sorted(STUDIED))]
on_cpu = pytest.mark.parametrize(("folder", "name"), ON_CPU_RUNS, ids=lambda value: getattr(value, "name", value))
# What a method may set; everything else is the same in all of them.
OF_THE_METHOD = {
    *(
        "advantage_estimator",
        "all_right",
        "miner_intrinsic",
        "miner_credit",
        "miner_lambda_max",
        "policy_loss",
        "dynamic_sampling",
        "adaptive_sampling_rounds",
    ),
    *("epsilon", "epsilon_high", "delta", "loss_type", "importance_sampling_level"),
    *("reward_funcs", "soft_overlong_cache", "gate_on_correctness", "output_dir"),
    # how the same rollouts are cut into optimizer steps: see the next test
    *("per_device_train_batch_size", "steps_per_generation", "num_iterations", "max_steps", "logging_steps"),
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


SENSITIVITY = {
    "lambda": ("miner_lambda_max", {"0", "5e-4", "1e-3", "2e-3", "1e-2", "1e-1"}),  # with 1.5e-3, the default
    "gamma": ("miner_gamma", {"0", "1", "4"}),  # with 2
}


def test_the_study_varies_one_knob_at_a_time():
    miner = yaml.safe_load((STUDY / "miner.yaml").read_text())
    wanted = {f"{name}_{value}" for name, (_, values) in SENSITIVITY.items() for value in values}
    assert {path.stem for path in STUDY.glob("sensitivity/*.yaml")} == wanted
    for stem in wanted:
        knob, value = SENSITIVITY[stem.partition("_")[0]][0], float(stem.partition("_")[2])
        changed = {"output_dir": f"runs/study/{stem}", knob: value}
        assert yaml.safe_load((STUDY / "sensitivity" / f"{stem}.yaml").read_text()) == miner | changed


@on_cpu
def test_they_all_train_on_as_many_rollouts(folder, name):
    path = str(folder / f"{name}.yaml")
    args, config, _, _ = make_parser().parse_args_and_config(["--config", path])
    steps = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    found = config.generation_batch_size, config.max_steps / steps, config.logging_steps / steps
    assert (*found, args.score_steps / steps) == {ARITHMETIC: (256, 150, 5, 0), STUDY: (128, 80, 2, 8)}[folder]


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_runs(policy, tmp_path, name, caplog):
    """Three optimizer steps of the real script, with a small batch, an untrained model and rewards of all kinds."""
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
        "held_out": 0,
        "report_to": "none",
        "disable_tqdm": True,
        "correct_reward_func": "mixed_reward",
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


# What the paper's tables have: main_table, scale_to14, octo_table, medical_cmp, and for 4 B the ones on exploration
# and ablations. Its R++ may be either variant of REINFORCE++.
BASELINES = {"grpo", "dapo", "reinforce_pp", "reinforce_pp_baseline", "gspo", "miner"}
PAPER = {
    "Qwen3-4B-Base": BASELINES
    | {"ucas", "bapo", "kl_cov", "clip_cov", "entropy_adv", "miner_wo_ir", "miner_wo_fw", "miner_wo_ac"},
    "Qwen3-8B-Base": BASELINES | {"ucas"},
    "Qwen3-14B-Base": {"grpo", "miner"},
    "OctoThinker-8B-Hybrid-Base": BASELINES,
    "Llama-3.1-8B-Instruct": {"grpo", "miner"},
}
OFF_POLICY = {"dapo", "gspo", "bapo", "kl_cov", "clip_cov"}  # several updates for each generation, as their authors
LARGE = [p for p in PATHS if p.relative_to(RECIPES).parts[0] in PAPER and p.parent.name != "authors"]
# Beside OF_THE_METHOD: how the same 2048 rollouts are cut, and DAPO's missing KL term.
CUTS = {"generation_batch_size", "optimizer_batch_size", "num_iterations", "save_steps"}
OF_LORA = {
    *("use_peft", "lora_r", "lora_alpha", "lora_target_modules", "lora_dropout", "dtype", "learning_rate"),
    *("per_device_train_batch_size", "vllm_tensor_parallel_size", "accelerate_config", "output_dir"),
}
large = pytest.mark.parametrize("path", LARGE, ids=lambda path: str(path.relative_to(RECIPES)))


def different(one, other):
    return {key for key in one | other if one.get(key) != other.get(key)}


@pytest.mark.parametrize("folder", ["", "lora", "paper"])
@pytest.mark.parametrize("model", PAPER)
def test_there_is_a_recipe_for_all_that_the_paper_ran(model, folder):
    wanted = PAPER[model] & OFF_POLICY if folder == "paper" else PAPER[model]
    assert {path.stem for path in (RECIPES / model / folder).glob("*.yaml")} == wanted


def test_the_recipes_of_smollm2_differ_in_the_method_alone():
    grpo, miner = (
        yaml.safe_load((RECIPES / f"SmolLM2-135M-Instruct/{name}.yaml").read_text()) for name in ("grpo", "miner")
    )
    assert different(grpo, miner) == {"output_dir", "advantage_estimator", "log_token_credit"}


@large
def test_a_model_s_recipes_differ_in_the_method_alone(path):
    folder = path.parent if path.parent.name != "paper" else path.parent.parent
    grpo, other = (yaml.safe_load(file.read_text()) for file in (folder / "grpo.yaml", path))
    if folder != path.parent:
        assert other.pop("accelerate_config") == f"../{grpo.pop('accelerate_config')}"
    assert different(grpo, other) <= OF_THE_METHOD - {"per_device_train_batch_size"} | CUTS | NO_KL
    assert (NO_KL <= other.keys()) != (path.stem == "dapo")
    assert other["output_dir"] == f"runs/{path.relative_to(RECIPES).with_suffix('')}"


@pytest.mark.parametrize(
    ("model", "methods"),
    [*PAPER.items(), ("study", STUDIED - {"grpo_minibatches"})],
    ids=[*PAPER, "study"],
)
def test_the_methods_are_set_as_in_the_embedded_world(model, methods):
    """The same keys of the method, with the same values but for what is a number of tokens."""
    keys = OF_THE_METHOD - {"output_dir", "per_device_train_batch_size", "steps_per_generation", "max_steps"}
    keys -= {"logging_steps", "soft_overlong_cache", "reward_funcs", "delta"}
    if model == "study":  # its runs are older than the gate
        keys.remove("gate_on_correctness")
    for method in methods:
        here, there = (
            yaml.safe_load((RECIPES / name / f"{method}.yaml").read_text()) for name in (model, "arithmetic")
        )
        assert {key: here.get(key) for key in keys} == {key: there.get(key) for key in keys}, method


@pytest.mark.parametrize("path", [path for path in LARGE if path.parent.name == "lora"], ids=lambda path: str(path))
def test_a_lora_recipe_differs_from_its_sibling_in_lora_alone(path):
    lora, full = (yaml.safe_load(file.read_text()) for file in (path, path.parent.parent / path.name))
    assert different(lora, full) == OF_LORA - {"per_device_train_batch_size"} | (
        {"per_device_train_batch_size"}
        if lora["per_device_train_batch_size"] != full["per_device_train_batch_size"]
        else set()
    )
    assert lora["learning_rate"] == pytest.approx(10 * full["learning_rate"])
    assert "# Ours" in path.read_text()


@pytest.mark.parametrize("path", [path for path in LARGE if path.parent.name == "paper"], ids=lambda path: str(path))
def test_the_paper_s_batches_are_the_only_change_and_make_one_update_per_generation(path):
    sibling = path.parent.parent / path.name
    paper, ours = (yaml.safe_load(file.read_text()) for file in (path, sibling))
    batches = {"optimizer_batch_size": 128 * 16, "max_steps": 314, "logging_steps": 1, "save_steps": 20}
    changed = batches | {"accelerate_config": "../../accelerate/zero3.yaml", "output_dir": paper["output_dir"]}
    assert paper == {key: ours[key] for key in ours.keys() - {"generation_batch_size", "num_iterations"}} | changed
    assert header(path) == header(sibling)
    _, config, _, _ = make_parser().parse_args_and_config(["--config", str(path), *ON_CPU])
    updates = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    assert (config.num_generations, config.generation_batch_size, updates) == (16, 128 * 16, 1)


def test_the_authors_script_differs_from_the_paper_in_what_it_names():
    path = RECIPES / "Qwen3-4B-Base" / "authors" / "miner.yaml"
    authors, paper = (yaml.safe_load(file.read_text()) for file in (path, path.parent.parent / "miner.yaml"))
    where = {"output_dir", "dataset_name", "dataset_prompt_column", "accelerate_config"}
    assert different(authors, paper) == where | {
        *("prompt_template", "max_steps", "vllm_max_model_length", "save_total_limit"),
    }
    assert authors["prompt_template"] == f"{MATH_INSTRUCTION} \nUser: {{question}}\nAssistant: "
    assert authors["vllm_max_model_length"] == 1100 + authors["max_completion_length"]
    assert authors["max_steps"] == 2 * paper["max_steps"]


@large
def test_a_run_is_the_paper_s_generations_of_2048_rollouts(path):
    """On one process by TRL's own sums, and on those of the machine that the header names by ours."""
    _, config, _, _ = make_parser().parse_args_and_config(["--config", str(path), *ON_CPU])
    rows = config.per_device_train_batch_size
    steps = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    assert (config.generation_batch_size, config.gradient_accumulation_steps * rows) == (
        2048,
        config.optimizer_batch_size,
    )
    generations = 85_000 // 128 if "Llama" in str(path) else 314  # its epoch is 85K questions
    assert (config.max_steps / steps, config.logging_steps / steps, config.save_steps / steps) == (generations, 1, 20)
    processes = header(path)["train"]
    assert accumulation_steps(config.optimizer_batch_size, rows, processes) * rows * processes * steps == 2048 * (
        config.num_iterations
    )
    assert 2048 // processes % config.num_generations == 0  # no group is split over processes


@large
def test_the_header_names_the_file_itself(path):
    named = re.findall(r"trl-miner (?:doctor|launch) (\S+)", path.read_text())
    assert named == [f"recipes/{path.relative_to(RECIPES)}"] * 2


@pytest.mark.parametrize("folder", ["", "lora"])
@pytest.mark.parametrize("model", PAPER)
def test_doctor_passes_a_model_s_recipes_on_the_machine_that_they_name(model, folder, monkeypatch):
    """One of each folder: the others differ in the method alone, and their batches are looked at above."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = RECIPES / model / folder / "miner.yaml"
    named = header(path)
    assert all(header(other) == named for other in path.parent.glob("*.yaml"))
    plan = passes(path, f"{named['gpus']}x{named['gb']}GB")
    assert (len(plan.server_gpus), len(plan.train_gpus)) == (named["server"], named["train"])
    assert plan.accelerate["mixed_precision"] == "bf16"


def passes(path, where):
    """The plan of a recipe that doctor finds no fault with on a machine."""
    findings, context = examination.examine(path, [], machine.described_machine(where))
    assert not [finding for finding in findings if finding.status == FAILED], examination.table(findings)
    about = {finding.about: finding.status for finding in findings}
    assert about["memory"] == about["vLLM memory"] == about["batch"] == about["trainer"] == "ok"
    return context.plan


@pytest.mark.parametrize("folder", ["", "lora"])
@pytest.mark.parametrize("model", PAPER)
@pytest.mark.parametrize("gpus", [4, 8])
def test_doctor_passes_them_on_more_gpus_and_refuses_too_few(model, folder, gpus, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = RECIPES / model / folder / "miner.yaml"
    named = header(path)
    if gpus > named["gpus"]:
        plan = passes(path, f"{gpus}x80GB")
        assert 2048 % (plan.settings.per_device_train_batch_size * plan.num_processes) == 0
    elif gpus < named["gpus"]:  # full fine-tuning of 8 B and more
        findings, _ = examination.examine(path, [], machine.described_machine(f"{gpus}x80GB"))
        assert any(finding.about == "plan" and "got 4 visible GPUs" in finding.text for finding in findings)


@large
def test_the_batches_of_every_recipe_come_out_even_on_8_gpus(path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not examination.refusals(make_plan(path, num_gpus=8), is_here=False)


def on_one_gpu(path, gb, *overrides):
    """What doctor says of the memory, and the estimates of the training and of vLLM."""
    context = Context(make_plan(path, overrides, num_gpus=1), machine.described_machine(f"1x{gb}GB"))
    finding = memory_checks.check_training_memory(context)
    return finding, memory.estimate_training(context.shape, context.run), context.server_estimate


@pytest.mark.parametrize("path", sorted(ONE_GPU.glob("*.yaml")), ids=lambda path: path.stem)
def test_doctor_passes_the_recipes_for_one_gpu(path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    title, where = path.read_text().splitlines()[:2]
    gb = re.match(r"# 1 x (\d+) GB: vLLM and training share it", where)[1]
    assert title.endswith(f", {gb} GB.")
    plan = make_plan(path, num_gpus=1)
    assert (plan.train_gpus, plan.server, plan.settings.output_dir) == ((0,), None, f"runs/one-gpu/{path.stem}")
    if path.stem == "reasoning_gym":  # whose scorers take 16 seconds to start; tests/test_reasoning_gym.py has them
        assert on_one_gpu(path, gb)[0].status == "ok"
    else:
        passes(path, f"1x{gb}GB")


@pytest.mark.parametrize("name", ["qwen3_4b", "qwen3_4b_lora", "qwen3_4b_colocated"])
def test_doctor_passes_the_recipes_for_one_node_of_eight(name, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = passes(RECIPES / "asynchronous" / f"{name}.yaml", "8x80GB")
    if name == "qwen3_4b_colocated":
        assert (len(plan.train_gpus), plan.server) == (8, None) and plan.settings.vllm_enable_sleep_mode
        return
    assert (len(plan.server_gpus), len(plan.train_gpus)) == (4, 4)
    assert plan.server_env["VLLM_SERVER_DEV_MODE"] == "1" and "vllm.entrypoints.cli.main" in plan.server
    assert plan.server[plan.server.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert plan.server[plan.server.index("--max-model-len") + 1] == "9216"
    assert ("--enable-lora" in plan.server) == (name == "qwen3_4b_lora")
    if name == "qwen3_4b_lora":
        assert plan.server_env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert plan.server[plan.server.index("--max-lora-rank") :][1:4] == ["32", "--max-loras", "4"]


LORA = ("--use_peft", "true", "--lora_r", "32", "--lora_target_modules", "all-linear", "--dtype", "bfloat16")
TUNED = {"all": (), "LoRA": LORA, "QLoRA": (*LORA, "--load_in_4bit", "true")}


@pytest.mark.parametrize("size", ["0.6B", "1.7B"])
@pytest.mark.parametrize("tuned", TUNED)
def test_each_model_fits_on_24_gb_but_for_all_weights_of_the_larger(size, tuned, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    override = ("--model_name_or_path", f"Qwen/Qwen3-{size}-Base", *TUNED[tuned])
    finding, estimate, server = on_one_gpu(ONE_GPU / "gsm8k.yaml", 24, *override)
    if (size, tuned) == ("1.7B", "all"):
        # 1.72 billion parameters of 16 bytes: weights, gradients and two moments in float32, 25.6 GiB
        assert finding.status == FAILED and "of 23.6 GiB" in finding.text and "LoRA" in finding.text
        assert sum(estimate.held[name] for name in ("weights", "gradients", "optimizer")) > 25.6 * GIB
    else:
        assert finding.status == "ok" and server.sequences > memory_checks.FEW_SEQUENCES


def test_the_memory_of_one_gpu_is_the_sum_of_both_sides(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _, full, server = on_one_gpu(ONE_GPU / "gsm8k.yaml", 24)
    # 0.596 billion parameters: 4, 4 and 8 bytes are 2.22, 2.22 and 4.44 GiB; vLLM's share is half of 23.64 GiB
    states = [full.held[name] / GIB for name in ("weights", "gradients", "optimizer")]
    assert states == pytest.approx([2.22, 2.22, 4.44], abs=0.01)
    assert full.held["vLLM asleep (rule of thumb)"] == GIB
    # weights, optimizer, 2 GiB of CUDA, and the share: 2.22 + 4.44 + 2 + 11.82
    assert full.phases[memory.GENERATING] / GIB == pytest.approx(20.48, abs=0.01)
    # scored: 24 x 1536 tokens of 2 x 4 bytes x 28 layers x 8 heads x 128, 7.875 GiB; 24 x 48 bytes x 151,936, 0.163
    scored = 2.22 + 4.44 + 2 + 1 + 1.1 * (7.875 + 0.163)
    assert full.phases[memory.SCORING] / GIB == pytest.approx(scored, abs=0.01)
    asked, _, _ = on_one_gpu(ONE_GPU / "gsm8k.yaml", 24, "--score_batch_size", "256")
    assert asked.status == FAILED and "lower score_batch_size" in asked.text
    # the share, less 1.11 GiB of weights in 16 bits and 4 GiB, holds tokens of 112 KiB
    assert server.cache / GIB == pytest.approx(11.82 - 1.11 - 4, abs=0.01)
    assert server.sequences == pytest.approx(server.cache / (1536 * 112 * 2**10))
    _, lora, _ = on_one_gpu(ONE_GPU / "gsm8k_lora.yaml", 24)
    _, qlora, server = on_one_gpu(ONE_GPU / "gsm8k_qlora.yaml", 24)
    # 1.409 of 1.721 billion are in linear layers: 4.5 instead of 16 bits save 1.89 GiB; 34.9 M of the adapter in 16
    # instead of 32 bits 0.065
    saved = (lora.held["weights"] - qlora.held["weights"]) / GIB
    assert saved == pytest.approx(1.409e9 * (16 - 4.5) / 8 / GIB + 0.065, abs=0.01)
    assert server.weights / GIB == pytest.approx(1.721e9 * 2 / GIB, abs=0.01)  # vLLM's copy has 16 bits
    # without sleep mode the share counts during the training, too
    _, awake, _ = on_one_gpu(ONE_GPU / "gsm8k.yaml", 24, "--vllm_enable_sleep_mode", "false")
    assert awake.training / GIB == pytest.approx(full.training / GIB - 1 + 11.82, abs=0.01)


def test_the_sweep_trains_its_recipe_with_settings_that_are_there():
    """The command as W&B's agent makes it, and as its shell expands it."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    sweep = yaml.safe_load((RECIPES / "sweeps" / "one-gpu.yaml").read_text())
    chosen = {key: {"value": parameter["values"][-1]} for key, parameter in sweep["parameters"].items()}
    *command, macro = create_sweep_command(sweep["command"])
    assert macro == "${args}"
    command[2] = command[2].replace("trl-miner train", "printf '%s\\n'")
    command += create_sweep_command_args({"args": chosen})["args"]
    done = subprocess.run(command, env=os.environ | {"WANDB_RUN_ID": "r1"}, capture_output=True, text=True, check=True)
    words = with_recipe_file(done.stdout.split())
    _, config, _, _ = make_parser(words).parse_args_and_config([*words, *ON_CPU])
    assert {key: getattr(config, key) for key in chosen} == {key: value["value"] for key, value in chosen.items()}
    assert (config.output_dir, config.report_to) == ("runs/sweep/r1", ["wandb"])


def test_smollm2s_guide_says_what_its_raw_results_say():
    """Every run's Pass@1 before and after, from its counts of right samples."""
    folder = RECIPES / "SmolLM2-135M-Instruct"
    page, files = (folder / "README.md").read_text(), sorted((folder / "results").glob("*.held_out.json"))
    assert len(files) >= 8
    for path in files:
        moments = json.loads(path.read_text())["moments"]
        rates = []
        for name in ("before", "after")[: len(moments)]:
            counts = [int(count) for count in moments[name]["num_correct"]]
            rates.append(f"{100 * sum(counts) / len(counts) / moments[name]['num_samples']:.1f}")
        assert ", ".join(rates) in page, path.name
