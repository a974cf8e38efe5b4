"""The embedded base model and its cache: built once, whole or not at all."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trl_miner.data import base_model as module
from trl_miner.data.arithmetic import build_tokenizer
from trl_miner.data.base_model import BaseModelSettings, base_model

# Big enough to build, far too small to solve anything.
TINY = BaseModelSettings(
    hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, rows=64, steps=4, batch_size=8
)
REPOSITORY = Path(__file__).resolve().parents[1]


NEVER_DONE = "import time; from trl_miner.data import base_model as m; m._run_training = lambda *_: time.sleep(99);"


def caller(cache: Path, first: str = "", **settings) -> subprocess.Popen:
    """A process that asks for the tiny base model, as a rank of a launcher would."""
    script = (
        f"{first}import sys; from trl_miner.data.base_model import BaseModelSettings, base_model;"
        "print(base_model(BaseModelSettings(**eval(sys.argv[1])), sys.argv[2]))"
    )
    kwargs = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__} | settings
    return subprocess.Popen(
        [sys.executable, "-c", script, repr(kwargs), str(cache)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*") if path.is_dir()]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A cache where one build was killed and two processes then asked for the model at once; and what they printed."""
    cache = tmp_path_factory.mktemp("cache")
    killed = caller(cache, NEVER_DONE)
    deadline = time.monotonic() + 60
    while not folders(cache) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    after_kill = [path.name for path in folders(cache)]
    both = [caller(cache) for _ in range(2)]
    printed = [process.communicate(timeout=120) for process in both]
    return cache, after_kill, printed


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_looks_whole(built):
    cache, after_kill, _ = built
    assert len(after_kill) == 1 and ".building-" in after_kill[0]
    assert after_kill[0] not in {path.name for path in folders(cache)}  # the next build sweeps up


def test_two_processes_at_once_build_once(built):
    cache, _, printed = built
    assert [out.strip() for out, _ in printed] == [str(folders(cache)[0])] * 2, printed
    assert len(folders(cache)) == 1
    # one said that it builds, and how far it is; the other waited
    silent, (first, *progress) = sorted((err.splitlines() for _, err in printed), key=len)
    assert silent == [] and "training one (4 steps" in first
    assert all(line.startswith("training the base model: 0 of 4 steps, ") for line in progress[:-1])
    assert progress[-1].startswith("training the base model: 4 of 4 steps, ")


def test_the_base_model_loads_like_any_other(built):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cache, _, _ = built
    model = AutoModelForCausalLM.from_pretrained(folders(cache)[0])
    tokenizer = AutoTokenizer.from_pretrained(folders(cache)[0])
    assert tokenizer.padding_side == "left"
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert model.config.vocab_size == len(tokenizer)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    text = "Compute 17 + 4.\nso 17 + 4 = 21"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_second_call_trains_nothing_even_from_a_read_only_cache(built, monkeypatch, capsys):
    cache, _, _ = built
    weights = folders(cache)[0] / "model.safetensors"
    before = weights.stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(Path, "mkdir", None)  # a read-only disk
    assert base_model(TINY, cache) == weights.parent
    assert weights.stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""


def test_a_rebuilt_base_model_has_the_same_weights_and_other_settings_another_folder(built, tmp_path, monkeypatch):
    cache, _, _ = built
    monkeypatch.setenv("TRL_MINER_CACHE", str(tmp_path))  # also: where it is kept without an argument
    monkeypatch.setattr(module, "_run_training", module._train)  # in this process, which has imported TRL
    again = base_model(TINY)
    assert again == tmp_path / folders(cache)[0].name
    assert (again / "model.safetensors").read_bytes() == (folders(cache)[0] / "model.safetensors").read_bytes()
    monkeypatch.setattr(module, "_run_training", lambda settings, building: None)
    assert base_model(replace(TINY, seed=1)) != again
    monkeypatch.delenv("TRL_MINER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert base_model(TINY).parent == tmp_path / "trl_miner"


def test_an_unusable_cache_names_the_folder_and_the_way_out(tmp_path):
    (tmp_path / "file").write_text("in the way")  # works for root too, whom no permission stops
    with pytest.raises(OSError, match=rf"{tmp_path}/file/cache is not .*Set TRL_MINER_CACHE"):
        base_model(TINY, tmp_path / "file" / "cache")


def test_a_failed_training_quotes_its_last_lines_and_leaves_no_folder(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nseq 100 199\necho the reason >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(RuntimeError, match="(?s)failed with exit status 3. Its last lines:\n181\n.*the reason"):
        base_model(TINY, tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


def test_the_training_sees_no_launcher_and_no_gpu():
    launched = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "1"}
    launched |= {"TORCHELASTIC_RUN_ID": "x", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}
    clean = module._clean_environment(launched)
    assert clean["PATH"] == "/bin"
    assert clean["CUDA_VISIBLE_DEVICES"] == ""
    assert not clean.keys() & (launched.keys() - {"PATH", "CUDA_VISIBLE_DEVICES"})
