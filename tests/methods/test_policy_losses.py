"""Clip-Cov, KL-Cov and BAPO by hand, and what must not matter. tests/trainer has the numbers of their
published code, in TRL's loss."""

import math
from dataclasses import replace

import pytest
import torch

from trl_miner.methods import POLICY_LOSSES
from trl_miner.methods.micro_batch import MicroBatch

SETTINGS = {
    "clip_cov": dict(ratio=0.1, low=0.1),
    "kl_cov": dict(ratio=0.2),
    "bapo": dict(target=0.9),
}


def random_batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    logps, old = (-3 * torch.rand(8, 6, generator=generator) for _ in range(2))
    advantages = torch.randn(8, 1, generator=generator).expand(8, 6).clone()
    mask = (torch.arange(6) < torch.randint(0, 7, (8, 1), generator=generator)).int()
    return MicroBatch(logps, old, advantages, mask, epsilon_low=1.0, epsilon_high=9.0)


def run(name, batch, **knobs):
    batch = replace(batch, generator=torch.Generator().manual_seed(0))
    return POLICY_LOSSES[name].function(batch, **{**SETTINGS[name], **knobs})


def poisoned(batch, value):
    tensors = (batch.logps_BT, batch.old_logps_BT, batch.advantages_BT)
    filled = (x.masked_fill(batch.mask_BT == 0, value) for x in tensors)
    return MicroBatch(*filled, batch.mask_BT, batch.epsilon_low, batch.epsilon_high)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("value", [1e4, float("nan"), -float("inf")])
def test_what_padding_holds_changes_nothing(name, value):
    batch = random_batch()
    clean, found = run(name, batch), run(name, poisoned(batch, value))
    counts = batch.mask_BT == 1
    assert torch.equal(found.advantages_BT[counts], clean.advantages_BT[counts])
    assert found.advantages_BT[counts].isfinite().all()
    assert (found.epsilon_low, found.epsilon_high) == (clean.epsilon_low, clean.epsilon_high)
    assert found.metrics == clean.metrics


@pytest.mark.parametrize(
    ("name", "knobs", "epsilons"),
    [
        ("clip_cov", dict(ratio=0.0), (None, None)),
        ("kl_cov", dict(ratio=0.0), (1.0, torch.inf)),
        ("kl_cov", dict(coef=0.0), (1.0, torch.inf)),
        ("bapo", dict(target=0.0), (0.5, 0.5)),
    ],
)
def test_at_its_neutral_setting_a_method_leaves_the_advantages_bit_for_bit(name, knobs, epsilons):
    batch = random_batch()
    found = run(name, batch, **knobs)
    assert torch.equal(found.advantages_BT, batch.advantages_BT)
    assert (found.epsilon_low, found.epsilon_high) == epsilons


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_without_tokens_is_left_alone(name):
    batch = random_batch()
    batch.mask_BT.zero_()
    assert torch.equal(run(name, batch).advantages_BT, batch.advantages_BT)


def test_clip_cov_leaves_alone_what_is_clipped_already():
    # A 2 and 0, lp -1 and -3: both covariances are 1, so both are candidates; a ratio of e^2 with A
    # 2 is clipped above 2, and would not be by the lower bound
    logps, advantages = torch.tensor([[-1.0, -3.0]]), torch.tensor([[2.0, 0.0]])
    for step, dropped in ((0, 1.0), (2, 0.5)):
        batch = MicroBatch(logps, logps - step, advantages, torch.ones(1, 2), 9.0, 1.0)
        found = run("clip_cov", batch, ratio=1.0, low=0.5)
        assert found.metrics == {"clip_cov/dropped": dropped}
        assert found.advantages_BT.tolist() == [[step, 0.0]]
        assert run("clip_cov", batch, low=0.5, high=0.9).metrics == {"clip_cov/dropped": 0}


def test_kl_cov_penalizes_the_tokens_of_highest_covariance():
    # A 3, 0, 0 less 1 times lp -1, -2, -3 plus 2: covariances 2, 0 and 1
    logps, advantages = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[3.0, 0.0, 0.0]])
    batch = MicroBatch(logps, logps - 0.5, advantages, torch.ones(1, 3))
    found = run("kl_cov", batch, ratio=0.4, coef=2.0)  # int(.4 * 3) = 1 token
    assert found.metrics == pytest.approx({"kl_cov/penalised": 1 / 3, "kl_cov/penalty": 0.5})
    expected = [3 - 2 * 0.5 * math.exp(-0.5), 0.0, 0.0]
    assert found.advantages_BT[0].tolist() == pytest.approx(expected)


def test_bapo_raises_the_lower_bound_before_the_upper_one():
    """One positive token at rho 4 and a negative one at rho .5: min(4, high) against max(.5, low)."""
    logps, advantages = torch.tensor([[4.0], [0.5]]).log(), torch.tensor([[1.0], [-1.0]])
    batch = MicroBatch(logps, torch.zeros(2, 1), advantages, torch.ones(2, 1))
    # 1.5 / .5 is 3, enough for 3. For 3.1 the lower bound rises to .95, where 1.5 / .95 is 1.58,
    # then the upper one: 2.9 / .95 is 3.05 and not enough, 3 / .95 is 3.16
    for target, bounds in {3.0: (0.5, 1.5), 3.04: (0.95, 2.9), 3.1: (0.95, 3.0)}.items():
        found = run("bapo", batch, target=target)
        assert (1 - found.epsilon_low, 1 + found.epsilon_high) == pytest.approx(bounds)
        share = bounds[1] / sum(bounds)
        assert found.metrics["bapo/positive_share"] == pytest.approx(share)
