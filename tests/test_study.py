"""The study of `recipes/study`: made small and really run, stopped and gone on with; its page from its raw results."""

import contextlib
import gzip
import json
import os
import random
import re
import runpy
import signal
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness import read_recipes_here, wait_until
from scipy.stats import ttest_1samp

from trl_miner import cli
from trl_miner.compare.recipes import parse_recipe
from trl_miner.compare.runs import ProcessRunner
from trl_miner.data.chains import problem
from trl_miner.data.worlds import WORLDS
from trl_miner.launching.local import STARTER
from trl_miner.runs.history import read_run
from trl_miner.runs.runs_file import read_runs
from trl_miner.train import main as train
from trl_miner.viewing.report import write_report

STUDY = Path(__file__).parent.parent / "recipes" / "study"
WORLD = WORLDS["trl_miner/strategies"]
STEPS = 4
SMALL = {
    "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 8,
    "score_problems": 20, "score_samples": 2, "score_final_samples": 8, "score_steps": 2, "logging_steps": 1,
    "save_strategy": "steps", "save_steps": 1, "learning_rate": 0.01, "reward_funcs": "harness.pausing_reward",
}  # fmt: skip


def options(policy):
    """Rewards of all kinds."""
    words = [word for key, value in SMALL.items() for word in (f"--{key}", str(value))]
    return ["--model_name_or_path", policy, *words]


def command(policy, output, methods=("grpo", "miner"), seeds="2"):
    """The arguments of a comparison."""
    recipes = [str(STUDY / f"{name}.yaml") for name in methods]
    return ["compare", "--recipes", *recipes, "--seeds", seeds] + [
        *("--output", str(output), "--steps", str(STEPS), *options(policy))
    ]


def train_here(runner, command, log, env):
    """In the place of `ProcessRunner.run`: the same training in this process, which has imported TRL."""
    with open(log, "a") as file, contextlib.redirect_stdout(file):
        train(command[len(STARTER) :])
    return 0


@pytest.fixture(scope="module")
def studies(policy, tmp_path_factory):
    """A study, stopped while two runs wait in their second step, and called again; one run in one go; one seed alone.

    What is not stopped is trained in this process.
    """
    folder = tmp_path_factory.mktemp("study")
    recipe = str(STUDY / "grpo.yaml")
    given = parse_recipe(recipe, options(policy), STEPS)["options"]
    train(["--config", recipe, *given, "--output_dir", str(folder / "whole"), "--seed", "1"])
    stopped = subprocess.Popen(
        [sys.executable, "-m", "trl_miner.cli", *command(policy, folder / "stopped"), "--jobs", "2"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PAUSE": "yes"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun = [folder / "stopped" / method / "seed1" / "checkpoint-1" for method in ("grpo", "miner")]
    wait_until(lambda: all(path.is_dir() for path in begun), stopped)
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=90)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert said.endswith(f"trl-miner report {folder / 'stopped'} shows the runs so far.\n")
    assert [run.finished for run in read_runs(folder / "stopped" / "runs.jsonl")] == [False, False]
    left = {str(path.relative_to(folder / "stopped")) for path in (folder / "stopped").glob("*/*")}
    assert left == {"grpo/seed1", "miner/seed1"}  # seed by seed, and nothing of runs that were still to come
    with pytest.MonkeyPatch.context() as patch:
        read_recipes_here(patch)
        patch.setattr(ProcessRunner, "run", train_here)
        assert cli.main(command(policy, folder / "stopped")) == 0
        assert cli.main(command(policy, folder / "second", methods=["miner"], seeds="2-2")) == 0
    return folder


@pytest.mark.slow
def test_an_interrupted_study_goes_on_to_the_same_results(studies):
    """Mid-run, from the checkpoints: every count of right answers is that of the run in one go."""
    stopped = {run.name: run for run in read_runs(studies / "stopped" / "runs.jsonl")}
    assert len(stopped) == 4 and all(run.finished for run in stopped.values())
    one, other = read_run(studies / "whole"), stopped["grpo/seed1"]
    assert one.finished and one.held_out == other.held_out
    assert one.values("rollouts/tokens_total")[-1] == other.values("rollouts/tokens_total")[-1]
    assert stopped["grpo/seed1"].held_out != stopped["grpo/seed2"].held_out
    text = (studies / "stopped" / "grpo" / "seed1" / "log.txt").read_text()
    assert text.count("before training, on 20 held-out problems") == 1  # the second life began at a checkpoint


@pytest.mark.slow
def test_a_seed_that_is_trained_alone_is_the_same_run(studies):
    """As on a second machine."""
    (alone,) = read_runs(studies / "second" / "runs.jsonl")
    together = {run.name: run for run in read_runs(studies / "stopped" / "runs.jsonl")}
    assert alone.name == "miner/seed2" and alone.held_out == together["miner/seed2"].held_out
    assert alone.settings == together["miner/seed2"].settings


@pytest.mark.slow
def test_the_reduced_study_ends_in_a_report_of_differences(studies):
    report = write_report([studies / "stopped" / "runs.jsonl"], studies / "report", quiet=True)
    text = report.with_name("report.md").read_text()
    for title in (
        "Against grpo, trained levels (1 to 6)",
        "Against grpo, levels beyond training (7 to 10)",
    ):
        assert title in text
    assert re.search(r"\| miner +\| +2 \|", text)


# The world


def test_strategies_come_in_their_shares_and_only_the_short_one_errs():
    rng = random.Random(0)
    counts = Counter()
    for place in range(4000):
        chain = problem(rng, 1 + place % 10)
        right, wrong = (
            WORLD.solution(chain, random.Random(place), 0.0),
            WORLD.solution(chain, random.Random(place), 1.0),
        )
        assert rf"\boxed{{{chain.answer}}}" in right
        assert rf"\boxed{{{chain.answer}}}" in wrong or WORLD.strategy_of(wrong) == "short"
        counts[WORLD.strategy_of(WORLD.solution(problem(rng, 3), rng))] += 1
    assert 2280 < counts["short"] < 2520  # .6 of 4000, standard deviation 31
    assert all(700 < counts[name] < 900 for name in ("careful", "regrouping"))  # .2 of 4000, standard deviation 25


def test_the_last_levels_are_tested_and_not_trained():
    assert set(WORLD.load_dataset("train", 60)["level"]) == {1, 2, 3, 4, 5, 6}
    assert Counter(WORLD.load_dataset("test")["level"]) == dict.fromkeys(range(1, 11), 20)


def test_strategies_are_counted_by_level(policy):
    """An untrained model, 10 problems, 16 rollouts each: the shares of a range of levels sum to 1."""
    names = runpy.run_path(str(STUDY / "strategies.py"))
    taken, right = names["count"](policy, 10)
    assert sum(taken.values()) == 160 and all(right[key] <= taken[key] for key in right)
    _, _, *rows = names["table"]([policy], 10).splitlines()
    for row in rows:
        assert 99 <= sum(int(share) for share in re.findall(r"(\d+)%(?:,| \|)", row)) <= 101  # rounded


# The results in the repository


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The rows of the tables that the raw files give, by file."""
    found = {}
    for name in ("methods", "sensitivity"):
        folder = tmp_path_factory.mktemp(name)
        text = write_report([STUDY / f"{name}.jsonl.gz"], folder, quiet=True).with_name("report.md").read_text()
        found[name] = {line for line in text.splitlines() if line.startswith("|")}
    return found


@pytest.mark.slow
def test_every_row_that_the_page_quotes_follows_from_the_raw_files(tables):
    """Rows of `trl-miner report`, and nothing else between the page's marks; tables of an earlier report have none."""
    quoted = re.findall(r"<!-- (\w+) -->\n(.*?)<!-- end -->", (STUDY / "tables.md").read_text(), re.DOTALL)
    assert len(quoted) >= 4
    for name, block in quoted:
        assert set(block.strip().splitlines()) <= tables[name], "trl-miner report again, and the page after it"


def runs_of(name):
    return [json.loads(line) for line in gzip.decompress((STUDY / f"{name}.jsonl.gz").read_bytes()).splitlines()]


def mean_over(run, key, first, last):
    """Of a metric's logs in a part of the run."""
    steps = run["logs"]["step"]
    known = [v for s, v in zip(steps, run["logs"][key], strict=True) if first * steps[-1] < s <= last * steps[-1]]
    return statistics.fmean(known)


def test_the_raw_results_are_of_every_recipe_with_the_seeds_that_the_page_says():
    seeds = {}
    for run in runs_of("methods"):
        seeds.setdefault(run["method"], set()).add(run["seed"])
        assert run["finished"] and run["held_out"]["moments"]["after"]["num_samples"] == 64
    fifteen = {"grpo", "miner", "miner_wo_ir", "miner_wo_fw", "miner_wo_ac"}
    assert seeds == {path.stem: set(range(1, 16 if path.stem in fifteen else 4)) for path in STUDY.glob("*.yaml")}


def test_a_cap_of_nothing_is_grpo_and_no_focus_is_the_ablation():
    """lambda_max 0 and gamma 0, by definition: the same counts of right answers at every score."""
    methods = {(run["method"], run["seed"]): run["held_out"]["moments"] for run in runs_of("methods")}
    same_as = {"lambda_0": "grpo", "gamma_0": "miner_wo_fw"}
    found = [run for run in runs_of("sensitivity") if run["method"] in same_as]
    assert {run["method"] for run in found} == set(same_as)
    for run in found:
        assert run["held_out"]["moments"] == methods[same_as[run["method"]], run["seed"]]


def test_the_regime_that_the_page_states_follows_from_the_raw_file():
    """Means over the fifteen runs of MINER, as plain Python has them."""
    miner = [run for run in runs_of("methods") if run["method"] == "miner"]
    early, late = (
        statistics.fmean(mean_over(run, "groups/ph", *part) for run in miner) for part in ((0, 0.2), (0.8, 1))
    )
    above = [
        pos is not None and pos > 1.5e-3 * ref  # none: no all-right prompt in the steps of this log
        for run in miner
        for pos, ref in zip(run["logs"]["miner/tau_pos"], run["logs"]["miner/tau_ref"], strict=True)
    ]
    page = (STUDY / "tables.md").read_text()
    assert early > 0.25 and late > 0.6 and statistics.fmean(above) > 1 / 3
    for value in (early, late, statistics.fmean(above)):
        assert f"| {100 * value:.0f} % |" in page


def test_the_entropies_that_the_page_states_follow_from_the_raw_file():
    """Means over the last fifth against GRPO's, paired by seed."""
    page = " ".join((STUDY / "README.md").read_text().split())
    entropies = {}
    for run in runs_of("methods"):
        entropies.setdefault(run["method"], {})[run["seed"]] = mean_over(run, "entropy", 0.8, 1)
    for method, between, form in (
        ("miner", " nats (paired over 15 seeds, p ", ".3f"),
        ("miner_wo_ac", " (p ", ".0e"),
        ("miner_wo_fw", " (p ", ".2f"),
        ("miner_wo_ir", " (p ", ".2f"),
    ):
        gains = [entropies[method][seed] - entropies["grpo"][seed] for seed in range(1, 16)]
        assert f"{statistics.fmean(gains):.4f}{between}{ttest_1samp(gains, 0).pvalue:{form}}" in page


def test_the_ceilings_that_the_page_states_follow_from_the_raw_file():
    page = " ".join((STUDY / "README.md").read_text().split())
    shares = {}
    for run in runs_of("methods"):
        if run["method"] == "grpo":
            for level, count in zip(
                run["held_out"]["problems"]["level"], run["held_out"]["moments"]["after"]["num_correct"], strict=True
            ):
                shares.setdefault((level > 6) + (level > 8), []).append(count / 64)
    trained, beyond, far_beyond = (100 * statistics.fmean(shares[part]) for part in range(3))
    assert f"GRPO ends at {trained:.1f} %" in page and f"at most {100 - trained:.2f} were left" in page
    assert f"a Pass@1 of {beyond:.1f} % and a Pass@64 of 100 %" in page and all(shares[1])
    solved = 100 * statistics.fmean(share > 0 for share in shares[2])
    assert f"levels 9 and 10, {far_beyond:.1f} % and {solved:.0f} %" in page


def test_the_update_that_the_page_states_follows_from_the_raw_file():
    """Medians over the measured steps but the first, whose second moment is that of one gradient; two runs each."""
    page = (STUDY / "tables.md").read_text()
    names = ("ph_gradient_share", "ph_update_share", "gradient_cosine", "update_cosine", "ph_logp_gain_paid")
    for name in (*names, "ph_logp_gain", "ph_logp_gain_others", "he_logp_gain_right", "he_logp_gain_wrong"):
        medians = []
        for method in ("miner", "miner_wo_ac"):
            runs = [run["logs"] for run in runs_of("update") if run["method"] == method]
            known = [
                v for r in runs for s, v in zip(r["step"], r[f"miner/{name}"], strict=True) if s > 4 and v is not None
            ]
            medians.append(statistics.median(known))
        assert "| {:.1e} | {:.1e} |".format(*medians) in page, name


def test_measuring_the_update_changed_no_run():
    """Those runs have the rewards, entropies and gradient norms of the study's, log by log."""
    plain = {(run["method"], run["seed"]): run["logs"] for run in runs_of("methods")}
    for run in runs_of("update"):
        for key in ("reward", "entropy", "grad_norm"):
            assert run["logs"][key] == plain[run["method"], run["seed"]][key]


def test_what_the_page_quotes_stands_in_the_tables():
    pages = [(STUDY / name).read_text() for name in ("README.md", "tables.md")]
    shown, known = (set(re.findall(r"[+-]\d\.\d\d \([+-]\d\.\d\d to [+-]\d\.\d\d\)", page)) for page in pages)
    assert shown and not shown - known
