"""`dose_share`: the factor on the credit of all-right and all-wrong prompts, and what steers it."""

import math
from dataclasses import replace

import pytest
import torch
from harness import config, trained, weights
from torch import tensor

from trl_miner.methods import MINER, Estimate, Rollouts
from trl_miner.methods.dose import DoseState, give_dose, start_dose, steer_share
from trl_miner.methods.groups import group_kinds

RIGHT, MIXED, WRONG = [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]


def rollouts(rewards, mask):
    rewards = tensor(rewards)
    return Rollouts(
        rewards, torch.zeros(len(rewards)), mask, group_kinds(rewards, 2), 2, score=None
    )


def given(advantages, state, mask=None):
    """The advantages of an all-right prompt and of a mixed one after the dose, and the state."""
    mask = torch.ones(4, 2) if mask is None else mask
    advantages_BT = tensor(advantages).view(4, -1) * mask
    estimate = Estimate(advantages_BT, tensor([1.0, 0.0, 1.0, -1.0]))
    found, state = give_dose(
        estimate, rollouts(RIGHT + MIXED, mask), tensor([True, True, False, False]), state
    )
    return found, state


# --- The arithmetic


def test_the_scale_brings_the_masses_to_the_wanted_odds():
    # masses, without the token that does not count: sqrt(.3^2 + .4^2) = .5 and sqrt(4 * 1) = 2;
    # odds 1/2: .5 * 2 / .5
    advantages, mask = [[0.3, 0.4], [0.0, 9.0], [1.0, 1.0], [-1.0, -1.0]], torch.ones(4, 2)
    mask[1, 1] = 0
    found, state = given(advantages, DoseState(math.log(0.5), scale=7.0), mask)
    assert state.scale == pytest.approx(2.0)
    assert torch.allclose(
        found.advantages_BT, tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]])
    )
    assert found.advantages_N.tolist() == pytest.approx([2.0, 0.0, 1.0, -1.0])


def test_the_scale_stays_where_there_is_no_credit():
    found, state = given([0.0, 0.0, 1.0, -1.0], DoseState(-3.0, scale=2.0))
    assert state == DoseState(-3.0, scale=2.0, other_mass=2.0)  # sqrt(2 * 1 + 2 * 1)
    assert found.advantages_BT[:, 1].tolist() == [0.0, 0.0, 1.0, -1.0]


def test_the_newest_batch_with_other_advantages_stands_in_for_one_without():
    # masses: sqrt(4 * .09) = .6, and 3 before; odds .1: scale .1 * 3 / .6 = .5
    found, state = given([0.3, 0.3, 0.0, 0.0], DoseState(math.log(0.1), scale=7.0, other_mass=3.0))
    assert state.scale == pytest.approx(0.5) and state.other_mass == 3.0
    assert found.advantages_BT[:, 1].tolist() == pytest.approx([0.15, 0.15, 0.0, 0.0])
    found, state = given([0.3, 0.3, 0.0, 0.0], DoseState(math.log(0.1)))
    assert state.scale == 0 and not found.advantages_BT.any()  # before the first one


def test_a_rounding_error_does_not_get_a_dose():
    found, state = given([1e-18, 0.0, 1.0, -1.0], DoseState(0.0))
    assert state.scale == 1e5 and found.advantages_BT[0, 0].item() == pytest.approx(1e-13)


def test_one_measured_share_gives_the_odds():
    # gradients 3 : 4, masses 1 : 2: 1.5 times the odds; a share of .2 has odds 1/4, so the masses
    # get 1/6
    first = steer_share(start_dose(0.2), 0.2, (9.0, 16.0), (1.0, 4.0))
    assert math.exp(first.log_odds) == pytest.approx(1 / 6) and first.measurements == 1
    # then 6 times: a mean of 3.75; then 1.5 times: a mean of 3
    second = steer_share(first, 0.2, (9.0, 1.0), (1.0, 4.0))
    assert math.exp(second.log_odds) == pytest.approx(0.25 / 3.75)
    third = steer_share(second, 0.2, (9.0, 16.0), (1.0, 4.0))
    assert math.exp(third.log_odds) == pytest.approx(0.25 / 3)
    # with many before, the newest has a weight of .2: .8 * 3 + .2 * 1.5 = 2.7
    last = steer_share(replace(third, measurements=9), 0.2, (9.0, 16.0), (1.0, 4.0))
    assert math.exp(last.log_odds) == pytest.approx(0.25 / 2.7)


@pytest.mark.parametrize("squares", [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_a_part_that_is_zero_or_not_finite_says_nothing(squares):
    state = DoseState(-3.0, measurements=1)
    assert (
        steer_share(state, 0.2, squares, (1.0, 1.0))
        == steer_share(state, 0.2, (1.0, 1.0), squares)
        == state
    )


# --- In the trainer


def logs_of(trainer):
    return [log for log in trainer.state.log_history if "loss" in log]


SETTINGS = {
    "accumulated": dict(
        per_device_train_batch_size=4, gradient_accumulation_steps=3, dose_share=0.05
    ),
    "LoRA, both sides": dict(
        all_right="rl_zvp", all_wrong="rl_zvp", advantage_estimator="grpo", dose_share=0.2
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_share_of_the_gradient_is_the_target(policy, tmp_path, name):
    from peft import LoraConfig

    extra = {"peft_config": LoraConfig(r=4, target_modules="all-linear")} if "LoRA" in name else {}
    settings = dict(max_steps=8, log_gradient_share=1, **SETTINGS[name])
    logs = logs_of(trained(policy, tmp_path, extra=extra, **settings))
    shares = [log["dose/share"] for log in logs if "dose/share" in log]
    target = settings["dose_share"]
    assert all(log["dose/scale"] > 0 for log in logs) and len(shares) >= 6
    assert sum(shares[2:]) / len(shares[2:]) == pytest.approx(target, rel=0.2)
    assert {log["dose/target"] for log in logs if "dose/share" in log} == {target}
    if "all_wrong" not in settings:  # then the all-right prompts are all that is credited
        assert shares == pytest.approx(
            [log["miner/ph_gradient_share"] for log in logs if "dose/share" in log]
        )
        capped = [log for log in logs if "miner/l1_share" in log]
        of_sums = [
            log["miner/scale"] * log["miner/tau_pos"] / log["miner/tau_ref"] for log in capped
        ]
        assert capped and [log["miner/l1_share"] for log in capped] == pytest.approx(of_sums)


def test_the_first_steps_are_measured_and_then_every_so_many(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_miner.trainer.gradient_share.EVERY", 5)
    logs = logs_of(trained(policy, tmp_path, dose_share=0.05, max_steps=11))
    assert [i for i, log in enumerate(logs, 1) if "dose/target" in log] == [*range(1, 9), 10]


def test_what_is_logged_does_not_change_the_dose(policy, tmp_path):
    """Neither what it measures nor when, which `log_gradient_share` does at other steps."""
    settings = dict(dose_share=0.2, all_wrong="rl_zvp", max_steps=10)
    alone = trained(policy, tmp_path / "alone", **settings)
    both = trained(policy, tmp_path / "both", log_gradient_share=2, **settings)
    assert all(torch.equal(weights(both)[name], weight) for name, weight in weights(alone).items())
    assert both._gradient_share.state_dict() == alone._gradient_share.state_dict() != {}
    both.args.dose_share = 0.5  # what was steered to another target is of no use
    assert both._gradient_share._state == start_dose(0.5)


def test_a_share_switches_the_cap_off_and_leaves_the_settings_as_they_were_given(tmp_path):
    args = config(tmp_path, all_wrong="rl_zvp", dose_share="1e-2")  # as YAML reads it
    assert (args.knobs(MINER)["lambda_max"], args.dose_share, args.miner_lambda_max) == (
        None,
        0.01,
        1.5e-3,
    )
    assert config(tmp_path).knobs(MINER)["lambda_max"] == 1.5e-3
