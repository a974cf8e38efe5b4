"""`trl-miner report` and `inspect` of runs that our trainer did not train."""

import json

import numpy as np
import pytest
from browser import needs_browser, open_page
from rollout_files import LOG, PROMPTS, SIZE, at, nothing, write_run

from trl_miner.cli import main
from trl_miner.runs.settings import as_texts
from trl_miner.runs.token_credit import groups_of
from trl_miner.viewing import rollout_credit
from trl_miner.viewing.inputs import read_inputs
from trl_miner.viewing.inspect import read_shown
from trl_miner.viewing.report import write_report
from trl_miner.viewing.rollout_report import rollout_sections

EVIL = "<script>document.title='planted'</script>"


def table_of(folder, title):
    """The rows of a table of the report of a run, by their first cell."""
    inputs = read_inputs([folder])
    sections = rollout_sections(inputs.runs[0], inputs.outcomes.get(folder))
    blocks = [block for section in sections for block in section.blocks if hasattr(block, "rows")]
    found = next(block for block in blocks if block.title == title)
    return {row[0]: row[1:] for row in found.rows}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def visits(*rewards, prompt="a"):
    return [{"prompt": prompt, "rewards": own, "step": step} for step, own in enumerate(rewards)]


def test_turnover_says_which_prompts_were_lost_again(tmp_path):
    rows = visits([1, 1], [0, 1], prompt="lost") + visits([0, 0], [0, 0], [0, 0], prompt="never")
    rows += visits([0, 1], [1, 1], prompt="solved") + visits([0, 1], [1, 0], prompt="at times")
    path = write_lines(tmp_path / "x.jsonl", rows + visits([1, 1], prompt="once"))
    assert table_of(path, "Prompts that came several times") == {
        "Solved, and still": ["1", "25%"],
        "Solved once, lost again": ["1", "25%"],
        "Right at times, never by all rollouts": ["1", "25%"],
        "Never right": ["1", "25%"],
    }
    assert table_of(path, "Lost again") == {"lost": ["2", "100%", "50%", "1"]}
    assert table_of(path, "Never right") == {"never": ["3", "0%", "0%", "2"]}


def test_savings_are_those_of_these_rollouts(tmp_path):
    # a: no gradient at its first two visits, then one; b: one at its only visit; 8 rollouts
    rows = visits([0, 0], [1, 1], [0, 1]) + visits([1, 0], prompt="b")
    table = table_of(write_lines(tmp_path / "x.jsonl", rows), "What other settings would have done")
    assert "leaves 50% of the rollouts" in table["compute_less"][0]
    assert "generates 2.0 times" in table["dynamic_sampling"][0]
    # visits 2 and 3 of a are skipped with 1 - .5 and 1 - .5^2: 2 * .5 + 2 * .75 = 2.5 of 8, and of
    # the 4 with a gradient 1.5
    assert "skips 31% of the rollouts, and with them 38%" in table["prompt_selection: greso"][0]
    assert "gives 25%" in table["all_right: miner"][0]


def test_what_gave_no_gradient_is_told_in_rollouts_text_and_seconds(tmp_path):
    logs = LOG | {"step_time": lambda t: 2.0}
    run = write_run(tmp_path / "run", at(0.5), logs, steps=8, text=lambda *_: "x" * 40)
    table = table_of(run, "What the rollouts gave")
    inputs = read_inputs([run])
    groups = inputs.outcomes[run].groups
    share = (groups["spread"] == 0).mean()
    assert table["Rollouts without a gradient in GRPO"][2] == f"{share:.0%}"
    assert len(groups) == 8 * PROMPTS and table["Right answers"][2][:1] in "45"
    notes = rollout_sections(inputs.runs[0], inputs.outcomes[run])[1].blocks[0].notes
    assert f"{len(groups) * SIZE:,} rollouts of 64 different prompts." in notes
    assert share == 0 or f"{share:.0%} of that" in notes[1]


def test_tables_tell_kinds_and_rewards_apart(tmp_path):
    run = write_run(
        tmp_path / "run", at(0.5), steps=8, cut=lambda rng, verdict: not verdict,
        form=lambda rng, step, place, size: rng.permutation([1.0] * (size // 2) + [0.0] * (size // 2)),
    )  # fmt: skip
    kinds = table_of(run, "By kind of prompt")
    assert kinds["Mixed, right ones"][-1] == "0%" and kinds["Mixed, wrong ones"][-1] == "100%"
    rewards = table_of(run, "Which reward drives the gradient")
    assert rewards["form"][2] == "100%" and rewards["form"][-1] == "no"
    assert rewards["correct"][-1] == "yes"


def test_the_longest_of_a_batch_of_trl_count_as_cut(tmp_path):
    # 1 of 4 was cut, says the log
    rows = [
        {
            "prompt": "a",
            "rewards": [1, 0, 0, 1],
            "completions": ["x", "xx", "x" * 9, "x"],
            "step": 1,
        }
    ]
    write_lines(tmp_path / "1.jsonl", rows)
    log = {"step": 1, "reward": 0.5, "completions/clipped_ratio": 0.25}
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [log]}))
    kinds = table_of(tmp_path, "By kind of prompt")
    assert kinds["Mixed, wrong ones"][-1] == "50%" and kinds["Mixed, right ones"][-1] == "0%"


def test_a_log_alone_makes_a_shorter_report(tmp_path, capsys):
    run = write_run(tmp_path / "run", logs=LOG)
    assert main(["report", str(run)]) == 0
    text = (run / "report" / "report.md").read_text()
    assert (
        "log\\_completions=True in GRPOConfig" in text
        or "log_completions=True in GRPOConfig" in text
    )
    assert "Rollouts with a gradient" in text and "## Prompts" not in text
    # 1 - frac_reward_zero_std
    assert read_inputs([run]).runs[0].points("rollouts/grpo")[0].tolist() == [1, 0.7]


def test_of_several_runs_a_log_alone_is_told_if_it_shows_a_cause(tmp_path):
    runs = [write_run(tmp_path / "good", logs=LOG)]
    bad = LOG | {"completions/clipped_ratio": lambda t: 0.9}
    runs.append(write_run(tmp_path / "bad", logs=bad))
    text = write_report(runs, tmp_path / "out", quiet=True).with_name("report.md").read_text()
    assert "## bad: Why does it not learn?" in text and "## good" not in text


def test_a_comparison_stays_one_though_a_tracker_keeps_tables_in_it(tmp_path):
    (tmp_path / "cmp" / "grpo").mkdir(parents=True)
    run = write_run(tmp_path / "cmp" / "grpo" / "seed1", logs=LOG)
    (run / "compared.json").write_text('{"method": "grpo"}')
    (run / "wandb").mkdir()
    (run / "wandb" / "completions_1.table.json").write_text('{"columns": [], "data": []}')
    assert [run.name for run in read_inputs([tmp_path / "cmp"]).runs] == ["grpo/seed1"]


def test_rollouts_that_cannot_be_read_leave_the_log(tmp_path):
    run = write_run(tmp_path / "run", logs=LOG)
    (run / "completions").mkdir()
    (run / "completions" / "completions_00001.parquet").write_bytes(b"PAR1")
    page = write_report([run], quiet=True)
    assert "completions_00001.parquet is left out" in page.read_text()


def test_the_reward_that_decides_can_be_named(tmp_path):
    rows = [{"prompt": "a", "rewards": {"x": [0.5, 0.2], "y": [3, 3]}, "step": 1}]
    path = write_lines(tmp_path / "x.jsonl", rows)
    options = ["--output", str(tmp_path / "out"), "--quiet"]
    assert main(["report", str(path), *options, "--correct", "x", "--threshold", "0.5"]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Right is what x scores 0.5 or more." in text
    with pytest.raises(
        ValueError, match="No reward function named 'z' for --correct. There are x, y"
    ):
        write_report([path], tmp_path / "out", correct="z")


def test_our_own_runs_have_turnover_from_their_ledger(tmp_path):
    lines = [
        {"step": 1, "rollouts": 2, "prompts": [0, 1], "correct": [2, 0], "scored": [2, 2], "spread": [0.0, 0.0],
         "new": [["k0", "first"], ["k1", "second"]]},
        {"step": 2, "rollouts": 2, "prompts": [0, 1], "correct": [1, 0], "scored": [2, 2], "spread": [1.0, 0.0]},
    ]  # fmt: skip
    write_lines(tmp_path / "prompt_ledger.jsonl", lines)
    settings = as_texts({"num_generations": 2, "correct_threshold": 1.0})
    assert settings["num_generations"] == "2.0"  # a record has numbers in one spelling
    (tmp_path / "training.json").write_text(json.dumps({"settings": settings}))
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 1, "reward": 0.5, "groups/ph": 0.5}]})
    )
    assert table_of(tmp_path, "Lost again") == {"first": ["2", "100%", "50%", "2"]}
    assert table_of(tmp_path, "Never right") == {"second": ["2", "0%", "0%", "2"]}


# Pages


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_report_shows_text_of_strangers_as_text(tmp_path, width):
    rows = visits([0, 0], [0, 0], prompt=EVIL) + visits([1, 1], [0, 1], prompt=EVIL + "2" * 300)
    rows[-1]["completions"] = [EVIL, "words " * 200]
    page = write_report([write_lines(tmp_path / "x.jsonl", rows)], tmp_path / "out", quiet=True)
    with open_page(page, viewport={"width": width, "height": 850}) as opened:
        opened.assert_quiet()
        assert "planted" not in opened.title() and EVIL in opened.locator("main").inner_text()
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        opened.screenshot_as(f"rollout-report-{width}.png", tmp_path, full_page=True)


@needs_browser
def test_inspect_shows_rollouts_without_tokens(tmp_path):
    row = {"prompt": EVIL, "rewards": [0, 1], "completions": [EVIL, "so \\boxed{7}"], "step": 3}
    write_lines(tmp_path / "x.jsonl", [row | {"advantages": [-0.7, 0.7]}])
    assert main(["inspect", str(tmp_path), "--quiet"]) == 0
    with open_page(tmp_path / "inspect.html") as page:
        page.evaluate("() => ready")
        assert page.locator(".card").count() == 2 and page.locator(".badge.HE").count() == 2
        assert "so \\boxed{7}" in page.locator(".card").nth(0).inner_text()
        assert "planted" not in page.title()
        page.assert_quiet()


def test_without_advantages_inspect_shows_rewards_less_their_mean(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [{"prompt": "a", "rewards": [1, 0, 0, 0]}])
    assert read_shown(path).table["advantage"].to_pylist() == [0.75, -0.25, -0.25, -0.25]


def test_inspect_takes_whole_prompts_of_many_by_chance(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", nothing, steps=10, text=lambda *_: "x" * 54)
    assert read_shown(run).table.num_rows == 10 * PROMPTS * SIZE
    monkeypatch.setattr(rollout_credit, "MOST_TOKENS", 10 * SIZE * 10)  # 10 prompts of 10 words
    shown = read_shown(run)
    starts, sizes = groups_of(shown.table)
    assert 5 <= len(starts) <= 10 and {*sizes.tolist()} == {SIZE}
    assert f"{80 - len(starts)} prompts are left out" in shown.notes[1]
    assert {*read_shown(run, steps=[4]).table["step"].to_pylist()} == {4}
    with pytest.raises(ValueError, match="--steps must name recorded steps: got 99, and there are"):
        read_shown(run, steps=[99])
    assert np.all(np.diff(shown.table["step"].to_numpy()) >= 0)


def test_inspect_of_a_run_without_rollouts_says_how_to_keep_them(tmp_path, capsys):
    run = write_run(tmp_path / "run", logs=LOG)
    assert main(["inspect", str(run)]) == 2
    assert "log_completions=True" in capsys.readouterr().err
