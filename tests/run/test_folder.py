"""A run's folder: whose it is, which checkpoint is whole, and which are kept."""

import hashlib
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trl_miner.run import folder as folders


def save(run, step, names=("model.safetensors", "trainer_state.json", "deep/rng_state.pth")):
    """Write a checkpoint of a few bytes a file, with its checksums; return it."""
    checkpoint = Path(run, f"checkpoint-{step}")
    for name in names:
        path = checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name} of {step}".encode())
    saved(run, step, None)
    return checkpoint


def saved(run, step, keep, best=None):
    """Tell the callback that a checkpoint has been saved."""
    state = SimpleNamespace(
        is_world_process_zero=True, global_step=step, best_model_checkpoint=best
    )
    folders.WholeCheckpoints(keep).on_save(SimpleNamespace(output_dir=str(run)), state, None)


@pytest.fixture
def run(tmp_path):
    """A folder with what a run writes: a record and two checkpoints."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / folders.RECORD).write_text("{}")
    for step in (9, 10):
        save(tmp_path / "run", step)
    return tmp_path / "run"


def claim(run, resumes=False, model=None):
    return folders.claim(Path(run), resumes=resumes, model=model)


def test_a_new_or_an_empty_folder_is_a_runs_own(tmp_path):
    claim(tmp_path / "new" / "run")
    (tmp_path / "empty").mkdir()
    claim(tmp_path / "empty")


def test_a_used_folder_is_only_for_a_run_that_resumes(run):
    with pytest.raises(ValueError, match="already contains a run. Resume it with --resume_from"):
        claim(run)
    claim(run, resumes=True)


def test_a_run_that_died_before_its_first_step_leaves_its_folder_free(run):
    for step in (9, 10):
        shutil.rmtree(run / f"checkpoint-{step}")
    (run / "held_out.json").write_text("{}")
    claim(run)


@pytest.mark.parametrize("name", ["README.md", "model.safetensors", "checkpoint-3"])
@pytest.mark.parametrize("resumes", [False, True])
def test_what_no_run_wrote_is_never_written_over(tmp_path, name, resumes):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"holds {name}, which no run wrote"):
        claim(tmp_path, resumes)


def test_the_models_own_folder_is_refused(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    for model in (str(run), f"{run}/", str(tmp_path / "link")):
        with pytest.raises(ValueError, match="is the model's own folder"):
            claim(run, resumes=True, model=model)
    claim(run, resumes=True, model="Qwen/Qwen3-0.6B")


def test_a_lock_is_held_while_a_run_lives_and_is_free_after_a_crash(run):
    fork = multiprocessing.get_context("fork")
    told, telling = fork.Pipe()
    other = fork.Process(target=hold, args=(run, telling))
    other.start()
    assert told.recv() == "held"
    with pytest.raises(ValueError, match="A run is alive in"):
        claim(run, resumes=True)
    other.kill()
    other.join()
    claim(run, resumes=True)


def hold(run, telling):
    with claim(run, resumes=True):
        telling.send("held")
        time.sleep(60)


def test_latest_is_the_newest_by_step(run):
    assert folders.choose_checkpoint(run, "latest") == run / "checkpoint-10"
    assert folders.newest_checkpoint(run) == run / "checkpoint-10"
    assert folders.choose_checkpoint(run, None) is None
    assert folders.choose_checkpoint(run, str(run / "checkpoint-9")) == run / "checkpoint-9"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


FILES = ("model.safetensors", "trainer_state.json", "deep/rng_state.pth", folders.CHECKSUMS)


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over_with_the_files_name(run, name, harm, capsys):
    newest = run / "checkpoint-10"
    harm(newest / name)
    assert folders.choose_checkpoint(run, "latest") == run / "checkpoint-9"
    told = capsys.readouterr().out
    assert told.startswith(f"{newest} is passed over: ") and told.count("\n") == 1
    assert name in told or name == folders.CHECKSUMS  # then the file whose sum is another
    with pytest.raises(ValueError, match="cannot be resumed"):
        folders.choose_checkpoint(run, str(newest))


def test_where_none_is_whole_the_run_begins_anew(run, capsys):
    for step in (9, 10):
        flip(run / f"checkpoint-{step}" / "model.safetensors")
    assert folders.choose_checkpoint(run, "latest") is None
    assert capsys.readouterr().out.splitlines()[-1].endswith("the run begins anew.")


def test_one_of_plain_trl_has_no_checksums(tmp_path):
    plain = tmp_path / "checkpoint-5"
    plain.mkdir()
    assert "trainer_state.json, which is written last" in folders.damage(plain)
    (plain / "trainer_state.json").write_text("{}")
    assert folders.damage(plain) == ""
    (tmp_path / folders.RECORD).write_text("{}")  # in a run of ours it was killed while it saved
    assert folders.CHECKSUMS in folders.damage(plain)


def test_what_is_no_checkpoint_is_left_alone(run):
    for name in ("checkpoint-best", "checkpoint-", "checkpoint--1"):
        (run / name).mkdir()
    (run / "checkpoint-12").write_text("a file")
    assert [path.name for path in folders.checkpoints(run)] == ["checkpoint-9", "checkpoint-10"]


def test_the_oldest_go_by_their_step_and_not_by_the_clock(run):
    save(run, 11)
    os.utime(run / "checkpoint-9", (2e9, 2e9))  # touched in the year 2033
    saved(run, 11, keep=2)
    assert [path.name for path in folders.checkpoints(run)] == ["checkpoint-10", "checkpoint-11"]


def test_the_best_stays(run):
    save(run, 11)
    saved(run, 11, keep=1, best=str(run / "checkpoint-9"))
    assert [path.name for path in folders.checkpoints(run)] == ["checkpoint-9", "checkpoint-11"]


def test_checksums_have_every_file(run):
    sums = json.loads((run / "checkpoint-9" / folders.CHECKSUMS).read_text())
    assert {*sums} == {"model.safetensors", "trainer_state.json", "deep/rng_state.pth"}
    content = (run / "checkpoint-9" / "model.safetensors").read_bytes()
    assert hashlib.blake2b(content).hexdigest() == sums["model.safetensors"]
