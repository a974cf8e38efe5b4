"""`PromptKinds`: a callback in a plain script of TRL."""

import logging

import pytest
from harness import build_policy, call_on_ranks, config, mixed_reward, problems, trained
from trackio.sqlite_storage import SQLiteStorage
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from trl_miner import PromptKinds
from trl_miner.training import prompt_kinds

SHARES = ("groups/ph", "groups/he", "groups/nh", "groups/unscorable", "rollouts/grpo")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("policy"))


def train(policy, folder, reward=mixed_reward, cls=GRPOTrainer, config_cls=GRPOConfig, **settings):
    trainer = cls(
        policy, reward, config(folder, cls=config_cls, **settings), problems(),
        callbacks=[PromptKinds()], eval_dataset=problems().select(range(2)),
    )  # fmt: skip
    trainer.train()
    return trainer


def shares(trainer):
    """The shares of each log that has some."""
    return [
        [log[name] for name in SHARES] for log in trainer.state.log_history if "groups/ph" in log
    ]


def never(completions, **kwargs):
    return [0.0 for _ in completions]


def test_it_logs_what_our_own_trainer_logs(policy, tmp_path):
    plain = train(policy, tmp_path / "plain")
    own = trained(policy, tmp_path / "own", advantage_estimator="grpo")
    assert len(shares(own)) == 5 and own.state.log_history[0]["groups/ph"] > 0
    for found, expected in zip(shares(plain), shares(own), strict=True):
        assert found == pytest.approx(expected)
    # a log of two batches has their mean
    twice = train(policy, tmp_path / "twice", max_steps=4, logging_steps=2)
    expected = [(a + b) / 2 for a, b in zip(*shares(plain)[:2], strict=True)]
    assert shares(twice)[0] == pytest.approx(expected)


def test_a_batch_of_several_steps_and_an_evaluation_count_once(policy, tmp_path):
    trainer = train(
        policy, tmp_path, steps_per_generation=2, max_steps=6, eval_strategy="steps", eval_steps=1,
        per_device_eval_batch_size=4,
    )  # fmt: skip
    assert [log["step"] for log in trainer.state.log_history if "groups/ph" in log] == [1, 3, 5]


def test_rloo_logs_the_same_shares(policy, tmp_path):
    trainer = train(policy, tmp_path, cls=RLOOTrainer, config_cls=RLOOConfig, max_steps=2)
    found = shares(trainer)
    assert len(found) == 2 and sum(found[0][:4]) == pytest.approx(1)


def test_it_warns_once_of_each_cause(policy, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger=prompt_kinds.logger.name):
        train(policy, tmp_path, never, max_steps=40, logging_steps=1)
    said = [
        record.getMessage() for record in caplog.records if record.name == prompt_kinds.__name__
    ]
    assert [text.partition(".")[0] for text in said] == ["Answers are cut off", "No right answer"]
    assert "0 of the last" in said[1] and "Next: " in said[1]


@pytest.mark.parametrize("logs", [8, 20])
def test_trackio_gets_alerts_while_its_run_lasts(policy, tmp_path, logs):
    project = f"alerts{logs}"
    train(policy, tmp_path / "run", never, max_steps=logs, report_to="trackio", project=project)
    titles = sorted(alert["title"] for alert in SQLiteStorage.get_alerts(project))
    # the first look is after 16 logs; a shorter run is warned when it ends, without an alert
    assert titles == ["Answers are cut off", "No right answer"] * (logs > 16)


def test_a_trainer_that_keeps_no_rollouts_is_told_of(policy, tmp_path, caplog):
    """Such as TRL's asynchronous one; here transformers' own, which is as quick as it is small."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    rows = [{"input_ids": [3, 4, 5], "labels": [3, 4, 5]}]
    args = TrainingArguments(tmp_path, max_steps=1, report_to=[], use_cpu=True)
    with caplog.at_level(logging.WARNING, logger=prompt_kinds.logger.name):
        Trainer(model, args, train_dataset=rows, callbacks=[PromptKinds()]).train()
    assert "Trainer keeps no rollouts that PromptKinds could see" in caplog.text


def test_a_run_that_shows_no_cause_is_told_nothing(policy, tmp_path, caplog):
    reward = mixed_reward
    train(policy, tmp_path, reward, max_steps=2)
    assert not [record for record in caplog.records if record.name == prompt_kinds.__name__]


def test_few_batches_are_kept_of_a_long_run(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_kinds, "_MOST_BATCHES", 4)
    callback = PromptKinds()
    trainer = GRPOTrainer(
        policy, mixed_reward, config(tmp_path, cls=GRPOConfig, max_steps=9), problems(), callbacks=[callback]
    )  # fmt: skip
    trainer.train()
    kept = [int(part["step"].iloc[0]) for part in callback._collector.parts]
    assert len(kept) <= 4 and kept[0] == 1 and kept[-1] > 6


def test_several_processes_log_the_shares_of_all(policy, tmp_path):
    call_on_ranks(2, _train_on_rank, policy, tmp_path)


def _train_on_rank(policy, folder):
    trainer = train(policy, folder, max_steps=2, per_device_train_batch_size=6)
    if trainer.accelerator.is_main_process:
        assert [sum(found[:4]) for found in shares(trainer)] == pytest.approx([1, 1])
        # thirds of the prompts are all right, all wrong, and mostly mixed
        assert shares(trainer)[0][0] == pytest.approx(1 / 3)
