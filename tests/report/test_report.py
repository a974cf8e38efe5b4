"""What `trl-miner report` says of runs, of TRL's own trainer and of ours."""

import json
import re
import shutil
from argparse import Namespace
from dataclasses import asdict

import pandas as pd
import pytest
from report.trl_run import write_trl_run

from trl_miner.commands import report as command
from trl_miner.report.facts import contradictions, facts
from trl_miner.report.page import make_report, write_report
from trl_miner.report.plots import by_method, draw
from trl_miner.report.runs import read_run
from trl_miner.run.record import Record, Source, write_record

# of four prompts: all right, mixed, all wrong, mixed
FOUR = [[1, 1], [1, 0], [0, 0], [0, 1]]


def as_ours(folder, seed=1, **settings):
    """Make a run one of ours: with a record, and our metrics in its log."""
    state = json.loads((folder / "trainer_state.json").read_text())
    for entry in state["log_history"]:
        entry |= {"groups/ph": 0.5, "groups/he": 0.25, "groups/nh": 0.25}
        entry |= {"rollouts/grpo": 0.25, "rollouts/used": 0.75}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    source = Source("tiny", False)
    known = {"seed": str(seed), "output_dir": str(folder), "correct_threshold": "1.0", **settings}
    write_record(folder, Record(source, source, "8 rows", known, ("MINER",), {}, seed, {}))
    return folder


def test_prompts_of_plain_trl_are_sorted_by_the_logged_completions(tmp_path):
    run = read_run(write_trl_run(tmp_path / "run", [FOUR, [[1, 1], [1, 1], [0, 1], [0, 0]]]))
    # 1 of 4 and 2 of 4 all right, 2 of 4 and 1 of 4 mixed, 1 of 4 twice all wrong
    assert run.mean("groups/ph") == 0.375
    assert run.mean("groups/he") == 0.375
    assert run.mean("groups/nh") == 0.25
    assert run.mean("rollouts/used") == 0.375  # the mixed ones


def test_an_unscorable_completion_makes_its_prompt_none_of_the_kinds(tmp_path):
    run = read_run(write_trl_run(tmp_path / "run", [[[1, 1], [float("nan"), 1], [0, 0], [1, 0]]]))
    assert [run.mean(f"groups/{kind}") for kind in ("ph", "he", "nh")] == [0.25, 0.25, 0.25]


def test_a_batch_that_trl_wrote_twice_counts_once(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    first = folder / "completions/completions_00001.parquet"
    table = pd.read_parquet(first).assign(step=2)
    table.to_parquet(folder / "completions/completions_00002.parquet")
    assert len(read_run(folder).completions) == 8


def test_messages_are_read_as_text(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    path = folder / "completions/completions_00001.parquet"
    table = pd.read_parquet(path)
    table["prompt"] = [
        [{"role": "user", "content": [{"type": "text", "text": text}]}] for text in table["prompt"]
    ]
    # a call of a tool has no content
    table["completion"] = [
        [{"role": "assistant", "content": None}, {"role": "assistant", "content": text}]
        for text in table["completion"]
    ]
    table.to_parquet(path)
    read = read_run(folder).completions
    assert read["prompt"][0] == "prompt 1 0"
    assert read["completion"][0] == "\nanswer 1 0"


# Each of a healthy run, and of one that is broken in one way: the sentences, and no other.
@pytest.mark.parametrize(
    ("rewards", "metrics", "said"),
    [
        (
            [FOUR],
            {"eval_reward": 0.5},
            # 4 of 8 completions, of the prompts all right and all wrong
            ["50.0% of the completions had no gradient.*MINER would use 25.0% of all"],
        ),
        (
            [[[0.5, 0.5]], [[0.5, 0.5]]],
            {"eval_reward": 0.5},
            ["reward never varied: it was 0.5", "100.0% of the comp.* MINER would use 0.0%"],
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
            ["100.0% of the completions had no gradient.*MINER would use 0.0% of all"],
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


def test_a_rate_that_is_zero_in_the_first_step_alone_is_a_warmup(tmp_path):
    run = read_run(write_trl_run(tmp_path / "run", [FOUR, FOUR], learning_rate=[0.0, 1e-6]))
    assert not any("learning rate" in fact for fact in facts(run))


def test_recorded_rewards_that_the_grader_contradicts_are_counted_and_shown(tmp_path):
    texts = [[[r"\boxed{7}", r"\boxed{9}"], ["The answer is 7.", r"\boxed{-7}"]]]
    # right and paid; wrong and paid; right (without a box) and refused; wrong and refused
    rewards = [[[1, 1], [0, 0]]]
    run = read_run(write_trl_run(tmp_path / "run", rewards, solution="7", texts=texts))
    text, examples = contradictions(run)
    assert "Of 4 recorded rewards, drawn from 4, our grader contradicts 2" in text
    assert "1 were paid for a wrong answer, 1 refused to a right one" in text
    assert examples.to_dict("records") == [
        {"completion": r"\boxed{9}", "reference": "7", "recorded": "right", "ours": "wrong"},
        {"completion": "The answer is 7.", "reference": "7", "recorded": "wrong", "ours": "right"},
    ]


def test_half_a_reward_is_neither_right_nor_wrong(tmp_path):
    run = read_run(write_trl_run(tmp_path / "run", [[[0.5, 0]]], solution="7"))
    assert "Of 1 recorded rewards" in contradictions(run)[0]


def test_without_reference_answers_nothing_is_said_of_rewards(tmp_path):
    assert contradictions(read_run(write_trl_run(tmp_path / "run", [FOUR]))) == ("", None)


def test_of_several_reward_functions_one_must_be_named(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR], **{"rewards/format/mean": 1.0})
    assert read_run(folder).verifier is None
    assert read_run(folder, "accuracy").mean("groups/ph") == 0.25
    with pytest.raises(ValueError, match="No reward function 'accurcy'"):
        read_run(folder, "accurcy")


def test_the_state_that_went_furthest_counts(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    later = write_trl_run(tmp_path / "later", [FOUR, FOUR])
    for step in (9, 10):
        (folder / f"checkpoint-{step}").mkdir()
        shutil.copy(folder / "trainer_state.json", folder / f"checkpoint-{step}")
    shutil.copy(later / "trainer_state.json", folder / "checkpoint-9")
    assert read_run(folder).log.index.max() == 2


def test_seeds_of_one_method_are_one_line(tmp_path):
    runs = [
        read_run(as_ours(write_trl_run(tmp_path / str(seed), [FOUR]), seed)) for seed in (1, 2, 3)
    ]
    other = as_ours(write_trl_run(tmp_path / "other", [FOUR]), 1, learning_rate="1e-4")
    assert [*map(len, by_method([*runs, read_run(other)]).values())] == [3, 1]


def test_the_table_has_a_column_per_run_and_the_picture_is_drawn(tmp_path):
    folders = [write_trl_run(tmp_path / name, [FOUR, FOUR], kl=[0.0, 0.25]) for name in "ab"]
    folders.append(as_ours(write_trl_run(tmp_path / "c", [FOUR], **{"eval_pass@1": 0.5})))
    report = make_report([*folders, folders[0]])  # given twice, it counts once
    assert [*report.table] == [str(folder) for folder in folders]
    assert report.table.loc["KL divergence, nats, first to last"].tolist() == [
        "0.000 to 0.250",
        "0.000 to 0.250",
        "",
    ]
    assert report.table.loc["Prompts mixed"].tolist() == ["50.0%", "50.0%", "25.0%"]
    page, picture = write_report(report, tmp_path / "out")
    assert picture.stat().st_size > 10_000
    assert "Held-out Pass@1" in page.read_text()
    draw(report.runs, tmp_path / "one.svg")
    assert "<svg" in (tmp_path / "one.svg").read_text()


def test_what_a_model_wrote_is_text_in_the_page(tmp_path):
    texts = [[["<script>alert(1)</script>", r"\boxed{7}"]]]
    rewards = [[[1, 0]]]
    folder = write_trl_run(tmp_path / "run", rewards, solution="7", texts=texts)
    page, _ = write_report(make_report([folder]), tmp_path / "out")
    assert "<script>" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()


@pytest.mark.parametrize("make", ["nothing", "file", "empty text", "empty folder", "no log", "cut"])
def test_what_is_no_run_is_refused_by_its_name(tmp_path, make):
    path = tmp_path / "thing.jsonl"
    if make == "file":
        path.write_text("{}")
    elif make in ("empty folder", "no log", "cut"):
        path.mkdir()
        text = {"no log": '{"log_history": []}', "cut": '{"log_hist'}.get(make)
        if text:
            (path / "trainer_state.json").write_text(text)
    given = "" if make == "empty text" else str(path)
    with pytest.raises(ValueError, match="''" if make == "empty text" else "thing.jsonl") as caught:
        make_report([given])
    assert "\n" not in str(caught.value)


def test_a_link_that_leads_out_of_the_run_is_not_written_through(tmp_path, capsys):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    (tmp_path / "elsewhere").mkdir()
    (folder / "report").symlink_to(tmp_path / "elsewhere")
    args = Namespace(folders=[str(folder)], output=None, correct=None)
    with pytest.raises(ValueError, match="leads out of"):
        command.run(args, [])
    assert not any((tmp_path / "elsewhere").iterdir())
    args.output = str(tmp_path / "out")
    assert command.run(args, []) == 0
    assert "50.0% of the completions had no gradient" in capsys.readouterr().out


def test_a_damaged_completions_file_is_named(tmp_path):
    folder = write_trl_run(tmp_path / "run", [FOUR])
    path = folder / "completions/completions_00001.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="completions_00001.parquet is damaged"):
        read_run(folder)


def test_a_record_is_json_of_its_dataclass(tmp_path):
    folder = as_ours(write_trl_run(tmp_path / "run", [FOUR]))
    assert json.loads((folder / "training.json").read_text()) == json.loads(
        json.dumps(asdict(read_run(folder).record))
    )


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
    assert run.mean("rollouts/grpo") == pytest.approx(shares[1])
    assert "our grader contradicts" in contradictions(run)[0]
