"""Accidents end well: Ctrl-C costs one line, and a full disk no checkpoint; both say how to go
on."""

import os
import signal
import sys
from pathlib import Path

import pytest
from harness import config, mixed_reward, problems, start_on_ranks, write_recipe
from trl import GRPOTrainer

from trl_miner import cli, train
from trl_miner.training import RunTrainer


def interrupting(prompts, completions, trainer_state=None, **kwargs):
    """Press Ctrl-C in the third step, after two checkpoints."""
    if trainer_state is not None and trainer_state.global_step == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return mixed_reward(prompts, completions)


def command(words, said=None):
    """Train as `accelerate launch -m trl_miner.train` does, in this process."""
    if said is not None:  # pytest has its own stderr
        sys.stderr = open(said, "a", buffering=1)
    os._exit(train._command(words))


def own_lines(said):
    """Return what a user reads at the end: all lines of ours, and of a traceback."""
    return [
        line for line in said.splitlines() if line.startswith(("trl-miner", "Traceback", "  File"))
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_costs_one_line_that_says_how_to_go_on(policy, tmp_path, processes):
    settings = dict(
        model_name_or_path=policy,
        output_dir=tmp_path / "run",
        max_steps=3,
        save_strategy="steps",
        save_steps=1,
    )
    recipe = write_recipe(
        tmp_path / "r.yaml", reward_funcs=["test_accidents.interrupting"], **settings
    )
    ranks = start_on_ranks(processes, command, ["--config", recipe], str(tmp_path / "said"))
    for process in ranks.processes:
        process.join(240)
    assert [process.exitcode for process in ranks.processes] == [130] * processes
    (line,) = own_lines((tmp_path / "said").read_text())
    assert "stopped by Ctrl-C." in line and line.endswith(
        "the same command with --resume_from_checkpoint latest"
    )


IN_A_STEP = 8  # rollouts; a preview calls a reward function for fewer


def leaving(prompts, completions, **kwargs):
    """End the process, as a script does whose last line is sys.exit."""
    if len(completions) == IN_A_STEP:
        sys.exit(0)
    return [0.0] * len(completions)


def filling(prompts, completions, trainer_state=None, **kwargs):
    """Fill the disk for the file that grows in each step."""
    ledger = Path.cwd() / "run" / "prompt_ledger.jsonl"
    if len(completions) == IN_A_STEP:
        ledger.unlink()
        ledger.symlink_to("/dev/full")
    return mixed_reward(prompts, completions)


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (leaving, "'leaving' failed with sys.exit(0). Mend it in test_accidents.py, line "),
        (filling, "The disk has no room left"),
    ],
)
def test_what_ends_a_training_from_outside_costs_one_line(
    policy, tmp_path, monkeypatch, reward, says
):
    monkeypatch.chdir(tmp_path)
    funcs = [f"test_accidents.{reward.__name__}"]
    recipe = write_recipe(
        Path("r.yaml"), model_name_or_path=policy, output_dir="run", reward_funcs=funcs
    )
    ranks = start_on_ranks(1, command, ["--config", recipe], str(tmp_path / "said"))
    ranks.processes[0].join(240)
    assert ranks.processes[0].exitcode == 2
    (line,) = own_lines((tmp_path / "said").read_text())
    assert says in line


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ("eval --model x --benchmarks math500", "trl_miner.evaluation.evaluate.load_problem_sets"),
        ("sft --config x --model y", "trl_miner.recipe.files.with_recipe_file"),
    ],
)
def test_ctrl_c_costs_other_commands_one_line(words, at, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(at, interrupt)
    assert cli.main(words.split()) == 130
    (line,) = own_lines(capsys.readouterr().err)
    assert "stopped by Ctrl-C. " in line and "same command" in line


def test_a_disk_that_takes_no_checkpoint_is_told_with_its_space_and_the_last_one(
    policy, tmp_path, monkeypatch
):
    def fill(trainer, folder, model, trial=None):
        if trainer.state.global_step == 2:
            (tmp_path / "checkpoint-2").mkdir()
            (tmp_path / "checkpoint-2" / "optimizer.pt").touch()
            raise RuntimeError("PytorchStreamWriter failed writing file")
        save(trainer, folder, model)

    save = GRPOTrainer._save_checkpoint
    monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", fill)
    args = config(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    with pytest.raises(
        RuntimeError,
        match=r"checkpoint-2 could .*MiB free: Py.* The run can go on from checkpoint-1",
    ):
        RunTrainer(policy, mixed_reward, args, problems()).train()
    assert not (tmp_path / "checkpoint-2").exists()  # what it held is free again
