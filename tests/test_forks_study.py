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
RAW = ("study.jsonl", "real_model.jsonl")
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
    return worlds | analysis["by_world"](read_runs(FORKS / "results" / "again.jsonl"), analysis["AGAIN"])


def test_the_tables_of_the_page_are_those_of_the_raw_results(measured):
    (quoted,) = analysis["MARKED"].findall((FORKS / "README.md").read_text())
    assert quoted == analysis["sections"](measured), "run analysis.py with --page, and read the text around the tables"


@pytest.fixture(scope="module")
def says(measured):
    """Check that the page has a sentence with these numbers, computed with other code than the page's tables."""
    page = " ".join((FORKS / "README.md").read_text().split())

    def check(sentence, *values):
        assert sentence.format(*values) in page

    return check


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


def test_the_answer_follows_from_the_raw_results(measured, says):
    mean, low, high = effect_of(measured, "forks", "miner")
    says(
        "it ends {:.2f} above GRPO in log-odds of held-out Pass@1 (95 % interval {:+.2f} to {:+.2f}, ten",
        mean,
        low,
        high,
    )
    assert low < 0 < 0.1 < high  # not decided
    added = effect_of(measured, analysis["MORE"], "miner")
    says("{:+.2f}, {:+.2f} to {:+.2f}, in ten more", *added)
    own, base = (
        logit(np.concatenate([ended(measured, world, name) for world in ("forks", analysis["MORE"])]))
        for name in ("miner", "grpo_2e-4")
    )
    low, high = stats.ttest_rel(own, base).confidence_interval()
    says("twenty seeds it gains {:.2f} in the one world ({:+.2f} to {:+.2f}, less", (own - base).mean(), low, high)
    mean, low, high = effect_of(measured, "mirror", "miner")
    says("{:.2f} below ({:+.2f} to {:+.2f}: no difference beyond", -mean, low, high)
    assert -0.1 < low < 0 < high
    bonus, in_mirror = (effect_of(measured, world, "entropy")[0] for world in ("forks", "mirror"))
    says("of the same strength, on the same prompts, it ends {:.2f} above GRPO", bonus)
    says("share of the gradient, and ended {:.2f} below GRPO", -in_mirror)
    above, below = (effect_of(measured, world, "miner_5")[0] for world in ("forks", "mirror"))
    says("MINER ends {:.2f} above GRPO in the one world and {:.2f} below in the other", above, -below)


def test_what_the_page_says_of_doses_and_learning_rates_follows_from_the_raw_results(measured, says):
    def share(world):
        parts = ("ph", "other")
        norms = [
            [np.mean([value for _, value in run.values(f"miner/{part}_gradient_norm")]) for part in parts]
            for run in measured[world]["miner"].values()
        ]
        return 100 * np.mean([own / (own + others) for own, others in norms])

    says("let {:.1f} % and {:.1f} % of the gradient through", share("forks"), share("mirror"))
    gap = ended(measured, "forks", "grpo_2e-4").mean() - ended(measured, "forks", "grpo").mean()
    says("GRPO at 2e-4 ends {:.1f} points above GRPO at 4e-4", 100 * gap)
    says("MINER would be {:.2f} above", effect_of(measured, "forks", "miner", "grpo")[0])


def test_what_the_page_says_of_ways_follows_from_the_raw_results(measured, says):
    def sound(world, name):
        runs = measured[world][name].values()
        return [200 * np.mean([x for step, x in run.values("rewards/is_sound/mean") if step > 200]) for run in runs]

    of_grpo = sound("forks", "grpo_2e-4")
    says("it ends between {:.0f} and {:.0f} %, by seed", min(of_grpo), max(of_grpo))
    names = ("miner", "miner_5", "miner_20")
    forks_3, mirror_3 = ([np.mean(sound(world, name)) for name in names] for world in ("forks", "mirror"))
    says("at {:.0f} % with the cap, {:.0f} % at a dose of 5 % and {:.0f} % at 20 %", *forks_3)
    says("in the mirror at {:.0f}, {:.0f} and {:.0f} %", *mirror_3)
    hard = {name: 100 * ended(measured, "mirror", name, (2, 3, 4)).mean() for name in ("grpo_2e-4", *names)}
    lost = [hard["grpo_2e-4"] - hard[name] for name in names]
    says("this costs {:.1f} points there", lost[0])
    says("at 5 % of the gradient it costs {:.1f}", lost[1])
    says("of each prompt, ends {:.2f} below, and its gradient", -effect_of(measured, "forks", "placebo")[0])
    own, bonus = (logit(ended(measured, "forks", name)) for name in ("miner", "entropy"))
    found = stats.ttest_rel(own, bonus)
    says(
        "it ends {:.2f} below the bonus (p {:.3f}, Holm {:.3f})",
        -(own - bonus).mean(),
        found.pvalue,
        3 * found.pvalue,
    )


def test_what_the_page_says_of_other_methods_follows_from_the_raw_results(measured, says):
    def found(name, baseline="grpo_2e-4"):
        return effect_of(measured, "forks", name, baseline)

    def gain(name):
        own, base = ended(measured, "forks", name), ended(measured, "forks", "grpo_2e-4")
        return 100 * (own - base[: len(own)]).mean()

    says("on solved prompts alone, gained {:.0f} points here", gain("oracle"))
    rare = [
        gain(name) for name in ("miner", "miner_1", "miner_5", "miner_20", "entropy", "unlikeliness", "uniqueness")
    ]
    says("methods that pay what is rare, {:.0f} to {:.0f}", min(rare), max(rare))
    says("Here it gains {:.0f} points", gain("oracle"))
    says("The oracle gains {:.0f} points, MINER {:.1f} |", gain("oracle"), gain("miner"))
    shares = [
        100 * np.mean([analysis["gradient_share"](run) for run in measured["forks"][name].values()])
        for name in ("miner", "miner_1", "miner_5", "miner_20")
    ]
    says("gains {:.2f} at {:.1f} % of the gradient", found("miner")[0], shares[0])
    says(
        "{:.2f} at {:.1f} % (`miner_1`, five seeds), and no more at {:.0f} and {:.0f} %",
        found("miner_1")[0],
        *shares[1:],
    )
    says(
        "the oracle {:.2f}, `uniqueness`, which counts the ways, {:.2f}, `unlikeliness` {:.2f}",
        *(found(name)[0] for name in ("oracle", "uniqueness", "unlikeliness")),
    )
    mirror_2 = [
        100 * np.mean([analysis["gradient_share"](run) for run in measured["mirror"][name].values()])
        for name in ("miner_1", "miner_5")
    ]
    in_mirror = effect_of(measured, "mirror", "miner_1")[0]
    says("`miner_1` ends {:.2f} below GRPO, at {:.1f} %; between that and the {:.0f} %", -in_mirror, *mirror_2)
    assert found("unlikeliness")[1] < 0 < found("uniqueness")[1]
    says(
        "`constant` ends {:.2f} above GRPO and {:.2f} below at the same",
        found("constant")[0],
        -found("constant_2e-4")[0],
    )
    says("`rl_zvp` {:.2f} below", -found("rl_zvp")[0])
    says(
        "DAPO drops solved prompts, and ends {:.2f} below GRPO ({:+.2f} to {:+.2f})",
        -found("dapo")[0],
        *found("dapo")[1:],
    )
    generated = [run.values("rollouts/generated_total")[-1][1] for run in measured["forks"]["dapo"].values()]
    says("with {:.0f} to {:.0f} thousand", min(generated) / 1000, max(generated) / 1000)
    ledger = found("ledger_2e-4", "repeats_2e-4")
    says("what was solved ends {:.2f} above GRPO on the same problems, both at 2e-4 ({:+.2f} to {:+.2f})", *ledger)


def test_the_verdicts_on_the_papers_claims_follow_from_the_raw_results(measured, says):
    gains = {
        (world, name): 100 * (ended(measured, world, name).mean() - ended(measured, world, "grpo_2e-4").mean())
        for world, name in (("forks", "miner"), ("mirror", "miner"), ("mirror", "miner_5"), ("mirror", "miner_20"))
    }
    more = [ended(measured, analysis["MORE"], name).mean() for name in ("miner", "grpo_2e-4")]
    at_first, in_mirror, *dosed = gains.values()
    added = 100 * (more[0] - more[1])
    says(
        "{:+.1f} points in forks (not decided), {:+.1f} in ten more seeds, and {:+.1f} in", at_first, added, in_mirror
    )
    says("MINER loses {:.0f} to {:.0f} points in the mirror", *(-gain for gain in dosed))

    many = [
        solved(measured, world, "miner").mean() - solved(measured, world, "grpo_2e-4").mean()
        for world in ("forks", "mirror")
    ]
    says("Pass@64 {:+.1f} points in forks, {:+.1f} in the mirror", *many)
    pace = analysis["pace_table"]("forks", measured["forks"]).rows
    (miner,), (grpo,) = ([row for row in pace if row[0] == name] for name in ("miner", "grpo_2e-4"))
    says("at {} seeds at which GRPO", miner[1].replace("of", "of the"))
    says("after {} steps in the median; GRPO takes {}", miner[2], grpo[2])


def test_what_the_page_says_of_other_base_models_follows_from_the_raw_results(measured, says):
    forks, mirror = (world + analysis["AGAIN"] for world in ("forks", "mirror"))
    assert {len(runs) for world in (forks, mirror) for runs in measured[world].values()} == {4}
    mean, *ends = effect_of(measured, forks, "miner")
    says("In forks MINER ends {:.2f} above GRPO ({:+.2f} to {:+.2f})", mean, *ends)
    mean, *ends = effect_of(measured, forks, "miner_5")
    says("at 5 % of the gradient {:.2f} above ({:+.2f} to {:+.2f})", mean, *ends)
    mean, *ends = effect_of(measured, forks, "entropy")
    says("the entropy bonus {:.2f} ({:+.2f} to {:+.2f})", mean, *ends)
    mean, *ends = effect_of(measured, mirror, "miner")
    says("In the mirror MINER ends {:.2f} below GRPO ({:+.2f} to {:+.2f})", -mean, *ends)
    says("costs {:.2f} in the other, {:.2f} from another base", -effect_of(measured, "mirror", "miner")[0], -mean)
    assert -0.1 < ends[0]  # within the margin
    mean, *ends = effect_of(measured, mirror, "miner_5")
    says("at 5 % {:.2f} below ({:+.2f} to {:+.2f})", -mean, *ends)
    for name in ("miner", "miner_5"):  # larger, with the same signs
        for world in ("forks", "mirror"):
            before, found = (effect_of(measured, each, name)[0] for each in (world, world + analysis["AGAIN"]))
            assert found / before > 1


def test_what_the_page_says_of_the_real_model_follows_from_the_raw_results(measured, says):
    real, six, five = analysis["REAL"], (1, 2, 3, 4, 5, 6), (1, 2, 3, 5, 6)
    seeds = {name: tuple(sorted(runs)) for name, runs in measured[real].items()}
    assert seeds == {"grpo": six, "miner": six, "miner_5": five, "entropy": five}
    runs = [run for methods in measured[real].values() for run in methods.values()]
    assert {(run.steps, run.held_out.after.num_samples, len(run.held_out.levels)) for run in runs} == {(60, 16, 256)}
    assert max(ended(measured, real, name).max() for name in seeds) < 0.52
    says("GRPO ends at {:.1f} %", 100 * ended(measured, real, "grpo").mean())
    for sentence, name in (
        ("loss: MINER ends {:.2f} below GRPO ({:+.2f} to {:+.2f})", "miner"),
        ("MINER ends {:.2f} below it ({:+.2f} to {:+.2f})", "miner"),
        ("The entropy bonus ends {:.2f} below ({:+.2f} to {:+.2f})", "entropy"),
        ("MINER at 5 % of the gradient ends {:.2f} below ({:+.2f} to {:+.2f})", "miner_5"),
    ):
        mean, *ends = effect_of(measured, real, name, "grpo")
        says(sentence, -mean, *ends)
        verdict = analysis["against_baseline"](name, measured[real], analysis["log_odds"]).verdict
        assert verdict == ("no difference beyond the margin" if name == "entropy" else "not decided")
    mean, *ends = effect_of(measured, real, "miner", "grpo", five)
    says("and {:.2f} below ({:+.2f} to {:+.2f}) over the five", -mean, *ends)
    says("After four seeds MINER stood at {:+.2f}", effect_of(measured, real, "miner", "grpo", (1, 2, 3, 4))[0])
    says("MINER would need {} of", analysis["seeds_needed"](differences(measured, real, "miner", "grpo", scale=logit)))
    says("one of its five runs lost {:.0f} points", -100 * differences(measured, real, "miner_5", "grpo").min())


def test_what_the_page_says_of_the_real_models_families_follows_from_the_raw_results(measured, says):
    real = analysis["REAL"]

    def points(name, *levels):
        return 100 * differences(measured, real, name, "grpo", levels=levels)

    def entropy(name):
        runs = [run for _, run in sorted(measured[real][name].items())]
        return np.array([np.mean([x for step, x in run.values("entropy") if step > 48]) for run in runs])

    lost = points("miner_5", "basic_arithmetic")
    assert lost.max() < 0
    mean, *ends = with_interval(lost)
    says("loses in `basic_arithmetic`, {:.1f} points in the mean ({:+.1f} to {:+.1f}", -mean, *ends)
    apart = [np.abs(points(name, "gcd")).max() for name in ("miner", "miner_5")]
    says("by up to {:.0f} points between two runs of one seed", max(apart))
    mean, *ends = with_interval(solved(measured, real, "miner") - solved(measured, real, "grpo"))
    says("Pass@16 ends {:.1f} points below GRPO's ({:+.1f} to {:+.1f})", -mean, *ends)
    says("Pass@16 {:+.1f} with SmolLM2", mean)
    says("Entropy is higher by {:.3f} nats ({:+.3f} to {:+.3f})", *with_interval(entropy("miner") - entropy("grpo")))
    says("With SmolLM2-135M {:+.1f} ({:+.1f} to {:+.1f})", *with_interval(points("miner")))
    shares = [
        100 * np.mean([analysis["gradient_share"](run) for run in measured[real][name].values()])
        for name in ("miner", "entropy")
    ]
    says("of the gradient is {:.1f} % with the cap", shares[0])
    says("the bonus, matched on the start, has {:.1f} %", shares[1])
    pace = {row[0]: row[1:] for row in analysis["pace_table"](real, measured[real]).rows}
    says("{} runs reach it, after {} steps against {}", *pace["miner"][:2], pace["grpo"][1])


def test_the_guides_quote_the_raw_results(measured):
    results, guide = (
        " ".join((FORKS.parents[1] / name).read_text().split())
        for name in ("recipes/RESULTS.md", "trl_miner/methods/README.md")
    )
    for world, name in [("forks", name) for name in ("miner", "entropy", "dapo", "rl_zvp", "unlikeliness")] + [
        ("mirror", "miner")
    ]:
        assert "{:+.2f} ({:+.2f} to {:+.2f})".format(*effect_of(measured, world, name)) in guide
    (twenty,) = re.findall(r"\| all +\| +20 \| (\S+ \(\S+ to \S+\))", (FORKS / "README.md").read_text())
    assert f"| {twenty} | 20 | above GRPO, by less than the margin |" in results
    for world, baseline, row in (
        ("mirror", (), "{} | 5 | no difference |"),
        (analysis["REAL"], ("grpo",), "{} | 6 | six pairs cannot tell |"),
    ):
        found = "{:+.2f} ({:+.2f} to {:+.2f})".format(*effect_of(measured, world, "miner", *baseline))
        assert row.format(found) in results
    again = [effect_of(measured, world + analysis["AGAIN"], "miner") for world in ("forks", "mirror")]
    sentence = "{:.2f} above GRPO in forks ({:+.2f} to {:+.2f}) and {:.2f} below in the mirror ({:+.2f} to {:+.2f})"
    assert sentence.format(*again[0], -again[1][0], *again[1][1:]) in results
    for world, name, sentence in (
        ("forks", "miner_1", "ended {:.2f} above GRPO, with an interval that holds 0 ({:+.2f} to {:+.2f})"),
        ("forks", "miner_5", "gained {:.2f} in forks ({:+.2f} to {:+.2f})"),
        ("forks", "entropy", "gained {:.2f} in forks ({:+.2f} to {:+.2f})"),
    ):
        assert sentence.format(*effect_of(measured, world, name)) in results
    more_3 = effect_of(measured, analysis["MORE"], "miner")
    assert "{:+.2f} ({:+.2f} to {:+.2f}) in 10 more".format(*more_3) in guide
    gained, lost = (effect_of(measured, world, "miner_5")[0] for world in ("forks", "mirror"))
    assert (
        f"at 0.05 it gained {gained:.2f} in forks" in results.lower() and f"lost {-lost:.2f} in the mirror" in results
    )


def test_cosines_of_the_page_are_those_that_were_measured(says):
    def rows(name):
        lines = (FORKS / "results" / f"{name}.md").read_text().splitlines()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| (?!-)", line)]

    worlds = [{row[0]: row[1:] for row in rows(name)} for name in ("gates_forks", "gates_forks_mirror")]
    for name in ("MINER, no cap", "mixed prompts", "oracle", "entropy bonus"):
        name += " with held-out success"
        says("| {} | {} | {} |", name, *(", ".join(world[name]) for world in worlds))
    for row in rows("gates_forks")[1:6]:
        says("| {} |", " | ".join(row))
    right = [[round(float(world[way][1].rstrip("%"))) for way in ("sound", "fast")] for world in worlds]
    says("either way is right in {} %", right[0][0])
    says("the rare way is right in {} % and the frequent one in {} %", *right[1][::-1])
    assert right[0][0] == right[0][1]
    singles = [float(row[0]) for row in rows("identity_SmolLM2-135M")[1:]]
    says("and {:.2f} to {:.2f} in single ones", min(singles), max(singles))
    (pooled,) = re.findall(r"the cosine is ([\d.]+)", (FORKS / "results" / "identity_SmolLM2-135M.md").read_text())
    says("At the start of SmolLM2-135M it is {:.2f}", float(pooled.rstrip(".")))


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
