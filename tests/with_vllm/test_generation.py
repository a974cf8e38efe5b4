"""Evaluation with real vLLM: in this process, and behind its server."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "eval_worker.py"
VLLM = ("--backend", "vllm")
GREEDY = ("--samples", "1", "--temperature", "0")


@pytest.fixture(scope="module")
def worker(vllm_environment, tmp_path_factory):
    log = tmp_path_factory.mktemp("worker") / "log"
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, WORKER], env=vllm_environment, stderr=out, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
    yield process, log
    process.stdin.close()
    process.wait(timeout=60)


@pytest.fixture(scope="module")
def evaluate(base_model_folder, worker, tmp_path_factory):
    """`trl-miner eval`, once for the same options: its samples and its Pass@1."""
    process, log = worker

    @functools.cache
    def run(*options, output=None):
        output = output or tmp_path_factory.mktemp("out")
        words = ["--model", base_model_folder, "--max-tokens", "40", "--dtype", "float32"]
        words += ["--benchmarks", "arithmetic:60", "--output", str(output), *options]
        process.stdin.write(json.dumps(words) + "\n")
        assert process.stdout.readline() == "0\n", log.read_text()[-3000:]
        scores = json.loads((output / "scores.json").read_text())["arithmetic"]
        lines = (output / "arithmetic.jsonl").read_text().splitlines()
        samples = [line for line in map(json.loads, lines) if "text" in line]
        texts = {(each["problem"], each["sample"]): each["text"] for each in samples}
        return texts, scores["metrics"]["Pass@1"][0]

    return run


@pytest.fixture(scope="module")
def server(base_model_folder, serve, tmp_path_factory):
    with serve(base_model_folder, tmp_path_factory.mktemp("server")) as url:
        yield url


def test_three_backends_agree(evaluate, server):
    """The same greedy answers, and a like Pass@1 when sampling: 480 samples, standard error about
    0.02."""
    backends = [("--backend", "transformers"), VLLM, ("--base-url", server)]
    greedy = [evaluate(*backend, *GREEDY)[0] for backend in backends]
    assert greedy[0] == greedy[1] == greedy[2] and len(set(greedy[0].values())) > 30
    sampled = [evaluate(*backend, "--samples", "8")[1] for backend in backends]
    assert max(sampled) - min(sampled) < 0.1 and 0.1 < min(sampled) < max(sampled) < 0.95


def test_a_lora_adapter_works_alike(evaluate, base_model_folder, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = AutoModelForCausalLM.from_pretrained(base_model_folder)
    get_peft_model(model, lora).save_pretrained(tmp_path)
    vllm, transformers = (
        evaluate("--backend", name, "--adapter", str(tmp_path), *GREEDY)[0]
        for name in ("vllm", "transformers")
    )
    assert vllm == transformers != evaluate(*VLLM, *GREEDY)[0]


def test_vllm_draws_each_sample_from_its_own_seed(evaluate):
    first, more = (evaluate(*VLLM, "--samples", n)[0] for n in ("2", "8"))
    assert all(more[key] == text for key, text in first.items()) and len(set(first.values())) > 40
