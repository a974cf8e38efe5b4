"""Counts of right samples of each held-out problem in a report: against GRPO, Pass@K, a reader's
check."""

import itertools
import json
import math
import statistics

import pytest
from scipy import stats
from studies import FINAL_SAMPLES, write_study

from trl_miner.runs.runs_file import write_runs
from trl_miner.viewing.held_out import (
    against_tables,
    comparisons,
    pass_tables,
    scored_alike,
)
from trl_miner.viewing.inputs import group_methods, read_inputs
from trl_miner.viewing.report import write_report


def methods_of(*folders):
    return group_methods(read_inputs(folders).runs)


def against(*folders):
    scored = scored_alike(methods_of(*folders))
    return against_tables(scored, comparisons(scored))


def cells(table, row):
    (found,) = [line for line in table.rows if line[0] == row]
    return found


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def tables_of_markdown(text):
    """{title: {row: [cells]}} of a report, as a reader would find them."""
    found = {}
    for part in text.split("\n### ")[1:]:
        title, _, rest = part.partition("\n")
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in rest.splitlines()
            if line[:1] == "|"
        ]
        found[title.replace("\\", "")] = {row[0]: row[1:] for row in rows[2:]}
    return found


# A reader's check


def plain_pass_at_k(n, c, k):
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def test_the_numbers_of_a_report_follow_from_the_raw_file_alone(undrawn, tmp_path):
    write_study(tmp_path / "study")
    write_runs(read_inputs([tmp_path / "study"]).runs, path := tmp_path / "runs.jsonl")
    report = write_report([path], tmp_path / "report", quiet=True).with_name("report.md")
    shown = tables_of_markdown(report.read_text())

    runs = {
        (run["method"], run["seed"]): run for run in map(json.loads, path.read_text().splitlines())
    }
    problems = runs["grpo", 1]["held_out"]["problems"]
    inside = [
        place
        for place, level in enumerate(problems["level"])
        if level in problems["trained_levels"]
    ]

    def scores(method, seed, k):
        after = runs[method, seed]["held_out"]["moments"]["after"]
        return [
            plain_pass_at_k(after["num_samples"], after["num_correct"][place], k)
            for place in inside
        ]

    # Pass@4 of MINER: mean and deviation over the seeds
    means = [100 * statistics.fmean(scores("miner", seed, 4)) for seed in (1, 2, 3)]
    row = shown["Pass@K, trained levels (1 to 6)"]["miner"]
    assert row[:1] + row[2:3] == [
        "3",
        f"{statistics.fmean(means):.1f} ± {statistics.stdev(means):.1f}",
    ]

    # MINER against GRPO: difference, interval, p, and p of two comparisons after Holm
    p_of, told = {}, shown["Against grpo, trained levels (1 to 6)"]
    for method in ("miner", "miner_wo_ac"):
        table = [
            [
                100 * (a - b)
                for a, b in zip(scores(method, seed, 1), scores("grpo", seed, 1), strict=True)
            ]
            for seed in (1, 2, 3)
        ]
        S, P = len(table), len(inside)  # noqa: N806
        mean = statistics.fmean(itertools.chain(*table))
        of_seeds, of_problems = (
            [statistics.fmean(row) for row in table],
            list(map(statistics.fmean, zip(*table, strict=True))),
        )
        ms_s, ms_p = P * statistics.variance(of_seeds), S * statistics.variance(of_problems)
        rest = sum(
            (table[s][p] - of_seeds[s] - of_problems[p] + mean) ** 2
            for s in range(S)
            for p in range(P)
        )
        ms_e = rest / ((S - 1) * (P - 1))
        total = max(ms_s + ms_p - ms_e, ms_s, ms_p, ms_e)
        degrees = total**2 / (ms_s**2 / (S - 1) + ms_p**2 / (P - 1) + ms_e**2 / ((S - 1) * (P - 1)))
        error = math.sqrt(total / (S * P))
        half = stats.t.ppf(0.975, degrees) * error
        p_of[method] = 2 * stats.t.sf(abs(mean) / error, degrees)
        assert told[method][:2] == ["3", f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"]
    first, second = sorted(p_of, key=p_of.get)
    adjusted = {first: 2 * p_of[first], second: max(2 * p_of[first], p_of[second])}
    for method, p in p_of.items():
        assert told[method][2:4] == [
            f"{x:.3f}" if x >= 0.001 else "under 0.001" for x in (p, adjusted[method])
        ]


# What is not there


def test_only_seeds_and_problems_that_both_have_are_compared(tmp_path):
    write_study(tmp_path / "a", after={"grpo": 0.6}, seeds=3)
    write_study(tmp_path / "b", after={"miner": 0.7}, seeds=5)
    last = write_study(tmp_path / "c", after={"miner_wo_ac": 0.7}, seeds=2)[-1]
    edit(last / "held_out.json", lambda content: content["problems"].update(fingerprint="other"))
    folders = [tmp_path / name for name in "abc"]
    table = against(*folders)[0]
    assert [row[:2] for row in table.rows] == [["miner", "3"], ["miner_wo_ac", "1"]]
    assert any(
        "With 1 seed, interval and p are over the problems alone" in note for note in table.notes
    )
    assert (
        table.notes[-1].startswith("Left out, scored on other problems: ")
        and "seed2" in table.notes[-1]
    )


def test_k_is_what_every_run_has_samples_for_and_problems_without_levels_are_one_range(tmp_path):
    folders = write_study(tmp_path, after={"miner": 0.7})
    for folder in folders:
        edit(folder / "held_out.json", lambda content: content["problems"].update(level=None))
    few = {"num_samples": 8, "num_correct": [4] * 80}
    edit(folders[0] / "held_out.json", lambda content: content["moments"]["after"].update(few))
    scored = scored_alike(methods_of(tmp_path))
    (table,) = pass_tables(scored)
    assert table.title == "Pass@K, all problems" and table.header[2:] == [
        "Pass@1",
        "Pass@4",
        "Pass@8",
    ]
    before = cells(table, "(before training)")
    # 4 samples before training
    assert before[1] == "3" and before[3] != "n/a" and before[4] == "n/a"
    assert against(tmp_path) == []  # one method alone


@pytest.mark.parametrize("lost", [[7], range(80)])
def test_problems_with_unscored_samples_are_compared_in_no_run(tmp_path, lost):
    folder = write_study(tmp_path)[0]
    whole = scored_alike(methods_of(tmp_path)).ranges
    scores = [FINAL_SAMPLES - (place in lost) for place in range(80)]

    def lose(content):
        counts = content["moments"]["after"]
        counts |= {"num_scored": scores, "num_correct": [*map(min, counts["num_correct"], scores)]}

    edit(folder / "held_out.json", lose)
    scored = scored_alike(methods_of(tmp_path))
    left = [[place for place in places if place not in lost] for places in whole.values()]
    assert [*scored.ranges.values()] == [
        places for places in left if places
    ] and scored.num_unscored == len(lost)
    notes = [note for table in pass_tables(scored) for note in table.notes]
    assert any("in some run: 1 problems" in note for note in notes) == (len(lost) == 1)
    assert bool(against(tmp_path)) == (len(lost) == 1)
