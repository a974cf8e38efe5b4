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
# two pytest workers on two cores, and the processes that they start
os.environ.setdefault("OMP_NUM_THREADS", "1")
# trackio reads it when it is first imported, which TRL does
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()

# a failing assertion there shows its values, as one in a test does
pytest.register_assert_rewrite("harness")

# Under nohup SIGHUP is ignored, and behind `&` in a script Ctrl-C, by this process and by all that
# it starts.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Importing TRL makes half a million objects that stay. The collector would look through all of them
# again and again during the imports, and after every training, where accelerate calls it: half of
# the time of a short training.
gc.disable()


def pytest_collection_finish():
    """Leave everything that the imports made out of all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Return the folder of a 2-layer, hidden-32 Qwen3 with random weights and the embedded world's
    tokenizer."""
    # here, as pytest's main process, which runs no test, reads this file too
    from harness import build_policy

    return build_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def hub_models(tmp_path, policy, monkeypatch):
    """Gives doctor the sizes of the recipes' models, with the tokenizer of `policy`, as the Hub
    would."""
    from trl_miner.data.base_model import find_model
    from trl_miner.doctor.memory import hub_config

    def find(name):
        config, folder = hub_config(name), tmp_path / "hub" / name
        if config is None:
            return find_model(name)
        shutil.copytree(policy, folder, dirs_exist_ok=True)
        config.save_pretrained(folder)
        return str(folder)

    for module in ("memory", "rehearsal"):
        monkeypatch.setattr(f"trl_miner.doctor.{module}.find_model", find)


@pytest.fixture
def unchecked_sampler(monkeypatch):
    """Lets a `rollout_func` return log-probs that a test can reckon with, and that no policy
    has."""
    monkeypatch.setattr("trl_miner.trainer.scoring.SamplerCheck.check", lambda *_: None)


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves the pictures of a report empty: to draw them is most of its time."""
    monkeypatch.setattr("trl_miner.viewing.pages.as_svg", lambda figure, name: "<svg></svg>")
    monkeypatch.setattr("trl_miner.viewing.pages.view_boxes", lambda figure: [])


@pytest.fixture(scope="session")
def base_model_folder(tmp_path_factory):
    """Return a copy of the embedded world's base model: the package itself must stay as it is."""
    from trl_miner.data.base_model import find_model

    return shutil.copytree(
        find_model("trl_miner/arithmetic"), tmp_path_factory.mktemp("models") / "arithmetic"
    )


def pytest_unconfigure():
    shutil.rmtree(os.environ["TRACKIO_DIR"], ignore_errors=True)
