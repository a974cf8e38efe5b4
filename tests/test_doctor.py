"""`trl-miner doctor`: every check with a recipe that it must find fault with, here and on described
machines."""

import re
from pathlib import Path

import pytest
import yaml
from datasets import Dataset

from trl_miner.cli import main
from trl_miner.doctor import checks, examination
from trl_miner.doctor.context import Context, Machine, described_machine, this_machine
from trl_miner.doctor.memory import GIB
from trl_miner.launching.plan import make_plan

RECIPES = Path(__file__).parent.parent / "recipes"
GPU_RECIPE = {
    "model_name_or_path": "Qwen/Qwen3-4B-Base",
    "dataset_name": "nowhere",
    "num_generations": 4,
    "per_device_train_batch_size": 2,
    "optimizer_batch_size": 16,
    "max_completion_length": 1024,
    "beta": 0.001,
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_max_model_length": 2048,
    "accelerate_config": "zero3",
}


@pytest.fixture
def recipe(tmp_path, policy, hub_models, monkeypatch):
    """Writes a recipe: `recipe(...)` for this machine's CPU, `recipe(gpu=True, ...)` for GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(gpu=False, **settings):
        common = {"output_dir": str(tmp_path / "out"), "max_steps": 10, "save_steps": 5}
        on_cpu = {
            "model_name_or_path": policy,
            "dataset_name": "trl_miner/arithmetic",
            "use_cpu": True,
        }
        on_cpu |= {
            "bf16": False,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "max_completion_length": 16,
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**common, **(GPU_RECIPE if gpu else on_cpu), **settings}))
        return path

    return write


def found(path, where=None):
    """Status and text by what each finding is about; of several the worst."""
    if not isinstance(where, Machine):
        where = this_machine() if where is None else described_machine(where)
    findings, _ = examination.examine(path, [], where)
    order = ["ok", "not checked", "warning", "FAILED"]
    findings = sorted(findings, key=lambda finding: order.index(finding.status))
    return {finding.about: (finding.status, finding.text) for finding in findings}


def checked(check, path, where=None):
    """Status and text of one check, which is quicker."""
    machine = this_machine() if where is None else described_machine(where)
    plan = make_plan(path, num_gpus=len(machine.gpus))
    finding = check(Context(plan, machine))
    finding = finding if hasattr(finding, "status") else next(finding)
    return finding.status, finding.text


def test_the_command_says_what_it_found_what_to_do_and_what_memory_is_for(recipe, capsys):
    assert main(["doctor", str(recipe(held_out=4))]) == 0
    printed = capsys.readouterr().out
    assert "Next\n  trl-miner probe " in printed and "\n  trl-miner launch " in printed
    assert (
        "on this machine" in printed
        and "and what they are read as" in printed
        and "together" in printed
    )
    assert "0 failed, 0 not checked" in printed
    # 8 rollouts in a micro-batch, 12 in a step
    assert main(["doctor", str(recipe(optimizer_batch_size=12))]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed and "got 12 for 8 x 1. Change the batch per device" in printed
    assert main(["doctor", str(recipe(learning_rte=1))]) == 2
    assert "Did you mean 'learning_rate'" in capsys.readouterr().err
    assert main(["doctor", str(recipe()), "--machine", "eight"]) == 2
    assert "COUNTxMEMORY" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, number, gib", [("8x80GB", 8, 78.8), ("2 x 24", 2, 22), ("1x48gib", 1, 44), ("0", 0, 0)]
)
def test_a_machine_can_be_described(text, number, gib):
    assert [gpu / GIB for gpu in described_machine(text).gpus] == pytest.approx(
        [gib] * number, abs=0.02
    )


def test_of_a_described_machine_nothing_that_is_here_is_called_ok(recipe):
    result = found(recipe(gpu=True), "3x80GB")
    ok = {"GPUs", "memory", "vLLM memory", "model", "rewards", "trainer"}
    assert {about for about, (status, _) in result.items() if status == "ok"} == ok
    assert {result[about][0] for about in ("output_dir", "data")} == {"not checked"}


GPU = {"gpu": True}
FP16 = {"accelerate_config": "multi_gpu", "fp16": True, "bf16": False}
LORA = {"use_peft": True}
COLOCATED = {
    "accelerate_config": str(RECIPES / "accelerate/single_gpu.yaml"), "dtype": "bfloat16", "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.3,
}  # fmt: skip
UNKNOWN = {"model_name_or_path": "nobody/nothing"}


@pytest.mark.parametrize(
    ("settings", "where", "check", "status", "words"),
    [
        # 4.02 billion parameters, 16 bytes each on 1 GPU for training: 60 GiB and more
        (GPU, "2x48GB", checks.check_training_memory, "FAILED", "load_in_4bit, or more GPUs"),
        (GPU, "2x8GB", checks.check_server_memory, "FAILED", "Raise vllm_tensor_parallel_size"),
        # 256 held-out samples of 2,048 tokens at once: 144 KiB a token, 72 GiB beside the weights
        (
            GPU | {"held_out": 100},
            "3x80GB",
            checks.check_training_memory,
            "FAILED",
            "score_batch_size",
        ),
        # 16 rollouts on 2 processes, which transformers samples: 2 GiB
        (GPU | {"use_vllm": False}, "2x80GB", checks.check_training_memory, "ok", "activations"),
        (
            GPU | {"use_vllm": False, "optimizer_batch_size": 1024},
            "2x80GB",
            checks.check_training_memory,
            "FAILED",
            "set use_vllm",
        ),
        (
            GPU | {"vllm_tensor_parallel_size": 3},
            "4x80GB",
            checks.check_server_memory,
            "FAILED",
            "heads: got 3",
        ),
        # 4.02 billion parameters of 16 bits: 7.5 GiB, but vLLM's share is 0.3 * 23.6 = 7.1 GiB
        (
            GPU | COLOCATED,
            "1x24GB",
            checks.check_server_memory,
            "FAILED",
            "Raise vllm_gpu_memory_utilization",
        ),
        (
            GPU | LORA | {"load_in_8bit": True},
            "2x80GB",
            checks.check_rules,
            "FAILED",
            "got load_in_8bit",
        ),
        (
            GPU | LORA | {"load_in_4bit": True},
            "2x80GB",
            checks.check_rules,
            "FAILED",
            "got FSDP or ZeRO-3",
        ),
        # DeepSpeed's ZeRO-3 keeps no gradient whole
        (
            GPU | {"log_gradient_share": 10},
            "3x80GB",
            checks.check_rules,
            "FAILED",
            "got DEEPSPEED. Launch without",
        ),
        (
            GPU | FP16 | {"dose_share": 0.01},
            "3x80GB",
            checks.check_rules,
            "FAILED",
            "got fp16=True. Use bf16",
        ),
        ({"policy_loss": "kl_cov"}, None, checks.check_settings, "warning", "kl_cov"),
        (
            GPU | {"dose_share": 1.0},
            "3x80GB",
            checks.check_settings,
            "FAILED",
            "It must be above 0 and below 1",
        ),
        (
            {"reward_funcs": ["no_such.reward"]},
            None,
            checks.check_rewards,
            "FAILED",
            "could not be imported",
        ),
        (
            {"use_vllm": True, "vllm_mode": "colocate"},
            None,
            checks.check_gpus,
            "FAILED",
            "Leave use_vllm out",
        ),
        (
            GPU | UNKNOWN,
            "4x80GB",
            checks.check_model,
            "not checked",
            "`trl-miner sft` makes it, run that first",
        ),
    ],
)
def test_what_a_check_finds(recipe, settings, where, check, status, words):
    found_status, text = checked(check, recipe(**settings), where)
    assert found_status == status and words in text


@pytest.mark.parametrize(
    ("settings", "where", "about", "status", "words"),
    [
        (GPU, "1x80GB", "plan", "FAILED", "needs at least 2 GPUs, 1 for the vLLM server"),
        (GPU, "0", "plan", "FAILED", "trl-miner doctor --machine 8x80GB"),
        ({"generation_batch_size": 12}, None, "settings", "FAILED", ""),  # micro-batches of 8
        (
            {"reward_funcs": ["think_format_reward", "harness.mixed_reward"]},
            None,
            "rewards",
            "warning",
            "Set correct_r",
        ),
        (
            {"correct_reward_func": "crc"},
            None,
            "trainer",
            "FAILED",
            "No reward function named 'crc' for correct_reward_func. There",
        ),
        ({"model_name_or_path": "trl_miner/forks"}, None, "trainer", "ok", ""),
        (
            {"dataset_name": "/nowhere/deepscaler"},
            None,
            "data",
            "FAILED",
            "Folder not found: /nowhere/deepscaler",
        ),
    ],
)
def test_what_doctor_finds(recipe, settings, where, about, status, words):
    found_status, text = found(recipe(**settings), where)[about]
    assert found_status == status and words in text


def test_a_run_must_fit_into_memory_and_have_its_packages(recipe, monkeypatch):
    assert found(recipe(), Machine("here", (), GIB // 1000))["memory"][0] == "FAILED"
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    context = Context(
        make_plan(recipe(gpu=True), num_gpus=3), Machine("here", (80 * GIB,) * 3, GIB)
    )
    missing = [finding.text for finding in checks.check_packages(context)]
    assert [text.split()[0] for text in missing] == [
        "vllm",
        "deepspeed",
    ] and "'trl_miner[vllm]'" in missing[0]


def test_output_that_cannot_be_written_or_is_of_an_older_run(recipe, tmp_path):
    def output(**settings):
        return checked(checks.check_output, recipe(**settings))

    (tmp_path / "file").write_text("")
    assert output(output_dir=str(tmp_path / "file" / "out"))[0] == "FAILED"
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)  # left by a kill
    (tmp_path / "out" / "training.json").write_text('{"settings": {"seed": "1.0"}}')
    assert output(resume_from_checkpoint="latest")[0] == "ok"
    (tmp_path / "out" / "trainer_state.json").write_text("{}")
    status, text = output()
    assert status == "FAILED" and "--resume_from_checkpoint latest" in text
    assert output(overwrite_output_dir=True)[0] == "ok"


def test_columns_and_golds_of_the_data_are_checked(recipe, tmp_path):
    def of(rows, about, **settings):
        Dataset.from_list(rows).to_parquet(tmp_path / "set" / "train.parquet")
        return " ".join(found(recipe(dataset_name=str(tmp_path / "set"), **settings))[about])

    text = of([{"prompt": "1 + 1", "answer": "2"}], "trainer")
    assert (
        "FAILED" in text
        and "'math_reward' needs the column(s) solution" in text
        and "prompt, answer" in text
    )
    text = of([{"prompt": "Box 12 + 3", "solution": gold} for gold in ("16", "\\frac{")], "preview")
    assert "warning" in text and "1 of 2 references can be matched by the same text" in text
    # of two tasks, each for its own verifier
    rows = [{"prompt": "Box 1 + 1", "solution": "2", "options": []}]
    rows += [{"prompt": "Which? iron, zinc", "solution": "B", "options": ["iron", "zinc"]}] * 2
    assert "warning" not in of(rows, "preview", reward_funcs=["math_reward", "choice_reward"])


def test_a_model_that_the_hub_does_not_give_is_refused_known_or_not(recipe, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("You are trying to access a gated repo.")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    path = recipe(gpu=True, model_name_or_path="someone/gated")
    status, text = checked(checks.check_model, path, "3x80GB")
    assert status == "FAILED" and text.startswith(
        "The model 'someone/gated' could not be loaded from the Hub: You are trying to access a gated"
        " repo. Check the name. If it is private or gated, run `hf auth login`."
    )


def test_the_time_is_a_range_with_its_assumptions_and_a_price(recipe, capsys, monkeypatch):
    """Of 100 steps of 32 rollouts on one GPU, 1024 to 205 tokens, by transformers: at least 205 x
    0.02 s = 4.1 s a step, 0.11 hours; at most 1024 x 0.04 = 41 s, 1.1 hours."""
    settings = dict(model_name_or_path="Qwen/Qwen3-0.6B-Base", per_device_train_batch_size=32)
    settings |= dict(num_generations=8, max_completion_length=1024, max_steps=100)
    settings |= dict(use_vllm=False, optimizer_batch_size=32, accelerate_config=None, held_out=0)
    path = recipe(gpu=True, **settings)
    main(["doctor", str(path), "--machine", "1x80GB", "--price", "2"])
    said = capsys.readouterr().out
    low, high = map(
        float, re.search(r"Time: ([\d.]+) to ([\d.]+) hours for 100 steps", said).groups()
    )
    assert 0.11 < low < 0.2 and 1.1 < high < 2
    assert "205 to 1024 tokens, 30 to 150 TFLOP/s" in said
    cost = re.search(r"Cost: ([\d.]+) to ([\d.]+), at 2", said)
    assert float(cost[1]) == pytest.approx(2 * low, rel=0.1)


def test_the_time_on_a_cpu_is_not_guessed(recipe, capsys):
    main(["doctor", str(recipe())])
    assert "Time: not estimated" in capsys.readouterr().out
