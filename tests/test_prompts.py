"""What a report says of the prompts of a training: ledgers with known outcomes, and links to their token records."""

import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from browser import needs_browser, open_page
from test_report import log, write_run

from trl_miner.runs.history import read_run
from trl_miner.runs.prompt_ledger import Batch, line_of, read_ledger
from trl_miner.runs.prompt_outcomes import ALL_RIGHT, ALL_WRONG, MIXED, UNSEEN, outcomes_of
from trl_miner.viewing.frame import read_metrics
from trl_miner.viewing.grouping import group_methods
from trl_miner.viewing.prompts import prompt_plans, prompt_tables, read_prompts
from trl_miner.viewing.report import write_report

# Four rollouts each; prompts 0 to 3, of five. Prompt 0 is forgotten, 1 never solved, 2 learned, 3 unscorable.
VISITS = [
    {"prompts": [0, 1], "correct": [4, 0], "scored": [4, 4]},
    {"prompts": [2, 3], "correct": [1, 2], "scored": [4, 2]},
    {"prompts": [0, 1], "correct": [1, 0], "scored": [4, 4], "skipped": [2]},
    {"prompts": [2], "correct": [3], "scored": [3], "dropped": [0]},  # one is unscored, so this visit says nothing
    {"prompts": [2], "correct": [4], "scored": [4]},
]


def write_ledger(run, visits=VISITS, *, rows=5, texts=("What is 1+1?", "1+1", "What is 3?", "Four <b>$x$</b>")):
    """A ledger whose batches train for two steps each: at steps 1, 3, 5, ..."""
    lines, known = [line_of({"format": 1, "correct_threshold": 1.0, "rows": rows, "digest": "d"})], 0
    for place, visit in enumerate(visits):
        end = max(known, *(prompt + 1 for prompt in visit["prompts"]))
        new = [(f"key {prompt}", texts[prompt]) for prompt in range(known, end)]
        nothing, known = [None] * len(visit["prompts"]), end
        lines.append(Batch(step=2 * place + 1, rollouts=4, reward=nothing, spread=nothing, new=new, **visit).line())
    (run / "prompt_ledger.jsonl").write_bytes(b"".join(lines))
    return run


@pytest.fixture
def run(tmp_path):
    return write_ledger(write_run(tmp_path / "run", [log(step) for step in range(1, 11)]))


def test_a_prompt_counts_with_its_last_visit(run):
    outcomes = outcomes_of(read_ledger(run))
    assert outcomes.last_P.tolist() == [MIXED, ALL_WRONG, ALL_RIGHT, UNSEEN]
    # all right, mixed, all wrong: prompt 0 goes from the first to the second, prompt 2 from the second to the first
    assert outcomes.counts_BK.tolist() == [[1, 0, 1], [1, 1, 1], [0, 2, 1], [0, 2, 1], [1, 1, 1]]


def test_shares_are_of_the_training_set_or_of_what_a_stream_has_shown(tmp_path, run):
    stream = write_ledger(write_run(tmp_path / "stream", [log(1)]), rows=None)
    own, of_stream = read_prompts([read_run(run), read_run(stream)])[0].values()
    assert own.shares()[:, -1].tolist() == [0.2, 0.2, 0.2, 0.4]
    assert np.allclose(of_stream.shares()[:, -1], [1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.filterwarnings("error")
def test_the_first_batch_of_a_stream_is_drawn_without_a_warning(run):
    histories = [read_run(write_ledger(run, VISITS[:1], rows=None))]
    (plan,) = prompt_plans(read_metrics(group_methods(histories), ()), read_prompts(histories)[0])
    assert plan.draw().axes


def test_seeds_are_drawn_as_their_mean_and_methods_side_by_side(tmp_path):
    runs = [
        write_ledger(
            write_run(tmp_path / name / f"seed{seed}", [log(9)], recipe={"beta": beta}, seed=seed), VISITS[:n]
        )
        for name, beta, seed, n in (("a", 0, 1, 1), ("a", 0, 2, 2), ("b", 1, 1, 1))
    ]
    histories = [read_run(path) for path in runs]
    figure = prompt_plans(read_metrics(group_methods(histories), ()), read_prompts(histories)[0])[0].draw()
    assert [axes.get_title() for axes in figure.axes] == ["All right", "Mixed", "All wrong", "Unseen"]
    lines = [{line.get_label(): line.get_data()[1].tolist() for line in axes.get_lines()} for axes in figure.axes]
    # step 1: all have one prompt of five all right, one all wrong; step 3: of a one seed is there, with one more mixed
    assert lines[0] == lines[2] == {"a": [0.2, 0.2], "b": [0.2]}
    assert lines[3] == {"a": pytest.approx([0.6, 0.4]), "b": pytest.approx([0.6])}


def test_the_only_method_that_passed_over_prompts_is_named(tmp_path):
    runs = [
        write_ledger(write_run(tmp_path / name, [log(9)], recipe={"beta": size}, method=name), VISITS[:size])
        for name, size in (("every", 1), ("choosy", 3))
    ]
    histories = [read_run(path) for path in runs]
    _, passed_over = prompt_plans(read_metrics(group_methods(histories), ()), read_prompts(histories)[0])
    assert passed_over.caption.endswith("This is choosy; the others passed over nothing.")
    # batches of 2, 2 and 2 + 1 passed over, at steps 1, 3 and 5; saved of all so far: 1 of 7
    lines = [dict(zip(*line.get_data(), strict=True)) for axes in passed_over.draw().axes for line in axes.get_lines()]
    assert lines == [pytest.approx({1: 0, 3: 0, 5: 1 / 3}), pytest.approx({1: 0, 3: 0, 5: 1 / 7})]


def test_prompts_that_were_never_solved_or_forgotten_are_listed(tmp_path, run):
    histories = [read_run(run)]
    counts, never, forgotten = prompt_tables(histories, read_prompts(histories)[0], tmp_path)
    # 8 visits of 4 prompts. One prompt was passed over, of 9 that were drawn: 4 rollouts of 36
    assert counts.rows == [["run", "5", "4", "2.0", "1", "1", "1", "1", "1", "1", "4 (11%)"]]
    assert never.rows == [["1", "1+1", "2", "step 5"]]
    assert forgotten.rows == [["1", "What is 1+1?", "step 1", "step 5: 1 of 4 right"]]


def test_long_lists_are_cut_and_say_so(tmp_path, run):
    many = [{"prompts": [*range(50)], "correct": [0] * 50, "scored": [4] * 50}] * 2
    write_ledger(run, many, rows=50, texts=[f"Question {n}" for n in range(50)])
    histories = [read_run(run)]
    _, never = prompt_tables(histories, read_prompts(histories)[0], tmp_path)
    assert len(never.rows) == 20 and never.notes == ["30 more are not listed."]


def write_records(run):
    """Token records of step 6, which the third batch trains; the text of prompt 1 is part of that of prompt 0."""
    rows = {
        "step": [6] * 4,
        "group": [0, 0, 2, 2],
        "prompt": ["<s>User: What is\n1+1? A:"] * 2 + ["<s>User: 1+1 A:"] * 2,
    }
    (run / "credit").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(rows), run / "credit" / "credit_00006.parquet")


def test_prompts_with_token_records_lead_to_them(run):
    write_records(run)
    page = write_report([run], quiet=True).read_text()
    assert re.findall(r'<a href="(\.\./[^"]*)">([^<]*)', page) == [
        ("../inspect.html#6/2", "step 6"),
        ("../inspect.html#6/0", "step 6"),
    ]
    assert "[step 6](../inspect.html#6/0)" in (run / "report" / "report.md").read_text()
    assert page.count("yet to be made") == 2
    (run / "inspect.html").write_text("made")
    histories = [read_run(run)]
    tables = prompt_tables(histories, read_prompts(histories)[0], run / "report")
    assert not any("yet to be made" in note for table in tables for note in table.notes)


@pytest.mark.parametrize("content", [None, "", "{}\n", "no JSON\n"])
def test_a_ledger_that_cannot_be_read_gives_a_note_at_most(run, content):
    (run / "prompt_ledger.jsonl").unlink()
    if content is not None:
        (run / "prompt_ledger.jsonl").write_text(content)
    found, notes = read_prompts([read_run(run)])
    assert found == {} and ["damaged" in note for note in notes] == [True] * (content not in (None, ""))


def test_without_a_ledger_that_can_be_read_there_is_no_section(run):
    (run / "prompt_ledger.jsonl").write_text("no JSON\n")
    page = write_report([run], quiet=True).read_text()
    assert 'id="prompts"' not in page and "damaged" in page


@needs_browser
def test_the_section_fits_a_phone(run, tmp_path):
    write_records(run)
    with open_page(
        write_report([run], quiet=True), color_scheme="dark", viewport={"width": 390, "height": 800}
    ) as page:
        page.assert_quiet()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.screenshot_as("report_prompts.png", tmp_path, full_page=True)
