"""Evaluation with real vLLM: in this process, and behind its server."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "eval_worker.py"
COUNT = ["--max-tokens", "40"]


@pytest.fixture(scope="module")
def worker(vllm_environment, tmp_path_factory):
    log = tmp_path_factory.mktemp("worker") / "log"
    with open(log, "w") as out:
        command = [sys.executable, WORKER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(
            command, env=vllm_environment, stderr=out, text=True, bufsize=1, **pipes
        )
    yield process, log
    process.stdin.close()
    process.wait(timeout=60)


@pytest.fixture(scope="module")
def evaluate(base_model_folder, worker, tmp_path_factory):
    """`trl-miner eval`, once for the same options; its samples and its Pass@1."""
    process, log = worker

    @functools.cache
    def run(*options, output=None):
        output = output or tmp_path_factory.mktemp("out")
        arguments = ["--model", str(base_model_folder), *COUNT, "--benchmarks", "arithmetic:60"]
        arguments += ["--dtype", "float32", "--output", str(output), *options]
        process.stdin.write(json.dumps(arguments) + "\n")
        assert process.stdout.readline() == "0\n", log.read_text()[-3000:]
        scores = json.loads((output / "scores.json").read_text())["benchmarks"]["arithmetic"]
        lines = (output / "arithmetic" / "samples.jsonl").read_text().splitlines()
        return {(s["problem"], s["sample"]): s["text"] for s in map(json.loads, lines)}, scores[
            "pass@k"
        ]["1"]

    return run


@pytest.fixture(scope="module")
def server(base_model_folder, serve, tmp_path_factory):
    with serve(base_model_folder, tmp_path_factory.mktemp("server")) as (url, _):
        yield url


VLLM = ("--backend", "vllm")
GREEDY = ("--samples", "1", "--temperature", "0")


def test_three_backends_agree(evaluate, server):
    """The same greedy answers, and a like Pass@1 when sampling: 480 samples, standard error about
    0.02."""
    backends = [("--backend", "transformers"), VLLM, ("--base-url", server)]
    greedy = [evaluate(*backend, *GREEDY)[0] for backend in backends]
    assert greedy[0] == greedy[1] == greedy[2] and len(set(greedy[0].values())) > 50
    sampled = [evaluate(*backend, "--samples", "8")[1] for backend in backends]
    assert max(sampled) - min(sampled) < 0.1 and 0.03 < min(sampled)


def test_a_lora_adapter_works_alike(evaluate, base_model_folder, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base_model_folder), lora).save_pretrained(
        tmp_path
    )
    found = [
        evaluate("--backend", name, "--adapter", str(tmp_path), *GREEDY)[0]
        for name in ("vllm", "transformers")
    ]
    assert found[0] == found[1] != evaluate(*VLLM, *GREEDY)[0]


def test_vllm_draws_each_sample_from_its_own_seed(evaluate):
    first, more = (evaluate(*VLLM, "--samples", n)[0] for n in ("2", "8"))
    assert all(more[key] == text for key, text in first.items()) and len(set(first.values())) > 60


WITHOUT_TRANSFORMERS = """
import sys
from trl_miner.cli import main
from trl_miner.evaluation import in_training
in_training.sample_all = None
sys.exit(main())
"""


def test_a_probe_samples_with_vllm_in_its_process_each_by_its_own_seed(
    base_model_folder, vllm_environment, tmp_path
):
    """The recipe has a server, which no probe needs."""
    words = ["probe", "arithmetic/quick", "--model_name_or_path", base_model_folder]
    words += ["--use_vllm", "true", "--vllm_mode", "server", "--vllm_max_model_length", "128"]
    words += ["--prompts", "24", "--problems", "24", "--samples", "8", "--output", tmp_path]
    words += ["--methods", "rl_zvp"]  # which acts on all-wrong prompts, too
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, *map(str, words)]
    drawn = []
    for _ in range(2):
        done = subprocess.run(command, env=vllm_environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "To do: " in done.stdout
        lines = (tmp_path / "target.jsonl").read_text().split("\n")
        drawn.append({*lines})
        (tmp_path / "target.jsonl").write_text("\n".join(lines[:9]))  # the first batch
    assert drawn[0] == drawn[1] and len(drawn[0]) == 1 + 24
