"""Held-out scores while a model trains: they change nothing, and are those of the model."""

import random

import harness
import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig

from trl_miner.evaluation.held_out import read_held_out
from trl_miner.evaluation.in_training import EvaluationCallback

SCORED = ("eval_pass", "time", "seconds", "runtime", "per_second")


def coin(completions, **kwargs):
    """Reward by coins of every random state, which a scoring must give back."""
    coins = [random.random() < 0.5, np.random.rand() < 0.5, torch.rand(1).item() < 0.5]
    return [
        float(harness.crc(text) % 2 + coins[place % 3]) for place, text in enumerate(completions)
    ]


def train(policy, folder, *, is_scored, reward=harness.mixed_reward, **settings):
    """Train six steps, scored or not; return the trainer and what scores it."""
    trainer = harness.build_trainer(policy, folder, reward=reward, max_steps=6, **settings)
    evaluation = EvaluationCallback(trainer, harness.problems(9), 4, every_steps=2)
    if is_scored:
        trainer.add_callback(evaluation)
    trainer.train()
    if is_scored:
        evaluation.record("after")
    return trainer, evaluation


LORA = {"peft_config": LoraConfig(r=4, lora_dropout=0.1, init_lora_weights=False)}


@pytest.mark.parametrize(
    ("reward", "settings"),
    [
        (harness.mixed_reward, {}),
        (coin, {"gradient_checkpointing": True}),
        (harness.mixed_reward, {"more": LORA, "num_iterations": 2}),
    ],
    ids=["plain", "every random state", "LoRA"],
)
def test_a_scoring_changes_nothing_in_the_training(policy, tmp_path, reward, settings):
    settings = {"reward": reward, **settings}
    plain, _ = train(policy, tmp_path / "plain", is_scored=False, **settings)
    scored, _ = train(policy, tmp_path / "scored", is_scored=True, **settings)
    assert harness.largest_difference(harness.weights(plain), harness.weights(scored)) == 0
    of_scored = [log for log in harness.logs(scored, SCORED) if set(log) - {"epoch", "step"}]
    assert of_scored == harness.logs(plain, SCORED)


def test_scores_are_kept_and_logged(policy, tmp_path):
    trainer, evaluation = train(policy, tmp_path, is_scored=True)
    moments = read_held_out(tmp_path)
    assert {name: moment.step for name, moment in moments.items()} == {
        "before": 0, "step 2": 2, "step 4": 4, "after": 6,
    }  # fmt: skip
    logged = {
        log["step"]: (log["eval_pass@1"], log["eval_pass@4"])
        for log in trainer.state.log_history
        if "eval_pass@1" in log
    }
    assert logged == {
        moment.step: (sum(moment.num_correct) / 36, sum(c > 0 for c in moment.num_correct) / 9)
        for moment in moments.values()
    }
    assert evaluation.moments == moments


def test_two_scorings_have_the_same_noise_whatever_was_drawn_between(policy, tmp_path):
    """Nine problems in batches of two: the same counts again, and others with another seed."""
    trainer = harness.build_trainer(policy, tmp_path)
    evaluation = EvaluationCallback(trainer, harness.problems(9), 4, batch_size=8)
    first = evaluation.count_correct()
    torch.rand(5)
    assert evaluation.count_correct() == first and 0 < sum(first) < 36
    trainer.args.seed += 1
    assert evaluation.count_correct() != first


def test_a_completion_without_a_verdict_is_wrong(policy, tmp_path):
    """Of the first problem's four completions two reach 1, of the others' one."""

    def reward(completions, level, completion_ids, trainer_state, **kwargs):
        assert len(level) == len(completions) == len(completion_ids)
        assert any(len(ids) > 1 for ids in completion_ids) and trainer_state is trainer.state
        return [1.0, 0.5, 2.0, 0.0] + [1.0, None, 0.0, None] * (len(completions) // 4 - 1)

    trainer = harness.build_trainer(policy, tmp_path, reward=reward)
    evaluation = EvaluationCallback(trainer, harness.problems(3), 4)
    assert evaluation.record("after") == {"pass@1": pytest.approx(1 / 3), "pass@4": 1.0}
    assert evaluation.moments["after"].num_correct == [2, 1, 1]


def test_the_trainers_verifier_decides_at_its_threshold(policy, tmp_path):
    def right(completions, **kwargs):
        return [0.6] * len(completions)

    def short(completions, **kwargs):
        raise AssertionError("it decides nothing, and is not asked")

    trainer = harness.build_trainer(
        policy, tmp_path, reward=[right, short], correct_reward_func="right", correct_threshold=0.5
    )
    assert EvaluationCallback(trainer, harness.problems(3), 2).count_correct() == [2, 2, 2]


def test_messages_are_asked_in_the_chat_template(policy, tmp_path):
    """A reward function gets prompts as messages and completions as in training."""
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.append((prompts[0], type(completions[0]).__name__))
        return [1.0] * len(completions)

    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in harness.problems(6)]
    trainer = harness.build_trainer(policy, tmp_path, reward=reward, data=Dataset.from_list(rows))
    evaluation = EvaluationCallback(trainer, Dataset.from_list(rows), 2)
    evaluation.record("before")
    trainer.train()
    assert seen[0][1] == seen[1][1] == "list" and seen[0][0] == rows[0]["prompt"]


def test_a_run_that_goes_on_keeps_its_earlier_scores(policy, tmp_path):
    """It goes on from step 3: what was scored later is drawn again, and scores of other problems
    go."""
    _, first = train(policy, tmp_path, is_scored=True)
    trainer = harness.build_trainer(policy, tmp_path)
    again = EvaluationCallback(trainer, harness.problems(9), 4)
    trainer.state.global_step = 4
    again.record("step 4")
    kept = read_held_out(tmp_path)
    assert [*kept] == ["before", "step 2", "step 4"]
    assert kept["step 2"] == first.moments["step 2"]
    EvaluationCallback(trainer, harness.problems(6), 4).record("step 4")
    assert [*read_held_out(tmp_path)] == ["step 4"]


def test_tools_are_refused(policy, tmp_path):
    def rollout(prompts, trainer):
        raise AssertionError

    trainer = harness.build_trainer(policy, tmp_path, more={"rollout_func": rollout})
    with pytest.raises(ValueError, match="rollout_func"):
        EvaluationCallback(trainer, harness.problems(3))
