"""Rollouts of any GRPO run as frames: what TRL itself writes, and files in the forms of others."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from harness import build_policy, call_on_ranks, config, crc, mixed_reward, problems
from trl import GRPOConfig, GRPOTrainer

from trl_miner.viewing.prompt_outcomes import collect, final_answer
from trl_miner.viewing.rollout_lines import message_text
from trl_miner.viewing.rollouts import find_rollouts, read_rollouts

CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def form_reward(completions, log_extra=None, **kwargs):
    """A second reward, and extra columns of numbers that are no reward."""
    log_extra("characters", [float(len(str(one))) for one in completions])
    return [0.2 * (crc(message_text(one)) % 3) for one in completions]


def train(folder, rewards=mixed_reward, data=None, *, eval_data=None, **settings):
    """A plain run of TRL in `folder`, with the files that it leaves."""
    policy = build_policy(folder / "policy")
    args = config(folder / "run", cls=GRPOConfig, log_completions=True, **settings)
    trainer = GRPOTrainer(policy, rewards, args, data or problems(), eval_dataset=eval_data)
    trainer.processing_class.chat_template = CHAT
    trainer.train()
    trainer.save_state()
    return folder / "run"


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Two functions with weights 1 and 0.3, five steps of 3 prompts of 4."""
    folder = tmp_path_factory.mktemp("several")
    return train(folder, [mixed_reward, form_reward], reward_weights=[1.0, 0.3])


def test_rollouts_of_trl_become_a_tidy_frame(several):
    rollouts = read_rollouts(several)
    assert len(rollouts) == 60 and rollouts["group"].nunique() == 15
    assert (rollouts.groupby("group")["prompt"].nunique() == 1).all()
    rewards = [name for name in rollouts if name.startswith("reward:")]
    assert sorted(rewards) == ["reward:form_reward", "reward:mixed_reward"]  # no extra column
    total = rollouts["reward:mixed_reward"] + 0.3 * rollouts["reward:form_reward"]
    np.testing.assert_allclose(rollouts["reward"], total, atol=1e-6)  # weights as in the log
    by_group = rollouts.groupby("group")["reward"]
    expected = (rollouts["reward"] - by_group.transform("mean")) / (
        by_group.transform("std") + 1e-4
    )
    np.testing.assert_allclose(rollouts["advantage"], expected, atol=1e-3)


def test_a_batch_that_serves_several_steps_counts_once(tmp_path):
    run = train(tmp_path, steps_per_generation=2, max_steps=6)
    assert len([*run.glob("completions/*.parquet")]) == 6
    rollouts = read_rollouts(run)  # 3 batches of 24
    assert rollouts.groupby("step").size().to_dict() == {1: 24, 3: 24, 5: 24}


def test_a_prompt_that_comes_twice_in_a_batch_is_two_groups(tmp_path):
    rows = [problems()[place] for place in (0, 0, 1, 2, 2, 2)]
    run = train(tmp_path, data=Dataset.from_list(rows), max_steps=2)
    # runs of 8, 4 and 12 neighbours
    assert read_rollouts(run).groupby("group").size().tolist() == [4] * 6
    # the same prompt alone: that equal rewards have equal advantages shows the groups
    rows = [row for row in problems() if crc(row["prompt"]) % 3 == 2][:1] * 12
    run = train(tmp_path / "one", data=Dataset.from_list(rows), max_steps=4)
    assert read_rollouts(run).groupby("group").size().tolist() == [4] * 12
    assert find_rollouts(run, num_generations=2).num_generations == 2


def test_chats_are_text_and_evaluations_are_left_out(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in problems()]
    data = Dataset.from_list(rows)
    run = train(
        tmp_path, form_reward, data, eval_data=data.select(range(2)),
        eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4, max_steps=4,
    )  # fmt: skip
    rollouts = read_rollouts(run)
    assert {*rollouts["step"]} == {1, 3}
    assert rollouts["prompt"][0] == rows[0]["prompt"][0]["content"]
    assert rollouts["completion"].map(type).eq(str).all()
    assert (
        "2 files are left out, as TRL has written rollouts of an eval" in rollouts.attrs["notes"][0]
    )


def test_rows_of_several_processes_are_in_groups(tmp_path):
    """A group of 4 lies on two processes."""
    call_on_ranks(2, _train_on_rank, tmp_path)
    rollouts = read_rollouts(tmp_path / "run")
    assert rollouts.groupby("group").size().tolist() == [4] * 6
    assert (rollouts.groupby("group")["prompt"].nunique() == 1).all()


def _train_on_rank(folder):
    args = dict(per_device_train_batch_size=6, max_steps=2)
    train(folder, **args)


# Others


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rollouts_of_verl_are_grouped_by_their_prompt(tmp_path):
    for step in (2, 10):
        rows = [
            {"input": f"user\n{prompt}", "output": "so \\boxed{4}", "gts": "4", "score": 2.0 * right - 1, "acc": right,
             "step": step, "pred": "4", "request_id": "x"}
            for right in (True, False) for prompt in ("a", "b")
        ]  # fmt: skip
        write_lines(tmp_path / f"{step}.jsonl", rows)
    outcomes = collect(find_rollouts(tmp_path).frames())
    assert outcomes.groups["step"].tolist() == [2, 2, 10, 10]
    assert outcomes.groups["correct"].tolist() == [1] * 4 and outcomes.decides == ["acc"]
    assert {*outcomes.samples["gold"]} == {"4"} and len(outcomes.samples) == 4  # the wrong ones


def test_rollouts_of_prime_rl_have_metrics_and_cuts(tmp_path):
    user, said = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
    rows = [
        {"example_id": place // 2, "task": "math", "prompt": [user], "completion": [said], "answer": "4",
         "reward": 1.1 * right, "advantage": 0.5, "is_truncated": not right,
         "metrics": {"correct_answer": float(right), "format_reward": 0.1 * right}}
        for place, right in enumerate((1, 0, 1, 1))
    ]  # fmt: skip
    write_lines(tmp_path / "rollouts" / "step_7" / "train_rollouts.jsonl", rows)
    write_lines(tmp_path / "rollouts" / "step_7" / "eval_rollouts.jsonl", rows)
    rollouts = read_rollouts(tmp_path)
    assert {*rollouts["step"]} == {7} and len(rollouts) == 4
    assert rollouts["truncated"].tolist() == [0, 1, 0, 0]
    outcomes = collect(find_rollouts(tmp_path).frames())
    assert outcomes.groups["kind"].tolist() == ["HE", "PH"]
    assert outcomes.decides == ["correct_answer"]


def node(role, content, parent=None, sampled=0, advantages=None):
    """A message of a trace: 2 tokens of scaffold, then those that were sampled."""
    found = {"message": {"role": role, "content": content}, "sampled": bool(sampled), "timestamp": 1.5,
             "token_ids": [1, 2, *range(10, 10 + sampled)], "mask": [False] * 2 + [True] * sampled,
             "is_content": [], "logprobs": [-0.5] * sampled}  # fmt: skip
    found |= {} if parent is None else {"parent": parent}  # null fields are left out
    return found | ({} if advantages is None else {"advantages": advantages})


def episode(group, right, *, ok=True, stop="stop", length=3):
    task = {"type": "GSM8KTask", "data": {"idx": 0, "prompt": f"2+{group}?", "answer": "4"}}
    solver, judge = (
        {"version": 1, "id": "x", "task": task, "agent": {"config": {}, "name": name, "trainable": trains},
         "tools": [], "calls": [{"node": 2, "finish_reason": stop, "usage": {"completion_tokens": length}}],
         "nodes": [node("system", "be brief"), node("user", f"2+{group}?", 0), node("assistant", "4", 1, length)],
         "rewards": {"correct": {"score": float(right), "weight": 1.0}, "form": {"score": 1.0, "weight": 0.5}},
         "metrics": {"num_turns": 1.0}, "is_completed": True, "ok": ok, "stop_condition": "agent_completed"}
        for name, trains in (("solver", True), ("judge", False))
    )  # fmt: skip
    return {"id": "e", "env": {"id": "gsm8k"}, "task": task, "group": {"id": f"g{group}"}, "ok": ok,
            "run": {"type": "train", "id": "r", "work": {"type": "train", "step": 6}}, "errors": [],
            "traces": [solver, judge] if ok else []}  # fmt: skip


def test_episodes_of_prime_rl_are_read_from_all_that_arrived(tmp_path):
    """As its FileMonitor writes them: what trained, what arrived, evaluations and metrics."""
    write_lines(tmp_path / "metrics.jsonl", [{"step": 7, "time": 1.0, "reward/all/mean": 0.5}])
    rows = [
        episode(0, 1),
        episode(1, 1),
        episode(1, 0, stop="length", length=9),
        episode(2, 0, ok=False),
    ]
    for step, own in ((7, rows), (10, [episode(0, 1)])):
        write_lines(tmp_path / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl", own)
    for place in ("train/effective", "eval/all"):
        write_lines(tmp_path / "rollouts" / "step_7" / place / "traces.jsonl", rows[:1])
    rollouts = read_rollouts(tmp_path)
    assert rollouts["step"].tolist() == [7, 7, 7, 10]  # the fourth failed, and judges do not train
    assert rollouts["group"].nunique() == 2  # a group may arrive over two steps
    assert rollouts["prompt"][0] == "system: be brief\n\nuser: 2+0?"
    assert rollouts["completion"][0] == "4" and rollouts["gold"][0] == "4"
    assert rollouts["reward"].tolist() == [1.5, 1.5, 0.5, 1.5]  # 1 * 1.0 + 1 * 0.5
    assert rollouts["length"].tolist() == [3, 3, 9, 3] and rollouts["truncated"].tolist() == [
        0,
        0,
        1,
        0,
    ]
    assert rollouts["advantage"].isna().all()  # given after they arrived
    assert "1 lines of rollouts/step_7/train/all/traces.jsonl hold no" in rollouts.attrs["notes"][0]
    assert collect(find_rollouts(tmp_path).frames()).decides == ["correct"]


def test_the_last_branch_of_a_trace_is_its_rollout(tmp_path):
    """Tools answer between what is sampled; an earlier branch was left."""
    nodes = [node("user", "2+2?"), node("assistant", "left", 0, 1), node("assistant", "call", 0, 2, [0.5, 0.5]),
             node("tool", "4", 2), node("assistant", "so 4", 3, 1, [0.0])]  # fmt: skip
    trace = {"id": "t", "task": {"prompt": "2+2?", "answer": [4]}, "nodes": nodes, "errors": [],
             "rewards": {"correct": 1.0}, "group_id": "g", "kind": "train"}  # fmt: skip
    path = tmp_path / "step_3" / "train" / "effective" / "traces.jsonl"
    files = find_rollouts(write_lines(path, [trace]))  # a line as in July 2026
    files.with_tokens = True
    row = next(files.frames()).iloc[0]
    assert row["completion"] == "assistant: call\n\ntool: 4\n\nassistant: so 4"
    assert row["advantage"] == 0.5 and row["length"] == 3 and row["gold"] == "4"
    tokens = row["tokens"]
    assert tokens["prompt"].tolist() == [1, 2, 1, 2]  # the user's, and what opens the answer
    assert tokens["ids"].tolist() == [10, 11, 1, 2, 1, 2, 10]
    assert np.isfinite(tokens["logps"]).tolist() == tokens["is_sampled"].tolist()


def test_golds_of_structures_are_kept(tmp_path):
    """verl passes on what a data set has: lists and objects too."""
    golds = [["4"], {"target": 24, "numbers": [4, 6]}, 7, None]
    rows = [{"input": "a", "output": "b", "gts": gold, "score": 0.0, "step": 1} for gold in golds]
    found = read_rollouts(write_lines(tmp_path / "1.jsonl", rows))["gold"].tolist()
    assert found[:3] == ["4", '{"target": 24, "numbers": [4, 6]}', "7"] and pd.isna(found[3])


def test_a_line_may_be_a_prompt(tmp_path):
    path = write_lines(
        tmp_path / "mine.jsonl",
        [
            {"prompt": "a", "rewards": [1, 0, None], "step": 3},
            {"prompt": "b", "rewards": {"right": [1, 1], "form": [0.5, 0]}, "completions": ["x", "y"]},
            {"prompt": "c", "rewards": [1, 0], "completions": ["x"]},
            {"prompt": "no rewards"},
        ],
    )  # fmt: skip
    rollouts = read_rollouts(path)
    assert rollouts.groupby("group", sort=False).size().tolist() == [3, 2]
    assert rollouts["reward"].tolist()[3:] == [1.5, 1.0] and np.isnan(rollouts["reward"][2])
    assert rollouts.attrs["notes"] == ["2 lines of mine.jsonl hold no rollout and are left out."]


def test_a_damaged_file_is_left_out_and_said(several, tmp_path):
    folder = tmp_path / "completions"
    folder.mkdir()
    table = pd.read_parquet(several / "completions" / "completions_00001.parquet")
    table.to_parquet(folder / "completions_00001.parquet")
    whole = (folder / "completions_00001.parquet").read_bytes()
    (folder / "completions_00002.parquet").write_bytes(whole[:200])
    bare = pd.read_parquet(several / "completions" / "completions_00003.parquet")
    bare = bare.drop(columns=["mixed_reward", "form_reward", "characters"])
    bare.to_parquet(folder / "completions_00003.parquet")
    files = find_rollouts(tmp_path)
    assert len([*files.frames()]) == 1
    assert "completions_00002.parquet is left out, as it cannot be read" in files.notes[0]
    assert "it has no column of rewards" in files.notes[1]
    (folder / "completions_00001.parquet").unlink()
    with pytest.raises(ValueError, match="no rollouts that can be read. completions_00002.parquet"):
        list(find_rollouts(tmp_path).frames())


def test_files_of_an_earlier_run_in_the_folder_are_left_out(several, tmp_path):
    shutil.copytree(several, tmp_path / "run")
    state = tmp_path / "run" / "trainer_state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"global_step": 3, "max_steps": 3}))
    rollouts = read_rollouts(tmp_path / "run")
    assert {*rollouts["step"]} == {1, 2, 3}
    assert "2 files are left out: the run has 3 steps" in rollouts.attrs["notes"][0]


def test_a_table_of_a_tracker_is_read(several, tmp_path):
    table = pd.read_parquet(several / "completions" / "completions_00001.parquet")
    content = {"columns": [*table], "data": table.values.tolist()}
    (tmp_path / "completions_1_ab12.table.json").write_text(json.dumps(content))
    rollouts = read_rollouts(tmp_path)
    assert rollouts.groupby("group").size().tolist() == [4, 4, 4]


def test_a_folder_of_another_kind_has_no_rollouts(tmp_path):
    write_lines(tmp_path / "prompt_ledger.jsonl", [{"prompt": "a", "rewards": [1]}])
    assert find_rollouts(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="holds no rollouts. .*log_completions=True"):
        read_rollouts(tmp_path)


# Outcomes


def test_which_function_decides_follows_from_names_and_values(several, tmp_path):
    assert collect(find_rollouts(several).frames()).decides == ["mixed_reward"]
    path = tmp_path / "x.jsonl"
    for functions, expected, is_guess in (
        ({"format_reward": [1, 1], "correctness_func": [2, 0]}, ["correctness_func"], True),
        ({"accuracy_reward": [0, 0], "my_bonus": [3, 0]}, ["accuracy_reward"], False),
        ({"model_score": [0.1 * place for place in range(-20, 0)]}, [], False),
    ):
        write_lines(path, [{"prompt": "a", "rewards": functions}])
        outcomes = collect(find_rollouts(path).frames())
        assert (outcomes.decides, outcomes.is_guess) == (expected, is_guess)
    assert outcomes.groups["kind"].tolist() == ["unscorable"]  # a score of a model is no verdict


def test_shares_by_step_are_those_that_our_trainer_would_log(tmp_path):
    path = write_lines(
        tmp_path / "x.jsonl",
        [
            {"prompt": "a", "rewards": [1, 1], "step": 1},
            {"prompt": "b", "rewards": [0, 1], "step": 1},
            {"prompt": "a", "rewards": [0, 0], "step": 2},
            {"prompt": "b", "rewards": [None, 0], "step": 2},
        ],
    )
    columns = collect(find_rollouts(path).frames()).columns()
    assert columns["groups/ph"].tolist() == [[1, 0.5], [2, 0]]
    assert columns["groups/nh"].tolist() == [[1, 0], [2, 0.5]]
    assert columns["groups/unscorable"].tolist() == [[1, 0], [2, 0.5]]
    assert columns["rollouts/grpo"].tolist() == [[1, 0.5], [2, 0]]
    assert columns["rollouts/recovered"].tolist() == [[1, 0.5], [2, 0]]
    assert columns["reward"].tolist() == [[1, 0.75], [2, 0]]


def test_final_answers():
    assert final_answer("7, so \\boxed{4} and \\boxed{ 5 }.") == "5"
    assert final_answer("2 + 2\n#### 1,000") == "1,000"
    assert final_answer("It is 1,234.5 in all.") == "1234.5" and final_answer("none") == ""
