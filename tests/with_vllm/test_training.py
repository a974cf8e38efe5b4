"""Training with real vLLM: the sampler's log-probs are the trainer's after every update, and MINER
costs no forward.

MINER and GRPO, in the training process and behind vLLM's server, on one process and on two, with
heads tied to the embeddings and not, all weights and LoRA.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "train_worker.py"
UNCORRECTED = {"vllm_importance_sampling_correction": False, "temperature": 0.7}
METHODS = {
    "grpo": {"advantage_estimator": "grpo"},
    "miner": {"advantage_estimator": "miner"},
    "grpo-lora": {"advantage_estimator": "grpo", "lora": True},
    "miner-lora": {"advantage_estimator": "miner", "lora": True},
    "grpo-uncorrected": {"advantage_estimator": "grpo", **UNCORRECTED},
    "miner-uncorrected": {"advantage_estimator": "miner", **UNCORRECTED},
    "control": {"advantage_estimator": "miner", "synced": False},
}
# What a head changes is the weights that are sent, with adapters in them or not.
RUNS = [*(("tied", method) for method in METHODS), ("untied", "grpo"), ("untied", "miner-lora")]
CORRECTED = [(head, name) for head, name in RUNS if not name.endswith(("uncorrected", "control"))]
ROWS = 24  # of a step, as train_worker.py has it
DIFFERENCE = "sampling/sampling_logp_difference/max"


@pytest.fixture(scope="module")
def servers(policies, serve, tmp_path_factory):
    tied, untied = (tmp_path_factory.mktemp(f"server-{head}") for head in policies)
    with serve(policies["tied"], tied) as one, serve(policies["untied"], untied) as other:
        yield {"tied": one, "untied": other}


@pytest.fixture(scope="module", params=["colocate-1", "colocate-2", "server-1", "server-2"])
def trained(request, policies, vllm_environment, tmp_path_factory):
    """The worker's runs by name, on a number of processes."""
    mode, _, size = request.param.partition("-")
    servers = request.getfixturevalue("servers") if mode == "server" else {}
    folder = tmp_path_factory.mktemp("trained")
    runs = [
        {"name": f"{head}-{method}", "model": policies[head], "vllm_mode": mode,
         "vllm_server_base_url": servers.get(head), **METHODS[method]}
        for head, method in RUNS
    ]  # fmt: skip
    (folder / "runs.json").write_text(json.dumps(runs))
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={size}"]
    command = [sys.executable, *(several if size != "1" else []), WORKER, folder / "runs.json"]
    done = subprocess.run(
        [*command, folder], env=vllm_environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads((folder / "result.json").read_text())
    assert {run["processes"] for run in found.values()} == {int(size)}
    return found


@pytest.mark.parametrize(("head", "method"), CORRECTED)
def test_the_sampler_has_the_trainers_weights_at_every_step(trained, head, method):
    steps = trained[f"{head}-{method}"]["steps"]
    assert len(steps) == 3 and all(step["grad_norm"] > 0 for step in steps)
    assert max(step[DIFFERENCE] for step in steps) < 1e-4


def test_without_weight_sync_it_shows(trained):
    first, *others = (step[DIFFERENCE] for step in trained["tied-control"]["steps"])
    assert first < 1e-4 and min(others) > 0.1  # nothing was updated before the first generation


@pytest.mark.parametrize("method", ["miner", "miner-lora", "miner-uncorrected"])
def test_miner_takes_no_forward_of_its_own(trained, method):
    miner, grpo = (trained[f"tied-{name}"] for name in (method, method.replace("miner", "grpo")))
    # a third of the prompts all right and a third mixed, so that there was something to score
    assert all(step["groups/ph"] == step["groups/he"] > 0.3 for step in miner["steps"])
    assert all(step["miner/tau_pos"] > 0 for step in miner["steps"])
    # TRL's own, one a step, where it corrects for the sampler
    trls = [] if method.endswith("uncorrected") else [ROWS // miner["processes"]] * 3
    assert grpo["forwarded"] == miner["forwarded"] == [trls] * grpo["processes"]


@pytest.mark.parametrize("method", ["grpo", "miner-lora", "miner-uncorrected"])
def test_held_out_samples_are_vllms(trained, method):
    """Six problems, four samples each, while transformers' `generate` is out of reach."""
    for counts in trained[f"tied-{method}"]["held_out"]:
        assert len(counts) == 6 and 0 < sum(counts) < 24
