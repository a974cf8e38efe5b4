"""Folders of strangers: links, pipes and names that lead out of them."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from trl_miner import cli
from trl_miner.runs.checkpoints import finish
from trl_miner.runs.eval_folder import read_samples
from trl_miner.runs.files import write_whole
from trl_miner.runs.models import INDEX, find_model

SECRET = "the owner's own"


@pytest.fixture
def run(tmp_path):
    """A run folder with a model, and beside it what belongs to somebody else."""
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    victim.mkdir()
    (victim / "owned").write_text(SECRET)
    (victim / "state.json").write_text('{"global_step": 1}')
    save_file({"w": np.zeros(2)}, run / "model.safetensors")
    shutil.copy(run / "model.safetensors", victim / "weights.safetensors")
    (run / "config.json").write_text("{}")
    return run


def push(run, target, *options):
    return cli.main(["push", str(run), "--repo-id", "me/tiny", "--dry-run", str(target), *options])


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def as_link(name, to):
    def plant(run):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(to.format(run=run, victim=run.parent / "victim"))

    return plant


def as_pipe(name):
    def plant(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return plant


def as_index(run):
    shutil.move(run / "model.safetensors", run / "model-1.safetensors")
    shards = {"a": "model-1.safetensors", "b": "../victim/weights.safetensors"}
    (run / INDEX).write_text(json.dumps({"weight_map": shards}))


HOSTILE = {
    "a shard outside": (as_index, "weights.safetensors .* leads out of .*run"),
    "weights outside": (
        as_link("model.safetensors", "{victim}/weights.safetensors"),
        "leads out of .*weights",
    ),
    "a vocabulary outside": (
        as_link("vocab.txt", "/etc/passwd"),
        "vocab.txt .* leads out of .*run, to /etc/passwd",
    ),
    "a link to nothing": (as_link("vocab.json", "{run}/nothing"), "a link to none"),
    "a pipe": (as_pipe("vocab.json"), "it is no ordinary file"),
    "a record outside": (
        as_link("training.json", "{victim}/state.json"),
        "training.json .* leads out of",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_push_reads_and_writes_nothing_outside_and_leaves_nothing(case, run, tmp_path, capsys):
    plant, said = HOSTILE[case]
    plant(run)
    before = contents(tmp_path / "victim")
    assert push(run, tmp_path / "dry") == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error
    assert contents(tmp_path / "victim") == before and SECRET not in error
    assert not contents(tmp_path / "dry")


def test_links_inside_a_run_are_followed_and_the_run_may_be_a_link(run, tmp_path):
    as_link("vocab.txt", "config.json")(run)
    shutil.move(run / "model.safetensors", run / "blob")
    as_link("model.safetensors", "blob")(run)
    (tmp_path / "link").symlink_to(run)
    assert push(tmp_path / "link", tmp_path / "dry") == 0
    assert {"vocab.txt", "model.safetensors", "README.md"} <= set(contents(tmp_path / "dry"))
    assert not (tmp_path / "dry" / "vocab.txt").is_symlink()


def test_checkpoints_of_other_runs_are_not_taken_for_its_own(run, tmp_path, capsys):
    other = tmp_path / "victim" / "checkpoint-9"
    other.mkdir()
    shutil.move(run / "model.safetensors", other)
    (other / "trainer_state.json").write_text(json.dumps({"global_step": 9}))
    finish(other)
    (run / "checkpoint-9").symlink_to(other)
    assert push(run, tmp_path / "dry") == 2
    assert f"leads out of {run}" in capsys.readouterr().err


def test_a_folder_above_a_checkpoint_is_read_only_if_it_is_a_run(run, tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    run.rename(checkpoint)
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / "vocab.txt").write_text(SECRET)
    assert push(checkpoint, tmp_path / "dry") == 0
    assert "vocab.txt" not in contents(tmp_path / "dry")
    (tmp_path / "training.json").write_text("{}")
    assert find_model(checkpoint).run == tmp_path


def test_pipes_are_refused_and_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "samples.jsonl")
    with pytest.raises(FileNotFoundError, match="must be a file of samples"):
        read_samples(tmp_path / "samples.jsonl")


def test_nothing_is_written_where_a_link_leads(run, tmp_path):
    for name in (".scores.md.tmp", "scores.md"):
        as_link(name, "{victim}/owned")(run)
    write_whole(run / "scores.md", "text")
    assert (run / "scores.md").read_text() == "text" and not (run / "scores.md").is_symlink()
    assert (tmp_path / "victim" / "owned").read_text() == SECRET
