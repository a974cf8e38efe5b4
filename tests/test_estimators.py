"""The methods that MINER is compared with, against the numbers of their own code."""

import math
from functools import partial

import pytest
import torch
from harness import OF_FORKS, assert_matches_golden, golden_cases

from trl_miner.data.forks_methods import (
    f_grpo_advantages,
    passk_advantages,
    unlikeliness_advantages,
)
from trl_miner.methods import ESTIMATORS, Rollouts
from trl_miner.methods.compose import estimate
from trl_miner.methods.entropy_adv import entropy_advantages
from trl_miner.methods.groups import group_kinds
from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.miner import miner_advantages
from trl_miner.methods.reinforce_pp import reinforce_pp_advantages
from trl_miner.methods.ucas import ucas_advantages
from trl_miner.trainer.config import MinerGRPOConfig

NAN = float("nan")
G = 4


def tensors(case, *names):
    return [torch.tensor(case[name]) for name in names]


def reinforce_pp(case, subtracts=False):
    rewards, mask = tensors(case, "rewards", "mask")
    return (
        reinforce_pp_advantages(rewards, mask.sum(dim=1), case["G"], subtract_group_mean=subtracts)[
            :, None
        ]
        * mask
    )


def entropy_adv(case):
    rewards, entropies, mask = tensors(case, "rewards", "entropies", "mask")
    return entropy_advantages(
        group_relative_advantages(rewards, case["G"], std_eps=1e-6),
        entropies,
        mask,
        **case["hyper"],
    )


def ucas(case):
    rewards, logits, certainty, mask = tensors(
        case, "rewards", "token_logits", "self_certainty", "mask"
    )
    grpo = group_relative_advantages(rewards, case["G"], std_eps=1e-6)
    return ucas_advantages(
        rewards, grpo, logits, certainty, mask, num_generations=case["G"], **case["hyper"]
    )


def passk(case):
    rewards, mask = tensors(case, "rewards", "mask")
    return passk_advantages(rewards, case["G"])[:, None] * mask


PUBLISHED = {
    "reinforce_plus_plus": reinforce_pp,
    "reinforce_plus_plus_baseline": partial(reinforce_pp, subtracts=True),
    "entropy_adv": entropy_adv,
    "ucas_upstream": ucas,
    "passk": passk,
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case.values[0]) for name in PUBLISHED for case in golden_cases(name)]
)
def test_a_method_agrees_with_the_published_code(name, case):
    assert_matches_golden(PUBLISHED[name](case), case)


def test_passk_leaves_out_what_could_not_be_scored():
    # 1, 0 and two unscorable: std of (1, 0) is .7071, so 1 / .7071; one scored rollout alone has no
    # second
    found = passk_advantages(
        torch.tensor([1.0, 0.0, NAN, NAN, NAN, NAN, 1.0, NAN, NAN, NAN, NAN, NAN]), G
    )
    assert found.tolist() == pytest.approx([2**0.5, *[0.0] * 11], rel=1e-5)


def test_f_grpo_by_hand():
    # 3 of 4 right: (1 - .75)^.5 = .5; 1 of 3 scored: (2/3)^.5; none scored: as it was
    advantages, correct = (
        torch.full((12,), 2.0),
        torch.tensor([1.0, 1, 1, 0, 1, 0, 0, NAN, NAN, NAN, NAN, NAN]),
    )
    found = f_grpo_advantages(advantages, correct, G, gamma=0.5).view(-1, G)
    assert found[:, 0].tolist() == pytest.approx([1.0, 2 * (2 / 3) ** 0.5, 2.0])
    assert (found == found[:, :1]).all()


def test_the_boundary_gate_is_shut_where_a_rollout_was_right_before():
    rewards, mask, scores = batch()
    past = torch.tensor([0, 3, 0, 0, 1, 0]).repeat_interleave(G)
    grpo = run("grpo", rewards, mask, scores)
    found = run(f"{OF_FORKS}boundary_gate", rewards, mask, scores, past=past)
    assert torch.equal(found, grpo * (past == 0).unsqueeze(1)) and not torch.equal(found, grpo)


def test_certainty_credits_the_surest_rollouts_of_an_all_right_prompt():
    # NLLs 1 and 3, mean 2: the first is 1 surer. A mixed pair gives +-.707 on 1 token each: 1.414
    # in all; cap .5 of it
    rewards, mask = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.ones(4, 1)
    knobs = dict(num_generations=2, gamma=0.0, lambda_max=0.5, std_eps=0.0)
    logps = torch.tensor([[-1.0], [-3.0], [-1.0], [-1.0]])
    found = miner_advantages(
        rewards, logps, mask, intrinsic="certainty", **knobs
    ).advantages_NT.flatten()
    assert found.tolist() == pytest.approx([2**-0.5, 0.0, 2**-0.5, -(2**-0.5)])


@pytest.mark.parametrize("subtracts", [False, True])
def test_an_unscorable_rollout_is_left_out_of_the_whitening(subtracts):
    rewards, tokens = torch.tensor([1.0, 0.0, NAN, NAN]), torch.tensor([3, 1, 9, 9])
    found = reinforce_pp_advantages(rewards, tokens, 2, subtract_group_mean=subtracts)
    assert torch.equal(
        found[:2],
        reinforce_pp_advantages(rewards[:2], tokens[:2], 2, subtract_group_mean=subtracts),
    )
    assert found[2:].tolist() == [0.0, 0.0]


def test_ucas_never_taxes_a_right_answer_below_zero():
    # A is +-.707 (less the eps); the tax is 2 on the surest token, 0 on the other
    rewards, logits = torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    grpo = group_relative_advantages(rewards, 2)
    knobs = dict(num_generations=2, token_coef=2.0)
    found = ucas_advantages(rewards, grpo, logits, torch.ones(2, 2), torch.ones(2, 2), **knobs)
    assert found.flatten().tolist() == pytest.approx([0.7070, 0.0, -0.7070, -2.7070], abs=1e-4)


def batch(seed=0):
    """Six groups of four with all kinds, one unscorable rollout and one without tokens; scores of
    every token."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.tensor(
        [1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, NAN, 1, 0, 0, 0]
    ).float()
    lengths = torch.randint(1, 8, (24,), generator=generator)
    lengths[5] = 0
    mask = (torch.arange(7) < lengths.unsqueeze(1)).int()
    scores = {
        "old_logps": -3 * torch.rand(24, 7, generator=generator),
        "entropies": 4 * torch.rand(24, 7, generator=generator),
        "token_logits": 20 * torch.rand(24, 7, generator=generator),
        "self_certainty": 9 * torch.rand(24, 7, generator=generator),
    }
    return rewards, mask, scores


def keys_of(scores):
    """A number for each prompt, wherever it stands in the batch."""
    return scores["old_logps"][:, 0].view(-1, G)[:, 0].mul(1e6).long().repeat_interleave(G)


def run(name, rewards, mask, scores, asked=None, seed=0, past=None, **changes):
    """The token advantages of a batch; "ucas+miner" is UCAS with MINER on all-right prompts."""
    name, _, on_top = name.partition("+")
    changes |= {"all_right": on_top} if on_top else {}
    advantages = group_relative_advantages(rewards, G)
    kinds = group_kinds(rewards, G, advantages_N=advantages)

    def score(names, is_row):
        if asked is not None:
            asked.extend((name, is_row) for name in names)
        return {"mask": mask, **{name: scores[name] for name in names}}

    config = MinerGRPOConfig(
        "unused", advantage_estimator=name, use_cpu=True, bf16=False, **changes
    )
    correct = (rewards >= 1).float().masked_fill(rewards.isnan(), NAN)
    knows = dict(prompt_keys=lambda: keys_of(scores), seed=seed, correct=lambda: correct)
    knows |= dict(past_correct=lambda: torch.zeros(24) if past is None else past)
    rollouts = Rollouts(rewards, advantages, mask, kinds, G, score, **knows)
    return estimate(config.composition, rollouts, config.knobs).advantages_BT


def knobs(**given):
    return {"advantage_estimator_kwargs": given}


STUDIED = ("placebo", "unlikeliness", "f_grpo", "passk", "boundary_gate")
NAMES = [*ESTIMATORS, *(OF_FORKS + name for name in STUDIED)]
NAMES += ["ucas+miner", "entropy_adv+miner", "reinforce_pp+miner"]


@pytest.mark.parametrize("name", NAMES)
def test_what_padding_and_the_results_of_tools_hold_changes_nothing(name):
    rewards, mask, scores = batch()
    mask[:, 2] = 0  # a tool's
    poisoned = {key: value.masked_fill(mask == 0, 1e4) for key, value in scores.items()}
    clean = run(name, rewards, mask, scores)
    assert (
        clean.abs().sum() > 0
        and (clean[mask == 0] == 0).all()
        and (clean[rewards.isnan()] == 0).all()
    )
    assert torch.equal(run(name, rewards, mask, poisoned), clean)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_prompts_does_not_matter(name):
    rewards, mask, scores = batch()
    order = (torch.tensor([3, 0, 5, 1, 4, 2])[:, None] * G + torch.arange(G)).flatten()
    permuted = run(
        name, rewards[order], mask[order], {key: value[order] for key, value in scores.items()}
    )
    assert torch.allclose(permuted, run(name, rewards, mask, scores)[order], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "neutral"),
    [
        ("ucas", knobs(beta_pos=0.0, beta_neg=0.0, token_coef=0.0)),
        ("entropy_adv", knobs(alpha=0.0)),
        ("miner", dict(miner_lambda_max=0.0)),
        (f"{OF_FORKS}placebo", dict(miner_lambda_max=0.0)),
        ("rl_zvp", knobs(alpha=0.0)),
        ("entropy", dict(entropy_weight=0.0)),
        (f"{OF_FORKS}f_grpo", knobs(gamma=0.0)),
        (f"{OF_FORKS}boundary_gate", {}),  # where no prompt came before
    ],
)
def test_at_its_neutral_setting_a_method_is_grpo_bit_for_bit(name, neutral):
    rewards, mask, scores = batch()
    assert torch.equal(
        run(name, rewards, mask, scores, **neutral), run("grpo", rewards, mask, scores)
    )


def test_without_its_part_unlikeliness_is_grpo_bit_for_bit():
    rewards, mask, scores = batch()
    expected = group_relative_advantages(rewards, G, std_eps=1e-6)
    assert torch.equal(
        unlikeliness_advantages(rewards, scores["old_logps"].mean(dim=1), G, beta=0.0), expected
    )


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("reinforce_pp", {}),
        ("entropy_adv+miner", {"entropies": "advantage", "old_logps": "right"}),
        ("rl_zvp", {"entropies": "right or wrong"}),
        (f"{OF_FORKS}unlikeliness", {"old_logps": "not wrong"}),
        ("entropy", {"old_logps": "right", "entropies": "right"}),
    ],
)
def test_a_method_asks_for_no_more_than_it_needs(name, names):
    (rewards, mask, scores), asked = batch(), []
    run(name, rewards, mask, scores, asked)
    kinds = group_kinds(rewards, G)
    rows = {
        "advantage": group_relative_advantages(rewards, G) != 0,
        "right": kinds.is_ph_N,
        "right or wrong": kinds.is_ph_N | kinds.is_nh_N,
        "not wrong": ~kinds.is_nh_N,
    }
    assert dict(asked).keys() == names.keys()
    assert all(torch.equal(is_row, rows[names[what]]) for what, is_row in asked)


@pytest.mark.parametrize(
    ("short", "base"), [("miner", "grpo"), ("miner", "miner"), ("ucas+miner", "ucas")]
)
def test_the_short_form_is_the_long_one_bit_for_bit(short, base):
    rewards, mask, scores = batch()
    expected = run(short, rewards, mask, scores)
    assert torch.equal(run(base, rewards, mask, scores, all_right="miner"), expected)


@pytest.mark.parametrize("mixed", ["ucas", "entropy_adv", "reinforce_pp"])
@pytest.mark.parametrize(
    ("right", "wrong"), [("reinforce_pp", "ucas"), ("none", None), ("miner", "rl_zvp")]
)
def test_each_kind_of_prompt_is_paid_by_its_own_method(mixed, right, wrong):
    rewards, mask, scores = batch()
    kinds = group_kinds(rewards, G)
    found = run(mixed, rewards, mask, scores, all_right=right, all_wrong=wrong)
    for name, is_kind in zip((right, mixed, wrong or mixed, mixed), kinds, strict=True):
        # its cap binds: all-right tokens get 1.5e-3 of what the other method gives mixed ones
        if name == "miner":
            share = found[is_kind].abs().sum() / found[kinds.is_he_N].abs().sum()
            assert share.item() == pytest.approx(1.5e-3, rel=1e-5)
        else:
            alone = torch.zeros_like(found) if name == "none" else run(name, rewards, mask, scores)
            assert torch.equal(found[is_kind], alone[is_kind]), name


def test_ucas_leaves_out_a_rollout_that_has_no_tokens_or_no_score():
    """The third of four has no tokens, so no confidence; the last is unscorable, so nothing falls
    on it."""
    rewards, certainty = (
        torch.tensor([1.0, 0.0, 1.0, NAN]),
        torch.tensor([[1.0], [3.0], [50.0], [2.0]]),
    )
    logits, mask = torch.arange(4.0).unsqueeze(1), torch.tensor([[1], [1], [0], [1]])
    grpo = group_relative_advantages(rewards, G)
    found = ucas_advantages(
        rewards, grpo, logits, certainty, mask, num_generations=G, token_coef=0.1
    )
    # confidences 1, 3, 2: z-scores -1, 1, 0; logits 0, 1, 3: taxes 0, .1 / 3
    expected = [grpo[0] * math.exp(0.25), grpo[1] * math.exp(0.35) - 0.1 / 3, 0.0, 0.0]
    assert found.flatten().tolist() == pytest.approx([float(x) for x in expected], rel=1e-5)
