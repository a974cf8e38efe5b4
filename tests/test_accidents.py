"""Accidents end well: Ctrl-C and a full disk cost one line, with what is kept and the command that goes on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import in_a_fork, mixed_reward, start_on_ranks

from trl_miner import cli, train
from trl_miner.runs.checkpoints import newest
from trl_miner.runs.run_folder import why_full

RECIPE = dict(
    **dict(dataset_name="trl_miner/arithmetic", use_cpu=True, bf16=False, num_generations=4, max_completion_length=8),
    **dict(per_device_train_batch_size=8, max_steps=3, held_out=0, save_strategy="steps", save_steps=1),
    **dict(disable_tqdm=True, report_to="none", logging_steps=1),
)


def write_recipe(policy, output, **settings):
    path = output.parent / "recipe.yaml"
    made = RECIPE | dict(model_name_or_path=policy, output_dir=str(output)) | settings
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in made.items()))
    return str(path)


def interrupting(prompts, completions, trainer_state=None, **kwargs):
    """Press Ctrl-C in the third step, after two checkpoints."""
    if trainer_state is not None and trainer_state.global_step == int(os.environ.get("AT_STEP", "2")):
        os.kill(os.getpid(), signal.SIGINT)
    return mixed_reward(prompts, completions)


def filling(prompts, completions, trainer_state=None, **kwargs):
    """Fill the disk of the run folder in the third step, but for a part of a checkpoint."""
    folder = Path(os.environ["RUN_FOLDER"])
    if trainer_state is not None and trainer_state.global_step == 2:
        free = shutil.disk_usage(folder).free
        (folder / "others.bin").write_bytes(bytes(max(0, free - int(os.environ["LEFT"]))))
    return mixed_reward(prompts, completions)


def command(words, said=None):
    """Train as `accelerate launch -m trl_miner.train` does, in this process."""
    if said is not None:  # pytest has its own stderr
        sys.stderr = open(said, "a", buffering=1)
    os._exit(train._command(words))


def own_lines(said):
    """Return what a user reads at the end: all lines of ours, and of a traceback."""
    return [line for line in said.splitlines() if line.startswith(("trl-miner", "Traceback", "  File"))]


@pytest.mark.parametrize(
    ("processes", "step", "said"),
    [
        (2, "2", "run/checkpoint-2. To go on: the same command with --resume_from_checkpoint latest"),
        (1, "0", "has no checkpoint to go on from"),
    ],
)
def test_ctrl_c_costs_one_line_with_the_checkpoint(policy, tmp_path, monkeypatch, processes, step, said):
    monkeypatch.setenv("AT_STEP", step)
    recipe = write_recipe(policy, tmp_path / "run", reward_funcs=["test_accidents.interrupting"])
    ranks = start_on_ranks(processes, command, ["--config", recipe], str(tmp_path / "said"))
    for process in ranks.processes:
        process.join(240)
    assert [process.exitcode for process in ranks.processes] == [130] * processes
    (line,) = own_lines((tmp_path / "said").read_text())
    assert "stopped by Ctrl-C." in line and said in line


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ("eval --model x --benchmarks math500", "trl_miner.evaluation.evaluate.load_problem_sets"),
        ("sft --config x --model y", "trl_miner.recipe_files.with_recipe_file"),
    ],
)
def test_ctrl_c_costs_other_commands_one_line(words, at, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(at, interrupt)
    assert cli.main(words.split()) == 130
    (line,) = own_lines(capsys.readouterr().err)
    assert "stopped by Ctrl-C. " in line and "same command" in line


@pytest.fixture
def small_disk(tmp_path):
    """A run folder of 8 MB; a checkpoint of the tests' policy has about 550 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("left", [200_000, 450_000])  # the weights, the optimizer do not fit
def test_a_full_disk_is_called_so(left, policy, small_disk, monkeypatch):
    recipe = write_recipe(policy, small_disk / "run", reward_funcs=["test_accidents.filling"])
    monkeypatch.setenv("RUN_FOLDER", str(small_disk))
    monkeypatch.setenv("LEFT", str(left))
    code, said = in_a_fork(command, ["--config", recipe])
    assert code == 2
    (line,) = own_lines(said)
    assert re.search(rf"disk is full.* {small_disk}\S* has 0\.\d MiB free", line), line
    assert "The newest checkpoint is" in line and line.endswith("--resume_from_checkpoint latest")
    assert newest(small_disk / "run").name == "checkpoint-2"
    assert not (small_disk / "run" / "checkpoint-3").exists()  # what it held is free again
    (small_disk / "others.bin").unlink()
    monkeypatch.setenv("LEFT", "8000000")
    assert in_a_fork(command, ["--config", recipe, "--resume_from_checkpoint", "latest"])[0] == 0


def test_other_errors_are_no_full_disk(tmp_path):
    for error in (RuntimeError("unexpected pos 841152 vs 841046"), OSError(13, "Permission denied"), ValueError("28")):
        assert why_full(error, tmp_path) is None
    with pytest.raises(RuntimeError) as raised:
        try:
            Path("/dev/full").write_text("x")
        except OSError as error:
            raise RuntimeError("this could not be saved") from error
    assert "disk is full" in why_full(raised.value, tmp_path)
