"""What `trl-miner report` says of runs, of TRL's own trainer and of ours."""

import json
import re
from argparse import Namespace

import pandas as pd
import pytest
from report.trl_run import write_trl_run

from trl_miner.commands import report as command
from trl_miner.report.facts import contradictions, facts
from trl_miner.report.page import make_report, write_report
from trl_miner.report.plots import by_method
from trl_miner.report.runs import read_run
from trl_miner.run.record import Record, Source, write_record

# of four prompts: all right, mixed, all wrong, mixed
FOUR = [[1, 1], [1, 0], [0, 0], [0, 1]]


def as_ours(folder, seed=1, **settings):
    """Make a run one of ours: with a record, and our metrics in its log."""
    state = json.loads((folder / "trainer_state.json").read_text())
    for entry in state["log_history"]:
        entry |= {"groups/ph": 0.5, "completions/grpo": 0.25, "completions/used": 0.75}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    source, known = Source("tiny", False), {"seed": str(seed), **settings}
    write_record(folder, Record(source, source, "8 rows", known, ("MINER",), {}, seed, {}))
    return folder


def test_prompts_of_plain_trl_are_sorted_by_the_logged_completions(tmp_path):
    nan = float("nan")
    run = read_run(write_trl_run(tmp_path / "run", [FOUR, [[1, 1], [1, 2], [0, 1], [nan, 0]]]))
    # 1 and 1 of 4 all right, 2 and 2 mixed (correct with unequal rewards, too), 1 and 0 all wrong;
    # one without a verdict is none of the three
    assert [run.mean(f"groups/{kind}") for kind in ("ph", "he", "nh")] == [0.25, 0.5, 0.125]


def test_messages_are_read_as_text(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    path = folder / "completions/completions_00001.parquet"
    table = pd.read_parquet(path)
    # a call of a tool has no content
    call = {"role": "assistant", "content": None}
    table["completion"] = [[call, call | {"content": text}] for text in table["completion"]]
    table.to_parquet(path)
    assert read_run(folder).completions["completion"][0] == "\nanswer 1 0"


# Each of a healthy run, and of one that is broken in one way: the sentences, and no other.
@pytest.mark.parametrize(
    ("rewards", "metrics", "said"),
    [
        (
            [FOUR],
            {"eval_reward": 0.5},
            # 4 of 8 completions, of the prompts all right and all wrong
            ["50.0% of the completions had no gradient.*25.0% of all are of all-right"],
        ),
        (
            [[[0.5, 0.5]], [[0.5, 0.5]]],
            {"eval_reward": 0.5},
            [
                "reward never varied: it was 0.5",
                "100.0% of the comp.* 0.0% of all are of all-right",
            ],
        ),
        (
            [[[1, 0], [0, 1]]],
            {"eval_reward": 0.5, "completions/clipped_ratio": 0.125},
            ["12.5% of the completions were cut off"],
        ),
        (
            [[[1, 0], [0, 1]]],
            {"eval_reward": 1.0, "learning_rate": 0.0},
            ["learning rate was zero"],
        ),
        ([[[1, 0], [0, 1]]], {}, ["Nothing was held out"]),
        ([[[1, 0], [0, 1]]], {"eval_reward": 1.0}, []),
        # all right, but no mixed prompt in the batch, on whose signal MINER's cap depends
        (
            [[[1, 1], [0, 0]]],
            {"eval_reward": 1.0},
            ["100.0% of the completions had no gradient.*0.0% of all are of all-right"],
        ),
    ],
)
def test_facts_of_a_run(tmp_path, rewards, metrics, said):
    found = facts(read_run(write_trl_run(tmp_path / "run", rewards, **metrics)))
    assert len(found) == len(said), found
    assert all(re.search(pattern, text) for pattern, text in zip(said, found, strict=True)), found


def test_a_run_of_ours_says_what_it_used_beyond_grpo(tmp_path):
    run = read_run(as_ours(write_trl_run(tmp_path / "run", [FOUR])))
    text = facts(run)[0]
    assert "GRPO gives 75.0% of" in text and "used 50.0% of all beside" in text
    assert run.method == "MINER"


def test_recorded_rewards_that_the_grader_contradicts_are_counted_and_shown(tmp_path):
    texts = [[[r"\boxed{7}", r"<script>\boxed{9}"], ["The answer is 7.", r"\boxed{-7}"]]]
    # right and paid; wrong and paid; right (without a box) and refused; wrong and half paid, which
    # is neither right nor wrong
    folder = write_trl_run(tmp_path / "run", [[[1, 1], [0, 0.5]]], solution="7", texts=texts)
    text, examples = contradictions(read_run(folder))
    assert "Of 3 recorded rewards, drawn from 3, our grader contradicts 2: 1 were paid" in text
    assert examples[["recorded", "ours"]].values.tolist() == [
        ["correct", "wrong"],
        ["wrong", "correct"],
    ]
    page, _ = write_report(make_report([folder]), tmp_path / "out")
    assert r"&lt;script&gt;\boxed{9}" in page.read_text()


def test_of_several_reward_functions_one_must_be_named(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR], **{"rewards/format/mean": 1.0})
    assert read_run(folder).verifier is None
    assert read_run(folder, "accuracy").mean("groups/ph") == 0.25
    with pytest.raises(ValueError, match="No reward function 'accurcy'"):
        read_run(folder, "accurcy")


def test_the_state_that_went_furthest_counts(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR, FOUR])
    write_trl_run(folder / "checkpoint-9", [FOUR] * 3)
    write_trl_run(folder / "checkpoint-10", [FOUR])
    assert read_run(folder).log.index.max() == 3


def test_seeds_of_one_method_are_one_line(tmp_path):
    runs = [
        read_run(as_ours(write_trl_run(tmp_path / str(seed), [FOUR]), seed)) for seed in (1, 2, 3)
    ]
    other = as_ours(write_trl_run(tmp_path / "other", [FOUR]), 1, learning_rate="1e-4")
    lines = by_method([*runs, read_run(other)])
    assert {name: len(seeds) for name, seeds in lines.items()} == {
        f"{tmp_path / '1'} (mean of 3 seeds)": 3, str(other): 1
    }  # fmt: skip


def test_the_table_has_a_column_per_run_and_the_picture_is_drawn(tmp_path):
    plain = write_trl_run(tmp_path / "plain", [FOUR, FOUR], kl=[0.0, 0.25])
    ours = as_ours(write_trl_run(tmp_path / "ours", [FOUR], **{"eval_pass@1": 0.5}))
    report = make_report([plain, ours, plain])  # given twice, it counts once
    row = report.table.loc["KL divergence, nats, first to last"]
    assert row.to_dict() == {str(plain): "0.000 to 0.250", str(ours): ""}
    page, picture = write_report(report, tmp_path / "out")
    assert picture.stat().st_size > 10_000
    assert "Held-out Pass@1" in page.read_text()


def test_an_evaluation_is_told_with_what_shows_it(tmp_path):
    (tmp_path / "scores.json").write_text("{}")
    with pytest.raises(ValueError, match=f"An evaluation is shown by trl-miner eval {tmp_path}$"):
        make_report([tmp_path])


@pytest.mark.parametrize("log", [None, '{"log_history": []}', '{"log_hist'])
def test_what_is_no_run_is_refused_by_its_name(tmp_path, log):
    (tmp_path / "a.jsonl").write_text("{}")
    if log:
        (tmp_path / "trainer_state.json").write_text(log)
    for given in ("", str(tmp_path / "none"), str(tmp_path / "a.jsonl"), str(tmp_path)):
        with pytest.raises(ValueError, match=given or "''") as caught:
            make_report([given])
        assert "\n" not in str(caught.value)


def test_a_link_that_leads_out_of_the_run_is_not_written_through(tmp_path, capsys):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    (folder / "report").symlink_to(tmp_path)
    args = Namespace(folders=[str(folder)], output=None, correct=None)
    with pytest.raises(ValueError, match="leads out of"):
        command.run(args, [])
    args.output = str(tmp_path / "out")
    assert command.run(args, []) == 0
    assert "50.0% of the completions had no gradient" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_trl_made_is_read(policy, tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def accuracy(completions, solution, log_extra, **_):
        log_extra("solution", solution)
        return [float(len(text) % 2) for text in completions]

    rows = Dataset.from_list(
        [{"prompt": f"{n} + {n} = ", "solution": str(2 * n)} for n in range(9)]
    )
    args = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        max_steps=4,
        per_device_train_batch_size=8,
        num_generations=4,
        steps_per_generation=2,
        max_completion_length=8,
        logging_steps=1,
        log_completions=True,
        save_steps=2,
        report_to="none",
    )
    GRPOTrainer(model=policy, reward_funcs=accuracy, args=args, train_dataset=rows).train()
    run = read_run(tmp_path)  # its state is in the checkpoints alone
    assert run.log.index.max() == 4
    assert len(run.completions) == 32  # 2 generation batches of 4 prompts x 4, each written twice
    assert run.completions["group"].nunique() == 8
    shares = [run.mean(f"groups/{kind}") for kind in ("ph", "he", "nh")]
    assert sum(shares) == pytest.approx(1)
    # TRL's own number agrees: a prompt with a gradient is a mixed one
    assert run.mean("completions/grpo") == pytest.approx(shares[1])
    assert "our grader contradicts" in contradictions(run)[0]
