"""The methods for prompts that are solved, or not at all: numbers by hand, and those of published
functions.

Padding, the order of prompts and what each asks for are tested for every method in
test_estimators.py.
"""

import pytest
import torch
from harness import OF_FORKS
from test_estimators import batch, run

from trl_miner.data.forks_methods import deal_credit, unlikeliness_advantages
from trl_miner.methods.entropy import entropy_bonus_advantages
from trl_miner.methods.groups import group_kinds
from trl_miner.methods.rl_zvp import rl_zvp_advantages

NAN = float("nan")
RIGHT, MIXED, WRONG = [1.0] * 4, [1.0, 0.0, 0.0, 1.0], [0.0] * 4


def values(advantages):
    return pytest.approx(advantages, rel=1e-5, abs=1e-7)


def test_rl_zvp_by_hand():
    # right: .1 * H; wrong: -.1 * (max H - H), the maximum without the padding's 99
    entropies = torch.tensor([[1.0, 3.0, 99.0], [2.0, 5.0, 0.0], [7.0, 7.0, 7.0]])
    mask, right = (
        torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1]]),
        torch.tensor([True, False, False]),
    )
    found = rl_zvp_advantages(entropies, mask, right, torch.tensor([False, True, False]))
    assert found.flatten().tolist() == values([0.1, 0.3, 0.0, -0.3, 0.0, -0.5, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("rewards", "expected"),
    # _compute_advantages of AndreHe02/rewarding-unlikely-release @ 3e26ddd with rank_penalty .25
    [
        # ranks 2, 0, 1, 3: rewards .875, 1, .9375, .8125
        (RIGHT, [-0.3872935, 1.1618806, 0.3872935, -1.1618806]),
        ([1.0, 0.0, 1.0, 0.0], [0.8053409, -0.8649958, 0.9246507, -0.8649958]),
        (WRONG, [0.0] * 4),
    ],
)
def test_unlikeliness_pays_the_rarer_right_answer_more(rewards, expected):
    logps = torch.tensor([-1.0, -3.0, -2.0, -0.5])
    assert unlikeliness_advantages(torch.tensor(rewards), logps, 4).tolist() == values(expected)


def test_rewards_beyond_what_a_method_is_made_for_are_an_error():
    rewards, mask, scores = batch()
    with pytest.raises(ValueError, match="unlikeliness needs total rewards of at least 0.*got -1"):
        run(f"{OF_FORKS}unlikeliness", rewards - 1, mask, scores)


def test_the_entropy_bonus_by_hand():
    # .5 * (-ln .5 - 1) = .5 * (.6931 - 1); the padding's is 0
    logps, entropies = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 9.0]])
    found = entropy_bonus_advantages(logps, entropies, torch.tensor([[1, 0]]), weight=0.5)
    assert found.flatten().tolist() == values([-0.1534264, 0.0])


def test_the_placebo_pays_each_prompt_what_miner_pays_it_but_to_other_rollouts():
    rewards, mask, scores = batch()
    kinds = group_kinds(rewards, 4)
    mined, found = (
        run("miner", rewards, mask, scores),
        run(f"{OF_FORKS}placebo", rewards, mask, scores),
    )
    assert torch.equal(found[~kinds.is_ph_N], mined[~kinds.is_ph_N])
    paid = found[kinds.is_ph_N].sum(dim=1).view(-1, 4)
    expected = mined[kinds.is_ph_N].sum(dim=1).view(-1, 4)
    assert torch.allclose(paid.sort(dim=1).values, expected.sort(dim=1).values, atol=1e-9)
    # tokens of a rollout are paid alike, and another batch is dealt otherwise
    assert ((found == found.amax(dim=1, keepdim=True)) | (mask == 0))[kinds.is_ph_N].all()
    dealt = [run(f"{OF_FORKS}placebo", rewards, mask, scores, seed=seed) for seed in range(5)]
    assert any(not torch.equal(one, found) for one in dealt)


def test_credit_is_dealt_by_seed_and_prompt_wherever_the_prompt_stands():
    mass, keys = torch.arange(24.0), torch.arange(6).repeat_interleave(4) + 2**62
    has_tokens = torch.ones(24, dtype=torch.bool)
    dealt = deal_credit(mass, has_tokens, keys, 4, seed=3)
    assert torch.equal(dealt.view(-1, 4).sort(dim=1).values, mass.view(-1, 4)) and not torch.equal(
        dealt, mass
    )
    order = torch.arange(24).view(6, 4).flip(0).flatten()
    assert torch.equal(deal_credit(mass[order], has_tokens, keys[order], 4, seed=3), dealt[order])
    assert not torch.equal(deal_credit(mass, has_tokens, keys, 4, seed=4), dealt)
    mass[4:8], has_tokens[6] = torch.tensor([1.0, 2.0, 0.0, 3.0]), False  # cut off, and masked
    for seed in range(6):
        own = deal_credit(mass, has_tokens, keys, 4, seed=seed)[4:8]
        assert own[2] == 0 and own.sort().values.tolist() == [0, 1, 2, 3]
