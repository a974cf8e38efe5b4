"""Whatever method of TRL's trainer a user overrides, in whatever way, has its whole effect or is
refused by name."""

from functools import partial

import pytest
import torch
from harness import (
    config,
    mixed_reward,
    problems,
    trl_metrics,
    weights,
)
from trl import GRPOConfig, GRPOTrainer

from trl_miner import MinerGRPOTrainer
from trl_miner.runs.prompt_ledger import read_ledger
from trl_miner.training import RunTrainer

FOUR_PARTS = dict(per_device_train_batch_size=3, gradient_accumulation_steps=4, max_steps=2)
FORWARD = "_get_per_token_logps_and_entropies"


# What a user may write around a method of TRL's: each gets the method and the arguments of the
# call.


def double(method, *args, **kwargs):
    return 2 * method(*args, **kwargs)


def double_advantages(method, model, inputs):
    return method(model, {**inputs, "advantages": inputs["advantages"] * 2})


def hand_on_double(method, *args):
    inputs = method(*args)
    return {**inputs, "advantages": inputs["advantages"] * 2}


def flip(method, *args):
    rewards = method(*args)
    rewards.neg_().add_(1)  # in place
    return rewards


def pay_length(method, inputs, prompts, completions, ids):
    lengths = torch.tensor([float(len(row)) for row in ids])
    rewards = method(inputs, prompts, completions, ids)
    # the rewards are those of all processes, the completions those of this one
    return rewards + lengths.to(rewards.device).unsqueeze(1) / 10


def square_by_row(method, *args, **kwargs):
    logps, *others = method(*args, **kwargs)
    # depends on what else is in the micro-batch
    return logps * (1 + logps.detach().mean()), *others


def cut(method, *args, **kwargs):
    ids, logps = method(*args, **kwargs)
    return [row[:4] for row in ids], logps


def shrink_gradients(trainer, method, *args, **kwargs):
    loss = method(*args, **kwargs)
    for parameter in trainer.model.parameters():
        parameter.grad *= 0.5
    return loss


# By method, what is done around it, and how it is overridden.
OVERRIDES = [
    ("compute_loss", double, "subclass"),
    ("_compute_loss", double_advantages, "mixin"),
    ("_prepare_inputs", hand_on_double, "instance"),
    ("_generate_and_score_completions", hand_on_double, "mixin"),
    ("_calculate_rewards", pay_length, "instance"),
    (FORWARD, square_by_row, "subclass"),
    ("_generate_single_turn", cut, "mixin"),
    ("training_step", shrink_gradients, "instance"),
]
# Settings
LAYOUTS = {
    "two iterations": dict(num_iterations=2),
    "off-policy, KL": dict(steps_per_generation=8, beta=0.1, learning_rate=0.1),
}
CONFIGS = {MinerGRPOTrainer: dict(advantage_estimator="grpo"), GRPOTrainer: dict(cls=GRPOConfig)}


def override(base, name, effect):
    """Return a subclass of `base` with an effect around one of its methods."""
    wants_trainer = effect is shrink_gradients

    def method(self, *args, **kwargs):
        given = (self,) if wants_trainer else ()
        return effect(*given, getattr(super(cls, self), name), *args, **kwargs)

    cls = type("Mine", (base,), {name: method})
    return cls


def build(how, name, effect, base, *args):
    """Return a trainer of class `base` whose method is overridden in a subclass, a mixin or on the
    instance."""
    if how == "instance":
        trainer = base(*args)
        given = (trainer,) if effect is shrink_gradients else ()
        setattr(trainer, name, partial(effect, *given, getattr(trainer, name)))
        return trainer
    if how == "mixin":  # behind ours in the order of the classes, where it is a class of its own
        other = override(GRPOTrainer, name, effect)
        return (other if base is GRPOTrainer else type("Both", (base, other), {}))(*args)
    return override(base, name, effect)(*args)


@pytest.mark.parametrize(("name", "effect", "how"), OVERRIDES)
def test_an_override_does_what_it_does_in_trls_trainer(name, effect, how, policy, tmp_path):
    trained, started = [], []
    settings = LAYOUTS["off-policy, KL" if how == "mixin" else "two iterations"]
    for base, own in CONFIGS.items():
        args = config(tmp_path / base.__name__, optim="sgd", **{**FOUR_PARTS, **settings, **own})
        trainer = build(how, name, effect, base, policy, mixed_reward, args, problems())
        started.append(weights(trainer))
        trainer.train()
        trained.append(trainer)
    moved = [
        torch.cat([(p - start[n]).flatten() for n, p in weights(trainer).items()])
        for trainer, start in zip(trained, started, strict=True)
    ]
    assert moved[1].abs().max() > 0
    assert torch.allclose(*moved, rtol=1e-4, atol=1e-4 * moved[1].abs().max())
    for found, expected in zip(*map(trl_metrics, trained), strict=True):
        assert all(
            found[key] == pytest.approx(value, rel=1e-3, abs=1e-6)
            for key, value in expected.items()
        )


@pytest.mark.parametrize(
    ("settings", "how"),
    [(dict(dose_share=0.01), "subclass"), (dict(log_gradient_share=1), "instance")],
)
def test_what_measures_trls_loss_is_refused_beside_another_loss(policy, tmp_path, settings, how):
    arguments = policy, mixed_reward, config(tmp_path, **settings), problems()
    with pytest.raises(ValueError, match="overrides compute_loss"):
        build(how, "compute_loss", double, MinerGRPOTrainer, *arguments).train()


# Rewards and rollouts that somebody changes reach the kinds of prompts, the ledger and MINER.


def test_rewards_that_are_changed_decide_what_is_right(policy, tmp_path):
    """As if the reward function had returned them."""

    def flipped(prompts, completions, **kwargs):
        return [1 - reward for reward in mixed_reward(prompts, completions)]

    args = [config(tmp_path / name, max_steps=2) for name in ("found", "expected")]
    found = build(
        "mixin",
        "_calculate_rewards",
        flip,
        RunTrainer,
        policy,
        mixed_reward,
        args[0],
        problems(),
    )
    found.train()
    expected = RunTrainer(policy, flipped, args[1], problems())
    expected.train()
    ledgers = [read_ledger(one.args.output_dir).batches for one in (found, expected)]
    assert ledgers[0] == ledgers[1] and ledgers[0]
    assert all(
        torch.equal(weights(found)[name], weight) for name, weight in weights(expected).items()
    )


def test_a_dataloader_of_ones_own_is_refused_where_the_trainer_draws_prompts(policy, tmp_path):
    class Mine(MinerGRPOTrainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(
                super().get_train_dataloader().dataset, batch_size=12, collate_fn=list
            )

    args = config(tmp_path, dynamic_sampling=True, advantage_estimator="grpo")
    with pytest.raises(ValueError, match="get_train_dataloader"):
        Mine(policy, mixed_reward, args, problems()).train()


def a_token_more(method, prompts):
    ids, completion_ids, *others = method(prompts)
    return ids, [row + row[-1:] for row in completion_ids], *others


@pytest.mark.parametrize(
    ("name", "effect", "settings", "words"),
    [
        ("_generate", a_token_more, dict(dynamic_sampling=True), "in rounds.*_generate"),
        ("_calculate_rewards", flip, dict(adaptive_sampling_rounds=2), "_calculate_rewards"),
        (FORWARD, square_by_row, dict(policy_loss="kl_cov"), "policy_loss=kl_cov needs the loss"),
    ],
)
def test_what_would_be_changed_twice_or_passed_over_is_refused(
    policy, tmp_path, name, effect, settings, words
):
    args = config(tmp_path, advantage_estimator="grpo", **settings)
    for how in ("subclass", "mixin", "instance"):
        mine = build(how, name, effect, MinerGRPOTrainer, policy, mixed_reward, args, problems())
        with pytest.raises(ValueError, match=words):
            mine.train()


def test_rollouts_that_are_changed_are_trained(policy, tmp_path):
    lengths = {}
    for how in ("subclass", None):
        args = config(tmp_path / str(how), max_steps=1, learning_rate=0.0)
        given = MinerGRPOTrainer, policy, mixed_reward, args, problems()
        made = build(how, "_generate", a_token_more, *given) if how else given[0](*given[1:])
        made.train()
        lengths[how] = [int(batch["completion_mask"].sum()) for batch in made._buffered_inputs]
    assert lengths["subclass"] == [count + 12 for count in lengths[None]]  # 12 rollouts
