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

from trl_miner.launching.server import logprobs_mode

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
    "grpo-qlora": {"advantage_estimator": "grpo", "lora": True, "bits": 4},
}
# What a head changes is the weights that are sent, with adapters in them or not; all else is done
# with tied ones.
UNTIED = ("grpo", "miner-lora")
RUNS = [*(("tied", method) for method in METHODS), *(("untied", method) for method in UNTIED)]
CORRECTED = [
    (head, name)
    for head, name in RUNS
    if not name.endswith(("uncorrected", "qlora")) and name != "control"
]
ROWS = 24  # of a step, as train_worker.py has it
DIFFERENCE, MEAN = (f"sampling/sampling_logp_difference/{name}" for name in ("max", "mean"))


@pytest.fixture(scope="module")
def train(policies, vllm_environment, tmp_path_factory):
    """The worker's runs on a number of processes: behind servers, by head, or with vLLM in the
    process."""

    def run(num_processes, servers=None):
        folder = tmp_path_factory.mktemp("trained")
        runs = []
        for head, method in RUNS:
            where = (
                {"vllm_mode": "server", "vllm_server_base_url": servers[head]} if servers else {}
            )
            where = where or {"vllm_mode": "colocate"}
            runs.append(
                {"name": f"{head}-{method}", "model": policies[head], **where, **METHODS[method]}
            )
        (folder / "runs.json").write_text(json.dumps(runs))
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={num_processes}",
        ]
        command = [
            sys.executable,
            *(launcher if num_processes > 1 else []),
            WORKER,
            folder / "runs.json",
            folder,
        ]
        done = subprocess.run(command, env=vllm_environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
        return json.loads((folder / "result.json").read_text())

    return run


@pytest.fixture(scope="module")
def servers(policies, serve, tmp_path_factory):
    folders = {head: tmp_path_factory.mktemp(f"server-{head}") for head in policies}
    with (
        serve(policies["tied"], folders["tied"]) as (tied, _),
        serve(policies["untied"], folders["untied"]) as (u, _),
    ):
        yield {"tied": tied, "untied": u}


def test_the_doctor_can_ask_a_server_for_its_mode(servers):
    assert logprobs_mode(servers["tied"], 10) == "processed_logprobs"


@pytest.fixture(scope="module", params=["colocate-1", "colocate-2", "server-1", "server-2"])
def trained(request, train):
    mode, _, num_processes = request.param.partition("-")
    servers = request.getfixturevalue("servers") if mode == "server" else None
    runs = train(int(num_processes), servers)
    assert all(run["num_processes"] == int(num_processes) for run in runs.values())
    return runs


@pytest.mark.parametrize(("head", "method"), CORRECTED)
def test_the_sampler_has_the_trainers_weights_at_every_step(trained, head, method):
    steps = trained[f"{head}-{method}"]["steps"]
    assert len(steps) == 3 and all(step["grad_norm"] > 0 for step in steps)
    assert max(step[DIFFERENCE] for step in steps) < 1e-4


def test_it_has_those_of_a_model_in_4_bits_in_full(trained):
    first, *others = (step[DIFFERENCE] for step in trained["tied-grpo-qlora"]["steps"])
    # the adapter has 16 bits, and vLLM gets it merged
    assert first < 1e-4 and 0 < max(others) < 5e-3


@pytest.mark.parametrize("method", ["grpo", "miner", "miner-lora", "miner-uncorrected"])
def test_held_out_samples_are_vllms_each_by_its_own_seed(trained, method):
    """Two problems, four samples each; transformers' `generate` is out of reach meanwhile."""
    first, again, others = trained[f"tied-{method}"]["held_out"]
    assert first == again != others and [len(ids) for ids in (first, others)] == [8, 8]
    # of one prompt, and yet unlike
    assert all(len({*map(tuple, first[rows : rows + 4])}) > 1 for rows in (0, 4))


def test_without_weight_sync_it_shows(trained):
    first, *others = (step[DIFFERENCE] for step in trained["tied-control"]["steps"])
    assert first < 1e-4 and min(others) > 0.1  # nothing was updated before the first generation


@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith("miner")])
def test_miner_takes_no_forward_of_its_own_but_one_that_compares(trained, method):
    miner, grpo = (trained[f"tied-{name}"] for name in (method, method.replace("miner", "grpo")))
    # A third of the prompts all right and a third mixed, so that there was something to score.
    thirds = [(step["groups/ph"], step["groups/he"]) for step in miner["steps"]]
    assert (
        thirds == [pytest.approx((1 / 3, 1 / 3))] * 3
        and min(step["miner/tau_pos"] for step in miner["steps"]) > 0
    )
    rows = ROWS // miner["num_processes"]
    trls = [] if method.endswith("uncorrected") else [rows] * 3  # one a step
    assert grpo["forwarded"] == [trls] * grpo["num_processes"]
    # Uncorrected: once, to compare vLLM's log-probs, every second of 24 rows, as 16 are compared at
    # most.
    assert miner["forwarded"] == [trls or [rows // 2]] * miner["num_processes"]
    if not trls:
        assert [step[MEAN] for step in miner["steps"] if MEAN in step] == [
            pytest.approx(0, abs=1e-4)
        ]
