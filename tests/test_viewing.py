"""Pictures and tables of runs: what is read, what is drawn, and which runs lack something."""

import json

import pytest
from studies import counts_of

from trl_miner.viewing.comparison import compare_runs, comparison_table, summarize_run
from trl_miner.viewing.curves import draw_training, read_runs


@pytest.mark.parametrize(
    "more", [{}, {"groups/ph": 0.25, "groups/he": 0.5, "rollouts/grpo": 0.5, "rollouts/used": 0.6}]
)
def test_a_run_becomes_a_picture(tmp_path, more):
    logs = [{"step": step, "reward": 0.5 + step / 100} | more for step in range(1, 5)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [*logs, {"step": 4, "train_loss": 0.0}]}))
    path = draw_training(tmp_path)
    assert path == tmp_path / "training.png" and path.read_bytes()[:4] == b"\x89PNG"


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no trainer_state.json"):
        read_runs(tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": []}))
    with pytest.raises(ValueError, match="no logged training step"):
        draw_training(tmp_path)


def write_compared_run(folder, method, seed, passes, totals=(800, 400), step_times=(0.5, 1.5), per_step=2):
    """A finished run of 60 optimizer steps, scored before, after 20 and 40, and after training."""
    folder.mkdir(parents=True)
    moments = ("before", "step 20", "step 40", "after")
    # written out of order, as when a resumed run adds to an older file
    scores = {m: {"pass@1": p, "pass@8": min(1.0, p + 0.1)} for m, p in reversed([*zip(moments, passes, strict=True)])}
    logs = [
        {"step": 20, "reward": 1.0, "step_time": step_times[0]},
        {"step": 60, "reward": 1.0, "step_time": step_times[1]},
    ]
    if totals:
        logs[0] |= {"rollouts/generated_total": 100.0, "rollouts/used_total": 1.0}
        logs[1] |= {"rollouts/generated_total": float(totals[0]), "rollouts/used_total": float(totals[1])}
    files = {
        "training.json": {"compared": {"method": method, "seed": seed, "optimizer_steps_per_step": per_step}},
        "held_out.json": counts_of(scores, 60),
        "trainer_state.json": {"global_step": 60, "log_history": [*logs, {"step": 60, "train_loss": 0.0}]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return summarize_run(folder)


def test_a_run_is_summarized_in_generation_batches(tmp_path):
    run = write_compared_run(tmp_path / "run", "miner", 1, (0.5, 0.6, 0.7, 0.8))
    assert (run.method, run.seed, run.final) == ("miner", 1, {"pass@1": 0.8, "pass@8": 0.9})
    assert {step: scores["pass@1"] for step, scores in run.scores.items()} == {0: 0.5, 10: 0.6, 20: 0.7, 30: 0.8}
    # (20 * 0.5 + 40 * 1.5) / 60 optimizer steps = 7/6 s; two of them are a step
    assert run.seconds_per_step == pytest.approx(7 / 3)
    assert (run.generated, run.used) == (800, 0.5)  # 400 of 800, the last values


def test_steps_count_to_the_best_mean_of_grpo(tmp_path):
    runs = [
        # means of grpo: .5, .6, .8, .7 -> the mark is .8, at step 20; only seed 1 reaches it there, seed 2 never does
        write_compared_run(tmp_path / "g1", "grpo", 1, (0.5, 0.7, 0.9, 0.7)),
        write_compared_run(tmp_path / "g2", "grpo", 2, (0.5, 0.5, 0.7, 0.7)),
        # 10 and 30: mean 20, sample standard deviation sqrt(10^2 + 10^2) = 14.14
        write_compared_run(tmp_path / "m1", "miner", 1, (0.5, 0.85, 0.7, 0.9), totals=(800, 600)),
        write_compared_run(tmp_path / "m2", "miner", 2, (0.5, 0.5, 0.75, 0.8), totals=(1000, 700)),
        write_compared_run(tmp_path / "u1", "ucas", 1, (0.5, 0.5, 0.5, 0.5), totals=None),
    ]
    comparison = compare_runs(runs, dict.fromkeys(["grpo", "miner", "ucas", "dapo"], 2), baseline="grpo")
    assert comparison["target"] == {"pass@1": pytest.approx(0.8), "step": 20}
    assert comparison["rows"][1]["steps_to_target"] == {"mean": 20, "std": pytest.approx(200**0.5), "runs": 2}
    lines = comparison_table(comparison).markdown().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]]
    # pass@1 .9 and .8: mean .85, std .1 / sqrt(2) = .071; rollouts 800 and 1000: std 141; shares .75 and .7: std .035
    assert cells == [
        ["grpo", "0.700 ± 0.000", "0.800 ± 0.000", "20 (1 of 2)", "2.33 ± 0.00", "800 ± 0", "50.0% ± 0.0%"],
        ["miner", "0.850 ± 0.071", "0.950 ± 0.071", "20 ± 14", "2.33 ± 0.00", "900 ± 141", "72.5% ± 3.5%"],
        ["ucas (1 of 2 runs)", "0.500", "0.600", "not reached (0 of 1)", "2.33", "n/a", "n/a"],
        ["dapo (0 of 2 runs)", *["n/a"] * 6],
    ]
    assert len({len(line) for line in lines[:6]}) == 1  # a terminal shows the columns, too
    assert "GRPO's best Pass@1: 0.800, the best mean over the runs of grpo at a scored step (step 20)" in lines[-1]


def test_methods_that_were_to_have_unlike_numbers_of_runs_say_how_many(tmp_path):
    """One of one is no failure; one of two is."""
    runs = [
        write_compared_run(tmp_path / "g1", "grpo", 1, (0.5, 0.7, 0.9, 0.7)),
        write_compared_run(tmp_path / "u1", "ucas", 1, (0.5, 0.5, 0.5, 0.5)),
    ]
    table = comparison_table(compare_runs(runs, {"grpo": 2, "ucas": 1}, baseline="grpo")).markdown()
    assert "| grpo (1 of 2 runs) |" in table and "| ucas (1 run) " in table


@pytest.mark.parametrize(
    ("baseline", "named"), [(None, "no recipe is plain GRPO"), ("grpo", "no run of grpo has finished")]
)
def test_a_table_without_grpo_says_why_a_column_is_empty(tmp_path, baseline, named):
    runs = [write_compared_run(tmp_path / "run", "miner", 1, (0.5, 0.6, 0.7, 0.8))]
    table = comparison_table(compare_runs(runs, {"miner": 1}, baseline=baseline)).markdown()
    assert "n/a" in table.splitlines()[2] and f"are n/a: {named}" in table


def test_a_run_that_is_not_finished_is_named(tmp_path):
    write_compared_run(tmp_path / "run", "miner", 1, (0.5, 0.6, 0.7, 0.8))
    (tmp_path / "run" / "held_out.json").write_text(json.dumps(counts_of({"before": {"pass@1": 0.5}})))
    with pytest.raises(ValueError, match="it was not scored after training. Run compare again"):
        summarize_run(tmp_path / "run")
    (tmp_path / "run" / "trainer_state.json").unlink()
    with pytest.raises(FileNotFoundError, match="trainer_state.json is missing"):
        summarize_run(tmp_path / "run")
