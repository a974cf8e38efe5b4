"""A real tokenizer and a real, untrained model, small enough to train for a few steps in a second."""

import os
import shutil
import signal
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the network; fail at once where one would ask for it
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()  # trackio reads it when it is first imported, which TRL does

import pytest
import torch
from harness import build_policy

torch.set_num_threads(1)  # two pytest workers on two cores
# Under nohup SIGHUP is ignored, and behind `&` in a script Ctrl-C, by this process and by all that it starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Folder of a 2-layer, hidden-32 Qwen3 with random weights and the embedded world's tokenizer."""
    return build_policy(tmp_path_factory.mktemp("policy"))


def pytest_unconfigure():
    shutil.rmtree(os.environ["TRACKIO_DIR"], ignore_errors=True)
