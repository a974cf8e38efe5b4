"""A run starts in a folder that no other run has used, or says what to do."""

import json
import os
import shutil
from pathlib import Path

import pytest
from harness import At, config, mixed_reward, problems

from trl_miner.training import RunTrainer

SAVED = dict(max_steps=2, save_strategy="steps", save_steps=2, log_token_credit=2)
OWN = ("notes.md", "data/rows.jsonl", "credit/mine.txt", "checkpoint-new2/a", "README.md")


def die(control):
    raise KeyboardInterrupt


def trainer(policy, folder, *callbacks, **settings):
    args = config(folder, **{**SAVED, "overwrite_output_dir": False, **settings})
    return RunTrainer(policy, mixed_reward, args, problems(), callbacks=list(callbacks))


@pytest.fixture(scope="module")
def used(policy, tmp_path_factory):
    made = trainer(policy, tmp_path_factory.mktemp("used"))
    made.train()
    made.save_model()
    made.save_state()
    return Path(made.args.output_dir)


@pytest.fixture
def run(used, tmp_path):
    return Path(shutil.copytree(used, tmp_path / "run"))


def contents(folder):
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".training")
    )
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


def test_a_used_folder_is_an_error_that_names_three_ways_out(policy, run):
    before = contents(run)
    with pytest.raises(
        ValueError,
        match="resume_from_checkpoint latest.*another --output_dir.*overwrite_output_dir",
    ):
        trainer(policy, run, advantage_estimator="grpo").train()
    assert contents(run) == before


@pytest.mark.parametrize(
    "left",
    ["prompt_ledger.jsonl", "credit/credit_00002.parquet", "checkpoint-2/trainer_state.json"],
)
def test_what_is_left_of_a_run_makes_a_folder_used(policy, used, tmp_path, left):
    (tmp_path / left).parent.mkdir(exist_ok=True)
    shutil.copy(used / left, tmp_path / left)
    with pytest.raises(ValueError, match="overwrite_output_dir"):
        trainer(policy, tmp_path).train()


def test_a_try_that_failed_in_its_first_step_leaves_its_folder_free(policy, tmp_path, capsys):
    def broken(completions, trainer_state, **kwargs):
        return [1 / trainer_state.global_step] * len(completions)

    tried = trainer(policy, tmp_path, log_token_credit=0)
    tried.reward_funcs = [broken]
    with pytest.raises(ZeroDivisionError):
        tried.train()
    assert (tmp_path / "training.json").is_file()
    (tmp_path / "mine.txt").write_text("mine")
    again = trainer(policy, tmp_path, temperature=0.5)
    again.train()
    assert again.state.global_step == 2 and (tmp_path / "mine.txt").is_file()
    assert "is cleared of records" in capsys.readouterr().out


def test_overwriting_clears_what_runs_write_and_nothing_else(policy, run):
    for name in OWN:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    kept = run.parent / "kept"
    (run / "checkpoint-2").rename(kept)
    os.symlink(kept, run / "checkpoint-2")
    os.symlink(run.parent, run / "checkpoint-7")
    trainer(
        policy,
        run,
        advantage_estimator="grpo",
        save_strategy="no",
        overwrite_output_dir=True,
        max_steps=1,
    ).train()
    assert (kept / "model.safetensors").is_file() and not (run / "checkpoint-2").is_symlink()
    assert [(run / name).read_text() for name in OWN] == ["mine"] * len(OWN)
    left = {name for name in contents(run) if name not in OWN}
    beside_a_model = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert left - beside_a_model == {"training.json", "prompt_ledger.jsonl"}
    assert json.loads((run / "training.json").read_text())["methods"] == ["grpo"]


def test_overwriting_spares_the_model_that_the_run_starts_from(policy, run):
    with pytest.raises(ValueError, match="the model that the run starts from"):
        trainer(str(run / "checkpoint-2"), run, overwrite_output_dir=True).train()
    assert (run / "checkpoint-2" / "model.safetensors").is_file()


def test_a_checkpoint_that_is_a_link_is_the_runs_own(policy, run, tmp_path):
    (run / "checkpoint-2").rename(tmp_path / "where there is room")
    os.symlink(tmp_path / "where there is room", run / "checkpoint-2")
    again = trainer(policy, run, max_steps=3, overwrite_output_dir=True)
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 3 and (run / "checkpoint-2").is_symlink()


def test_a_run_that_died_before_its_first_checkpoint_starts_anew_with_latest(policy, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trainer(policy, tmp_path, At(1, die), log_token_credit=1).train()
    assert (tmp_path / "credit" / "credit_00001.parquet").is_file()
    with pytest.raises(ValueError, match="resume_from_checkpoint latest"):
        trainer(policy, tmp_path).train()
    with pytest.raises(ValueError, match="temperature: 1.0 -> 0.5"):
        trainer(policy, tmp_path, temperature=0.5).train(resume_from_checkpoint="latest")
    # a gradient that was not finite may have ended it
    again = trainer(policy, tmp_path, learning_rate=1e-4)
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 2
    assert [path.name for path in (tmp_path / "credit").iterdir()] == ["credit_00002.parquet"]


def test_a_checkpoint_of_another_folder_needs_a_folder_of_its_own(policy, used, run, tmp_path):
    trainer(policy, tmp_path / "new").train(resume_from_checkpoint=str(used / "checkpoint-2"))
    with pytest.raises(ValueError, match="overwrite_output_dir"):
        trainer(policy, run).train(resume_from_checkpoint=str(used / "checkpoint-2"))


def test_a_checkpoint_that_was_found_is_resumed_from_where_it_is_asked_for(policy, run):
    """To look is not to ask: without an argument `train` starts anew, in a folder that it clears."""
    anew = trainer(policy, run, overwrite_output_dir=True)
    found = anew.find_checkpoint("latest")
    assert found == str(run / "checkpoint-2")
    result = anew.train()
    assert anew.resumed_from is None and result.metrics["train_runtime"] > 0
    on = trainer(policy, run, max_steps=3)
    on.train(on.find_checkpoint("latest"))
    assert on.resumed_from == run / "checkpoint-2" and on.state.global_step == 3
    with pytest.raises(ValueError, match="already contains a run"):
        refused = trainer(policy, run)
        refused.find_checkpoint("latest")
        refused.train()
