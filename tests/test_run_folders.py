"""The golden folders are read, and written as they were.

`golden/run_folders` was made by commit dc44e67: see its README.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from trl_miner.cli import main
from trl_miner.runs import held_out, models, token_credit
from trl_miner.runs.checkpoints import last_step, newest
from trl_miner.runs.history import columns_of, read_run
from trl_miner.runs.runs_file import collect_runs
from trl_miner.viewing.inputs import read_inputs

GOLDEN = Path(__file__).parent / "golden" / "run_folders"
RUN, COMPARED, EVALUATED = GOLDEN / "run", GOLDEN / "compare", GOLDEN / "eval"


@pytest.fixture
def folders(tmp_path):
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    return tmp_path


# Reading


def test_logs_of_a_step_are_one_and_what_is_no_number_is_nan():
    """The last value counts; what is no training log is left out."""
    logs = [
        {"step": 2, "reward": 1, "b": "x"},
        {"step": 1, "reward": 0.5, "d": 10**400},
        {"step": 1, "eval": 3.0},
    ]
    logs += [{"step": 2, "reward": 0.25, "c": True}, 7, None, {"step": True, "reward": 1.0}]
    columns = columns_of(logs)
    assert columns["reward"].tolist() == [[1, 0.5], [2, 0.25]] and set(columns) == {
        "step",
        "reward",
        *"bcd",
    }
    assert all(np.isnan(columns[name][:, 1]).all() for name in "bcd")


def test_a_log_that_cannot_be_read_is_an_error_and_one_of_a_checkpoint_takes_its_place(folders):
    run = folders / "run"
    (run / "trainer_state.json").write_text("{")
    assert read_run(run).steps == 4
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(ValueError, match="trainer_state.json: Invalid JSON"):
        read_run(run)


@pytest.mark.parametrize("counts", [((5,), None), ((3,), (2,)), ((1, 2), (4,))])
def test_counts_that_cannot_be_are_an_error(counts):
    with pytest.raises(ValueError):
        held_out.Moment(0, 4, *counts)


def test_a_run_is_read():
    run = read_run(RUN)
    assert (run.steps, run.planned, run.finished, run.seed) == (4, 4, True, 1)
    assert run.per_step == 2
    assert run.values("step") == [(1, 1), (3, 3)] and run.values("miner/scale")
    assert run.scores == {
        0: {"pass@1": 0.6875, "pass@2": 0.75},
        2: {"pass@1": 0.6875, "pass@2": 0.75},
    } | {4: {"pass@1": 0.71875, "pass@4": 1.0}}
    assert run.held_out.after.num_correct == (4, 3, 1, 3, 1, 4, 4, 3)
    assert run.held_out.levels == (1, 2, 3, 4, 5, 1, 2, 3) and run.held_out.trained_levels == (
        1,
        2,
        3,
        4,
        5,
    )
    assert run.settings["miner_gamma"] == "2.0" and run.versions["git"] == "dc44e673e6a4"


def test_token_records_are_read():
    credit = token_credit.read_credit(RUN)
    assert (
        credit.methods == ("MINER",)
        and credit.notes == ()
        and {*credit.table["step"].to_pylist()} == {2, 4}
    )
    assert credit.table.num_rows == 24


def test_checkpoints_and_models_are_found():
    assert newest(RUN) is None and last_step(RUN) == 4  # the optimizers were deleted
    assert models.find_model(RUN).weights == RUN


def test_runs_are_collected_as_they_were(folders):
    before = [json.loads(line) for line in (COMPARED / "runs.jsonl").read_text().splitlines()]
    collect_runs(folders / "compare")
    after = [
        json.loads(line) for line in (folders / "compare" / "runs.jsonl").read_text().splitlines()
    ]
    assert after == before


# The commands


def test_the_commands_take_the_folders(folders, capsys):
    run, compared, evaluated = (str(folders / name) for name in ("run", "compare", "eval"))
    before = json.loads((folders / "eval" / "scores.json").read_text())["benchmarks"]
    assert main(["score", evaluated, "--quiet"]) == 0
    # scores by level have come since: level, problems, Pass@1
    before["arithmetic"]["levels"] = [["1", 1, 1.0], ["2", 1, 1.0], ["3", 1, 0.0], ["4", 1, 1.0]]
    assert json.loads((folders / "eval" / "scores.json").read_text())["benchmarks"] == before
    inputs = read_inputs([run, compared, evaluated])
    assert [one.name for one in inputs.runs] == ["run", "grpo/seed1", "miner/seed1"]
    assert [*inputs.results[0].benchmarks] == ["arithmetic"]
    assert main(["inspect", run, "--quiet"]) == 0
    dry = ["--repo-id", "me/tiny", "--dry-run", str(folders / "push")]
    assert main(["push", run, "--evaluation", evaluated, *dry]) == 0
    capsys.readouterr()
    assert "| Pass@1 |" in (folders / "push" / "README.md").read_text()
