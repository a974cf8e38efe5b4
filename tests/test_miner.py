"""`miner_advantages` against the authors' code, the paper's equations and sums by hand."""

import math

import pytest
import torch
from harness import assert_matches_golden, golden_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trl_miner import miner_advantages
from trl_miner.methods.groups import group_kinds
from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.miner import focal_weights, needs_old_logps

NAN = float("nan")


def run_case(case, **overrides):
    hyper = case["hyper"]
    knobs = dict(
        num_generations=case["G"],
        gamma=hyper["gamma"] if hyper["credit_method"] == "focal" else 0.0,
        lambda_max=hyper["scale_by_normal"] or None,
        std_eps=1e-6,  # the published code's
    )
    return miner_advantages(
        torch.tensor(case["rewards"]),
        torch.tensor(case["old_logps"]),
        torch.tensor(case["mask"]),
        **{**knobs, **overrides},
    )


@pytest.mark.parametrize("case", golden_cases("miner_core") + golden_cases("miner_variants"))
def test_agrees_with_the_authors_code(case):
    found = run_case(case)
    assert_matches_golden(found.advantages_NT, case)
    if case["scale_value"] is not None:
        assert found.scale == pytest.approx(case["scale_value"], rel=1e-5)
    if check := case.get("paper_check"):
        # the check has no eps in its std
        assert found.tau_ref == pytest.approx(check["tau_ref"], rel=1e-5)
        assert found.tau_pos == pytest.approx(check["tau_pos"], rel=1e-6)


@pytest.mark.parametrize("case", golden_cases("grpo"))
def test_grpo_agrees_with_the_authors_code(case):
    rewards, mask = torch.tensor(case["rewards"]), torch.tensor(case["mask"])
    if case["hyper"]["norm_adv_by_std_in_grpo"]:
        advantages = group_relative_advantages(rewards, case["G"], std_eps=case["hyper"]["epsilon"])
    else:
        advantages = rewards - rewards.view(-1, case["G"]).mean(dim=1).repeat_interleave(case["G"])
    assert_matches_golden(advantages.unsqueeze(1) * mask, case)


def test_grpo_leaves_unscorable_rollouts_out():
    # 1, 0 scorable: mean .5, sample std sqrt(.5) -> +-.7071; the unscorable one gets 0
    found = group_relative_advantages(torch.tensor([1.0, 0.0, NAN]), 3)
    assert found.tolist() == pytest.approx([0.7070, -0.7070, 0.0], abs=2e-4)


def oracle(rewards, logps, mask, num_generations, gamma, lambda_max, threshold=1.0, eps=1e-4):
    """The paper's equations, one scalar at a time."""
    num_tokens = len(mask[0])
    advantages = [[0.0] * num_tokens for _ in rewards]
    tau_ref = tau_pos = 0.0
    mined = []
    for first in range(0, len(rewards), num_generations):
        rows = range(first, first + num_generations)
        group = [rewards[i] for i in rows]
        if len(set(group)) > 1:
            mean = sum(group) / len(group)
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
            for i in rows:
                for j in range(num_tokens):
                    if mask[i][j]:
                        advantages[i][j] = (rewards[i] - mean) / (std + eps)
                        tau_ref += abs(advantages[i][j])
        elif group[0] >= threshold:
            nll = {}
            for i in rows:
                if sum(mask[i]):
                    nll[i] = -sum(logps[i][j] for j in range(num_tokens) if mask[i][j]) / sum(
                        mask[i]
                    )
            for i in nll:
                gain = max(0.0, nll[i] - sum(nll.values()) / len(nll))
                for j in range(num_tokens):
                    if mask[i][j]:
                        advantages[i][j] = (1 - math.exp(logps[i][j])) ** gamma * gain
                        tau_pos += advantages[i][j]
                mined.append(i)
    scale = min(1.0, lambda_max * tau_ref / tau_pos) if tau_pos else 1.0
    for i in mined:
        advantages[i] = [a * scale for a in advantages[i]]
    return advantages, tau_ref, tau_pos, scale


@st.composite
def batches(draw, max_groups=5):
    """Rewards (N,), log-probs (N, T), mask (N, T) and G: every kind of group, ragged and empty
    rows."""
    num_generations = draw(st.integers(2, 5))
    num_groups = draw(st.integers(1, max_groups))
    num_tokens = draw(st.integers(1, 6))
    num_rows = num_groups * num_generations
    rewards = []
    for _ in range(num_groups):
        kind = draw(st.sampled_from("PNH"))
        mixed = st.lists(
            st.sampled_from([0.0, 0.5, 1.0]), min_size=num_generations, max_size=num_generations
        )
        rewards += {"P": [1.0] * num_generations, "N": [0.0] * num_generations}.get(kind) or draw(
            mixed
        )
    lengths = draw(st.lists(st.integers(0, num_tokens), min_size=num_rows, max_size=num_rows))
    mask = [[int(j < length) for j in range(num_tokens)] for length in lengths]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logps = -4 * torch.rand(num_rows, num_tokens, generator=generator, dtype=torch.float32) ** 2
    return torch.tensor(rewards), logps, torch.tensor(mask), num_generations


@settings(max_examples=200, deadline=None)
@given(
    batches(), st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), st.sampled_from([0.0, 1e-3, 0.1, 10.0])
)
def test_agrees_with_the_paper_scalar_by_scalar_and_elsewhere_with_grpo(batch, gamma, lambda_max):
    rewards, logps, mask, num_generations = batch
    knobs = dict(num_generations=num_generations, gamma=gamma, lambda_max=lambda_max)
    found = miner_advantages(rewards, logps, mask, **knobs)
    expected, tau_ref, tau_pos, scale = oracle(
        rewards.tolist(), logps.double().tolist(), mask.tolist(), num_generations, gamma, lambda_max
    )
    assert found.tau_ref == pytest.approx(tau_ref, rel=1e-5)
    # a mean minus itself leaves 1e-8 of rounding
    assert found.tau_pos == pytest.approx(tau_pos, rel=1e-5, abs=1e-7)
    assert torch.allclose(
        found.advantages_NT.double(), torch.tensor(expected).double(), rtol=1e-4, atol=2e-6
    )
    if tau_pos > 1e-6:
        assert found.scale == pytest.approx(scale, rel=1e-4)
    plain_NT = group_relative_advantages(rewards, num_generations).unsqueeze(1) * mask
    assert torch.equal(found.advantages_NT[~found.kinds.is_ph_N], plain_NT[~found.kinds.is_ph_N])
    # right answers are never pushed down
    assert (found.advantages_NT[found.kinds.is_ph_N] >= 0).all()
    means, has_tokens = (
        found.advantages_NT.sum(dim=1) / mask.sum(dim=1).clamp(min=1),
        mask.sum(dim=1) > 0,
    )
    assert torch.allclose(found.advantages_N[has_tokens], means[has_tokens], rtol=1e-5, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(
    batches(),
    st.sampled_from([2.0, 0.0]),
    st.sampled_from([1e4, -1e4, NAN, float("inf"), -float("inf")]),
)
def test_what_is_poisoned_at_padding_or_outside_of_all_right_prompts_changes_nothing(
    batch, gamma, poison
):
    rewards, logps, mask, num_generations = batch
    knobs = dict(num_generations=num_generations, gamma=gamma)
    clean = miner_advantages(rewards, logps, mask, **knobs)
    is_read = (mask != 0) & clean.kinds.is_ph_N.unsqueeze(1)
    poisoned = miner_advantages(rewards, logps.masked_fill(~is_read, poison), mask, **knobs)
    assert torch.equal(clean.advantages_NT, poisoned.advantages_NT)
    assert (clean.scale, clean.tau_ref, clean.tau_pos) == (
        poisoned.scale,
        poisoned.tau_ref,
        poisoned.tau_pos,
    )


def random_batch(rewards, num_tokens=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logps = -3 * torch.rand(len(rewards), num_tokens, generator=generator)
    return torch.tensor(rewards), logps, torch.ones_like(logps)


def test_rounding_on_a_ph_group_counts_as_nothing():
    # six rewards of 1.3 have the float32 mean 1.3 + 1e-7, so GRPO gives each -1e-3: as much as
    # MINER's own signal
    rewards, logps, mask = random_batch([1.3] * 6 + [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert (group_relative_advantages(rewards, 6)[:6] < -1e-4).all()
    found = miner_advantages(rewards, logps, mask, num_generations=6)
    he_alone = miner_advantages(rewards[6:], logps[6:], mask[6:], num_generations=6)
    assert found.scale * found.tau_pos > 0 and found.tau_ref == he_alone.tau_ref
    assert (found.advantages_NT[:6] >= 0).all()


def test_focal_weight_of_a_sure_token_keeps_its_digits():
    # p = 1 - 1e-8 is 1 in float32, so 1 - exp(lp) would be 0; the true weight is 1e-8
    # rounding may leave a positive one
    found = focal_weights(torch.tensor([[-1e-8, 1e4]]), torch.ones(1, 2), 1.0)
    assert found[0].tolist() == [pytest.approx(1e-8), 0.0]


def test_constant_reward_pays_every_rollout_of_a_ph_group_alike():
    # the paper's w/o IR: 0.05 at every token, no calibration
    rewards, _, mask = random_batch([1.0, 1.0, 1.0, 0.0])
    found = miner_advantages(
        rewards, None, mask, num_generations=2, intrinsic="constant", gamma=0.0, lambda_max=None
    )
    assert torch.equal(found.advantages_NT[:2], torch.full((2, 5), 0.05))


def test_half_precision_log_probs_are_summed_in_full_precision():
    rewards, logps, mask = random_batch([1.0, 1.0, 1.0, 0.0], num_tokens=4096)
    half = miner_advantages(rewards, logps.bfloat16(), mask, num_generations=2)
    full = miner_advantages(rewards, logps.bfloat16().float(), mask, num_generations=2)
    assert torch.equal(half.advantages_NT, full.advantages_NT)


@pytest.mark.parametrize("value", [NAN, -float("inf"), float("inf")])
def test_a_log_prob_that_is_no_number_is_named_with_its_row(value):
    rewards, logps, mask = random_batch([1.0, 0.0, 1.0, 1.0])
    logps[3, 2] = value
    with pytest.raises(ValueError, match="row 3 of the global batch"):
        miner_advantages(rewards, logps, mask, num_generations=2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(gamma=-1.0), "gamma must be at least 0: got -1.0"),
        (dict(lambda_max=-0.1), "lambda_max must be at least 0, or None.*got -0.1"),
        (dict(num_generations=3), "whole groups.*num_generations=3"),
        (dict(mask_NT=torch.ones(4, 6)), r"one shape.*got \(4, 6\) and \(4, 5\)"),
        (dict(mask_NT=torch.ones(4)), r"shape \(N, T\).*got \(4,\) and"),
        (dict(rewards_N=torch.ones(8)), "8 rewards for 4 local rows"),
        (dict(old_logps_NT=None), "old_logps_NT must be given"),
    ],
)
def test_bad_input_is_named(change, named):
    rewards, logps, mask = random_batch([1.0, 0.0, 1.0, 1.0])
    given = dict(rewards_N=rewards, old_logps_NT=logps, mask_NT=mask, num_generations=2)
    with pytest.raises(ValueError, match=named):
        miner_advantages(**{**given, **change})


@pytest.mark.parametrize(
    ("rewards", "knobs", "needed"),
    [
        ([1.0, 1.0, 1.0, 0.0], {}, True),
        ([0.0, 0.0, 1.0, 0.0], {}, False),  # no PH
        ([1.0, 1.0, 0.0, 0.0], {}, False),  # no HE: the cap is 0
        ([1.0, 1.0, 1.0, 0.0], {"lambda_max": 0.0}, False),
        ([1.0, 1.0, 1.0, 0.0], {"intrinsic": "constant", "gamma": 0.0}, False),
        ([1.0, 1.0, 1.0, 0.0], {"intrinsic": "constant"}, True),
    ],
)
def test_without_a_signal_miner_is_grpo_and_asks_for_no_log_probs(rewards, knobs, needed):
    rewards, logps, mask = random_batch(rewards)
    kinds, advantages = group_kinds(rewards, 2), group_relative_advantages(rewards, 2)
    assert needs_old_logps(kinds, advantages, **knobs) is needed
    if not needed:  # leaving them out changes nothing
        without = miner_advantages(rewards, None, mask, num_generations=2, **knobs)
        given = miner_advantages(rewards, logps, mask, num_generations=2, **knobs)
        assert torch.equal(without.advantages_NT, given.advantages_NT)
        if "intrinsic" not in knobs:  # GRPO bit for bit
            assert torch.equal(given.advantages_NT, advantages.unsqueeze(1) * mask)


class LargeTensors(TorchDispatchMode):
    """Keeps the floats that operations make and that are as large as a batch of so many."""

    def __init__(self, numel):
        super().__init__()
        self.numel, self.kept = numel, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        if isinstance(made, torch.Tensor) and made.untyped_storage().nbytes() >= 4 * self.numel:
            self.kept[made.untyped_storage().data_ptr()] = made
        return made


def test_only_the_result_is_as_large_as_the_batch():
    """Two prompts, all right and mixed, in blocks of 2**17 of the 2**19 tokens."""
    num_rows, num_tokens = 16, 2**15
    rewards_N = torch.tensor([1.0] * 8 + [1.0, 0.0] * 4)
    logps_NT, mask_NT = -torch.ones(num_rows, num_tokens), torch.ones(num_rows, num_tokens).long()
    with LargeTensors(num_rows * num_tokens) as large:
        found = miner_advantages(rewards_N, logps_NT, mask_NT, num_generations=8)
    assert list(large.kept) == [found.advantages_NT.untyped_storage().data_ptr()]


def test_rewards_may_be_bools_and_log_probs_part_of_a_graph():
    rewards, logps, mask = random_batch([1.0, 1.0, 1.0, 0.0])
    expected = miner_advantages(rewards, logps, mask, num_generations=2).advantages_NT
    found = miner_advantages(
        rewards.bool(), logps.requires_grad_(), mask.bool(), num_generations=2
    ).advantages_NT
    assert torch.equal(found, expected) and not found.requires_grad
