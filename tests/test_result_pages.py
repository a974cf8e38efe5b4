"""RESULTS.md and the pages of the studies say what the tables say, which are made from raw results.

A table of a page that ends in verdicts copies whole rows: equal verdicts read alike everywhere.
"""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logit
from scipy.stats import ttest_1samp

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
MADE = ("forks/tables.md", "forks/both_sides.md", "two-procedures/tables.md", "study/tables.md")
PAGES = (
    "RESULTS.md",
    "forks/README.md",
    "forks/both_sides.md",
    "forks/protocol.md",
    "two-procedures/README.md",
    "two-procedures/notes.md",
    "study/README.md",
)
INTERVAL = re.compile(r"[+-]\d+\.\d+ \([+-]\d+\.\d+ to [+-]\d+\.\d+\)")
VERDICTS = {
    *("higher", "lower", "not decided", "no difference beyond the margin"),
    *("higher, within the margin", "lower, within the margin"),
}
MIRROR = "## Mirror"  # the second part of the tables of two procedures


def made(name):
    """The text of a page of tables; of the second protocol, which has prose, the tables alone."""
    text = (RECIPES / name).read_text()
    tables = re.findall(r"<!-- tables of \S+ -->\n(.*?)<!-- end -->", text, re.DOTALL)
    return "\n".join(tables) or text


def tables_of(text):
    """The tables of a text, each as a header and rows of cells."""
    blocks = re.findall(r"((?:^\|.*\n)+)", text + "\n", re.MULTILINE)
    for block in blocks:
        header, _, *rows = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in block.splitlines()
        )
        yield header, rows


def rows_of(text):
    return [row for _, rows in tables_of(text) for row in rows]


ROWS = [row for name in MADE for row in rows_of(made(name))]


def intervals_of(path):
    """Those of its prose and tables, not of what a command prints."""
    text = re.sub(r"^```text\n.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {*INTERVAL.findall(" ".join(text.split()))}


KNOWN = {interval for name in MADE for interval in INTERVAL.findall(made(name))}


@pytest.mark.parametrize("page", PAGES)
def test_every_interval_that_a_page_shows_stands_in_the_tables(page):
    shown = intervals_of(RECIPES / page)
    assert shown and not shown - KNOWN


def test_every_effect_that_a_guide_or_the_readme_quotes_stands_in_the_tables():
    guides = [ROOT / "README.md", *ROOT.glob("docs/source/**/*.md"), *ROOT.glob("trl_miner/*/*.md")]
    assert not {(path.name, shown) for path in guides for shown in intervals_of(path) - KNOWN}


@pytest.mark.parametrize("page", ["RESULTS.md", "forks/README.md", "two-procedures/README.md"])
def test_a_row_with_a_verdict_is_a_row_of_the_tables(page):
    """Seeds, points, log-odds and verdict of one comparison."""
    copied = 0
    for header, rows in tables_of((RECIPES / page).read_text()):
        if "Verdict" in header:
            for row in rows:
                cells = {cell for cell in row[1:] if cell}
                assert any(cells <= set(known) for known in ROWS), row
                assert not row[header.index("Verdict")] or VERDICTS & cells, row
                copied += 1
    assert copied >= 3


def of_forks(method, world, rate="2e-4"):
    (row,) = (row for row in ROWS if row[0] == f"{method}, {world}, {rate}" and len(row) > 8)
    return row


def of_first(method, world):
    """The row of the first base model, of the table against GRPO in that world."""
    section = made("forks/tables.md").partition(f"### Against GRPO, {world}\n")[2]
    (_, rows), *_ = tables_of(section)
    (row,) = (row for row in rows if row[0] == method)
    return row


def of_procedures(comparison, mirror):
    part = made("two-procedures/tables.md").partition(MIRROR)[2 if mirror else 0]
    (row,) = (row for row in rows_of(part) if row[0] == comparison)
    return row


def points_in(row):
    """The mean of the only cell in points (one digit) of a row."""
    means = {cell.split()[0] for cell in row if re.fullmatch(r"[+-]\d+\.\d \(.*\)", cell)}
    (mean,) = means
    return mean


def test_the_table_of_settings_has_the_points_of_the_tables():
    page = (RECIPES / "RESULTS.md").read_text().partition("## Which setting to use")[2]
    (_, shown), *_ = tables_of(page)
    second = ("miner", "miner_1", "entropy", "f_grpo", "passk", "rounds")
    points = {
        name: [points_in(of_forks(name, of)) for of in ("forks", "mirror")] for name in second
    }
    points["miner_5"] = [points_in(of_first("miner_5", world)) for world in ("forks", "mirror")]
    procedures = {
        name: [points_in(of_procedures(f"{name} against grpo", mirror)) for mirror in (False, True)]
        for name in ("miner", "miner_5", "entropy_5")
    }
    expected = [
        points["miner"] + procedures["miner"],
        points["miner_1"] + ["", ""],
        points["miner_5"] + procedures["miner_5"],
        points["entropy"] + ["", ""],
        ["", "", *procedures["entropy_5"]],
        points["f_grpo"] + ["", ""],
        points["passk"] + ["", ""],
        points["rounds"] + ["", ""],
    ]
    assert [row[1:] for row in shown] == expected


def of_all_seeds():
    (row,) = (row for row in ROWS if row[0] == "all" and row[1] == "20")
    return row


@pytest.mark.parametrize("page", ["README.md", "docs/source/concepts/does_it_help.md"])
def test_does_it_help_has_the_ranges_of_the_tables(page):
    """Over two base models, the first with all of its seeds."""

    def span(rows):
        means = sorted((points_in(row) for row in rows), key=lambda mean: abs(float(mean)))
        return f"{means[0]} to {means[-1]}"

    second = {
        (name, world): of_forks(name, world)
        for name in ("miner", "entropy")
        for world in ("forks", "mirror")
    }
    expected = {
        "Toy model, MINER": [
            span([of_all_seeds(), second["miner", "forks"]]),
            span([of_first("miner", "mirror"), second["miner", "mirror"]]),
        ],
        "Toy model, entropy bonus": [
            span([of_first("entropy", world), second["entropy", world]])
            for world in ("forks", "mirror")
        ],
    }
    for label, name in (
        ("SmolLM2-135M, MINER", "miner"),
        ("SmolLM2-135M, MINER with 5 % of the gradient", "miner_5"),
        ("SmolLM2-135M, entropy bonus with 5 % of the gradient", "entropy_5"),
    ):
        expected[label] = [
            points_in(of_procedures(f"{name} against grpo", mirror)) for mirror in (False, True)
        ]
    shown_rows = {
        re.sub(r" \(.*?\)", "", row[0]): row[1:]
        for header, rows in tables_of((ROOT / page).read_text())
        if "are better" in " ".join(header)
        for row in rows
    }
    assert len(shown_rows) >= 4
    assert shown_rows == {label: expected[label] for label in shown_rows}


def test_the_tokens_to_grpos_best_are_those_of_the_benchmarks():
    """The ratio of tokens, without its range; "not reached" is "never" here."""

    def ratios(world):
        page = (ROOT / "tests" / "bench" / "results" / f"whole_run_{world}.md").read_text()
        (_, best), (_, most), *_ = tables_of(page.partition("## To GRPO's best")[2])
        return [
            {row[0]: row[4].split()[0].replace("not", "never") for row in rows}
            for rows in (most, best)
        ]

    names = ("dapo", "dapo_static", "grpo_dynamic", "grpo_greso", "grpo_thompson", "grpo_rounds")
    expected = [
        [of[name] for world in ("arithmetic", "strategies") for of in ratios(world)]
        for name in (*names, "miner")
    ]
    page = (RECIPES / "RESULTS.md").read_text().partition("## Fewer completions")[2]
    (_, shown_rows), *_ = tables_of(page)
    assert [row[1:] for row in shown_rows] == expected


# --- With other code than that of the studies


def raw(name):
    with gzip.open(RECIPES / "forks" / "results" / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def share_right(run):
    counts = run["held_out"]["moments"]["after"]
    return sum(counts["num_correct"]) / (len(counts["num_correct"]) * counts["num_samples"])


def differences(runs, world, seeds, measure, baseline="grpo_2e-4", rate=None):
    """MINER less its baseline of the same seed."""
    found = {
        (run["method"], run["seed"]): measure(run)
        for run in runs
        if run["settings"]["dataset_name"] == f"trl_miner/{world}"
        and (rate is None or float(run["settings"]["learning_rate"]) == rate)
    }
    return [found["miner", seed] - found[baseline, seed] for seed in seeds]


def shown(values, digits):
    """Mean and Student's interval, as the pages write them."""
    low, high = ttest_1samp(values, 0).confidence_interval()
    mean, low, high = (f"{value:+.{digits}f}" for value in (np.mean(values), low, high))
    return f"{mean} ({low} to {high})"


def test_the_first_rows_follow_from_the_raw_counts_with_other_code():
    study, second = map(raw, ("study", "both_sides"))
    expected = [
        (study, "forks", range(1, 11), {}),
        (study, "forks", range(1, 21), {}),
        (second, "forks", range(1, 11), dict(baseline="grpo", rate=2e-4)),
        None,  # two procedures: tests/test_two_procedures.py
        (study, "forks_mirror", range(1, 6), {}),
        (second, "forks_mirror", range(1, 11), dict(baseline="grpo", rate=2e-4)),
    ]
    section = (RECIPES / "RESULTS.md").read_text().partition("## MINER against GRPO")[2]
    (_, rows), *_ = tables_of(section)
    for row, source in zip(rows, expected, strict=False):
        if source:
            runs, world, seeds, more = source
            points = differences(runs, world, seeds, lambda run: 100 * share_right(run), **more)
            odds = differences(runs, world, seeds, lambda run: logit(share_right(run)), **more)
            assert row[1:4] == [str(len(seeds)), shown(points, 1), shown(odds, 2)]


def test_the_runs_from_another_base_model_are_those_of_the_second_protocol():
    """The first protocol's deviation 4: they are no evidence of a third base model."""

    def after(runs):
        return {
            (
                run["settings"]["dataset_name"],
                run["method"].removesuffix("_2e-4"),
                run["seed"],
            ): run["held_out"]["moments"]["after"]["num_correct"]
            for run in runs
            if float(run["settings"]["learning_rate"]) == 2e-4
        }

    again, second = after(raw("again")), after(raw("both_sides"))
    common = again.keys() & second.keys()
    assert len(common) == 20 and {name for _, name, _ in again.keys() - common} == {"miner_5"}
    assert [key for key in common if again[key] != second[key]] == [
        ("trl_miner/forks", "entropy", 4)
    ]


def on_longer_sums(prefixes):
    """Right samples, samples and Pass@1 in percent of two procedures, by method and seed."""
    found = {}
    for prefix in prefixes:
        path = RECIPES / "two-procedures" / "results" / f"{prefix}_measures.jsonl"
        for line in map(json.loads, path.read_text().splitlines()):
            right = [
                count
                for count, level in zip(line["correct"], line["level"], strict=True)
                if level in ("3", "4")
            ]
            samples = len(right) * line["num_samples"]
            found[line["method"], line["seed"]] = (sum(right), samples, 100 * sum(right) / samples)
    return found


@pytest.mark.parametrize(
    ("task", "prefixes", "seeds"),
    [
        ("two procedures", ("arms_amd", "arms_xeon"), 12),
        ("mirror of two procedures", ("mirror_xeon",), 6),
    ],
)
def test_two_procedures_follow_from_the_raw_counts_with_other_code(task, prefixes, seeds):
    """Log-odds with Student's interval; of the points, whose interval is over problems as well, the
    mean."""
    found = on_longer_sums(prefixes)
    common = sorted({seed for _, seed in found} & {seed for name, seed in found if name == "miner"})
    pairs = [(found["miner", seed], found["grpo", seed]) for seed in common]
    odds = [
        np.log((right + 0.5) / (samples - right + 0.5)) - np.log((other + 0.5) / (of - other + 0.5))
        for (right, samples, _), (other, of, _) in pairs
    ]
    points = np.mean([own[2] - other[2] for own, other in pairs])
    section = (RECIPES / "RESULTS.md").read_text().partition("## MINER against GRPO")[2]
    (_, rows), *_ = tables_of(section)
    (row,) = (row for row in rows if row[0] == task)
    assert (row[1], row[3]) == (str(seeds), shown(odds, 2))
    assert row[2].split()[0] == f"{points:+.1f}"


def test_the_mean_over_the_scorings_follows_from_the_raw_counts_with_other_code():
    def mean(run):
        scores = [score["pass@1"] for step, score in run["scores"].items() if step != "0"]
        assert len(scores) == 5
        return np.mean(logit(scores))

    page = " ".join((RECIPES / "RESULTS.md").read_text().split())
    for world, seeds in (("forks_mirror", range(1, 6)), ("forks", range(1, 21))):
        assert shown(differences(raw("study"), world, seeds, mean), 2) in page


def test_half_the_steps_are_medians_over_all_seeds():
    """A run that never reaches the best of GRPO's run of its seed counts as later than all."""
    best = {}
    for run in raw("study"):
        if run["method"] == "grpo_2e-4" and run["settings"]["dataset_name"] == "trl_miner/forks":
            scores = [(int(step), score["pass@1"]) for step, score in run["scores"].items()]
            start, *later = (score for _, score in sorted(scores))
            if max(later) > start:
                best[run["seed"]] = max(later)
    steps = {"miner": [], "grpo_2e-4": []}
    for run in raw("study"):
        of = (run["method"] in steps, run["settings"]["dataset_name"], run["seed"] in best)
        if of == (True, "trl_miner/forks", True):
            reached = [
                int(step)
                for step, score in run["scores"].items()
                if score["pass@1"] >= best[run["seed"]]
            ]
            steps[run["method"]].append(min(reached, default=np.inf))
    assert len(best) == 18 and np.isfinite(steps["miner"]).sum() == 15
    assert (np.median(steps["miner"]), np.median(steps["grpo_2e-4"])) == (50, 100)
    page = " ".join((RECIPES / "RESULTS.md").read_text().split())
    assert "15 of 18 runs reach" in page and "after 50 steps in the median of all 18" in page
