"""The table of a comparison, of runs with known numbers, and the picture on a model card."""

import json
from pathlib import Path

import pytest
from studies import counts_of

from trl_miner.compare import Run
from trl_miner.runs.history import RunHistory
from trl_miner.runs.trainer_state import columns_of
from trl_miner.viewing.curves import draw_training
from trl_miner.viewing.tables import methods_table


@pytest.mark.parametrize(
    "more", [{}, {"groups/ph": 0.25, "groups/he": 0.5, "rollouts/grpo": 0.5, "rollouts/used": 0.6}]
)
def test_a_run_becomes_a_picture(tmp_path, more):
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": []}))
    with pytest.raises(ValueError, match="no logged training step"):
        draw_training(tmp_path)
    logs = [{"step": step, "reward": 0.5 + step / 100} | more for step in range(1, 5)]
    state.write_text(json.dumps({"log_history": [*logs, {"step": 4, "train_loss": 0.0}]}))
    path = draw_training(tmp_path)
    assert path == tmp_path / "training.png" and path.read_bytes()[:4] == b"\x89PNG"


def run_of(*passes, totals=(800, 400), estimator="ucas"):
    """A run of 60 optimizer steps, two per generation batch, scored before, after 20 and 40, and after training."""
    logs = [{"step": 20, "reward": 1.0, "step_time": 0.5}, {"step": 60, "reward": 1.0, "step_time": 1.5}]
    if totals:
        logs[0] |= {"rollouts/generated_total": 100.0, "rollouts/used_total": 1.0}
        logs[1] |= {"rollouts/generated_total": float(totals[0]), "rollouts/used_total": float(totals[1])}
    scores = {20.0 * at: {"pass@1": p, "pass@8": min(1.0, p + 0.1)} for at, p in enumerate(passes)}
    settings = {"advantage_estimator": estimator}
    return RunHistory(Path("run"), "run", columns_of(logs), "m", settings=settings, scores=scores, per_step=2)


def cells_of(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.markdown().splitlines()[2:6]]


def test_steps_count_to_the_best_mean_of_grpo():
    runs = {
        # means of grpo: .5, .6, .8, .7 -> the mark is .8, at step 20; only seed 1 reaches it there, seed 2 never does
        "grpo": [run_of(*passes, estimator="grpo") for passes in ((0.5, 0.7, 0.9, 0.7), (0.5, 0.5, 0.7, 0.7))],
        # 10 and 30: mean 20, sample standard deviation sqrt(10^2 + 10^2) = 14.14
        "miner": [run_of(0.5, 0.85, 0.7, 0.9, totals=(800, 600)), run_of(0.5, 0.5, 0.75, 0.8, totals=(1000, 700))],
        "ucas": [run_of(0.5, 0.5, 0.5, 0.5, totals=None), None],
    }
    table = methods_table(runs | {"dapo": [None, None]})
    # pass@1 .9 and .8: mean .85, std .1 / sqrt(2) = .071; rollouts 800 and 1000: std 141; shares .75 and .7: std .035
    # (0.5 + 1.5) / 2 = 1 s for an optimizer step; two of them are a step
    assert cells_of(table) == [
        ["grpo", "2", "0.700 ± 0.000", "0.800 ± 0.000", "20 (1 of 2)", "2.00 ± 0.00", "800 ± 0", "50.0% ± 0.0%"],
        ["miner", "2", "0.850 ± 0.071", "0.950 ± 0.071", "20 ± 14", "2.00 ± 0.00", "900 ± 141", "72.5% ± 3.5%"],
        ["ucas", "1 of 2", "0.500", "0.600", "not reached (0 of 1)", "2.00", "n/a", "n/a"],
        ["dapo", "0 of 2", *["n/a"] * 6],
    ]
    assert len({len(line) for line in table.markdown().splitlines()[:6]}) == 1  # a terminal shows the columns, too
    assert (
        "GRPO's best Pass@1: 0.800, the best mean over the runs of grpo at a scored step (step 20)" in table.notes[1]
    )
    table = methods_table({"grpo": [None], "ucas": [run_of(0.5, 0.7, 0.9, 0.7)]})
    assert [row[4] for row in table.rows] == ["n/a", "n/a"] and "no finished run is plain GRPO" in table.notes[1]


def test_a_run_without_a_score_after_training_or_without_a_state_is_not_finished(tmp_path):
    state, compared = tmp_path / "trainer_state.json", {"method": "m", "seed": 1, "optimizer_steps_per_step": 2}
    (tmp_path / "training.json").write_text(json.dumps({"compared": compared}))
    state.write_text(json.dumps({"global_step": 6, "log_history": [{"step": 6, "reward": 1.0}]}))
    for moments, is_finished in ((["before"], False), (["before", "after"], True)):
        scores = {moment: {"pass@1": 0.5} for moment in moments}
        (tmp_path / "held_out.json").write_text(json.dumps(counts_of(scores, 6)))
        found = Run(tmp_path, tmp_path, {}).result()
        assert (found is not None) == is_finished
    assert list(found.scores) == [0, 6] and found.per_step == 2
    (tmp_path / "checkpoint-6").mkdir()  # killed after the scores, before the end
    state.rename(tmp_path / "checkpoint-6" / "trainer_state.json")
    assert Run(tmp_path, tmp_path, {}).result() is None
