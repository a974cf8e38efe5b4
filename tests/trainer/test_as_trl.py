"""The optimizer steps are TRL's: the same weights from the same completions, with fewer tokens
through the model."""

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from harness import (
    AS_TRL,
    build_trainer,
    crc,
    fixed_rollouts,
    largest_difference,
    logs,
    mixed_reward,
    problems,
    train,
    weights,
)
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

# SGD moves a weight by its gradient. Adam would make a whole step of the rounding in a gradient
# that is zero.
SGD = dict(optim="sgd", learning_rate=0.5, max_steps=3)
OFF_POLICY = dict(num_iterations=2, steps_per_generation=2)
IN_TWO = dict(per_device_train_batch_size=6, gradient_accumulation_steps=2)


def short(prompts, completions, **kwargs):
    """A second reward: less for long completions, none for every seventh."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [None if crc(text) % 7 == 0 else -len(text) / 100 for text in texts]


def with_environment(prompts, trainer):
    """Completions in which every third token comes from a tool."""
    rolled = fixed_rollouts(prompts, trainer)
    masks = [[int(i % 3 != 1) for i, _ in enumerate(ids)] for ids in rolled["completion_ids"]]
    return {**rolled, "env_mask": masks}


CASES = {
    "dapo": {},
    "grpo": dict(loss_type="grpo", **IN_TWO),
    "dr_grpo": dict(loss_type="dr_grpo", **IN_TWO),
    "bnpo": dict(loss_type="bnpo", **IN_TWO),
    "cispo": dict(loss_type="cispo", epsilon_high=5.0, **OFF_POLICY),
    "sapo": dict(loss_type="sapo", **OFF_POLICY),
    "luspo": dict(loss_type="luspo", importance_sampling_level="sequence", **OFF_POLICY),
    "vespo": dict(loss_type="vespo", **OFF_POLICY),
    "kl": dict(beta=0.1, **IN_TWO),
    "kl, off policy": dict(beta=0.04, **OFF_POLICY),
    "three iterations": dict(num_iterations=3),
    "four steps a generation": dict(
        per_device_train_batch_size=3, steps_per_generation=4, gradient_accumulation_steps=2
    ),
    # a generation batch spans one and a half optimizer steps, an optimizer step two batches
    "steps across batches": dict(
        per_device_train_batch_size=4, steps_per_generation=3, gradient_accumulation_steps=2
    ),
    "a step of two batches": dict(
        per_device_train_batch_size=4, steps_per_generation=3, gradient_accumulation_steps=6
    ),
    # 15 prompts in batches of 3 are 5 micro-steps: the last step of an epoch has two of three
    "a short last step": dict(
        gradient_accumulation_steps=3, steps_per_generation=1, data=problems(15)
    ),
    "sequence ratios": dict(importance_sampling_level="sequence", epsilon=1e-4, **OFF_POLICY),
    "two-sided clipping": dict(delta=1.01, epsilon=1e-3, **OFF_POLICY),
    "scaled by the batch": dict(scale_rewards="batch", **IN_TWO),
    "not scaled": dict(scale_rewards="none", **IN_TWO),
    "truncated masked": dict(mask_truncated_completions=True, beta=0.05, **IN_TWO),
    "high entropy alone": dict(top_entropy_quantile=0.3, **IN_TWO),
    "an entropy bonus": dict(entropy_coef=0.01, **IN_TWO),
    "off-policy mask": dict(off_policy_mask_threshold=1e-3, **OFF_POLICY),
    "temperature": dict(temperature=0.7, **OFF_POLICY),
    "checkpointing": dict(gradient_checkpointing=True, max_grad_norm=0.1),
    "a budget of 40 tokens": dict(ours=dict(max_tokens_per_micro_batch=40), **IN_TWO),
    "a budget of 4000 tokens": dict(ours=dict(max_tokens_per_micro_batch=4000), **IN_TWO),
    "LoRA": dict(more=lambda: {"peft_config": LoraConfig(target_modules="all-linear")}),
    "LoRA with KL": dict(
        beta=0.05, more=lambda: {"peft_config": LoraConfig(target_modules="all-linear")}, **IN_TWO
    ),
    "two rewards": dict(reward=[mixed_reward, short], reward_weights=[1.0, 0.5], **IN_TWO),
    "normalized one by one": dict(
        reward=[mixed_reward, short], multi_objective_aggregation="normalize_then_sum"
    ),
    "tools": dict(more=lambda: {"rollout_func": with_environment}, **IN_TWO),
}
# On a GPU a kernel with variable lengths packs rows: the same numbers, without its speed.
PACKED = {"dapo", "kl", "temperature", "an entropy bonus", "LoRA", "tools"}


def conversations():
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "solution": row["solution"]}
        for row in problems()
    ]
    return Dataset.from_list(rows)


def run(policy, folder, ours=None, more=dict, packed=False, **settings):
    """Train three steps with TRL's trainer, or with ours where `ours` has settings."""
    classes = {} if ours is not None else dict(cls=GRPOTrainer, config_cls=GRPOConfig)
    trainer = build_trainer(
        policy, folder, **classes, **{**SGD, **settings, **(ours or {})}, more=more()
    )
    if packed and trainer.trims:
        trainer.cutting = replace(trainer.cutting, is_packed=True)
    before = weights(trainer)
    trainer.train()
    return trainer, largest_difference(weights(trainer), before)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_trl(policy, tmp_path, name):
    settings = dict(CASES[name])
    ours = {"advantage_estimator": "grpo", **settings.pop("ours", {})}
    expected, moved = run(policy, tmp_path / "trl", **settings)
    assert moved > 1e-3
    for packed in (False, True) if name in PACKED else (False,):
        found, _ = run(policy, tmp_path / "ours", ours=ours, packed=packed, **settings)
        assert largest_difference(weights(found), weights(expected)) <= 1e-4 * moved
    same, _ = run(policy, tmp_path / "same", ours={**ours, **AS_TRL}, **settings)
    assert largest_difference(weights(same), weights(expected)) == 0


def test_conversations_too(policy, tmp_path):
    settings = dict(data=conversations(), **IN_TWO)
    expected, moved = run(policy, tmp_path / "trl", **settings)
    found, _ = run(policy, tmp_path / "ours", ours={"advantage_estimator": "grpo"}, **settings)
    assert moved > 1e-3
    assert largest_difference(weights(found), weights(expected)) <= 1e-4 * moved


def test_a_plain_configuration_is_miner_with_its_defaults(policy, tmp_path):
    found = train(policy, tmp_path / "plain", config_cls=GRPOConfig, **SGD)
    expected = train(policy, tmp_path / "miner", **SGD)
    assert found.composition.methods[0].name == "miner"
    assert largest_difference(weights(found), weights(expected)) == 0


METRICS = ("entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_with_all_rows_computed_in_one_micro_batch_the_metrics_are_those_of_trl(
    policy, tmp_path, level
):
    """With more micro-batches TRL's are means of means, which depend on the cut."""
    settings = dict(importance_sampling_level=level, epsilon=1e-4, beta=0.01, **OFF_POLICY)
    expected, _ = run(policy, tmp_path / "trl", **settings)
    found, _ = run(policy, tmp_path / "ours", ours={"advantage_estimator": "grpo"}, **settings)
    pairs = [*zip(logs(found)[:3], logs(expected)[:3], strict=True)]
    assert any(log["clip_ratio/region_mean"] for _, log in pairs)
    for ours, trls in pairs:
        assert {n: ours[n] for n in METRICS} == pytest.approx(
            {n: trls[n] for n in METRICS}, abs=1e-5
        )


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_in_several_micro_batches_a_metric_is_one_mean_over_the_step(policy, tmp_path, level):
    """The step of two micro-batches and of one have the same tokens: TRL's clip ratio of the whole
    is ours of the two."""
    settings = dict(importance_sampling_level=level, epsilon=1e-4, num_iterations=2)
    whole, _ = run(policy, tmp_path / "trl", **settings)
    ours = {"advantage_estimator": "grpo", "max_tokens_per_micro_batch": 100}
    parts, _ = run(policy, tmp_path / "ours", ours=ours, **{**settings, **IN_TWO})
    # at step 2 the weights differ by rounding alone
    ratios = [logs(trainer)[1]["clip_ratio/region_mean"] for trainer in (parts, whole)]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-6) and ratios[1] > 0
    # over a third of the tokens, which are as uncertain as the others
    entropies = [logs(trainer)[1]["entropy"] for trainer in (parts, whole)]
    assert entropies[0] == pytest.approx(entropies[1], rel=0.05)


@pytest.mark.parametrize(("batches", "name"), [(1, "dapo"), (2, "a step of two batches")])
def test_what_is_left_out_is_logged(policy, tmp_path, batches, name):
    """Of three prompts one is all right and one all wrong: 4 of 12 completions count, unless the
    mixed one comes out alike."""
    trainer = train(policy, tmp_path, advantage_estimator="grpo", max_steps=3, **CASES[name])
    for place, log in enumerate(logs(trainer)[:3]):
        own = trainer.batches[batches * place : batches * (place + 1)]
        # at least one row stays, or the step would have no gradient to synchronise
        counting = [max((batch.output["advantages"] != 0).sum().item(), 1) for batch in own]
        assert log["micro_batches/rows"] == pytest.approx(sum(counting) / batches / 12)
        assert log["micro_batches/tokens"] <= log["micro_batches/rows"] + 1e-6
        for batch in own:
            assert torch.equal(batch.output["advantages"], batch.rollouts.advantages_N)
