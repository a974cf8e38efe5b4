"""`trl-miner report`: run folders with known numbers, the pictures and tables made of them, the
page in a browser."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas
import pytest
from browser import needs_browser, open_page
from studies import counts_of, write_study

from trl_miner.cli import main
from trl_miner.common.tables import Table
from trl_miner.compare import Run
from trl_miner.runs.history import RunHistory, columns_of, read_run
from trl_miner.runs.settings import as_texts
from trl_miner.viewing.charts import CHARTS, charts_of
from trl_miner.viewing.curves import (
    draw_chart,
    draw_metrics,
    draw_scores,
    draw_training,
    keys_of,
    mean_line,
)
from trl_miner.viewing.figures import save
from trl_miner.viewing.frame import read_metrics
from trl_miner.viewing.held_out import comparisons, scored_alike, verdicts
from trl_miner.viewing.inputs import group_methods, is_grpo, read_inputs
from trl_miner.viewing.pages import Section, html_page
from trl_miner.viewing.report import comparison_warnings, write_report
from trl_miner.viewing.tables import methods_table

PLANTED = "<script>document.title='planted'</script>"
DRAWN = ["reward", "dose", "held_out"]  # each with a panel of another form


def log(step, reward=0.5, **more):
    shares = {
        "groups/ph": 0.25,
        "groups/he": 0.5,
        "groups/nh": 0.25,
        "rollouts/grpo": 0.5,
        "rollouts/used": 0.6,
    }
    return {"step": step, "reward": reward, "entropy": 0.4, "step_time": 2.0} | shares | more


def write_run(
    folder, logs, *, planned=None, scores=None, recipe=None, seed=1, method=None, per_step=1.0
):
    """A run folder as the trainer leaves it; with a recipe also what `trl-miner compare` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = max([0, *(entry.get("step") or 0 for entry in logs if isinstance(entry, dict))])
    state = {"global_step": steps, "max_steps": planned or steps, "log_history": logs}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    if scores is not None:
        (folder / "held_out.json").write_text(json.dumps(counts_of(scores, steps)))
    if recipe is not None:
        record = {"settings": as_texts(recipe), "seed": seed, "optimizer_steps_per_step": per_step}
        (folder / "training.json").write_text(json.dumps(record))
        (folder / "compared.json").write_text(json.dumps({"method": method or folder.parent.name}))
    return folder


def write_result(folder, model="base", **settings):
    """A scored result folder."""
    folder.mkdir(parents=True)
    known = {"model": str(model), "temperature": 0.7, "top_p": 0.95, "max_tokens": 100} | settings
    part = {"mean": 0.5, "low": 0.4, "high": 0.6}
    one = {
        "title": "AIME2024", "problems": 2, "samples": 4, "k": 4, "fingerprint": "f", "grader": "math",
        "pass@k": {"1": 0.5, "2": 0.6, "3": 0.7, "4": 0.75},
        "maj@k": {k: {"mean": 0.5, "std": 0.1} for k in ("1", "2", "4")},
        "intervals": dict.fromkeys(("pass@1", "pass@k", "maj@k"), part),
    }  # fmt: skip
    one["pass@k_intervals"] = {
        k: {"mean": one["pass@k"][k], "low": 0.4, "high": 0.9} for k in ("1", "2", "4")
    }
    (folder / "settings.json").write_text(json.dumps(known))
    (folder / "scores.json").write_text(
        json.dumps({"settings": known, "benchmarks": {"aime24": one}})
    )
    return folder


def lines_of(axes):
    """x and y of each line that was drawn."""
    return [
        (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.get_lines()
        if len(line.get_xdata())
    ]


# reading


def test_the_state_that_went_furthest_counts(tmp_path):
    run = write_run(tmp_path / "run", [log(1), log(2)])
    write_run(run / "checkpoint-3", [log(1), log(2), log(3)], planned=5)
    found = read_run(run)
    assert (found.steps, found.planned, found.finished) == (3, 5, False)
    (run / "checkpoint-3" / "trainer_state.json").write_text('{"global_step": 3, "log_his')
    assert read_run(run).steps == 2


def test_each_kind_of_folder_is_known(tmp_path):
    write_run(tmp_path / "cmp" / "miner" / "seed1", [log(1)], recipe={})
    write_run(tmp_path / "cmp" / "grpo" / "seed1", [log(1)], recipe={"advantage_estimator": "grpo"})
    (tmp_path / "cmp" / "miner" / "seed2").mkdir()
    (tmp_path / "cmp" / "miner" / "seed2" / "compared.json").write_text('{"method": "miner"}')
    lone = write_run(tmp_path / "lone", [log(1)])
    one, two = (
        write_result(tmp_path / "evals" / name, lone / model)
        for name, model in (("one", ""), ("two", "checkpoint-2"))
    )
    found = read_inputs([tmp_path / "cmp", lone, one, two])
    assert [run.name for run in found.runs] == ["grpo/seed1", "miner/seed1", "lone"]
    assert [result.name for result in found.results] == [
        f"{tmp_path.name}/lone",
        "lone/checkpoint-2",
    ]
    assert "seed2 is left out: it has no trainer_state.json yet" in found.notes[0]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            None,
            "",
            "it has no trainer_state.json, nor does a checkpoint in it. Give the output_dir",
        ),
        ("training.json", "{}", "If the run has just started, wait for its first checkpoint"),
        ("settings.json", "{}", "scores.json is missing. Run: trl-miner score"),
        ("trainer_state.json", '{"log_history": [', "Invalid JSON"),
    ],
)
def test_a_folder_that_cannot_be_reported_is_named(tmp_path, capsys, file, content, message):
    if file:
        (tmp_path / file).write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and str(tmp_path) in error and error.count("\n") == 1
    assert not (tmp_path / "report").exists()
    assert (
        main(["report", str(tmp_path / "nowhere")]) == 2
        and "Run folder not found: " in capsys.readouterr().err
    )


# methods


def test_runs_that_differ_in_their_seed_alone_are_one_method(tmp_path):
    """y and z differ in their batch; x is y with the same seed."""
    for seed in (1, 2):
        recipe = {
            "seed": seed,
            "output_dir": f"o{seed}",
            "logging_steps": seed,
            "learning_rate": 1e-4,
        }
        write_run(tmp_path / "a" / "miner" / f"seed{seed}", [log(1)], recipe=recipe, seed=seed)
    write_run(tmp_path / "b" / "miner" / "seed1", [log(1)], recipe={"learning_rate": 2e-4})
    for name, size, seed in (("x", 8, 1), ("y", 8, 1), ("z", 256, 2)):
        run = write_run(tmp_path / name, [log(1)])
        settings = {
            "per_device_train_batch_size": str(size),
            "logging_steps": str(size),
            "vllm_group_port": str(size),
        }
        record = {"seed": seed, "settings": settings | {"beta": "0.0"}}
        (run / "training.json").write_text(json.dumps(record))
    runs = read_inputs([tmp_path / name for name in "abxyz"]).runs
    assert [run.name for run in runs[:3]] == [
        f"{tmp_path}/a/miner/seed1",
        "miner/seed2",
        f"{tmp_path}/b/miner/seed1",
    ]
    assert [(method.label, len(method.runs)) for method in group_methods(runs)] == [
        *((f"miner ({tmp_path}/a/miner/seed1)", 2), (f"miner ({tmp_path}/b/miner/seed1)", 1)),
        *(("x", 1), ("y", 1), ("z", 1)),
    ]


GRPO, MINER = {"advantage_estimator": "grpo"}, {"advantage_estimator": "grpo", "all_right": "miner"}


@pytest.mark.parametrize(
    ("recipe", "is_baseline"),
    [
        ({}, False),
        (MINER, False),
        (GRPO, True),
        (GRPO | {"all_wrong": "none", "importance_sampling_level": "sequence"}, True),
        *(
            (GRPO | {name: value}, False)
            for name, value in (("policy_loss", "cispo"), ("dynamic_sampling", True))
        ),
        *(
            (GRPO | {name: value}, False)
            for name, value in (("prompt_selection", "greso"), ("all_wrong", "rl_zvp"))
        ),
        (GRPO | {"gate_on_correctness": True}, False),
        *((GRPO | {"adaptive_sampling_rounds": rounds}, rounds == 1) for rounds in (1, 4)),
    ],
)
def test_plain_grpo_is_the_baseline_however_it_is_written(recipe, is_baseline):
    assert (
        is_grpo(RunHistory(Path("r"), "r", {}, settings=as_texts(recipe), method="m"))
        == is_baseline
    )


# pictures


@pytest.mark.parametrize("size", [1, 400, 401, 5003])
def test_a_long_line_is_the_mean_and_the_extremes_of_each_column(size):
    random, steps = np.random.default_rng(size), np.arange(7.0, 7 + size)
    values = np.where(random.random(size) < 0.1, math.nan, random.standard_normal(size))
    line = mean_line(pandas.DataFrame({"run": "r", "step": steps, "value": values}))
    assert len(line) <= 400 and line.index.is_monotonic_increasing
    assert (line["low"].min(), line["high"].max()) == (np.nanmin(values), np.nanmax(values))
    if size > 400:
        first = values[(steps - 7) * 200 // (size - 1) == 0]
        found = line[["mean", "low", "high"]].iloc[0].tolist()
        assert found == pytest.approx([np.nanmean(first), np.nanmin(first), np.nanmax(first)])


def test_seeds_become_their_mean_with_a_band_and_what_is_no_number_a_gap(tmp_path):
    for seed, rewards in ((1, (0.2, 0.4, 0.6, None)), (2, (0.4, math.nan, 1.0, "0.5"))):
        logs = [log(step, reward) for step, reward in enumerate(rewards, 1)]
        write_run(tmp_path / "miner" / f"seed{seed}", logs, recipe={}, seed=seed)
    (axes,) = draw_chart("reward", tmp_path).axes
    # .2 .4 -> .3; .4 alone; .6 1 -> .8
    assert lines_of(axes) == [([1, 2, 3, 4], pytest.approx([0.3, 0.4, 0.8, math.nan], nan_ok=True))]
    extents = axes.collections[0].get_paths()[0].get_extents()
    assert (extents.y0, extents.y1) == (0.2, 1.0)


def test_of_many_methods_grpo_and_miner_alone_have_bands(tmp_path):
    names = ["grpo", "miner", *(f"other{at}" for at in range(5))]
    for name in names:
        for seed in (1, 2):
            write_run(
                tmp_path / name / f"seed{seed}",
                [log(1), log(2, seed)],
                recipe={"x": name},
                seed=seed,
            )
    for count, bands in ((3, 3), (7, 2)):
        figure = draw_chart(
            "reward", [tmp_path / name / f"seed{seed}" for name in names[:count] for seed in (1, 2)]
        )
        assert [len(axes.collections) for axes in figure.axes] == [bands]
        assert len(figure.legends[0].get_texts()) == count


def test_a_chart_is_drawn_by_its_name(tmp_path):
    run = write_run(tmp_path / "run", [log(step, **{"miner/tau_pos": step}) for step in (1, 2)])
    axes = draw_chart("calibration", [run]).axes[0]
    assert lines_of(axes) == [([1, 2], [1, 2])] and axes.get_yscale() == "log"
    with pytest.raises(ValueError, match="reward, .*held_out: got 'rewards'"):
        draw_chart("rewards", run)
    assert draw_chart("reward", run)._repr_png_()[:4] == b"\x89PNG"  # what Jupyter asks for


def test_pass_at_k_has_its_intervals_and_maj_at_k_its_deviation(tmp_path):
    axes = draw_scores("pass_at_k", write_result(tmp_path / "one")).axes[0]
    assert axes.get_xscale() == "log" and [text.get_text() for text in axes.get_xticklabels()] == [
        "1",
        "2",
        "4",
    ]
    assert lines_of(axes) == [([1, 2, 4], [0.5, 0.6, 0.75])] and len(axes.collections) == 1
    extents = (
        draw_scores("maj_at_k", tmp_path / "one")
        .axes[0]
        .collections[0]
        .get_paths()[0]
        .get_extents()
    )
    assert (extents.y0, extents.y1) == pytest.approx((0.4, 0.6))  # .5 -+ .1
    # of models of one name
    figure = draw_scores("pass_at_k", [tmp_path / "one", write_result(tmp_path / "two")])
    assert len(lines_of(figure.axes[0])) == len(figure.legends[0].get_texts()) == 2
    with pytest.raises(ValueError, match="pass_at_k, maj_at_k: got 'pass@k'"):
        draw_scores("pass@k", tmp_path / "one")


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    """A report of runs and results whose every name is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    name = PLANTED.replace("/", "\u2215") + "|$x_1$\x1b"
    scores = {"before": {"pass@1": 0.4, "pass@4": 0.6}, "after": {"pass@1": 0.6, "pass@4": 0.9}}
    runs = []
    for method in (PLANTED, "_under $\\frac$"):
        for seed in (1, 2):
            runs.append(folder / name / f"run {len(runs)}")
            logs = [
                log(step, 0.1 * seed + step / 10, kl=0.1, **{"miner/tau_pos": 1.0})
                for step in range(1, 6)
            ]
            write_run(runs[-1], logs, scores=scores, recipe={"x": method, "model_name_or_path": PLANTED + method},
                      seed=seed, method=method)  # fmt: skip
    results = [
        write_result(folder / "eval", PLANTED, style=PLANTED),
        write_result(folder / "eval2", runs[0]),
    ]
    return write_report([*runs, *results], folder / "out", quiet=True)


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 500)])
def test_the_page_in_a_browser(hostile_page, tmp_path, scheme, width):
    with open_page(
        hostile_page, color_scheme=scheme, viewport={"width": width, "height": 900}
    ) as opened:
        opened.assert_quiet()
        assert opened.title().startswith("Report: <script>") and not opened.query_selector_all(
            "script, img"
        )
        assert "planted'</script>" in opened.inner_text("main")
        # of panels side by side, a phone shows one below the other
        shown = ".single svg, .split .panel" if width == 500 else "figure svg:not(.panel)"
        for figure in opened.query_selector_all(shown):
            box = figure.bounding_box()
            assert (
                box["width"] > 400 and box["height"] > 20 and 0 <= box["x"] <= width - box["width"]
            )
        ink, paper = (
            opened.evaluate(f"getComputedStyle(document.body).{what}")
            for what in ("color", "backgroundColor")
        )
        label = opened.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
        assert label == ink != paper  # the pictures follow the scheme
        names = opened.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(names) == len(set(names))
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        whole = "[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)"
        assert width > 500 or opened.evaluate(whole)  # a phone shows every cell of a table
        opened.screenshot_as(f"report_{scheme}.png", tmp_path, full_page=True)


# the dose and the steps


def test_the_dose_has_numbers_of_its_own(tmp_path):
    held = {"dose/scale": 0.1, "dose/share": 0.04, "miner/l1_share": 0.0015}
    dosed = {"advantage_estimator": "grpo", "all_right": "rl_zvp", "dose_share": 0.05}
    write_run(tmp_path / "a" / "seed1", [log(1, **{"miner/l1_share": 0.0015})], recipe={})
    write_run(
        tmp_path / "b" / "seed1",
        [log(1, **held), log(2, **held | {"dose/share": 0.06})],
        recipe=dosed,
    )
    of_sums, of_gradient, factor = draw_chart("dose", tmp_path).axes
    assert lines_of(of_sums) == [([1], [0.0015]), ([1, 2], [0.0015, 0.0015])]
    assert lines_of(of_gradient) == [([1, 2], [0.04, 0.06])] and lines_of(factor) == [
        ([1, 2], [0.1, 0.1])
    ]


def test_steps_are_batches_where_every_run_says_how_many_optimizer_steps_one_has(tmp_path):
    run = write_run(tmp_path / "miner" / "seed1", [log(4)], recipe={}, per_step=4.0)
    axes = draw_chart("reward", run).axes[0]
    assert [x for x, _ in lines_of(axes)] == [[1]] and "generation batches" in axes.get_xlabel()
    axes = draw_chart("reward", [run, write_run(tmp_path / "unknown", [log(8)])]).axes[0]
    assert [x for x, _ in lines_of(axes)] == [[4], [8]] and "optimizer" in axes.get_xlabel()


@pytest.mark.parametrize(
    "values", [[], [math.nan, "nan", None], [0.0, -1.0], [0.1, None, 0.3, None, 0.5, 0.6]]
)
@pytest.mark.parametrize("name", DRAWN)
def test_every_picture_bears_every_history(tmp_path, name, values):
    keys = keys_of(CHARTS)
    logs = [
        {"step": step, "reward": value, "step_time": 1.0} | dict.fromkeys(keys, value)
        for step, value in enumerate(values, 1)
    ]
    scores = {
        float(step): {"pass@1": value}
        for step, value in enumerate(values, 1)
        if isinstance(value, float)
    }
    runs = [
        RunHistory(tmp_path / f"{s}", f"r{s}", columns_of(logs), "m", s, {"a": "1"}, scores)
        for s in (1, 2)
    ]
    chart = charts_of(runs)[name]
    metrics = read_metrics(group_methods(runs), keys_of([chart]))
    axes = save(draw_metrics(chart, metrics), tmp_path / "p.svg").axes[0]
    ElementTree.parse(tmp_path / "p.svg")
    assert 1000 < (tmp_path / "p.svg").stat().st_size < 300_000
    if name == "reward" and len(values) == 6:  # lone points are seen
        assert axes.get_lines()[0].get_marker() == "o"


# the report


def verdicts_of(folders):
    inputs = read_inputs(folders)
    methods = group_methods(inputs.runs)
    scored = scored_alike(methods)
    return verdicts(methods, scored, comparisons(scored))


@pytest.mark.parametrize(
    ("seeds", "says"), [(2, "better (2 seeds)"), (1, "of problems: no verdict from one seed")]
)
def test_a_report_leads_with_its_verdict(undrawn, tmp_path, seeds, says):
    """Planted: .75 and .60 on the trained levels. One seed shows that too, on its problems, and is
    no verdict."""
    folders = write_study(tmp_path / "study", seeds=seeds, problems=40)
    first, *_, last = verdicts_of(folders)
    assert re.match(
        r"miner against grpo, Pass@1 on trained levels .*: \+1\d\.\d\d points, .*", first
    )
    assert (
        first.endswith(f"{says}.") and last == "1 other method against grpo: in the tables below."
    )
    report = write_report(folders, tmp_path / "out", quiet=True).with_name("report.md").read_text()
    assert (
        report.index(first.partition(":")[0])
        < report.index("## Held-out problems")
        < report.index("## Tables")
    )
    assert "| advantage_estimator |" in report


def test_without_a_comparison_the_verdict_says_what_is_missing(tmp_path):
    scores = {"before": {"pass@1": 0.4}, "after": {"pass@1": 0.6}}
    run, other, another = (
        write_run(
            tmp_path / name, [log(1)], scores=own, recipe={"advantage_estimator": name}, method=name
        )
        for name, own in (("miner", scores), ("ucas", None), ("bapo", None))
    )
    late = write_run(
        tmp_path / "late",
        [log(1), log(2)],
        scores=scores,
        recipe={"advantage_estimator": "ucas"},
        method="ucas",
    )
    held_out = json.loads((late / "held_out.json").read_text())
    held_out["moments"]["step 1"] = held_out["moments"].pop("before") | {"step": 1}
    (late / "held_out.json").write_text(json.dumps(held_out))
    study = write_study(tmp_path / "study", seeds=1, problems=8)
    for folders, said in (
        ([run], "miner, Pass@1 on held-out problems: 40.0 % before training, 60.0 % after."),
        ([late], "ucas, Pass@1 on held-out problems: 40.0 % at step 1, 60.0 % after."),
        (
            [other],
            "No verdict: no run was scored on held-out problems before and after. Set held_out.",
        ),
        *(
            (
                runs,
                (
                    "No verdict: it needs a finished run of plain GRPO, and another with its seed"
                    " and held-out problems."
                ),
            )
            for runs in ([another, other], study[1:])
        ),
    ):
        assert verdicts_of(folders) == [said]


def test_a_report_says_what_it_wrote_and_what_comes_next(undrawn, tmp_path, capsys):
    run = write_run(tmp_path / "run", [log(1, kl=0.1), log(2, 0.75)], planned=9)
    (run / "config.json").write_text("{}")
    (run / "training.json").write_text(json.dumps({"settings": {"advantage_estimator": "miner"}}))
    assert main(["report", str(run)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["Wrote", f"  {run}/report/index.html"]
    text = (run / "report" / "report.md").read_text()
    assert "run is not finished: 2 of 9 steps." in text
    linked = re.findall(r"\]\((figures/[a-z0-9_]+\.svg)\)", text)
    assert linked and all((run / "report" / name).is_file() for name in linked)


def test_runs_and_results_that_were_not_measured_alike_are_warned_of(undrawn, tmp_path):
    scores = {"before": {"pass@1": 0.5, "pass@4": 0.5}}
    write_run(
        tmp_path / "a" / "seed1",
        [log(1)],
        scores=scores,
        recipe={"temperature": 1.0, "score_samples": 4},
    )
    write_run(
        tmp_path / "b" / "seed1",
        [log(1)],
        scores={"before": {"pass@1": 0.5, "pass@8": 1}},
        recipe={},
    )
    one, two = (
        write_result(tmp_path / "one"),
        write_result(tmp_path / "two", temperature=1.0, seed=7),
    )
    content = json.loads((two / "scores.json").read_text())
    content["benchmarks"]["aime24"] |= {"samples": 8, "fingerprint": "g"}
    (two / "scores.json").write_text(json.dumps(content))
    *of_runs, of_results = comparison_warnings(
        read_inputs([tmp_path / "a" / "seed1", tmp_path / "b" / "seed1", one, two])
    )
    first_words = [warning.rpartition(" ")[0].split(":")[0].split()[-1] for warning in of_runs]
    assert first_words == ["temperature", "score_samples"]
    assert of_results.endswith(
        "not measured alike: its fingerprint f and g; its samples 4 and 8; temperature 0.7 and 1.0."
    )
    page = write_report([one, two], tmp_path / "out", quiet=True)
    assert all(
        "temperature 0.7 and 1.0" in path.read_text()
        for path in (page, page.with_name("report.md"))
    )


def test_a_table_is_the_same_as_markdown_and_page():
    rows = [
        ["a|b", PLANTED],
        ["[x](javascript:1)", "`*_a_*\n#"],
        ["$\x00\u202e", "snake_case"],
        ["half", "\ud800"],
    ]
    table = Table("t", ["", "x"], rows)
    shown, page = table.markdown(), html_page("t", "", [Section("s", [table])])
    assert "<" not in shown and "a\\|b" in shown and "\\[x](" in shown and "snake_case" in shown
    assert len(shown.splitlines()) == 6 and "<script" not in page and "&lt;script&gt;" in page
    assert not any(hidden in text for hidden in "\x00\u202e" for text in (shown, page))


# the table of a comparison, and the picture on a model card


def test_a_run_becomes_a_picture(tmp_path):
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": []}))
    with pytest.raises(ValueError, match="no logged training step"):
        draw_training(tmp_path)
    logs = [{"step": step, "reward": 0.5 + step / 100, "groups/ph": 0.25} for step in range(1, 5)]
    state.write_text(json.dumps({"log_history": [*logs, {"step": 4, "train_loss": 0.0}]}))
    path = draw_training(tmp_path)
    assert path == tmp_path / "training.png" and path.read_bytes()[:4] == b"\x89PNG"


def run_of(*passes, totals=(800, 400)):
    """A run of 60 optimizer steps, two per generation batch, scored before and after training."""
    logs = [
        {"step": 20, "reward": 1.0, "step_time": 0.5},
        {"step": 60, "reward": 1.0, "step_time": 1.5},
    ]
    if totals:
        logs[0] |= {"rollouts/generated_total": 100.0, "rollouts/used_total": 1.0}
        logs[1] |= {
            "rollouts/generated_total": float(totals[0]),
            "rollouts/used_total": float(totals[1]),
        }
    scores = {60.0 * at: {"pass@1": p, "pass@8": min(1.0, p + 0.1)} for at, p in enumerate(passes)}
    return RunHistory(Path("run"), "run", columns_of(logs), "m", scores=scores, per_step=2)


def test_the_table_of_methods():
    runs = {
        "grpo": [run_of(0.5, 0.7), run_of(0.5, 0.7)],
        "miner": [run_of(0.5, 0.9, totals=(800, 600)), run_of(0.5, 0.8, totals=(1000, 700))],
        "ucas": [run_of(0.5, 0.5, totals=None), None],
        "dapo": [None, None],
    }
    table = methods_table(runs)
    # pass@1 .9 and .8: mean .85, std .1 / sqrt(2) = .071; rollouts 800 and 1000: std 141; shares
    # .75 and .7: std .035 (0.5 + 1.5) / 2 = 1 s for an optimizer step; two of them are a step
    assert table.rows == [
        ["grpo", "2", "0.700 ± 0.000", "0.800 ± 0.000", "2.00 ± 0.00", "800 ± 0", "50.0% ± 0.0%"],
        [
            "miner",
            "2",
            "0.850 ± 0.071",
            "0.950 ± 0.071",
            "2.00 ± 0.00",
            "900 ± 141",
            "72.5% ± 3.5%",
        ],
        ["ucas", "1 of 2", "0.500", "0.600", "2.00", "n/a", "n/a"],
        ["dapo", "0 of 2", *["n/a"] * 5],
    ]
    # a terminal shows the columns, too
    assert len({len(line) for line in table.markdown().splitlines()[:6]}) == 1


def test_a_run_without_a_score_after_training_or_without_a_state_is_not_finished(tmp_path):
    state = tmp_path / "trainer_state.json"
    (tmp_path / "training.json").write_text(json.dumps({"seed": 1, "optimizer_steps_per_step": 2}))
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
