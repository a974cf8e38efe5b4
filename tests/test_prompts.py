"""What a report says of the prompts of a training: ledgers with known outcomes, and links to their token records."""

import pytest
from test_report import log, write_run

from trl_miner.runs.history import read_run
from trl_miner.runs.prompt_ledger import ALL_RIGHT, ALL_WRONG, MIXED, Batch, line_of, outcomes_of, read_ledger
from trl_miner.viewing.prompts import prompts_table, read_prompts

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
    lines, known = [line_of({"rows": rows, "digest": "d"})], 0
    for place, visit in enumerate(visits):
        end = max(known, *(prompt + 1 for prompt in visit["prompts"]))
        new = [(f"key {prompt}", texts[prompt]) for prompt in range(known, end)]
        nothing, known = [None] * len(visit["prompts"]), end
        lines.append(Batch(step=2 * place + 1, rollouts=4, spread=nothing, new=new, **visit).line())
    (run / "prompt_ledger.jsonl").write_bytes(b"".join(lines))
    return run


@pytest.fixture
def run(tmp_path):
    return write_ledger(write_run(tmp_path / "run", [log(step) for step in range(1, 11)]))


def test_a_prompt_counts_with_its_last_visit(run):
    outcomes = outcomes_of(read_ledger(run))
    assert dict(zip(outcomes.visits["prompt"], outcomes.visits["kind"], strict=True)) == {
        **{0: MIXED, 1: ALL_WRONG, 2: ALL_RIGHT}
    }
    # all right, mixed, all wrong: prompt 0 goes from the first to the second, prompt 2 from the second to the first
    assert outcomes.counts_BK.tolist() == [[1, 0, 1], [1, 1, 1], [0, 2, 1], [0, 2, 1], [1, 1, 1]]


def test_prompts_that_were_never_solved_or_forgotten_are_counted_and_known(run):
    histories = [read_run(run)]
    prompts = read_prompts(histories)[0]
    # 8 visits of 4 prompts; one was passed over once
    row = ["run", "5", "2.0", "4", "1", "1", "1", "1", "1", "1"]
    assert prompts_table(histories, prompts).rows == [row]
    own = prompts[str(run)].by_prompt
    assert own[own["never_solved"]][["text", "visits", "step"]].values.tolist() == [["1+1", 2, 5]]
    columns = ["text", "solved", "step", "correct", "rollouts"]
    assert own[own["forgotten"]][columns].values.tolist() == [["What is 1+1?", 1, 5, 1, 4]]


@pytest.mark.parametrize("content", [None, "", "{}\n", "no JSON\n"])
def test_a_ledger_that_cannot_be_read_gives_a_note_at_most(run, content):
    (run / "prompt_ledger.jsonl").unlink()
    if content is not None:
        (run / "prompt_ledger.jsonl").write_text(content)
    found, notes = read_prompts([read_run(run)])
    assert found == {} and ["damaged" in note for note in notes] == [True] * (content not in (None, ""))
