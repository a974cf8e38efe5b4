"""The environment of the tests, and a real, untrained model, small enough to train for a few steps
in a second."""

import gc
import os
import shutil
import signal
import tempfile

import pytest

# no test needs the network; fail at once where one would ask for it
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# trackio reads it when it is first imported, which TRL does
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()

# a failing assertion there shows its values, as one in a test does
pytest.register_assert_rewrite("harness")

# under nohup SIGHUP is ignored, and behind `&` in a script Ctrl-C, by all that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Importing TRL makes half a million objects that stay, and accelerate calls the collector after
# every training: half of the time of a short one.
gc.disable()


def pytest_collection_finish():
    """Leave everything that the imports made out of all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    shutil.rmtree(os.environ["TRACKIO_DIR"], ignore_errors=True)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Return the folder of a 2-layer, hidden-32 Qwen3 with random weights and a tokenizer."""
    # here, as pytest's main process, which runs no test, reads this file too
    from harness import build_policy

    return build_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def base_model_folder(tmp_path_factory):
    """Return a copy of the embedded world's base model: the package itself must stay as it is."""
    from trl_miner.data.base_model import find_model

    folder = tmp_path_factory.mktemp("models") / "arithmetic"
    return str(shutil.copytree(find_model("trl_miner/arithmetic"), folder))
