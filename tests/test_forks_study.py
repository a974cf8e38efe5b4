"""The study of `recipes/forks`: its gates, its statistics, and its page from its raw results."""

import math
import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logit
from studies import write_study

from trl_miner.data import forks
from trl_miner.data.base_model import BaseModelSettings, _new_model
from trl_miner.runs.history import read_run
from trl_miner.runs.runs_file import read_runs

FORKS = Path(__file__).parent.parent / "recipes" / "forks"
RAW = ("study.jsonl.gz", "real_model.jsonl.gz")
analysis, gates = (runpy.run_path(str(FORKS / f"{name}.py")) for name in ("analysis", "gates"))


def test_an_effect_is_a_mean_over_seeds_with_students_interval():
    """0.1, 0.2, 0.3: mean .2, error .1/sqrt(3) = .0577, t .975 of 2 degrees 4.303: half width .2484."""
    found = analysis["effect"]([0.1, 0.2, 0.3])
    assert (found.seeds, round(found.mean, 4), round(found.half_width, 4)) == (3, 0.2, 0.2484)
    assert round(found.p, 4) == 0.0742  # t = 3.464
    assert found.verdict == "not decided"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.20, 0.22, 0.21, 0.19], "higher"),
        ([-0.20, -0.22, -0.21, -0.19], "lower"),
        ([0.01, -0.01, 0.02, -0.02], "no difference beyond the margin"),
        ([0.04, 0.05, 0.06, 0.05], "higher, within the margin"),
        ([0.3, -0.3, 0.2, -0.2], "not decided"),
        ([0.3], "not decided"),
    ],
)
def test_a_verdict_says_direction_and_size(differences, verdict):
    assert analysis["effect"](differences).verdict == verdict


@pytest.fixture
def planted(tmp_path):
    """Runs of two methods with three seeds: GRPO at 60 %, an oracle at 75 % of the trained levels."""
    runs = []
    for folder in write_study(tmp_path, after={"grpo": 0.60, "miner": 0.75}, per_log=lambda *_: {"groups/ph": 0.5}):
        run = read_run(folder)
        levels = tuple(level - 1 for level in run.held_out.levels)  # 0 to 7, as in forks
        settings = {**run.settings, "dataset_name": forks.NAME}
        method = {"miner": "oracle"}.get(run.method, run.method)
        runs.append(replace(run, method=method, settings=settings, held_out=replace(run.held_out, levels=levels)))
    return runs


def test_log_odds_are_those_of_the_right_samples(planted):
    """80 problems of 64 samples, and half a sample added to either side."""
    moment = planted[0].held_out.after
    right = sum(moment.num_correct)
    expected = math.log((right + 0.5) / (80 * 64 - right + 0.5))
    assert analysis["log_odds"](planted[0]) == pytest.approx(expected)


def test_the_tables_show_the_planted_effect(planted):
    methods = analysis["by_world"](planted)["forks"]
    table = analysis["effect_table"]("forks", methods)
    cells = dict(zip(table.header, table.rows[0], strict=True))
    assert cells["Method"] == "oracle" and cells["Seeds"] == "3" and cells["Verdict"] == "higher"
    assert 10 < float(cells["levels 0 and 1, points"]) < 20  # 15 planted


def test_scores_are_shown_by_level_once_and_ever(planted):
    """80 problems of 64 samples, ten of each level: the mean over three runs, in percent."""
    methods = analysis["by_world"](planted)["forks"]
    table = analysis["score_table"]("forks", methods)
    row = dict(zip(table.header, table.rows[2], strict=True))
    right = np.array([run.held_out.after.num_correct for run in methods["oracle"].values()])
    levels = np.array(planted[0].held_out.levels)
    assert row["Method"] == "oracle" and row["Pass@1, all"] == f"{100 * right.mean() / 64:.1f}"
    hard = right[:, (levels >= 2) & (levels <= 4)]
    assert row["Pass@1, levels 2 to 4"] == f"{100 * hard.mean() / 64:.1f}"
    assert row["Pass@64, levels 2 to 4"] == f"{100 * (hard > 0).mean():.1f}"
    assert table.rows[0][:2] == ["before training", "6"]
    training = analysis["training_table"]("forks", methods)
    assert dict(zip(training.header, training.rows[0], strict=True))["Prompts all right, %"] == "50"  # planted


def test_each_method_is_compared_with_its_own_baseline(planted):
    methods = analysis["by_world"](planted)["forks"]
    measure = analysis["log_odds"]
    assert analysis["against_baseline"]("grpo", methods, measure) is None
    renamed = {"repeats": methods["grpo"], "ledger": methods["oracle"], "grpo": methods["oracle"]}
    assert analysis["against_baseline"]("ledger", renamed, measure).mean > 0.5
    assert analysis["against_baseline"]("oracle", {"oracle": methods["oracle"]}, measure) is None


def test_the_baseline_is_the_better_one_of_two_learning_rates(planted):
    methods = analysis["by_world"](planted)["forks"]
    for weak, strong, expected in (("grpo", "oracle", "grpo_2e-4"), ("oracle", "grpo", "grpo")):
        known = {"grpo": methods[weak], "grpo_2e-4": methods[strong], "miner": methods["oracle"]}
        assert analysis["baseline_of"]("miner", known) == expected
        assert (analysis["against_baseline"](expected, known, analysis["log_odds"])) is None
    assert analysis["baseline_of"]("ledger", methods | {"repeats": methods["oracle"]}) == "repeats"


def test_three_comparisons_decide(planted):
    """Two of them are here. Holm: the smaller p is doubled."""
    methods = analysis["by_world"](planted)["forks"]
    worlds = {"forks": {"grpo": methods["grpo"], "miner": methods["oracle"]}}
    worlds["mirror"] = {"grpo": methods["oracle"], "miner": methods["grpo"], "entropy": methods["grpo"]}
    table = analysis["confirmatory_table"](worlds, to_the_letter=False)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["Comparison"] for row in rows] == ["miner against grpo, forks", "miner against grpo, mirror"]
    assert [row["Verdict"] for row in rows] == ["higher", "lower"]
    assert all(float(row["p, Holm"]) == pytest.approx(2 * float(row["p"]), abs=2e-3) for row in rows)
    oracle = methods["oracle"]
    worlds["forks"]["grpo_2e-4"] = {1: oracle[2], 2: oracle[3], 3: oracle[1]}
    both = [analysis["confirmatory_table"](worlds, to_the_letter=letter).rows[0][0] for letter in (False, True)]
    assert both == ["miner against grpo_2e-4, forks", "miner against grpo, forks"]


def test_more_seeds_than_planned_are_a_table_of_their_own(planted):
    """Seeds 1 to 3 are 11 to 13 as well: three added pairs, six in all."""
    runs = [replace(run, method={"oracle": "miner"}.get(run.method, run.method)) for run in planted]
    worlds = analysis["by_world"](runs + [replace(run, seed=run.seed + 10) for run in runs])
    assert {*worlds["forks"]["grpo"]} == {1, 2, 3} and analysis["effect_table"]("forks", worlds["forks"]).rows[0][
        1
    ] == "3"
    rows = analysis["more_seeds_table"](worlds).rows
    assert [row[:2] for row in rows] == [["added", "3"], ["all", "6"]] and rows[0][2][:5] == rows[1][2][:5]


@pytest.mark.parametrize(
    ("before", "found", "holds"),
    [
        ([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], True),  # -0.05 to 0.45 and 0.05 to 0.55
        ([0.1, 0.1, 0.2], [0.8, 0.9, 1.0], False),  # -0.01 to 0.28 and 0.65 to 1.15
        ([0.1, 0.11, 0.12], [-0.3, 0.0, 0.2], False),  # 0.09 to 0.13 was clear; -0.65 to 0.59 has the other sign
        ([-0.1, 0.0, 0.2], [-0.3, 0.0, 0.2], True),  # nothing was clear
    ],
)
def test_a_finding_holds_again_where_intervals_overlap_and_a_clear_sign_stays(before, found, holds):
    assert analysis["holds_again"](*(analysis["effect"](values) for values in (before, found))) == holds


def test_runs_from_another_base_model_are_a_table_of_their_own(planted):
    """The planted effect again, of two of the three seeds."""
    again = analysis["by_world"]([run for run in planted if run.seed < 3], analysis["AGAIN"])
    worlds = analysis["by_world"](planted) | again
    table = analysis["again_table"](worlds)
    (row,) = (dict(zip(table.header, row, strict=True)) for row in table.rows)
    assert (row["Method"], row["Seeds"], row["Seeds, study"], row["Holds again"]) == ("oracle, forks", "2", "3", "yes")
    assert row["Study"] == analysis["effect_table"]("forks", worlds["forks"]).rows[0][2]
    assert "Again, with another base model" in [table.title for table in analysis["tables"](worlds)]


def test_the_seeds_that_a_verdict_needs():
    """A standard deviation of 0.05 and a difference of 0.1: two-sided t at 5 %, power 80 %, 5 pairs (91 %), not 4."""
    differences = [0.05 * value for value in (-1, 0, 1)]  # standard deviation 0.05
    assert analysis["seeds_needed"](differences) == 5


def test_a_score_is_reached_with_the_rollouts_generated_until_then(planted):
    logs = [{"step": step, "rollouts/generated_total": 128 * step} for step in (5, 50, 100)]
    run = replace(planted[0], logs=logs, scores={0: {"pass@1": 0.4}, 50: {"pass@1": 0.5}, 100: {"pass@1": 0.6}})
    assert [analysis["reached_at"](run, wanted) for wanted in (0.3, 0.45, 0.9)] == [(0, 0), (50, 6400), None]


def test_the_share_of_the_gradient_is_one_of_mean_norms(planted):
    """Norms 1 and 3, then 1 and 0 in a batch without mixed prompts: 2 of 5, and not the mean of 1/4 and 1."""
    logs = [{"step": 1, "miner/ph_gradient_norm": 1.0, "miner/other_gradient_norm": 3.0}]
    logs += [{"step": 2, "miner/ph_gradient_norm": 1.0, "miner/other_gradient_norm": 0.0}]
    assert analysis["gradient_share"](replace(planted[0], logs=logs)) == pytest.approx(2 / 5)


@pytest.fixture(scope="module")
def measured():
    worlds = analysis["by_world"](run for name in RAW for run in read_runs(FORKS / "results" / name))
    return worlds | analysis["by_world"](read_runs(FORKS / "results" / "again.jsonl.gz"), analysis["AGAIN"])


def test_the_tables_are_those_of_the_raw_results(measured):
    (quoted,) = analysis["MARKED"].findall((FORKS / "tables.md").read_text())
    assert quoted == analysis["sections"](measured), "run analysis.py with --page tables.md, and read the pages again"


def ended(measured, world, name, levels=None, seeds=None):
    """Return by seed the share of right samples after training, of problems of these levels (None: of all)."""
    runs = [run for seed, run in sorted(measured[world][name].items()) if seeds is None or seed in seeds]
    chosen = np.isin(runs[0].held_out.levels, list(levels or {*runs[0].held_out.levels}))
    moments = [run.held_out.after for run in runs]
    return np.array([np.array(after.num_correct)[chosen].mean() / after.num_samples for after in moments])


def solved(measured, world, name):
    """Return by seed the percentage of problems with a right sample after training: Pass@K of K samples."""
    runs = [run for _, run in sorted(measured[world][name].items())]
    return np.array([100 * np.mean(np.array(run.held_out.after.num_correct) > 0) for run in runs])


def differences(measured, world, name, baseline, *, scale=np.asarray, levels=None, seeds=None):
    """Return an arm's differences from its baseline by seed, of shares of right samples or of their `scale`."""
    seeds = seeds or {*measured[world][name]} & {*measured[world][baseline]}
    own, base = (scale(ended(measured, world, each, levels, seeds)) for each in (name, baseline))
    return own - base


def with_interval(gaps):
    """Return the mean of paired differences and its 95 % interval, by scipy's t-test."""
    return gaps.mean(), *stats.ttest_1samp(gaps, 0).confidence_interval()


def effect_of(measured, world, name, baseline="grpo_2e-4", seeds=None):
    """Return the mean difference in log-odds, and its 95 % interval."""
    return with_interval(differences(measured, world, name, baseline, scale=logit, seeds=seeds))


@pytest.mark.parametrize(
    ("page", "quotes"),
    [
        (
            "recipes/RESULTS.md",
            [
                ("mirror", "miner", "harder problems | {} | 5 | no difference"),
                ("real", "miner", "on arithmetic | {} | 6 | six pairs cannot tell"),
                ("forks, again", "miner", "MINER ended {} in forks"),
                ("mirror, again", "miner", "and {} in the mirror. Models"),
                ("forks", "miner_1", "In forks that ended {}"),
                ("mirror", "miner_1", "in the mirror {}. At 0.05"),
                ("forks", "miner_5", "At 0.05 it ended {}"),
                ("mirror", "miner_5", "and {}: only where"),
                ("forks", "entropy", "on solved prompts, ended {} in forks"),
            ],
        ),
        (
            "recipes/forks/README.md",
            [
                ("mirror", "miner", "harder problems | {} | 5 | no difference"),
                ("real", "miner", "on arithmetic | {} | 6 | six pairs cannot tell"),
                ("forks", "miner_1", "(`miner_1`) ends {}"),
                ("forks", "miner_5", "at 5 % {}, at 20"),
                ("forks", "miner_20", "at 20 % {}. In the mirror"),
                ("mirror", "miner_1", "1 % ends {}"),
                ("mirror", "miner_5", "5 % {}, 20"),
                ("mirror", "miner_20", "20 % {}. -"),
                ("forks", "oracle", "the oracle {}"),
                ("forks", "uniqueness", "which counts the ways, {}"),
                ("forks", "entropy", "which ends {}"),
                ("forks", "dapo", "which drops solved prompts, ends {}"),
                ("forks, again", "miner", "four seeds: MINER {} in forks"),
                ("mirror, again", "miner", "and {} in the mirror, at 5 %"),
                ("forks, again", "miner_5", "of the gradient {} and"),
                ("mirror, again", "miner_5", "and {}. So with"),
                ("real", "entropy", "The entropy bonus ends {}"),
                ("real", "miner_5", "at 5 % of the gradient {}, with"),
            ],
        ),
        (
            "trl_miner/methods/README.md",
            [
                ("forks", "miner", "`miner` | {}, and"),
                ("mirror", "miner", "mirror of that world | {} |"),
                ("forks", "entropy", "`all_right: entropy` | {} |"),
                ("forks", "unlikeliness", "`unlikeliness` | {} |"),
                ("forks", "rl_zvp", "`rl_zvp` | {} |"),
                ("forks", "dapo", "DAPO | {} |"),
            ],
        ),
    ],
)
def test_pages_quote_the_raw_results(measured, page, quotes):
    """Computed with other code than the tables; and every interval that a page shows stands in a table."""
    text = " ".join((FORKS.parents[1] / page).read_text().split())
    for world, name, sentence in quotes:
        world, *baseline = (analysis["REAL"], "grpo") if world == "real" else (world,)
        assert (
            sentence.format("{:+.2f} ({:+.2f} to {:+.2f})".format(*effect_of(measured, world, name, *baseline)))
            in text
        )
    shown = re.findall(r"[+-]\d\.\d\d \([+-]\d\.\d\d to [+-]\d\.\d\d\)", text)
    assert shown and not [one for one in shown if one not in (FORKS / "tables.md").read_text()]


def test_results_say_of_the_papers_claims_what_the_raw_results_say(measured):
    text = " ".join((FORKS.parent / "RESULTS.md").read_text().split())

    def points(world, name):
        own, base = ended(measured, world, name), ended(measured, world, "grpo_2e-4")
        return 100 * (own - base[: len(own)])

    twenty = np.concatenate([points(world, "miner") for world in ("forks", analysis["MORE"])])
    assert f"{twenty.mean():+.1f} points over the twenty seeds of forks" in text
    gap = points("forks", "grpo").mean()
    assert f"ended {-gap:.0f} points below GRPO at half" in text
    dosed = [-points("mirror", name).mean() for name in ("miner_5", "miner_20")]
    assert "loses {:.0f} to {:.0f} points in the mirror".format(*dosed) in text
    gains = [points("forks", name).mean() for name in ("oracle", "miner")]
    assert "sound answers gains {:.0f} points, MINER {:.1f}:".format(*gains) in text
    for world in ("forks", "mirror"):  # Pass@64 is level
        assert abs(solved(measured, world, "miner").mean() - solved(measured, world, "grpo_2e-4").mean()) < 0.5
    pace = {row[0]: row[1:] for row in analysis["pace_table"]("forks", measured["forks"]).rows}
    assert pace["miner"][:2] == ["6 of 8", "75"] and pace["grpo_2e-4"][1] == "150"
    runs = measured["forks"]["miner"].values()
    start = np.mean([analysis["pass_at_1"](run, (2, 3, 4), "before") for run in runs])
    gained = 100 * (ended(measured, "forks", "miner", (2, 3, 4)).mean() - start)
    assert f"({gained:+.1f} points at levels 2 to 4)" in text


def test_cosines_of_the_pages_are_those_that_were_measured():
    rows = {
        line.strip("|").split("|")[0].strip(): line.strip("| ").split(" | ")[1:]
        for line in (FORKS / "results" / "gates_forks.md").read_text().splitlines()
        if line.startswith("| ")
    }
    tables = (FORKS / "tables.md").read_text()
    for name in ("oracle with held-out success", "MINER, no cap, with the entropy bonus"):
        assert f"| {name} | {rows[name][0]}" in tables
    (pooled,) = re.findall(r"the cosine is ([\d.]+)", (FORKS / "results" / "identity_SmolLM2-135M.md").read_text())
    assert f"their cosine is {float(pooled.rstrip('.')):.2f}" in (FORKS / "README.md").read_text()


def test_gates_hold_and_fail_by_what_was_measured(planted):
    cosines = {"oracle with held-out success": [0.5, 0.4]}
    found = {gate: holds for gate, _, holds in gates["gates"](planted, cosines)}
    assert [*found.values()] == [True, True, False, True, True]  # Pass@64 of the planted runs is 100 %
    worse = gates["gates"](planted, {"oracle with held-out success": [0.5, -0.1]})
    assert [holds for gate, _, holds in worse if "cosine" in gate] == [False]


def test_padding_changes_no_log_prob():
    """Problems of unlike lengths in one batch, against each rollout alone."""
    torch.manual_seed(0)
    tokenizer = forks.build_tokenizer()
    model = _new_model(
        BaseModelSettings(world=forks.NAME, hidden_size=16, intermediate_size=16, num_layers=1), tokenizer
    )
    problems = [forks.Problem((7, 3, 1, 4), "b"), forks.Problem((1, 2, 3, 4), "abcd")]
    batch = gates["Batch"](model.eval(), tokenizer, problems, seed=0)
    prompt, row = tokenizer(problems[0].prompt)["input_ids"], batch.tokens[0]
    logits = model(torch.tensor([[*prompt, *row]])).logits[0, len(prompt) - 1 : -1].log_softmax(dim=1)
    expected = logits[range(len(row)), row]
    torch.testing.assert_close(batch.logps_NT[0, : len(row)], expected, atol=1e-5, rtol=1e-5)
    assert int(batch.mask_NT[0].sum()) == len(row)
