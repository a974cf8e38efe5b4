"""Clip-Cov, KL-Cov and BAPO: what TRL's own loss makes of them, against the numbers of their
published code."""

from types import SimpleNamespace

import pytest
import torch
from harness import build_trainer, golden_cases, largest_difference, train, weights

SETTINGS = {
    "loss_vanilla": lambda h: dict(delta=h["c"], epsilon=h["low"], epsilon_high=h["high"]),
    "loss_gspo": lambda h: dict(
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=h["low"],
        epsilon_high=h["high"],
    ),
    "loss_clip_cov": lambda h: dict(
        policy_loss="clip_cov",
        epsilon=h["low"],
        epsilon_high=h["high"],
        policy_loss_kwargs=dict(
            ratio=h["clip_cov_ratio"], low=h["clip_cov_lb"], high=h["clip_cov_ub"]
        ),
    ),
    "loss_kl_cov": lambda h: dict(
        policy_loss="kl_cov",
        policy_loss_kwargs=dict(ratio=h["kl_cov_ratio"], coef=h["ppo_kl_coef"]),
    ),
    "loss_bapo": lambda h: dict(
        policy_loss="bapo",
        delta=h["clip_ratio_c"],
        policy_loss_kwargs=dict(target=h["adv_ratio_target"]),
    ),
}


def trainer_for(policy, tmp_path, **settings):
    # bnpo: the token mean of the golden numbers
    settings = {"loss_type": "bnpo", "num_iterations": 2, "seed": 0, **settings}
    trainer = build_trainer(policy, tmp_path, advantage_estimator="grpo", **settings)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def loss_of(trainer, case, tool_mask=None):
    """Return TRL's loss on the golden log-probs, which a model is made to give, and its gradient in
    these."""
    logps = torch.tensor(case["log_prob"], requires_grad=True)

    def model(input_ids, attention_mask, labels, fused_lm_head):
        return SimpleNamespace(log_probs=logps, entropy=torch.zeros_like(logps))

    mask = torch.tensor(case["mask"])
    batch = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": torch.tensor(case["advantages"]),
        "old_per_token_logps": torch.tensor(case["old_log_prob"]),
        "num_items_in_batch": mask.sum(),
    }
    if tool_mask is not None:
        batch["tool_mask"] = tool_mask
    before = {name: value.clone() for name, value in batch.items()}
    loss = trainer._compute_loss(model, batch)
    loss.backward()
    assert all(torch.equal(batch[name], value) for name, value in before.items())
    return loss.item(), logps.grad


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, *case.values, id=f"{name}-{case.id}")
        for name in SETTINGS
        for case in golden_cases(name)
    ],
)
def test_loss_and_gradient_are_those_of_the_published_code(policy, tmp_path, name, case):
    trainer = trainer_for(policy, tmp_path, **SETTINGS[name](case["hyper"]))
    bounds = trainer.epsilon_low, trainer.epsilon_high
    trainer._step = case.get("torch_manual_seed", 0)  # of which the draws are, with the run's seed
    loss, gradient = loss_of(trainer, case)
    expected = torch.tensor(case["grad_log_prob"])
    assert loss == pytest.approx(case["loss"], rel=1e-6, abs=1e-8)
    assert (gradient - expected).abs().max() <= 1e-6 * expected.abs().max()
    metrics = trainer._metrics["train"]
    if name == "loss_bapo":
        assert metrics["bapo/clip_low"] == pytest.approx([case["result"]["clip_low"]])
        assert metrics["bapo/clip_high"] == pytest.approx([case["result"]["clip_high"]])
    if name == "loss_clip_cov":
        tokens = torch.tensor(case["mask"]).sum().item()
        assert metrics["clip_cov/dropped"] == pytest.approx([len(case["dropped_tokens"]) / tokens])
    assert (trainer.epsilon_low, trainer.epsilon_high) == bounds  # of the next micro-batch


@pytest.mark.parametrize("name", ["loss_clip_cov", "loss_kl_cov", "loss_bapo"])
def test_tokens_of_a_tool_are_as_padding(policy, tmp_path, name):
    case = golden_cases(name)[0].values[0]
    mask = torch.tensor(case["mask"])
    tool_mask = (torch.arange(mask.shape[1]) % 4 != 1).int().expand_as(mask)
    settings = SETTINGS[name](case["hyper"])
    found = loss_of(trainer_for(policy, tmp_path, **settings), case, tool_mask)
    masked = {**case, "mask": (mask * tool_mask).tolist()}
    expected = loss_of(trainer_for(policy, tmp_path, **settings), masked)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert torch.allclose(found[1], expected[1], atol=1e-8)


OFF_POLICY = dict(num_iterations=3, loss_type="grpo", optim="sgd", learning_rate=0.5)
NEUTRAL = {
    "bapo": {"target": 0.0},  # its first bounds stay: 0.5 and 1.5
    "clip_cov": {"ratio": 0.0},
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_at_a_setting_that_changes_nothing_it_is_grpo_bit_for_bit(policy, tmp_path, name):
    common = dict(advantage_estimator="grpo", compute_less=False, epsilon=0.5, **OFF_POLICY)
    expected = train(policy, tmp_path / "grpo", **common)
    own = dict(policy_loss=name, policy_loss_kwargs=NEUTRAL[name])
    found = train(policy, tmp_path / name, **own, **common)
    assert largest_difference(weights(found), weights(expected)) == 0


@pytest.mark.parametrize("name", ["bapo", "clip_cov", "kl_cov"])
def test_it_acts_in_a_training_on_trls_micro_batches(policy, tmp_path, caplog, name):
    knobs = {"ratio": 0.3} | ({"low": -9.0, "high": 9.0} if name == "clip_cov" else {})
    knobs = {"target": 2.0} if name == "bapo" else knobs
    common = dict(advantage_estimator="grpo", per_device_train_batch_size=6, **OFF_POLICY)
    common |= dict(gradient_accumulation_steps=2, steps_per_generation=2)
    own = dict(policy_loss=name, policy_loss_kwargs=knobs)
    found = train(policy, tmp_path / "a", **own, **common)
    assert not found.is_compact and f"policy_loss={name}" in caplog.text
    plain = train(policy, tmp_path / "b", **common)
    assert largest_difference(weights(found), weights(plain)) > 1e-6
    as_trl = train(policy, tmp_path / "c", compute_less=False, **own, **common)
    assert largest_difference(weights(found), weights(as_trl)) <= 1e-6
