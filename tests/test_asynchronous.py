"""MINER in TRL's asynchronous trainer: one step equals the same loss, written out row by row
without packing."""

import asyncio
import ctypes
import json
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import agents
import numpy as np
import psutil
import pytest
import torch
import yaml
from datasets import Dataset
from harness import (
    answering,
    build_policy,
    call_on_ranks,
    config,
    gone,
    in_a_fork,
    wait_until,
    write_recipe,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from trl_miner import (
    MinerAsyncGRPOConfig,
    MinerAsyncGRPOTrainer,
    MinerGRPOTrainer,
    miner_advantages,
    train,
)
from trl_miner.asynchronous import rollout_worker
from trl_miner.asynchronous.on_cpu import LocalWorker
from trl_miner.asynchronous.rollout_worker import TextWorker
from trl_miner.asynchronous.windows import ROLLOUT, Taken, TokenAdvantages
from trl_miner.data import arithmetic
from trl_miner.launching.plan import make_plan
from trl_miner.methods.groups import group_kinds
from trl_miner.recipe.parsing import make_parser, read_recipe
from trl_miner.rewards import math_reward
from trl_miner.tools import load_tools
from trl_miner.trainer.base import TrainerBase
from trl_miner.trainer.reward_functions import RewardError, checked
from trl_miner.trainer.trl_asynchronous import (
    AsyncGRPOConfig,
    DataCollatorForRollout,
    RolloutSample,
)
from trl_miner.training.asynchronous import AsyncRunTrainer

GROUP = 4
LEARNING_RATE = 0.5
SINGLE = {"gradient_accumulation_steps": 1}
CAP = 0.02  # of MINER: low, so that an advantage depends on the whole window


class Worker:
    """Gives the rollouts that it was made with."""

    def __init__(self, samples):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        for sample in samples:
            self.rollout_buffer.put(sample)

    def start(self):
        """All rollouts are there."""

    def stop(self):
        """Nothing runs."""

    def update_model_version(self, version):
        """They stay as they are."""

    def check_health(self, stale_after_s):
        raise RuntimeError("the queue is empty")


class NoTransfer:
    """Sends weights nowhere."""

    def __getattr__(self, name):
        return lambda *args: [None for one in args for _ in one] and None


def settings(folder, **overrides):
    given = dict(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=GROUP,
        learning_rate=LEARNING_RATE,
        optim="sgd",
        max_grad_norm=0.0,
        token_budget=0,
        miner_lambda_max=CAP,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return MinerAsyncGRPOConfig(**{**given, **overrides})


def random_samples(folder, seed, num_groups, noise=0.2):
    """Return rollouts of random tokens, whose log-probs are a little off; a third of the groups are
    all right."""
    random = np.random.default_rng(seed)
    model = AutoModelForCausalLM.from_pretrained(folder)
    samples = []
    for group in range(num_groups):
        prompt = random.integers(5, 15, size=random.integers(3, 8)).tolist()
        rewards = [[1.0] * GROUP, [0.0] * GROUP, [1.0, 0.0, 0.0, 1.0]][group % 3]
        spread = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards) + 1e-8)
        for i in range(GROUP):
            ids = prompt + random.integers(5, 15, size=random.integers(2, 12)).tolist()
            mask = np.array([0] * len(prompt) + [1] * (len(ids) - len(prompt)))
            mask[len(prompt) + 1] = i % 2  # a token that a tool wrote
            with torch.no_grad():
                exact = logps_of(model, ids).numpy()
            logps = np.concatenate(
                [[0.0], exact + random.normal(0, noise, size=len(exact))]
            ).astype(np.float32)
            samples.append(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=np.array(ids),
                    completion_mask=mask,
                    old_log_probs=logps * mask,
                    advantage=float(spread[i]),
                    model_version=0,
                    group_id=group,
                    metrics={
                        "reward": rewards[i] + 1,
                        "rewards/right": rewards[i],
                        "rewards/form": 1.0,
                    },
                )
            )
    return samples


def logps_of(model, ids):
    """Return the log-probs of all tokens but the first, of one row without padding."""
    logits = model(torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def advantages_of(samples, window):
    """Return the token advantages of each sample by its place, window by window."""
    found = {}
    for start in range(0, len(samples) - window + 1, window):
        part = samples[start : start + window]
        logps = [torch.tensor(one.old_log_probs[one.completion_mask == 1]) for one in part]
        mined = miner_advantages(
            torch.tensor([one.metrics["reward"] for one in part]),
            torch.nn.utils.rnn.pad_sequence(logps, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(
                [torch.ones(len(one)) for one in logps], batch_first=True
            ),
            num_generations=GROUP,
            advantages_N=torch.tensor([one.advantage for one in part]),
            kinds=group_kinds(torch.tensor([one.metrics["rewards/right"] for one in part]), GROUP),
            lambda_max=CAP,
        )
        for place, (advantages, one) in enumerate(
            zip(mined.advantages_NT, logps, strict=True), start
        ):
            found[place] = advantages[: len(one)]
    return found


def trained(folder, samples, monkeypatch, worker=Worker, **overrides):
    """Train on the samples; return the trainer and, by micro-batch, the rows' places among them."""
    batches = []
    pack = DataCollatorForRollout.torch_call

    def record(self, examples):
        place = {id(sample.input_ids): i for i, sample in enumerate(samples)}
        batches.append(
            [[place[id(one["input_ids"])] for one in row.samples] for row in examples[0]]
        )
        return pack(self, examples)

    monkeypatch.setattr(DataCollatorForRollout, "torch_call", record)
    trainer = MinerAsyncGRPOTrainer(
        model=folder,
        reward_funcs=[right, form],  # the second of 1 for every rollout
        args=settings(f"{folder}/run", correct_reward_func="right", **overrides),
        train_dataset=Dataset.from_dict({"prompt": ["1+1="]}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        rollout_worker=worker(samples),
        weight_transfer=NoTransfer(),
    )
    trainer.train()
    return trainer, batches


def right(completions, **kwargs):
    return [0.0] * len(completions)


def form(completions, **kwargs):
    return [1.0] * len(completions)


def movement(folder, samples, batches, advantages):
    """Return how one SGD step moves each matrix: the mean of the clipped loss over the tokens of
    all micro-batches, row by row, without packing."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = [place for batch in batches for row in batch for place in row]
    num_tokens = sum(int(samples[place].completion_mask.sum()) for place in rows)
    for batch in batches:
        places = [place for row in batch for place in row]
        loss = 0.0
        for place in places:
            own = torch.tensor(samples[place].completion_mask[1:] == 1)
            logps = logps_of(model, samples[place].input_ids.tolist())[own]
            ratio = (logps - torch.tensor(samples[place].old_log_probs[1:])[own]).exp()
            loss = (
                loss
                - torch.min(
                    ratio * advantages[place], ratio.clamp(0.8, 1.2) * advantages[place]
                ).sum()
            )
        (loss / num_tokens).backward()
    return {name: -LEARNING_RATE * one.grad for name, one in model.named_parameters()}


def assert_equal_step(folder, trainer, samples, batches, advantages):
    assert_moved(folder, trainer.model, movement(folder, samples, batches, advantages))


def assert_moved(folder, model, expected):
    start = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    found = {name: one.detach() - start[name] for name, one in model.named_parameters()}
    largest = max(one.abs().max() for one in expected.values())
    assert largest > 1e-4
    for name, one in expected.items():
        assert (found[name] - one).abs().max() <= 1e-4 * largest, name


@pytest.mark.parametrize(
    "overrides",
    [
        {},  # groups share their prompts in a tree
        # micro-batches cut groups
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
        {"token_budget": 48, "gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
    ],
    ids=["tree", "cut", "budget"],
)
def test_a_step_equals_the_same_loss_without_packing(tmp_path, monkeypatch, overrides):
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 7, 24)
    trainer, batches = trained(folder, samples, monkeypatch, **overrides)
    args = trainer.args
    batches = batches[: args.gradient_accumulation_steps]  # the loader is one ahead
    advantages = advantages_of(samples, args.generation_batch_size)
    assert any(len(set(own.tolist())) > 1 for own in advantages.values())
    assert_equal_step(folder, trainer, samples, batches, advantages)
    log = trainer.state.log_history[0]
    # the cap binds in windows of 16
    assert overrides.get("token_budget") or 0 < log["miner/scale"] < 1
    assert 0 < log["groups/ph"] < 1 and log["sample/staleness_mean"] == 1.0


def test_a_window_is_logged_with_the_step_that_trains_it(tmp_path, monkeypatch):
    """Every third group is all right: groups 0 and 3 of the first window, 6 of the second, 9 of the
    third. The loader reads one window ahead."""
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 1, 24)
    trainer, _ = trained(folder, samples, monkeypatch, max_steps=3, logging_steps=1)
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["groups/ph"] for log in logs] == [0.5, 0.25, 0.25]
    assert [log["rollouts/generated_total"] for log in logs] == [16, 32, 48]


def synchronous_movement(folder, samples, advantages):
    """Return how one SGD step of the synchronous trainer moves each matrix, with the whole window
    as one batch: prompts to the left, completions to the right, tokens of tools masked."""
    args = config(f"{folder}/synchronous", loss_type="dapo", per_device_train_batch_size=GROUP)
    trainer = MinerGRPOTrainer(folder, right, args, Dataset.from_dict({"prompt": ["1+1="] * GROUP}))
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    first = [int(np.argmax(one.completion_mask)) for one in samples]
    first = [min(place, len(one.input_ids) - 1) for place, one in zip(first, samples, strict=True)]
    masks = [torch.tensor(one.completion_mask[n:]) for n, one in zip(first, samples, strict=True)]
    tokens = []
    for mask, own in zip(masks, advantages, strict=True):
        tokens.append(torch.zeros(len(mask)).masked_scatter(mask == 1, own))
    ids = [torch.tensor(one.input_ids) for one in samples]
    logps = [torch.tensor(one.old_log_probs[n:]) for n, one in zip(first, samples, strict=True)]
    batch = {
        "prompt_ids": padded([one[:n] for n, one in zip(first, ids, strict=True)], "left"),
        "prompt_mask": padded([torch.ones(n, dtype=torch.long) for n in first], "left"),
        "completion_ids": padded([one[n:] for n, one in zip(first, ids, strict=True)]),
        "completion_mask": padded([torch.ones_like(mask) for mask in masks]),
        "tool_mask": padded(masks),
        "old_per_token_logps": padded(logps),
        "advantages": padded(tokens),
        "num_items_in_batch": torch.tensor(float(sum(map(torch.sum, masks)))),
    }
    trainer._compute_loss(trainer.model, batch).backward()
    return {name: -LEARNING_RATE * one.grad for name, one in trainer.model.named_parameters()}


def padded(rows, side="right"):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)


def steps_on_two_processes(folder, samples, expected):
    """Eight micro-batches of unequal rows: 4 on each process."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
        trainer, batches = trained(folder, samples, patch, **sizes)
    if os.environ["RANK"] == "0":
        counts = [
            sum(samples[place].completion_mask.sum() for row in batch for place in row)
            for batch in batches[:4]
        ]
        assert max(counts) > 1.2 * min(counts)
        assert_moved(folder, trainer.accelerator.unwrap_model(trainer.model), expected)


def test_a_step_of_unequal_micro_batches_is_that_of_the_synchronous_trainer(tmp_path):
    """On two processes, each token has the weight that it has in one batch of all rows."""
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 11, 24)
    advantages = advantages_of(samples, 16)
    expected = synchronous_movement(folder, samples[:16], [advantages[i] for i in range(16)])
    call_on_ranks(2, steps_on_two_processes, folder, samples, expected)


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "by completion"])
def test_a_conversation_that_forks_is_one_rollout_of_several_rows(tmp_path, monkeypatch, is_told):
    """Its tokens count in its own rows, and it counts once in its group."""
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 3, 16)
    more = random_samples(folder, 8, 16)  # the second rows of every third rollout
    rows, rollouts = [], []
    for i, sample in enumerate(samples):
        forks = [replace(more[i], metrics=dict(sample.metrics), group_id=sample.group_id)]
        rollouts.append([sample, *forks * (i % 3 == 0)])
        for row in rollouts[-1]:
            row.advantage, row.completion = sample.advantage, [{"content": f"{i}"}]
            row.metrics |= {ROLLOUT: i % GROUP} if is_told else {}
        rows += rollouts[-1]
    joined = [
        replace(
            rollout[0],
            old_log_probs=np.concatenate([row.old_log_probs for row in rollout]),
            completion_mask=np.concatenate([row.completion_mask for row in rollout]),
        )
        for rollout in rollouts
    ]
    by_rollout = advantages_of(joined, 16)
    advantages, place = {}, 0
    for i in range(16):
        for own in by_rollout[i].split([int(row.completion_mask.sum()) for row in rollouts[i]]):
            advantages[place], place = own, place + 1
    trainer, batches = trained(folder, rows, monkeypatch)
    assert_equal_step(folder, trainer, rows, batches[:2], advantages)
    assert ROLLOUT not in trainer.state.log_history[0]


def test_epochs_count_prompts_in_two_trainings_of_one_folder(tmp_path):
    """As TRL's `test_epoch_stop_is_fork_independent`: 8 passes over one prompt, a group each step;
    with three rows a rollout three times the steps, and as many groups."""
    folder = build_policy(tmp_path)
    once = {"per_device_train_batch_size": GROUP, **SINGLE, "max_steps": -1, "num_train_epochs": 8}
    once["max_staleness"] = 1000
    steps = []
    for num_rows in (1, 3):
        samples = random_samples(folder, 1, 24)
        for i, sample in enumerate(samples):
            sample.completion = [{"content": f"{i}"}]
        rows = [replace(one, metrics=dict(one.metrics)) for one in samples for _ in range(num_rows)]
        with pytest.MonkeyPatch.context() as patch:
            trainer, _ = trained(folder, rows, patch, **once)
        assert 8 <= len(trainer._trained_groups) <= 9
        steps.append(trainer.state.global_step)
    assert steps[1] > 2 * steps[0]


def test_rows_of_which_nobody_says_whose_they_are_are_refused(tmp_path, monkeypatch):
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 3, 8)
    samples.insert(2, samples[1])  # all have the same completion
    with pytest.raises(ValueError, match="4 rollouts of one row each.*5 rows with 1 completions"):
        trained(folder, samples, monkeypatch)


class KeptWorker(Worker, TextWorker):
    """Such rollouts from what TRL takes for its own worker, whose place in the data it saves."""

    def __init__(self, samples):
        super().__init__(samples)
        self._loop_kwargs = {"dataset_start_index": 0}


@pytest.mark.parametrize("seed", range(3))
def test_a_resume_begins_behind_groups_that_were_stale_as_a_whole(tmp_path, monkeypatch, seed):
    """4 steps of 2 groups, and one that the loader is ahead: the tenth fresh group has been looked
    at, and the one behind it is the first that is left."""
    folder = build_policy(tmp_path)
    samples, random = random_samples(folder, seed, 40), np.random.default_rng(seed)
    fresh = []
    for group in range(40):
        rows, kind = samples[GROUP * group : GROUP * (group + 1)], int(random.integers(3))
        for row in rows[: [0, 2, GROUP][kind]]:  # none is stale, some are, or all
            row.model_version = -9
        fresh += [group] * (kind == 0)
    once = {"gradient_accumulation_steps": 1, "max_steps": 4}
    saves = {"save_strategy": "steps", "save_steps": 4, "save_only_model": True}
    trained(folder, samples, monkeypatch, worker=KeptWorker, **once, **saves)
    state = json.loads(Path(folder, "run", "checkpoint-4", "rollout_state.json").read_text())
    assert state["prompt_index"] == fresh[10]


def test_a_group_that_is_stale_in_part_is_not_trained(tmp_path, monkeypatch, caplog):
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 4, 16)
    for sample in samples[1:3]:
        sample.model_version = -9
    trainer, batches = trained(folder, samples, monkeypatch)
    # none below 0
    shifted = [[[place - GROUP for place in row] for row in batch] for batch in batches]
    assert_equal_step(
        folder, trainer, samples[GROUP:], shifted[:2], advantages_of(samples[GROUP:], 16)
    )
    assert trainer.state.log_history[0]["sample/dropped_stale_total"] == 2
    # a resumed run begins behind the first
    assert trainer._trained_groups == {*range(len(trainer._trained_groups))}
    assert "of its 4 rollouts 2 were not stale" in caplog.text


def on_two_processes(folder):
    samples = random_samples(folder, 5, 24)
    with pytest.MonkeyPatch.context() as patch:
        trainer, batches = trained(
            folder, samples, patch, per_device_train_batch_size=4, gradient_accumulation_steps=2
        )
    if os.environ["RANK"] == "0":
        assert len(batches[0]) == 2
        model = trainer.accelerator.unwrap_model(trainer.model)
        trainer.model = model
        assert_equal_step(folder, trainer, samples, batches[:2], advantages_of(samples, 16))


def test_two_processes_take_the_step_of_one(tmp_path):
    call_on_ranks(2, on_two_processes, build_policy(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"advantage_estimator": "ucas"}, "no self_certainty, token_logits.*ucas"),
        ({"num_generations": 3}, "must hold whole groups: got 16 rollouts for num_generations=3"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, overrides, says):
    with pytest.raises(ValueError, match=says):
        settings(tmp_path, **overrides)


def test_rollouts_without_a_log_prob_are_refused(tmp_path, monkeypatch):
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 6, 8)
    samples[3].old_log_probs.fill(np.nan)
    with pytest.raises(ValueError, match="log-prob for every token"):
        trained(folder, samples, monkeypatch)


def test_advantages_that_do_not_reach_the_loss_stop_the_training(tmp_path, monkeypatch):
    """As when accelerate's loader no longer calls the collator that was put there."""
    folder = build_policy(tmp_path)
    monkeypatch.setattr(TokenAdvantages, "__call__", lambda self, examples: self._collate(examples))
    with pytest.raises(RuntimeError, match="must reach the loss"):
        trained(folder, random_samples(folder, 7, 16), monkeypatch)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"beta": 0.1}, "beta has no effect with asynchronous: true.*synchronous trainer"),
        ({"max_stalenes": 2}, "unknown key 'max_stalenes'.*max_staleness"),
    ],
)
def test_a_recipe_with_what_does_not_go_is_refused(tmp_path, recipe, says):
    """By the training and by what reads recipes for launch and doctor."""
    path = tmp_path / "recipe.yaml"
    on_cpu = {
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "output_dir": str(tmp_path / "run"),
    }
    path.write_text(
        yaml.safe_dump(
            {"asynchronous": True, "max_staleness": 2, "token_budget": 512, **on_cpu, **recipe}
        )
    )
    words = ["--config", str(path)]
    with pytest.raises(ValueError, match=says):
        make_parser(words).parse_args_and_config(words)
    with pytest.raises(ValueError, match=says):
        read_recipe(path)


def test_deepspeed_and_settings_of_the_other_trainer_are_refused_on_the_command_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("asynchronous: true\nmodel_name_or_path: some/model\n")
    with pytest.raises(
        ValueError, match="DeepSpeed does not work with asynchronous: true.*zero3.*fsdp2"
    ):
        make_plan(path, ["--accelerate_config", "zero3"], num_gpus=8)
    with pytest.raises(ValueError, match="beta has no effect with asynchronous: true"):
        read_recipe(path, ["--beta", "0.1"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"max_steps": -1}, "needs max_steps"),
        ({"rollout_func": "os.path.join"}, "needs no rollout_func"),
        ({"load_in_4bit": True, "use_peft": True}, "needs 16 bits"),
        ({"judge_seconds": 1.0}, "needs no judge_workers and judge_seconds"),
        ({"tool_seconds": 1.0}, "needs no tool_seconds"),
        ({"attn_implementation": "sdpa"}, "needs no attn_implementation"),
    ],
)
def test_a_recipe_for_the_synchronous_trainer_is_refused_before_the_model_is_loaded(
    tmp_path, words, says
):
    words = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "max_steps": 1, **words}
    words = [
        "--asynchronous",
        "true",
        *(word for name, value in words.items() for word in (f"--{name}", str(value))),
    ]
    script, args, model_args, _ = make_parser(words).parse_args_and_config(words)
    with pytest.raises(ValueError, match=says):
        MinerAsyncGRPOTrainer.of_recipe(
            script, model_args, model="none", args=args, train_dataset=None
        )


def test_a_tool_of_a_recipe_reaches_the_workers_process(tmp_path):
    """A tool of a recipe has a time limit around it, which the other process could not import."""
    folder = build_policy(tmp_path)
    script, _, model_args, _ = make_parser().parse_args_and_config(
        ["--output_dir", folder, "--use_cpu", "true", "--bf16", "false"]
    )
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "1+1="}]]})
    given = dict(train_dataset=rows, tools=load_tools(["agents.add"], 10.0))
    given["args"] = settings(f"{folder}/run", model_init_kwargs={"attn_implementation": None})
    trainer = MinerAsyncGRPOTrainer.of_recipe(
        script, model_args, model=folder, reward_funcs=[right], **given
    )
    assert pickle.loads(pickle.dumps(trainer.rollout_worker._loop_kwargs))["tools"] == [agents.add]


@pytest.mark.parametrize("functions", [None, [form]], ids=["alone", "beside another"])
def test_the_reward_of_an_environment_can_decide_what_is_right(tmp_path, functions):
    """Where `form` decided, all-wrong prompts would be all right."""
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 1, 12)
    for one in samples:
        own = one.metrics["rewards/right"]
        one.metrics = {"reward": own, "rewards/Counter": own}
        if functions:
            one.metrics |= {"reward": own + 1, "rewards/form": 1.0}
    trainer = MinerAsyncGRPOTrainer(
        folder,
        functions,
        settings(f"{folder}/run", correct_reward_func="Counter"),
        Dataset.from_dict({"prompt": [[{"role": "user", "content": "1+1="}]]}),
        environment_factory=agents.Counter,
        rollout_worker=Worker(samples),
        weight_transfer=NoTransfer(),
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["groups/nh"] > 0 and 0 < log["groups/ph"] < 1


def test_trls_own_settings_train_miner_with_its_defaults(tmp_path, caplog):
    """And all that is promised of a trainer is there, as in the synchronous one."""
    folder = build_policy(tmp_path)
    args = AsyncGRPOConfig(
        f"{folder}/run",
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=GROUP,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
    )
    trainer = MinerAsyncGRPOTrainer(
        folder,
        [right, form],
        args,
        Dataset.from_dict({"prompt": ["1+1="]}),
        rollout_worker=Worker(random_samples(folder, 1, 8)),
        weight_transfer=NoTransfer(),
    )
    assert "args is a AsyncGRPOConfig, so that MINER trains with its defaults" in caplog.text
    assert trainer.args.token_budget == 0 and trainer.args.advantage_estimator == "miner"
    assert all(hasattr(trainer, name) for name in TrainerBase.__annotations__)
    trainer.train()
    assert "miner/scale" in trainer.state.log_history[0]


def test_a_server_with_log_probs_of_another_temperature_is_refused(tmp_path, monkeypatch):
    info = {"vllm_config": {"model_config": {"logprobs_mode": "raw_logprobs"}}}
    folder = build_policy(tmp_path)
    train = MinerAsyncGRPOTrainer.get_train_dataloader
    with answering(
        lambda path, *_: (200, json.dumps(info)) if "server_info" in path else (404, "")
    ) as url:

        def asking(trainer):
            # on a CPU there is none
            trainer._asks_server, trainer.args.vllm_server_base_url = True, url
            return train(trainer)

        monkeypatch.setattr(MinerAsyncGRPOTrainer, "get_train_dataloader", asking)
        with pytest.raises(ValueError, match=f"temperature 0.7: got raw_logprobs from {url}"):
            trained(folder, random_samples(folder, 1, 16), monkeypatch, temperature=0.7)


def broken(completions, **kwargs):
    raise ZeroDivisionError("of the reward")


def train_world(folder, funcs=math_reward, resume=None, **overrides):
    """Train the policy on the embedded world, and return the trainer."""
    trainer = world_trainer(folder, funcs, **overrides)
    trainer.train(resume)
    return trainer


def world_trainer(folder, funcs=math_reward, **overrides):
    """Return a trainer of the policy on the embedded world, with the worker that samples in a
    process of its own."""
    given = dict(
        max_completion_length=12,
        max_inflight_tasks=32,
        queue_maxsize=32,
        save_strategy="steps",
        save_steps=2,
    )
    args = settings(
        f"{folder}/run", **SINGLE, **{**given, "log_token_credit": 1, "max_steps": 4, **overrides}
    )
    return AsyncRunTrainer(folder, funcs, args, arithmetic.load_dataset("train", size=64))


@pytest.mark.slow
def test_a_worker_of_its_own_samples_and_a_run_goes_on_from_a_checkpoint(tmp_path):
    """From plain text; with records, totals and card as in the synchronous trainer."""
    folder = build_policy(tmp_path)
    trainer = train_world(folder)
    again = train_world(folder, resume="latest", max_steps=6)
    assert [log["step"] for log in again.state.log_history if "loss" in log] == [1, 2, 3, 4, 5, 6]
    assert (
        again.state.log_history[4]["rollouts/generated_total"]
        > trainer.state.log_history[3]["step"] * 8
    )
    log = again.state.log_history[5]
    assert log["ratio"] == pytest.approx(1, abs=0.2) and "sample/rollout_queue_size" in log
    records = {path.stem for path in Path(folder, "run", "credit").glob("*.parquet")}
    assert {f"credit_{step:05}" for step in range(1, 7)} <= records
    again.create_model_card()
    card = Path(folder, "run", "README.md").read_text()
    assert "`asynchronous` | `True`" in card and "2601.04731" in card


@pytest.mark.slow
def test_a_reward_that_fails_ends_the_training(tmp_path):
    says = "reward function 'broken' failed with ZeroDivisionError: of the reward. Mend it"
    with pytest.raises(RewardError, match=says):
        train_world(build_policy(tmp_path), broken)


@pytest.mark.slow
def test_the_command_tells_of_a_wrong_reward_in_one_line(tmp_path):
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        asynchronous=True,
        model_name_or_path=build_policy(tmp_path),
        output_dir=tmp_path / "run",
        reward_funcs=["test_asynchronous.texts_later"],
        held_out=0,
    )
    code, said = in_a_fork(_end_with, recipe)
    assert code == 2 and "Traceback" not in said
    told = [line for line in said.splitlines() if "error" in line]
    assert len(told) == 1 and "The reward function 'texts_later' must return a number" in told[0]


def _end_with(recipe):
    sys.exit(train._command(["--config", recipe]))


def texts_later(completions, **kwargs):
    """Return rewards to what looks at a function before the training, and texts to the worker."""
    texts_later.calls += 1
    return by_length(completions) if texts_later.calls <= 4 else texts(completions)


texts_later.calls = 0


def texts(completions, **kwargs):
    return ["yes" for _ in completions]


def too_few(completions, **kwargs):
    return [1.0]


def nothing(completions, **kwargs):
    pass


async def broken_later(completions, **kwargs):
    raise KeyError("gold")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (texts, "'texts' must return a number for each completion, or None .*: got .'yes', 'yes'"),
        (too_few, "'too_few' must return a list of 2 numbers.*: got 1"),
        (nothing, "'nothing' must return a number for each completion.*: got None"),
        (broken, "'broken' failed with ZeroDivisionError: of the reward. Mend it"),
        (broken_later, "'broken_later' failed with KeyError: 'gold'. Mend it"),
    ],
)
def test_a_reward_that_is_none_is_told_with_its_function(function, says):
    with pytest.raises(RewardError, match=says) as told:
        returned = checked(function.__name__, function)(completions=["a", "b"])
        asyncio.run(returned)  # of an async one
    assert "\n" not in str(told.value)


def test_rewards_that_are_nan_for_ever_end_the_training(tmp_path, monkeypatch):
    """5 windows of 8: those of one step, and the 4 of the next, which the loader gathers at once."""
    folder = build_policy(tmp_path)
    samples = random_samples(folder, 1, 16)
    for sample in samples:
        sample.advantage, sample.metrics = 0.0, {"reward": np.nan, "rewards/right": np.nan}
        sample.metrics["rewards/form"] = np.nan
    with pytest.raises(
        RewardError, match="right and form returned None or NaN for all 40 rollouts"
    ):
        trained(folder, samples, monkeypatch, **SINGLE, max_steps=5)


@pytest.fixture
def worker():
    """A worker that needs no server, and as its process one that waits to be told to end."""
    worker = LocalWorker(weights="none")
    worker._process = multiprocessing.get_context("fork").Process(target=worker._stop_event_mp.wait)
    worker._process.start()
    worker._heartbeat_value.value = time.time()
    wait_until(lambda: psutil.Process(worker._process.pid).status() == psutil.STATUS_SLEEPING)
    yield worker
    if worker._process is not None:
        worker._process.kill()


def test_a_worker_that_answers_is_asked_to_end(worker):
    process = worker._process
    worker.check_health(300)
    worker.stop()
    assert process.exitcode == 0 and worker._process is None


def test_a_worker_that_is_killed_is_noticed_at_once(worker):
    """TRL waits for its heartbeat, five minutes."""
    worker._process.kill()
    worker._process.join()
    with pytest.raises(RuntimeError, match="its process has ended with exit code -9"):
        worker.check_health(300)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_worker_that_is_stopped_is_killed(worker, monkeypatch, is_noticed):
    """Noticed by its heartbeat, or not before the training ends. TRL waits for its answer for
    ever."""
    monkeypatch.setattr(rollout_worker, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(rollout_worker, "KILL_SECONDS", 0.5)
    process = worker._process
    os.kill(process.pid, signal.SIGSTOP)
    if is_noticed:
        time.sleep(0.1)
        with pytest.raises(RuntimeError, match="no sign of life.*heartbeat_stale_after_s=0.05"):
            worker.check_health(0.05)
    worker.stop()
    assert process.exitcode == -signal.SIGKILL and worker._process is None


def test_a_sample_that_is_never_written_to_its_end_holds_nobody():
    """As of a process that is stopped while it writes a long one: 4 bytes say how long it is."""
    samples = multiprocessing.get_context("spawn").Queue()
    taken = Taken(samples, of_another_process=True)
    samples.put("whole")
    assert taken.get(timeout=5) == "whole"
    os.write(samples._writer.fileno(), (1000).to_bytes(4, "big") + b"a part")
    with pytest.raises(queue.Empty):
        taken.get(timeout=0.5)


def holds_the_lock(completions, **kwargs):
    """Return rewards of the first groups, and then hold Python's lock, as a regular expression
    does."""
    holds_the_lock.calls += 1
    if holds_the_lock.calls > 8:
        ctypes.PyDLL(None).sleep(10_000)
    return by_length(completions)


holds_the_lock.calls = 0


def by_length(completions, **kwargs):
    return [float(len(completion) % 2) for completion in completions]


class Stopping(TrainerCallback):
    """Stops the worker's process after the first step."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            os.kill(self.trainer.rollout_worker._process.pid, signal.SIGSTOP)


def train_until_stuck(folder, fault):
    tempfile.tempdir = f"{folder}/temporary"
    os.mkdir(tempfile.tempdir)
    funcs = holds_the_lock if fault == "lock" else math_reward
    trainer = world_trainer(folder, funcs, max_steps=1000, heartbeat_stale_after_s=4)
    if fault == "signal":
        trainer.add_callback(Stopping(trainer))
    with pytest.raises(RuntimeError, match="The rollout worker has given no sign of life"):
        trainer.train()
    left = [" ".join(part.cmdline()) for part in psutil.Process().children()]
    assert trainer.state.global_step > 0 and not [line for line in left if "spawn_main" in line]
    assert not [path for path in os.listdir(tempfile.tempdir) if "weights" in path]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["signal", "lock"])
def test_a_worker_that_is_stuck_ends_the_training(tmp_path, fault):
    """It is killed, and the weights are deleted."""
    code, said = in_a_fork(train_until_stuck, build_policy(tmp_path), fault, seconds=120)
    assert code == 0, said[-3000:]


def train_for_ever(folder):
    tempfile.tempdir = f"{folder}/temporary"
    train_world(folder, max_steps=1000)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_training_that_is_ended_by_a_signal(tmp_path, number):
    """Neither the worker's process nor the weights."""
    folder = build_policy(tmp_path)
    temporary = Path(folder, "temporary")
    temporary.mkdir()
    process = multiprocessing.get_context("fork").Process(target=train_for_ever, args=(folder,))
    process.start()
    wait_until(lambda: list(temporary.glob("*weights*/weights.safetensors")))
    time.sleep(3)  # the worker imports TRL now, or samples
    parts = psutil.Process(process.pid).children(recursive=True)
    assert len(parts) >= 2
    os.kill(process.pid, number)
    process.join()
    wait_until(lambda: gone([part.pid for part in parts]), seconds=60)
    assert not list(temporary.glob("*weights*"))


@pytest.mark.slow
def test_one_trainer_trains_twice(tmp_path):
    """With a worker that begins anew, at the first prompt."""
    folder = build_policy(tmp_path)
    trainer = world_trainer(folder, by_length, max_steps=2, overwrite_output_dir=True)
    trainer.train()
    before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    trainer.train()
    assert [log["step"] for log in trainer.state.log_history if "loss" in log] == [1, 2]
    assert any(not torch.equal(before[name], one) for name, one in trainer.model.named_parameters())


@pytest.mark.parametrize(("noise", "is_said"), [(0.05, False), (0.5, True)])
def test_log_probs_of_another_distribution_are_named_after_the_first_step(
    tmp_path, monkeypatch, caplog, noise, is_said
):
    """KL is about half the mean square of the noise: .001 and .13 nats a token."""
    folder = build_policy(tmp_path)
    trained(folder, random_samples(folder, 1, 16, noise=noise), monkeypatch)
    assert ("are not the policy's" in caplog.text) == is_said
