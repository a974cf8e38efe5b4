"""Every advantage estimator, by one table: published numbers, GRPO as its neutral setting, and what
must not matter."""

import math
from dataclasses import replace

import pytest
import torch
from harness import assert_matches_golden, golden_cases
from hypothesis import given, settings
from methods.batches import METHODS, NAN, Batch, all_kinds, batches, make_batch, settings_of

from trl_miner.methods import ESTIMATORS
from trl_miner.methods.compose import estimate, find_composition
from trl_miner.methods.f_grpo import f_grpo
from trl_miner.methods.grpo import group_relative_advantages

PUBLISHED = {
    "grpo": "grpo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "entropy_adv": "entropy_adv",
    "ucas_upstream": "ucas",
}
NO_CREDIT = {"miner_lambda_max": 0.0}
NEUTRAL = {
    "grpo": {},
    "miner": {"settings": NO_CREDIT},
    "certainty": {"settings": NO_CREDIT | {"miner_intrinsic": "certainty"}},
    "constant": {"settings": NO_CREDIT | {"miner_intrinsic": "constant"}},
    "entropy": {"kwargs": {"weight": 0.0}},
    "f_grpo": {"kwargs": {"gamma": 0.0}},
    "entropy_adv": {"kwargs": {"alpha": 0.0}},
    "ucas": {"kwargs": {"beta_pos": 0.0, "beta_neg": 0.0, "token_coef": 0.0}},
}


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, golden_cases(name)[0].values[0]) for name in PUBLISHED],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_a_method_agrees_with_the_published_code(name, case):
    scores = {key: torch.tensor(case[key]) for key in case if key in ("entropies", "token_logits")}
    scores["self_certainty"] = torch.tensor(case.get("self_certainty", 0.0))
    rewards, mask = torch.tensor(case["rewards"]), torch.tensor(case["mask"])
    rollouts = Batch(rewards, mask, scores, case["G"]).part()
    # the published code has 1e-6 beside the standard deviation, TRL 1e-4
    grpo_N = group_relative_advantages(rewards, case["G"], std_eps=1e-6)
    knobs = {k: v for k, v in case["hyper"].items() if k in ESTIMATORS[PUBLISHED[name]].knobs}
    composition = find_composition(PUBLISHED[name], kwargs=knobs)
    found = estimate(composition, replace(rollouts, advantages_N=grpo_N))
    assert_matches_golden(found.advantages_BT, case)


@pytest.mark.parametrize("name", NEUTRAL)
@settings(max_examples=30, deadline=None)
@given(batches())
def test_at_its_neutral_setting_a_method_is_grpo_bit_for_bit(name, batch):
    found = batch.estimate(**(settings_of(name) | NEUTRAL[name]))
    expected = batch.estimate(advantage_estimator="grpo")
    assert torch.equal(found.advantages_BT, expected.advantages_BT)


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=30, deadline=None)
@given(batches())
def test_the_means_are_those_of_the_tokens_and_nothing_falls_on_padding_or_unscored(name, batch):
    found = batch.estimate(**settings_of(name))
    assert (found.advantages_BT[batch.mask == 0] == 0).all()
    assert found.advantages_BT.isfinite().all()
    if "own" not in name:  # its bonus goes to all
        assert (found.advantages_BT[batch.rewards.isnan()] == 0).all()
    sums = found.advantages_BT.double().sum(dim=1)
    assert torch.allclose(found.advantages_N * batch.mask.sum(dim=1), sums.float(), atol=1e-5)
    if not found.is_token_level:
        assert torch.equal(found.advantages_BT, found.advantages_N[:, None] * (batch.mask != 0))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("poison", [1e4, NAN, math.inf])
def test_what_stands_at_padding_tools_and_rows_not_asked_for_changes_nothing(name, poison):
    batch, asked = all_kinds(), {}
    batch.mask[:, 2] = 0  # a tool's
    clean = batch.estimate(asked=asked, **settings_of(name))
    assert clean.advantages_BT.abs().sum() > 0
    for key, is_row in asked.items():
        is_read = (batch.mask != 0) & is_row[:, None]
        batch.scores[key] = batch.scores[key].masked_fill(~is_read, poison)
    poisoned = batch.estimate(**settings_of(name))
    assert torch.equal(poisoned.advantages_BT, clean.advantages_BT)
    assert poisoned.metrics == clean.metrics


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=20, deadline=None)
@given(batches())
def test_the_order_of_the_prompts_does_not_matter(name, batch):
    prompts = torch.arange(len(batch.rewards)).view(-1, batch.G)
    order = prompts[torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0))]
    found = batch[order.flatten()].estimate(**settings_of(name)).advantages_BT
    expected = batch.estimate(**settings_of(name)).advantages_BT[order.flatten()]
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_in_half_precision_are_computed_with_in_full_precision(name, dtype):
    half, full = all_kinds(), all_kinds()
    half.scores = {key: values.to(dtype) for key, values in half.scores.items()}
    full.scores = {key: values.to(dtype).float() for key, values in full.scores.items()}
    found, expected = half.estimate(**settings_of(name)), full.estimate(**settings_of(name))
    assert torch.equal(found.advantages_BT, expected.advantages_BT)


@pytest.mark.parametrize("length", [0, 2])
@pytest.mark.parametrize("reward", [NAN, 1.0, 0.0])
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_one_kind_or_without_tokens_gets_finite_advantages(name, reward, length):
    found = make_batch([reward] * 8, [length] * 8, 4).estimate(**settings_of(name))
    assert found.advantages_BT.isfinite().all() and found.advantages_N.isfinite().all()
    assert all(map(math.isfinite, found.metrics.values()))


@pytest.mark.parametrize(
    ("name", "asked_for"),
    [
        ("reinforce_pp", {}),
        ("entropy", {"old_logps": "right", "entropies": "right"}),
        ("ucas", {"token_logits": "every", "self_certainty": "every"}),
        ("entropy_adv+miner", {"entropies": "learned", "old_logps": "right"}),
    ],
)
def test_a_method_asks_for_no_more_than_it_needs(name, asked_for):
    batch, asked = all_kinds(), {}
    batch.estimate(asked=asked, **settings_of(name))
    kinds = batch.part().kinds
    rows = {"right": kinds.is_ph_N, "every": kinds.is_ph_N | ~kinds.is_ph_N}
    rows["learned"] = group_relative_advantages(batch.rewards, batch.G) != 0
    assert asked.keys() == asked_for.keys()
    assert all(torch.equal(asked[key], rows[which]) for key, which in asked_for.items())


def of_rewards(rewards, num_generations, **named):
    """The advantages (N,) that a method makes of rewards alone."""
    batch = make_batch(rewards, [1] * len(rewards), num_generations)
    return batch.estimate(**named).advantages_N.tolist()


def test_f_grpo_by_hand():
    # GRPO of 1, 1, 1, 0: mean .75, std .5 -> .5, .5, .5, -1.5. p = .75: (1 - .75)^.5 = .5.
    # Of 1, 0, 0 and an unscorable one: mean 1/3, std .57735 -> 1.1547, -.57735; p = 1/3.
    found = of_rewards(
        [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, NAN],
        4,
        advantage_estimator="f_grpo",
        kwargs={"gamma": 0.5},
    )
    third = (2 / 3) ** 0.5
    expected = [0.25, 0.25, 0.25, -0.75, 1.1547 * third, -0.57735 * third, -0.57735 * third, 0.0]
    assert found == pytest.approx(expected, rel=5e-4)
    # without a verdict it is GRPO
    rollouts = make_batch([1.0, 0.0], [1, 1], 2).part()
    rollouts = replace(rollouts, is_correct_N=torch.full((2,), NAN))
    assert torch.equal(f_grpo(rollouts), rollouts.advantages_N)


def test_maxrl_by_hand():
    # 1 of 4: p = .25, (1 - .25) / .25 = 3, (0 - .25) / .25 = -1. 3 of 4: .25 / .75, -.75 / .75.
    # 1 of 3 scored: (1 - 1/3) / (1/3) = 2, -1, -1, and 0 for the unscorable one. None: 0.
    rewards = [1.0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, NAN, 0, 0, 0, 0, NAN, NAN, NAN, NAN]
    found = of_rewards(rewards, 4, advantage_estimator="maxrl")
    expected = [3.0, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1, 2, -1, -1, 0, *[0.0] * 8]
    assert found == pytest.approx(expected, rel=1e-6)
    # rewards of -1 and 1 have a mean of 0 at a pass rate of a half: (1 - 0) / .5 and (-1 - 0) / .5
    assert of_rewards([1.0, -1.0], 2, advantage_estimator="maxrl") == [2.0, -2.0]
    # part marks without a correct completion: no inverse of 0
    assert of_rewards([0.5, 0.0], 2, advantage_estimator="maxrl") == [0.0, 0.0]


def test_maxrl_follows_the_log_of_the_pass_rate():
    """A policy with p = sigmoid(t), so p' = p (1 - p), and G = 3 completions. Over all outcomes, the
    mean of A * d log p(o) / dt is the slope of -sum_k (1 - p)^k / k, the series of log p, up to its
    term G - 1: p' + (1 - p) p'."""
    p, mean = 0.3, 0.0
    for outcome in range(8):
        rewards = [float(outcome >> place & 1) for place in range(3)]
        chance = math.prod(p if reward else 1 - p for reward in rewards)
        advantages = of_rewards(rewards, 3, advantage_estimator="maxrl")
        slopes = [1 - p if reward else -p for reward in rewards]
        mean += chance * sum(a * s for a, s in zip(advantages, slopes, strict=True)) / 3
    assert mean == pytest.approx((1 + (1 - p)) * p * (1 - p), rel=1e-6)


def test_whitening_leaves_out_what_could_not_be_scored():
    named = dict(advantage_estimator="reinforce_pp")
    batch = make_batch([1.0, 0.0, NAN, NAN], [3, 1, 7, 7], 2)
    found, alone = batch.estimate(**named), batch[:2].estimate(**named)
    assert torch.equal(found.advantages_N[:2], alone.advantages_N)
    # 3 tokens of 1, one of 0: mean .75, variance (3 * .0625 + .5625) / 3 = .25 -> .5, -1.5
    assert alone.advantages_N.tolist() == pytest.approx([0.5, -1.5], rel=1e-5)


def test_ucas_by_hand():
    """The third of four has no tokens, so no confidence; the last is unscorable."""
    scores = {
        "self_certainty": torch.tensor([[1.0], [3.0], [50.0], [2.0]]),
        "token_logits": torch.tensor([[0.0], [1.0], [2.0], [3.0]]),
    }
    rewards, mask = torch.tensor([1.0, 0.0, 1.0, NAN]), torch.tensor([[1], [1], [0], [1]])
    batch, named = Batch(rewards, mask, scores, 4), dict(advantage_estimator="ucas")
    found = batch.estimate(**named, kwargs={"token_coef": 0.1}).advantages_N.tolist()
    # confidences 1, 3, 2: z-scores -1, 1, 0; logits 0, 1, 3: taxes 0, .1 / 3. GRPO of 1, 0, 1:
    # mean 2/3, std .57735 -> .57735, -1.1547
    expected = [0.57735 * math.exp(0.25), -1.1547 * math.exp(0.35) - 0.1 / 3, 0.0, 0.0]
    assert found == pytest.approx(expected, rel=5e-4)
    # a tax of 2 takes a right answer to 0, not below
    scores["token_logits"] *= -1
    assert batch.estimate(**named, kwargs={"token_coef": 2.0}).advantages_N[0] == 0


def test_the_entropy_bonus_is_the_gradient_of_the_entropy():
    """A softmax over three tokens: the mean of (-log p - H) * grad log p is the gradient of H."""
    logits = torch.tensor([0.3, -1.0, 0.8], requires_grad=True)
    logps = logits.log_softmax(0)
    entropy = -(logps.exp() * logps).sum()
    scores = {"old_logps": logps[:, None], "entropies": entropy.expand(3, 1)}
    batch = Batch(torch.ones(3), torch.ones(3, 1), scores, 3)
    found = batch.estimate(advantage_estimator="entropy", kwargs={"weight": 1.0}).advantages_N
    assert (logps.exp() @ found).abs() < 1e-6  # its mean is 0
    loss = (logps.exp().detach() * found * logps).sum()
    gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (loss, entropy)]
    assert torch.allclose(*gradients, atol=1e-6)
