"""`trl-miner doctor`: every check with a recipe that it must find fault with, here and on described machines."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from datasets import Dataset

from trl_miner.cli import main
from trl_miner.doctor import checks, examination, machine
from trl_miner.doctor.context import Context
from trl_miner.doctor.machine import GIB
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
def recipe(tmp_path, policy, monkeypatch):
    """Writes a recipe: `recipe(...)` for this machine's CPU, `recipe(gpu=True, ...)` for GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(gpu=False, **settings):
        common = {"output_dir": str(tmp_path / "out"), "max_steps": 10, "save_steps": 5}
        on_cpu = {"model_name_or_path": policy, "dataset_name": "trl_miner/arithmetic", "use_cpu": True}
        on_cpu |= {"bf16": False, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**common, **(GPU_RECIPE if gpu else on_cpu), **settings}))
        return path

    return write


def found(path, where=None, *overrides):
    """Status and text by what each finding is about; of several the worst."""
    if not isinstance(where, machine.Machine):
        where = machine.this_machine() if where is None else machine.described_machine(where)
    findings, _ = examination.examine(path, list(overrides), where)
    order = ["ok", "not checked", "warning", "FAILED"]
    findings = sorted(findings, key=lambda finding: order.index(finding.status))
    return {finding.about: (finding.status, finding.text) for finding in findings}


def with_gpus(*sizes, cpu=1000):
    """This machine, with GPUs and memory of these GiB."""
    return machine.Machine("here", tuple(size * GIB for size in sizes), int(cpu * GIB))


def test_the_embedded_recipe_s_kind_passes_here_and_says_so(recipe, capsys):
    assert main(["doctor", str(recipe())]) == 0
    printed = capsys.readouterr().out
    assert (
        "on this machine" in printed and "accepts the first golds" in printed and "0 failed, 0 not checked" in printed
    )
    assert "together" in printed


def test_a_failure_is_exit_code_1_with_what_to_do(recipe, capsys):
    # 8 rollouts in a micro-batch, 12 in a step
    assert main(["doctor", str(recipe(optimizer_batch_size=12))]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed and "got 12 for 8 x 1. Change the batch per device" in printed


def test_a_bad_recipe_or_machine_is_exit_code_2(recipe, capsys):
    assert main(["doctor", str(recipe(learning_rte=1))]) == 2
    assert "Did you mean 'learning_rate'" in capsys.readouterr().err
    assert main(["doctor", str(recipe()), "--machine", "eight"]) == 2
    assert "COUNTxMEMORY" in capsys.readouterr().err


@pytest.mark.parametrize("text, number, gib", [("8x80GB", 8, 80), ("2 x 24", 2, 24), ("1x48gib", 1, 48)])
def test_a_machine_can_be_described(text, number, gib):
    gpus = machine.described_machine(text).gpus
    assert len(gpus) == number and all(0.98 * gib * GIB < gpu < gib * GIB for gpu in gpus)


def test_packages_that_do_not_fit_together_and_a_full_disk(recipe, monkeypatch):
    versions = {"trl": "1.15.0", "vllm": "0.31.0", "transformers": "5.23.0", "deepspeed": "0.18.0"}
    monkeypatch.setattr(checks.metadata, "version", lambda name: versions.get(name, "999"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10 * GIB))
    findings, _ = examination.examine(recipe(gpu=True), [], with_gpus(80, 80, 80, 80))
    texts = [finding.text for finding in findings if finding.status == "FAILED"]
    assert any("trl must be" in text and "got 1.15.0. `pip install 'trl_miner[vllm]'`" in text for text in texts)
    assert any("transformers must be <5.18: got 5.23.0" in text for text in texts)
    # two checkpoints, one being written, 14 bytes for each of 4.02 billion parameters, and the model
    assert any("got 10.0 GiB" in text for text in texts)


def test_of_a_described_machine_nothing_that_is_here_is_called_ok(recipe):
    result = found(recipe(gpu=True), "3x80GB")
    assert {about for about, (status, _) in result.items() if status == "ok"} == {
        "GPUs",
        "batch",
        "memory",
        "vLLM memory",
        "model",
        "rewards",
        "trainer",
    }
    assert {result[about][0] for about in ("versions", "output_dir", "disk", "data")} == {"not checked"}


GPU = {"gpu": True}
RANK = {"accelerate_config": "multi_gpu", "fp16": True, "bf16": False}


@pytest.mark.parametrize(
    ("settings", "where", "about", "status", "words"),
    [
        (GPU, "1x80GB", "plan", "FAILED", "needs 1 for the vLLM server"),
        (GPU, (80, 80, 24), "GPUs", "warning", "They should have equal free memory"),
        # 4.02 billion parameters, 16 bytes each on 1 GPU for training: 60 GiB and more
        (GPU, "2x48GB", "memory", "FAILED", "train on more GPUs, or with a LoRA recipe"),
        (GPU, "2x8GB", "vLLM memory", "FAILED", "Raise vllm_tensor_parallel_size"),
        (GPU | {"vllm_tensor_parallel_size": 3}, "4x80GB", "vLLM memory", "FAILED", "32 attention heads: got 3"),
        (GPU | {"use_peft": True, "load_in_8bit": True}, "2x80GB", "rules", "FAILED", "got load_in_8bit"),
        (GPU | {"use_peft": True, "load_in_4bit": True}, "2x80GB", "rules", "FAILED", "got FSDP or ZeRO-3"),
        # DeepSpeed's ZeRO-3 keeps no gradient whole
        (GPU | {"log_gradient_share": 10}, "3x80GB", "rules", "FAILED", "got DEEPSPEED. Launch without it"),
        (GPU | {"dose_share": 0.01}, "3x80GB", "rules", "FAILED", "got DEEPSPEED. Launch without it"),
        (GPU | RANK | {"dose_share": 0.01}, "3x80GB", "rules", "FAILED", "got fp16=True. Use bf16, or leave"),
        (GPU | {"dose_share": 1.0}, "3x80GB", "settings", "FAILED", "dose_share must be above 0 and below 1"),
        ({}, None, "batch", "ok", "strictly on-policy: one optimizer step"),
        # 10 steps / 4
        ({"optimizer_batch_size": 8, "generation_batch_size": 32}, None, "batch", "ok", "off-policy: 4 optimizer"),
        ({"optimizer_batch_size": 8, "generation_batch_size": 32}, None, "batch", "ok", "2.5 generations in all"),
        ({"policy_loss": "kl_cov"}, None, "settings", "warning", "kl_cov"),
        ({"generation_batch_size": 12}, None, "settings", "FAILED", ""),  # micro-batches of 8
        ({"reward_funcs": ["think_format_reward", "accuracy_reward"]}, None, "rewards", "ok", "accuracy_reward"),
        ({"reward_funcs": ["think_format_reward", "zlib.crc32"]}, None, "rewards", "warning", "Set correct_r"),
        ({"correct_reward_func": "crc"}, None, "trainer", "FAILED", "got 'crc', there"),
        ({"reward_weights": [1.0, 2.0]}, None, "trainer", "FAILED", "reward weights (2) must match"),
        ({"reward_funcs": ["no_such.reward"]}, None, "rewards", "FAILED", "could not be imported"),
        ({"report_to": "comet_ml"}, None, "tracker", "FAILED", "pip install comet_ml"),
        ({"report_to": "no_such_tracker"}, None, "tracker", "FAILED", "Known: "),
        (GPU | {"max_tokens_per_micro_batch": 1500}, "2x40GB", "token budget", "warning", "got 1500, but prompt and"),
        ({"trust_remote_code": True}, None, "note", "warning", "trust_remote_code is on"),
        (GPU | {"model_name_or_path": "nobody/nothing"}, "4x80GB", "disk", "not checked", "Download the model"),
        (GPU | {"model_name_or_path": "nobody/nothing"}, "4x80GB", "memory", "not checked", "or run `trl-miner sft`"),
    ],
)  # fmt: skip
def test_what_doctor_finds(recipe, settings, where, about, status, words):
    where = with_gpus(*where) if isinstance(where, tuple) else where
    found_status, text = found(recipe(**settings), where)[about]
    assert found_status == status and words in text


ONE_GPU = dict(
    accelerate_config=str(RECIPES / "accelerate/single_gpu.yaml"), optimizer_batch_size=16, dtype="bfloat16"
)


def test_on_one_gpu_the_advice_can_be_followed(recipe):
    path = recipe(gpu=True)
    text = found(path, "1x24GB")["plan"][1]
    assert "Set vllm_mode: colocate and vllm_tensor_parallel_size: 1" in text and "Lower" not in text
    path = recipe(gpu=True, **ONE_GPU, vllm_mode="colocate", vllm_gpu_memory_utilization=0.3)
    result = found(path, "1x24GB")
    # 4.02 billion parameters of 16 bits: 7.5 GiB, but vLLM's share is 0.3 * 23.6 = 7.1 GiB
    assert result["vLLM memory"][0] == "FAILED"
    assert "Raise vllm_gpu_memory_utilization" in result["vLLM memory"][1]
    status, text = result["memory"]
    assert status == "FAILED" and "vllm_enable_sleep_mode" in text and "zero3" not in text


def test_vllm_on_a_cpu_is_refused(recipe):
    plan = make_plan(recipe(use_vllm=True, vllm_mode="colocate"), num_gpus=0)
    finding = checks.check_gpus(Context(plan, machine.this_machine()))
    assert finding.status == "FAILED" and "Leave use_vllm out" in finding.text


def test_a_cpu_recipe_must_fit_into_the_memory(recipe):
    assert found(recipe(), with_gpus(cpu=0.001))["memory"][0] == "FAILED"


def test_output_that_cannot_be_written_or_is_of_an_older_run(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    assert found(recipe(output_dir=str(tmp_path / "file" / "out")))["output_dir"][0] == "FAILED"
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)  # left by a kill
    assert found(recipe())["output_dir"][0] == found(recipe(resume_from_checkpoint="latest"))["output_dir"][0] == "ok"
    (tmp_path / "out" / "trainer_state.json").write_text("{}")
    status, text = found(recipe())["output_dir"]
    assert status == "FAILED" and "--resume_from_checkpoint latest" in text
    assert found(recipe(overwrite_output_dir=True))["output_dir"][0] == "ok"


def test_data_that_is_missing_or_lacks_a_column(recipe, tmp_path):
    status, text = found(recipe(dataset_name=str(tmp_path / "deepscaler")))["data"]
    assert status == "FAILED" and "trl-miner data deepscaler" in text
    Dataset.from_list([{"prompt": "1 + 1", "answer": "2"}]).to_parquet(tmp_path / "set" / "train.parquet")
    status, text = found(recipe(dataset_name=str(tmp_path / "set")))["trainer"]
    assert status == "FAILED" and "'math_reward' needs the column(s) solution" in text and "prompt, answer" in text
    assert "dataset_name must be given" in found(recipe(dataset_name=None))["data"][1]


def test_of_data_on_the_hub_the_first_rows_are_read(recipe, monkeypatch):
    asked = []

    def load_dataset(path, streaming, **names):
        asked.append((path, streaming))
        return {"train": Dataset.from_list([{"prompt": "1 + 1", "solution": "2"}] * 300).to_iterable_dataset()}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    for settings in ({}, {"held_out": 0.1}, {"held_out": 5000}):
        result = found(recipe(dataset_name="org/numbers", **settings))
        assert asked.pop() == ("org/numbers", True) and not asked
        assert {result[about][0] for about in ("data", "trainer", "prompts", "verifier")} == {"ok"}, result


def test_golds_that_the_verifier_refuses_prompts_that_are_too_long_and_messages(recipe, tmp_path, policy):
    # 13 tokens each; a limit of 20 less 16 for the completion leaves 4
    rows = [{"prompt": "12 + 3 - 4 + 5", "solution": solution} for solution in ("16", "\\frac{")]
    Dataset.from_list(rows).to_parquet(tmp_path / "set" / "train.parquet")
    path = recipe(dataset_name=str(tmp_path / "set"))
    status, text = found(path)["verifier"]
    assert status == "warning" and "accept every gold as an answer: it rejects 1 of the first 2" in text
    gpu = recipe(
        gpu=True, model_name_or_path=policy, dataset_name=str(tmp_path / "set"), vllm_max_model_length=20,
        max_completion_length=16,
    )  # fmt: skip
    assert "vllm_max_model_length=20" in found(gpu, "4x80GB")["prompts"][1]
    chat = [{"prompt": [{"role": "user", "content": "1 + 1"}], "solution": "2"}]
    Dataset.from_list(chat).to_parquet(tmp_path / "set" / "train.parquet")
    assert "chat template" in found(recipe(dataset_name=str(tmp_path / "set")))["prompts"][1]


def test_golds_of_two_tasks_are_each_fed_to_their_own_verifier(recipe, tmp_path):
    rows = [{"prompt": "1 + 1", "solution": "2", "options": []}]
    rows += [{"prompt": "Which?", "solution": "B", "options": ["iron", "zinc"]}] * 2
    Dataset.from_list(rows).to_parquet(tmp_path / "set" / "train.parquet")
    path = recipe(dataset_name=str(tmp_path / "set"), reward_funcs=["math_reward", "choice_reward"])
    findings, _ = examination.examine(path, [], machine.this_machine())
    texts = [finding.text for finding in findings if finding.about == "verifier"]
    assert texts == ["math_reward accepts the first golds.", "choice_reward accepts the first golds."]


def test_an_embedded_model_is_looked_at(recipe):
    findings = found(recipe(model_name_or_path="trl_miner/forks"))
    assert {findings[about][0] for about in ("model", "memory", "prompts", "trainer")} == {"ok"}


def test_a_model_that_the_hub_does_not_give_is_refused_known_or_not(recipe, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("You are trying to access a gated repo.")

    path = recipe(gpu=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    status, text = found(path, "3x80GB")["model"]
    assert status == "FAILED" and "Qwen/Qwen3-4B-Base" in text and "gated repo" in text and "hf auth login" in text


def test_a_hub_that_does_not_answer_costs_no_time():
    """Nor at the first call of all, which makes the file of options."""
    left_out = ("_proxy", "hf_hub_offline")
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith(left_out)}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "trl_miner.cli", "doctor", str(RECIPES / "Qwen3-4B-Base" / "miner.yaml")]
    done = subprocess.run([*command, "--machine", "4x80GB"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "Retrying" not in done.stderr, done.stderr[-2000:]
    assert "from a table of known models" in done.stdout


def test_a_token_budget_is_what_a_micro_batch_is_measured_by(recipe):
    """1024 tokens of a completion and as many of a prompt, by the server's limit."""
    rows = found(recipe(gpu=True, per_device_train_batch_size=16), "2x40GB")
    budget = found(recipe(gpu=True, per_device_train_batch_size=16, max_tokens_per_micro_batch=2048), "2x40GB")
    needs = [float(re.search(r"([\d.]+) of", each["memory"][1]).group(1)) for each in (budget, rows)]
    assert needs[0] < needs[1]
