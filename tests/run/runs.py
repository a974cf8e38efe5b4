"""Trainings of the embedded world that the tests of runs share."""

import contextlib
import hashlib
import io
import os
from pathlib import Path

import torch
from harness import write_recipe
from safetensors.torch import load_file

from trl_miner.train import main

MODEL = "trl_miner/arithmetic"


def recipe(folder, **settings):
    """Write a recipe of four steps of 16 answers, with a checkpoint every second step and scores
    before and after; return its path. It trains into FOLDER/run."""
    small = {
        "model_name_or_path": MODEL,
        "output_dir": str(Path(folder, "run")),
        "max_steps": 4,
        "per_device_train_batch_size": 16,
        "max_completion_length": 32,
        "learning_rate": 1e-3,
        "save_strategy": "steps",
        "save_steps": 2,
        "held_out": 5,
        "score_samples": 4,
    }
    return write_recipe(Path(folder, "a.yaml"), **{**small, **settings})


def train(*words):
    """Train in this process; return the exit code, and what stood on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
        finally:  # --traceback and --quiet are for the children of a process, too
            for name in ("TRL_MINER_TRACEBACK", "TRL_MINER_QUIET"):
                os.environ.pop(name, None)
    return code, out.getvalue(), err.getvalue()


def weights(folder):
    """Return the weights of a saved model."""
    return load_file(Path(folder, "model.safetensors"))


def same(one, other):
    """Return whether two sets of weights are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def contents(folder):
    """Return the checksum of each file of a folder, but for a lock."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
