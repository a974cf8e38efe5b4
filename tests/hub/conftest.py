"""A run's folder as trainings leave it, on the tests' policy, and a Hub to push it to."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from trl_miner.evaluation.held_out import Moment, write_held_out
from trl_miner.run.folder import CHECKSUMS, checksums
from trl_miner.run.record import Record, Source, write_record

TOKEN = "hf_planted0123456789planted"
RECORD = Record(
    base_model=Source("org/base-model", True),
    dataset=Source("org/problems", True),
    rows="10 rows, 0123",
    settings={"advantage_estimator": "miner", "miner_gamma": "2.0", "seed": "1"},
    methods=("MINER",),
    papers={"MINER": "2601.04731"},
    seed=1,
    versions={"trl": "1.16.0", "torch": "2.13.0"},
)


def load(name):
    """Import a module of this folder, whose name another folder may have, too."""
    spec = importlib.util.spec_from_file_location(
        f"hub_{name}", Path(__file__).parent / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def online(monkeypatch):
    """This process speaks to a Hub of its own."""
    from huggingface_hub import close_session

    with load("server").running() as hub:
        close_session()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("trl_miner.hub.push.WAIT_SECONDS", 0.01)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
        close_session()


@pytest.fixture
def run(policy, tmp_path):
    """A run of four steps that has ended, with checkpoints of the second and the fourth."""
    folder = tmp_path / "tiny"
    shutil.copytree(policy, folder)
    for step in (2, 4):
        checkpoint = folder / f"checkpoint-{step}"
        shutil.copytree(policy, checkpoint)
        (checkpoint / "optimizer.pt").write_bytes(b"states")
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        with open(checkpoint / "config.json", "a") as file:
            file.write("\n" * step)  # so that they differ
        (checkpoint / CHECKSUMS).write_text(json.dumps(checksums(checkpoint)))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    (folder / "training_args.bin").write_bytes(b"a pickle")
    (folder / "completions").mkdir()
    (folder / "training.png").write_bytes(b"a picture")
    write_record(folder, RECORD)
    counts = {"before": (0, [0, 1, 2, 1]), "step 2": (2, [2, 1, 2, 1]), "after": (4, [4, 4, 2, 2])}
    write_held_out(folder, {name: Moment(step, 4, found) for name, (step, found) in counts.items()})
    return folder
