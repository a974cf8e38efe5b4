"""Clip-Cov, KL-Cov and BAPO: what TRL's own loss makes of them, against the numbers of their
published code."""

import pytest
import torch
from harness import config, golden_cases, mixed_reward, problems
from trl import GRPOTrainer

from trl_miner import MinerGRPOTrainer
from trl_miner.methods.bapo import bapo
from trl_miner.methods.covariance import clip_cov, kl_cov

PAPER_BAPO = dict(policy_loss_kwargs={"target": 0.5}, delta=3.0)
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
        policy_loss_kwargs=dict(
            target=h["adv_ratio_target"],
            low_max=h["ratio_lower_max"],
            high_max=h["ratio_upper_max"],
        ),
    ),
}


def trainer_for(policy, tmp_path, **settings):
    # bnpo: the token mean of the golden numbers
    settings = {"loss_type": "bnpo", "num_iterations": 2, **settings}
    trainer = MinerGRPOTrainer(
        policy, mixed_reward, config(tmp_path, advantage_estimator="grpo", **settings), problems()
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def loss_of(trainer, case, monkeypatch, generator=None, tool_mask=None):
    """TRL's loss on the golden log-probs (no model gives exactly these: the forward's result is put
    in its place)."""
    logps = torch.tensor(case["log_prob"], requires_grad=True)

    def forward(self, model, ids, *args, **kwargs):
        return logps, torch.zeros_like(logps), None

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", forward)
    if generator is not None:
        context = {**trainer._policy_loss.context(), "generator": generator}
        monkeypatch.setattr(trainer._policy_loss, "context", lambda: context)
    mask = torch.tensor(case["mask"])
    batch = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": (
            torch.tensor(case["advantages"]) if "advantages" in case else torch.zeros(len(mask))
        ),
        "num_items_in_batch": mask.sum(),
    }
    for key, name in (
        ("old_log_prob", "old_per_token_logps"),
        ("ref_log_prob", "ref_per_token_logps"),
    ):
        if key in case:
            batch[name] = torch.tensor(case[key])
    if tool_mask is not None:
        batch["tool_mask"] = tool_mask
    before = {name: value.clone() for name, value in batch.items()}
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    assert batch.keys() == before.keys() and all(
        torch.equal(batch[name], value) for name, value in before.items()
    )
    return loss.item(), logps.grad


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, *c.values, id=f"{name}-{c.id}")
        for name in SETTINGS
        for c in golden_cases(name)
    ],
)
def test_loss_and_gradient_agree_with_the_published_code(policy, tmp_path, monkeypatch, name, case):
    trainer = trainer_for(policy, tmp_path, **SETTINGS[name](case["hyper"]))
    seed = case.get("torch_manual_seed")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    loss, grad = loss_of(trainer, case, monkeypatch, generator)
    expected = torch.tensor(case["grad_log_prob"])
    assert loss == pytest.approx(case["loss"], rel=1e-6, abs=1e-8)
    assert (grad - expected).abs().max() <= 1e-6 * expected.abs().max()
    metrics = trainer._metrics["train"]
    if name == "loss_bapo":
        assert metrics["bapo/clip_low"] == pytest.approx([case["result"]["clip_low"]])
        assert metrics["bapo/clip_high"] == pytest.approx([case["result"]["clip_high"]])
        share = case["result"]["pos_neg_ratio"]
        assert metrics["bapo/positive_share"] == pytest.approx([share / (1 + share)])
    if name == "loss_clip_cov":
        tokens = torch.tensor(case["mask"]).sum().item()
        assert metrics["clip_cov/dropped"] == pytest.approx([len(case["dropped_tokens"]) / tokens])


# Each policy loss at a setting that changes nothing, and the settings of the loss that it is then.
NEUTRAL = {
    "clip_cov": (dict(policy_loss_kwargs={"ratio": 0.0}, epsilon=0.5), dict(epsilon=0.5)),
    "bapo": (
        dict(policy_loss_kwargs={"low_max": 0.5, "high_max": 1.5}, epsilon=0.5),
        dict(epsilon=0.5),
    ),
    # without clipping
    "kl_cov": (dict(policy_loss_kwargs={"ratio": 0.0}), dict(epsilon=1.0, epsilon_high=1e9)),
    "kl_cov, on-policy": (dict(policy_loss_kwargs={"ratio": 0.2}), {}),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_at_its_neutral_setting_a_method_is_grpo_bit_for_bit(policy, tmp_path, monkeypatch, name):
    case, (own, settings) = dict(golden_cases("loss_kl_cov")[0].values[0]), NEUTRAL[name]
    if "on-policy" in name:
        case["old_log_prob"] = case["log_prob"]
    plain = loss_of(trainer_for(policy, tmp_path, **settings), case, monkeypatch)
    found = loss_of(
        trainer_for(policy, tmp_path, policy_loss=name.split(",")[0], **own), case, monkeypatch
    )
    assert found[0] == plain[0] and torch.equal(found[1], plain[1])


def test_the_bounds_of_one_batch_do_not_stay_for_the_next(policy, tmp_path, monkeypatch):
    trainer = trainer_for(policy, tmp_path, policy_loss="bapo", **PAPER_BAPO)
    before = trainer.epsilon_low, trainer.epsilon_high
    loss_of(trainer, golden_cases("loss_bapo")[0].values[0], monkeypatch)
    assert (trainer.epsilon_low, trainer.epsilon_high) == before


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    logps, old = (-3 * torch.rand(8, 6, generator=generator) for _ in range(2))
    advantages = torch.randn(8, 1, generator=generator).expand(8, 6).clone()
    mask = (torch.arange(6) < torch.randint(0, 7, (8, 1), generator=generator)).int()
    return logps, old, advantages, mask


METHODS = {
    "clip_cov": lambda *batch, ratio=0.2: clip_cov(
        *batch, ratio=ratio, low=0.1, generator=torch.Generator().manual_seed(0)
    ),
    "kl_cov": lambda *batch: kl_cov(*batch, ratio=0.2),
    "bapo": lambda *batch: bapo(*batch, target=0.9),
}


@pytest.mark.parametrize("name", METHODS)
def test_what_padding_holds_changes_nothing(name):
    logps, old, advantages, mask = batch()
    poisoned = [x.masked_fill(mask == 0, 1e4) for x in (logps, old, advantages)]
    clean, found = METHODS[name](logps, old, advantages, mask), METHODS[name](*poisoned, mask)
    assert torch.equal(found.advantages_BT[mask == 1], clean.advantages_BT[mask == 1])
    assert (found.clip_low, found.clip_high, found.metrics) == (
        clean.clip_low,
        clean.clip_high,
        clean.metrics,
    )
    assert found.advantages_BT[mask == 1].isfinite().all()


@pytest.mark.parametrize("name", ["kl_cov", "bapo", "clip_cov"])
def test_the_order_of_the_rows_does_not_matter(name):
    rows = torch.tensor([3, 0, 7, 1, 5, 2, 6, 4])
    # else the order decides what it picks at random
    every = dict(ratio=1.0) if name == "clip_cov" else {}
    clean, found = (
        METHODS[name](*batch(), **every),
        METHODS[name](*(x[rows] for x in batch()), **every),
    )
    assert torch.allclose(found.advantages_BT, clean.advantages_BT[rows])
    assert (found.clip_low, found.clip_high) == (clean.clip_low, clean.clip_high)


def test_clip_cov_leaves_alone_what_is_clipped_already():
    # A 2 and 0, lp -1 and -3: both covariances are 1, so both are candidates; a ratio of e^2 with A
    # 2 is clipped
    logps, advantages = torch.tensor([[-1.0, -3.0]]), torch.tensor([[2.0, 0.0]])
    settings = dict(ratio=1.0, low=0.5, epsilon_high=1.0)
    found = clip_cov(logps, logps, advantages, torch.ones(1, 2), **settings)
    assert found.metrics["clip_cov/dropped"] == 1.0 and found.advantages_BT.tolist() == [[0.0, 0.0]]
    found = clip_cov(logps, logps - 2, advantages, torch.ones(1, 2), **settings)
    assert found.metrics["clip_cov/dropped"] == 0.5 and found.advantages_BT.tolist() == [[2.0, 0.0]]


def test_a_share_of_none_drops_none():
    """The published code drops one token all the same."""
    logps, old, advantages, mask = batch()
    found = clip_cov(logps, old, advantages, mask, ratio=0.0, low=-99.0, high=99.0)
    assert found.advantages_BT is advantages
    found = clip_cov(logps, old, advantages, mask, ratio=1e-9, low=-99.0, high=99.0)
    assert (found.advantages_BT != advantages).sum() == 1


@pytest.mark.parametrize("name", ["loss_clip_cov", "loss_kl_cov", "loss_bapo"])
def test_tokens_of_a_tool_are_as_padding(policy, tmp_path, monkeypatch, name):
    case = golden_cases(name)[0].values[0]
    mask = torch.tensor(case["mask"])
    tool_mask = (torch.arange(mask.shape[1]) % 4 != 1).int().expand_as(mask)
    settings = SETTINGS[name](case["hyper"])
    found = loss_of(
        trainer_for(policy, tmp_path, **settings), case, monkeypatch, tool_mask=tool_mask
    )
    masked = {**case, "mask": (mask * tool_mask).tolist()}
    expected = loss_of(trainer_for(policy, tmp_path, **settings), masked, monkeypatch)
    assert found[0] == expected[0] and torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_without_tokens_is_left_alone(name):
    logps, old, advantages, mask = batch()
    found = METHODS[name](logps, old, advantages, torch.zeros_like(mask))
    assert torch.equal(found.advantages_BT, advantages)
    assert name != "bapo" or (found.clip_low, found.clip_high) == (0.5, 1.5)


def test_bapo_searches_from_the_published_start_bounds():
    """One positive token at rho 2 and a negative one at rho .5: within (.8, 1.2) 1.2 * 1 against
    .8 * 1 is enough for target 1; within (.5, 1.5) of the paper 1.5 against .5."""
    logps, mask = torch.tensor([[2.0], [0.5]]).log(), torch.ones(2, 1)
    given = logps, torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]]), mask
    found = bapo(*given, low_start=0.8, high_start=1.2)
    assert (found.clip_low, found.clip_high) == (0.8, 1.2)
    assert found.metrics["bapo/positive_share"] == pytest.approx(1.2 / 2.0)
    assert bapo(*given).metrics["bapo/positive_share"] == pytest.approx(1.5 / 2.0)
    # 1.2 / .8 is 1.5, below 1.6: the lower bound rises to its last, .9, which takes more off, and
    # then the upper one to 1.3, 1.4 and 1.5: 1.5 / .9 is enough
    raised = bapo(*given, low_start=0.8, low_max=0.9, high_start=1.2, target=1.6)
    assert (raised.clip_low, raised.clip_high) == pytest.approx((0.9, 1.5))
    with pytest.raises(ValueError, match="low_start must be at most low_max: got 0.99 and 0.95"):
        bapo(*given, low_start=0.99)
