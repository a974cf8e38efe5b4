"""`miner_advantages` against the authors' code, the paper's equations and sums by hand."""

import math

import numpy as np
import pytest
import torch
from harness import assert_matches_golden, golden_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from methods.batches import NAN, batches

from trl_miner import miner_advantages
from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.miner import focal_weights


def of_batch(batch, **knobs):
    logps = batch.scores["old_logps"]
    return miner_advantages(batch.rewards, logps, batch.mask, num_generations=batch.G, **knobs)


def random_batch(rewards, num_tokens=5):
    generator = torch.Generator().manual_seed(0)
    logps = -3 * torch.rand(len(rewards), num_tokens, generator=generator)
    return torch.tensor(rewards), logps, torch.ones_like(logps)


@pytest.mark.parametrize("case", golden_cases("miner_core") + golden_cases("miner_variants"))
def test_agrees_with_the_authors_code(case):
    hyper = case["hyper"]
    found = miner_advantages(
        torch.tensor(case["rewards"]),
        torch.tensor(case["old_logps"]),
        torch.tensor(case["mask"]),
        num_generations=case["G"],
        gamma=hyper["gamma"] if hyper["credit_method"] == "focal" else 0.0,
        lambda_max=hyper["scale_by_normal"] or None,
        std_eps=1e-6,  # the published code's
    )
    assert_matches_golden(found.advantages_NT, case)
    if case["scale_value"] is not None:
        assert found.scale == pytest.approx(case["scale_value"], rel=1e-5)
    if check := case.get("paper_check"):
        assert found.tau_ref == pytest.approx(check["tau_ref"], rel=1e-5)  # it has no eps
        assert found.tau_pos == pytest.approx(check["tau_pos"], rel=1e-6)


def by_the_paper(batch, gamma, lambda_max, threshold):
    """The paper's equations, prompt by prompt in float64: advantages, tau_ref, tau_pos, scale."""
    found = np.zeros(batch.mask.shape)
    is_mined, tau_ref = np.zeros(len(found), bool), 0.0
    for first in range(0, len(found), batch.G):
        rows = slice(first, first + batch.G)
        rewards, mask = batch.rewards[rows].double().numpy(), batch.mask[rows].numpy()
        logps = batch.scores["old_logps"][rows].double().numpy()
        if np.fmax.reduce(rewards) > np.fmin.reduce(rewards):  # mixed: equation 2, with TRL's 1e-4
            gaps = rewards - np.nanmean(rewards)
            found[rows] = np.nan_to_num(gaps / (np.nanstd(rewards, ddof=1) + 1e-4))[:, None] * mask
            tau_ref += np.abs(found[rows]).sum()
        elif (rewards >= threshold).all() and mask.any():  # all right: equations 5 to 9
            nlls = -(logps * mask).sum(1) / np.where(mask.any(1), mask.sum(1), np.nan)
            gains = np.maximum(np.nan_to_num(nlls - np.nanmean(nlls)), 0)
            found[rows] = (1 - np.exp(logps)) ** gamma * gains[:, None] * mask
            is_mined[rows] = True
    tau_pos = found[is_mined].sum()
    scale = min(1.0, lambda_max * tau_ref / tau_pos) if tau_pos else 1.0  # equation 11
    found[is_mined] *= scale
    return torch.from_numpy(found), tau_ref, tau_pos, scale


@settings(max_examples=200, deadline=None)
@given(
    batches(),
    st.sampled_from([0.0, 0.5, 2.0, 3.0]),
    st.sampled_from([0.0, 1e-3, 0.1, 10.0]),
    st.sampled_from([0.5, 1.0]),
)
def test_agrees_with_the_paper_and_elsewhere_with_grpo(batch, gamma, lambda_max, threshold):
    found = of_batch(batch, gamma=gamma, lambda_max=lambda_max, correct_threshold=threshold)
    expected, *numbers = by_the_paper(batch, gamma, lambda_max, threshold)
    assert torch.allclose(found.advantages_NT.double(), expected, rtol=1e-4, atol=2e-6)
    sums = found.advantages_N * batch.mask.sum(dim=1)
    assert torch.allclose(sums, found.advantages_NT.sum(dim=1), rtol=1e-4, atol=2e-6)
    if numbers[1] > 1e-6:  # a mean minus itself leaves 1e-8 of rounding
        assert [found.tau_ref, found.tau_pos, found.scale] == pytest.approx(numbers, rel=1e-4)
    is_ph_N = found.kinds.is_ph_N
    grpo_NT = group_relative_advantages(batch.rewards, batch.G)[:, None] * batch.mask
    assert torch.equal(found.advantages_NT[~is_ph_N], grpo_NT[~is_ph_N])
    assert (found.advantages_NT[is_ph_N] >= 0).all()  # right answers are never pushed down
    of_ph = found.advantages_NT[is_ph_N].sum().item()
    assert of_ph <= lambda_max * found.tau_ref * (1 + 1e-5)


def test_the_constant_reward_is_the_papers_ablation():
    # w/o IR: 0.05 at every token of both, no calibration
    rewards, logps, mask = random_batch([1.0, 1.0, 1.0, 0.0])
    knobs = dict(num_generations=2, gamma=0.0, lambda_max=None, intrinsic="constant")
    found = miner_advantages(rewards, logps, mask, **knobs)
    assert torch.equal(found.advantages_NT[:2], torch.full((2, 5), 0.05))


def test_certainty_credits_the_surest_completions():
    # NLLs 1 and 3, mean 2: the first is 1 surer. A mixed pair gives +-.707 on a token each: 1.414
    # in all; the cap is .5 of it
    logps = torch.tensor([[-1.0], [-3.0], [-1.0], [-1.0]])
    knobs = dict(num_generations=2, gamma=0.0, lambda_max=0.5, std_eps=0.0, intrinsic="certainty")
    found = miner_advantages(torch.tensor([1.0, 1, 1, 0]), logps, torch.ones(4, 1), **knobs)
    assert found.advantages_N.tolist() == pytest.approx([0.5**0.5, 0.0, 0.5**0.5, -(0.5**0.5)])


def test_rounding_in_an_all_right_prompt_counts_as_nothing():
    # six rewards of 1.3 have the float32 mean 1.3 + 1e-7, so GRPO gives each -1e-3: as much as
    # MINER's own signal
    rewards, logps, mask = random_batch([1.3] * 6 + [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    grpo = group_relative_advantages(rewards, 6)
    assert (grpo[:6] < -1e-4).all()
    found = miner_advantages(rewards, logps, mask, num_generations=6)
    assert found.tau_ref == pytest.approx(5 * grpo[6:].abs().sum().item())
    assert (found.advantages_NT[:6] >= 0).all()


def test_the_weight_of_a_sure_token_keeps_its_digits():
    # p = 1 - 1e-8 is 1 in float32, so 1 - exp(lp) would be 0; rounding may leave a positive one
    found = focal_weights(torch.tensor([[-1e-8, 1e4]]), torch.ones(1, 2), 1.0)
    assert found[0].tolist() == [pytest.approx(1e-8), 0.0]


def test_sums_over_millions_of_tokens_keep_their_digits():
    # 2**21 tokens of 16.1 and of 16.2: their sums have more digits than float32 keeps
    logps = torch.tensor([-16.1, -16.2, -1.0, -1.0])[:, None].repeat(1, 2**21)
    knobs = dict(num_generations=2, gamma=0.0, lambda_max=None)
    found = miner_advantages(torch.tensor([1.0, 1, 1, 0]), logps, torch.ones_like(logps), **knobs)
    # half of the difference of the two float32 numbers, on each token of the second
    gap = (logps[0, 0].double() - logps[1, 0].double()).item()
    assert found.tau_pos == pytest.approx(gap / 2 * 2**21, rel=1e-9)


@pytest.mark.parametrize("value", [NAN, -math.inf, math.inf])
def test_a_log_prob_that_is_no_number_is_named_with_its_row(value):
    rewards, logps, mask = random_batch([1.0, 0.0, 1.0, 1.0])
    logps[3, 2] = value
    with pytest.raises(
        ValueError, match="log-probs of completion 3 of the batch are not all finite"
    ):
        miner_advantages(rewards, logps, mask, num_generations=2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(gamma=-1.0), "gamma=-1.0"),
        (dict(lambda_max=NAN), "lambda_max=nan"),
        (dict(intrinsic="nil"), "intrinsic='nil'.*one of nll, certainty, constant"),
        (dict(num_generations=3), "whole groups.*num_generations=3"),
        (dict(mask_NT=torch.ones(4, 6)), r"same completions: got .*\(4, 6\).*\[4, 6\].*\[4, 5\]"),
        (dict(old_logps_NT=torch.ones(4, 1)), "same completions"),
        (dict(rewards_N=torch.ones(8)), r"got \[\(8, 5\)"),
    ],
)
def test_bad_input_is_named(change, named):
    rewards, logps, mask = random_batch([1.0, 0.0, 1.0, 1.0])
    arguments = dict(rewards_N=rewards, old_logps_NT=logps, mask_NT=mask, num_generations=2)
    with pytest.raises(ValueError, match=named):
        miner_advantages(**{**arguments, **change})


def test_rewards_may_be_bools_and_log_probs_part_of_a_graph():
    rewards, logps, mask = random_batch([1.0, 1.0, 1.0, 0.0])
    expected = miner_advantages(rewards, logps, mask, num_generations=2).advantages_NT
    found = miner_advantages(
        rewards.bool(), logps.requires_grad_(), mask.bool(), num_generations=2
    ).advantages_NT
    assert torch.equal(found, expected) and not found.requires_grad
