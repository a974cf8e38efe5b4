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
def evaluate(policies, worker, tmp_path_factory):
    """`trl-miner eval`, once for the same options: the texts of its samples."""
    process, log = worker

    @functools.cache
    def run(*options, output=None):
        output = output or tmp_path_factory.mktemp("out")
        words = ["--model", policies["tied"], "--max-tokens", "40", "--dtype", "float32"]
        words += ["--prompt_template", "{question}", "--benchmarks", "arithmetic:60"]
        words += ["--output", str(output), *options]
        process.stdin.write(json.dumps(words) + "\n")
        assert process.stdout.readline() == "0\n", log.read_text()[-3000:]
        lines = (output / "arithmetic.jsonl").read_text().splitlines()
        samples = [line for line in map(json.loads, lines) if "text" in line]
        assert (output / "scores.json").is_file()
        return {(each["problem"], each["sample"]): each["text"] for each in samples}

    return run


@pytest.fixture(scope="module")
def server(policies, serve, tmp_path_factory):
    with serve(policies["tied"], tmp_path_factory.mktemp("server")) as url:
        yield url


def test_three_backends_agree(evaluate, server):
    """The same greedy answers of a model with random weights."""
    backends = [("--backend", "transformers"), VLLM, ("--base-url", f"{server}/v1")]
    first, *others = (evaluate(*backend, *GREEDY) for backend in backends)
    assert others == [first, first] and len(first) == 60


def test_vllm_draws_each_sample_from_its_own_seed(evaluate):
    # so few that a step prefills all prompts whole: vLLM's CPU build has no seeds for parts
    few = ("--benchmarks", "arithmetic:12")
    first, more = (evaluate(*VLLM, *few, "--samples", n) for n in ("2", "8"))
    assert all(more[key] == text for key, text in first.items()) and len(set(first.values())) > 12
