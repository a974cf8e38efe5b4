"""A run that is killed at any moment and resumed ends where an uninterrupted one does, whatever it
is made of."""

import os
import random
import shutil
import signal

import pytest
import torch
from harness import (
    OF_FORKS,
    At,
    Recording,
    call_on_ranks,
    config,
    in_a_fork,
    leave,
    mixed_reward,
    problems,
    stop_training,
)
from peft import LoraConfig
from torch.multiprocessing import ProcessExitedException
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from trl_miner.runs.prompt_ledger import read_ledger
from trl_miner.training import RunTrainer


def train(policy, folder, num_problems=7, resume=None, callbacks=(), **settings):
    args = config(folder, save_strategy="steps", save_steps=1, **settings)
    trainer = Recording(
        policy, mixed_reward, args, problems(num_problems), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def assert_same_end(found, expected):
    ledger = read_ledger(expected.args.output_dir)
    assert read_ledger(found.args.output_dir).batches == ledger.batches
    for weight, wanted in zip(found.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(weight, wanted)


def test_a_stream_goes_on_within_its_first_pass_and_says_that_it_cannot_later(
    policy, tmp_path, caplog
):
    """Seven prompts in threes: two steps a pass."""

    def stream(folder, resume=None, callbacks=()):
        args = config(
            folder, max_steps=4, save_strategy="steps", save_steps=1, shuffle_dataset=True
        )
        data = problems(7).to_iterable_dataset()
        trainer = Recording(policy, mixed_reward, args, data, callbacks=list(callbacks))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = stream(tmp_path / "whole")
    for saved in (1, 2):
        folder = tmp_path / f"cut{saved}"
        stream(folder, callbacks=[At(saved, stop_training)])
        assert_same_end(stream(folder, "latest"), whole)
    assert "stream" not in caplog.text
    stream(tmp_path / "whole", str(tmp_path / "whole" / "checkpoint-3"))
    assert "streaming" in caplog.text and "differ" in caplog.text


# Steps 1 to 6 of four mini-batches a generation, saved at step 2; the rollouts of steps 3 and 4 are
# in the checkpoint.
HALVES = dict(per_device_train_batch_size=3, steps_per_generation=4, max_steps=6)


def test_rollouts_of_other_batches_per_device_are_generated_again(policy, tmp_path, caplog):
    train(policy, tmp_path, 12, **HALVES, callbacks=[At(2, stop_training)])
    others = dict(
        per_device_train_batch_size=1,
        gradient_accumulation_steps=3,
        steps_per_generation=12,
        max_steps=6,
    )
    resumed = train(policy, tmp_path, 12, resume="latest", **others)
    assert resumed.state.global_step == 6
    assert "generated again" in caplog.text


def test_clip_cov_draws_the_same_tokens_behind_a_pass_that_ends_inside_an_accumulation(
    policy, tmp_path
):
    """Four micro-steps a pass, in steps of three and one; the checkpoint of step 2 lies at the end
    of the first."""
    settings = dict(
        per_device_train_batch_size=6,
        steps_per_generation=2,
        gradient_accumulation_steps=3,
        max_steps=4,
    )
    settings |= dict(
        policy_loss="clip_cov", policy_loss_kwargs=dict(ratio=0.1, low=0.01), learning_rate=3e-2
    )
    whole = train(policy, tmp_path / "whole", 6, **settings)
    train(policy, tmp_path / "cut", 6, **settings, callbacks=[At(2, stop_training)])
    assert_same_end(train(policy, tmp_path / "cut", 6, resume="latest", **settings), whole)


# A run of random features, killed at a random moment.

LAYOUTS = [
    {},
    dict(num_iterations=2),
    dict(per_device_train_batch_size=6, gradient_accumulation_steps=2),
    dict(per_device_train_batch_size=6, steps_per_generation=2, gradient_accumulation_steps=3),
    dict(per_device_train_batch_size=6, steps_per_generation=2, num_iterations=2),
    dict(per_device_train_batch_size=6, steps_per_generation=4, gradient_accumulation_steps=2),
]
PROMPTS = [{}, {}, dict(dynamic_sampling=True), dict(prompt_selection="greso")]
PROMPTS += [dict(dynamic_sampling=True, prompt_selection="greso")]
LOSSES = [{}, {}, dict(beta=0.05), dict(policy_loss="clip_cov")]
METHODS = [
    dict(advantage_estimator=name)
    for name in (
        "miner",
        "miner",
        "grpo",
        "ucas",
        "reinforce_pp",
        f"{OF_FORKS}unlikeliness",
        f"{OF_FORKS}placebo",
    )
]
EXTRAS = [
    {},
    {},
    dict(dose_share=0.01),
    dict(gate_on_correctness=True),
    dict(log_gradient_share=10),
    dict(lora=True),
]
EXTRAS += [dict(log_token_credit=1), dict(logging_steps=2), dict(dropout=True)]
EXTRAS += [
    dict(dataloader_num_workers=1),
    dict(eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=12),
]
MOMENTS = ("on_step_begin", "on_optimizer_step", "on_step_end", "on_save")


class Kill(TrainerCallback):
    """SIGKILL at the first such moment from a step on."""

    def __init__(self, moment, step):
        self.step = step
        setattr(self, moment, self.act)

    def act(self, args, state, control, **kwargs):
        if state.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


OF_THE_TRAINER = ("num_problems", "lora", "dropout")  # the others are settings


def draw_run(seed):
    """Return a run's settings, and the moment and step at which it is killed."""
    draw = random.Random(seed)
    while True:
        run = dict(
            shuffle_dataset=draw.random() < 0.9,
            max_steps=draw.randint(6, 10),
            save_steps=draw.randint(1, 3),
        )
        for choices in (LAYOUTS, PROMPTS, LOSSES, METHODS, EXTRAS):
            run |= draw.choice(choices)
        try:
            args = config(
                "none", **{name: value for name, value in run.items() if name not in OF_THE_TRAINER}
            )
        except ValueError:  # these do not go together
            continue
        num_groups = args.generation_batch_size // args.num_generations
        # two or three generations a pass
        run["num_problems"] = draw.randint(2 * num_groups, 3 * num_groups)
        return run, (
            draw.choice(MOMENTS),
            draw.randint(run["max_steps"] // 3, run["max_steps"] - 1),
        )


def train_drawn(policy, folder, settings, kill=None, resume=None):
    """Train, and leave the weights of the end in the run folder. On several processes, call it on
    each."""
    settings = dict(settings)
    size = int(os.environ.get("WORLD_SIZE", 1))
    data = problems(size * settings.pop("num_problems"))
    extra = (
        {"peft_config": LoraConfig(r=4, target_modules="all-linear")}
        if settings.pop("lora", False)
        else {}
    )
    rate = 0.1 if settings.pop("dropout", False) else 0.0
    torch.manual_seed(0)  # of LoRA's weights
    model = AutoModelForCausalLM.from_pretrained(policy, attention_dropout=rate)
    args = config(folder, save_strategy="steps", save_total_limit=2, **settings)
    callbacks = [Kill(*kill)] if kill else []
    tokenizer = AutoTokenizer.from_pretrained(policy)
    trainer = RunTrainer(
        model,
        mixed_reward,
        args,
        data,
        data.select(range(3)),
        processing_class=tokenizer,
        callbacks=callbacks,
        **extra,
    )
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        torch.save(trainer.model.state_dict(), folder / "end.pt")
    if size > 1:
        leave()


def assert_same_folders(found, expected):
    weights, wanted = (torch.load(folder / "end.pt") for folder in (found, expected))
    assert [name for name in wanted if not torch.equal(weights[name], wanted[name])] == []
    assert read_ledger(found).batches == read_ledger(expected).batches


def check_drawn(policy, folder, seed):
    settings, kill = draw_run(seed)
    print(settings, kill)
    train_drawn(policy, folder / "whole", settings)
    code, said = in_a_fork(train_drawn, policy, folder / "cut", settings, kill)
    assert code == -signal.SIGKILL, said[-3000:]
    train_drawn(policy, folder / "cut", settings, resume="latest")
    assert_same_folders(folder / "cut", folder / "whole")


# In the second pass with LoRA; with prompts of our own and evaluation.
@pytest.mark.parametrize("seed", [7, 33])
def test_a_random_run_that_is_killed_and_resumed_ends_as_if_it_had_not_been(policy, tmp_path, seed):
    check_drawn(policy, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_more_random_runs_that_are_killed_and_resumed(policy, tmp_path, seed):
    check_drawn(policy, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_random_runs_of_two_processes_that_are_killed_and_resumed(policy, tmp_path, seed):
    settings, kill = draw_run(seed)
    print(settings, kill)
    call_on_ranks(2, train_drawn, policy, tmp_path / "whole", settings)
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        call_on_ranks(2, train_drawn, policy, tmp_path / "cut", settings, kill)
    call_on_ranks(2, train_drawn, policy, tmp_path / "cut", settings, None, "latest")
    assert_same_folders(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
def test_other_processes_go_on_in_the_same_order(policy, tmp_path):
    """Ten prompts, three a step: the checkpoint of step 5 lies in the second pass."""
    run = dict(num_problems=10, max_steps=8, save_steps=5, shuffle_dataset=True)
    train_drawn(policy, tmp_path / "whole", run)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    halves = run | dict(num_problems=5, per_device_train_batch_size=6)
    call_on_ranks(
        2,
        train_drawn,
        policy,
        tmp_path / "cut",
        halves,
        None,
        str(tmp_path / "cut" / "checkpoint-5"),
    )
    prompts = [
        [batch.prompts for batch in read_ledger(tmp_path / name).batches]
        for name in ("cut", "whole")
    ]
    assert prompts[0] == prompts[1] and len(prompts[0]) == 8
