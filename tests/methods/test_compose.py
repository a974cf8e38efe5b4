"""Which method has which prompts, knobs, and estimators of one's own by import path."""

import pytest
import torch
from hypothesis import given, settings
from methods import own_estimators
from methods.batches import all_kinds, batches

from trl_miner.methods.compose import find_composition, find_policy_loss

OWN = "methods.own_estimators"


def names(*args, **kwargs):
    """The methods of mixed and of all-right prompts, and those that have a part."""
    found = find_composition(*args, **kwargs)
    methods = [method.name for method in found.methods]
    return found.mixed.name, found.all_right and found.all_right.name, methods


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("grpo",), ("grpo", None, ["grpo"])),
        (("miner",), ("grpo", "miner", ["miner"])),
        (("grpo", "miner"), ("grpo", "miner", ["miner"])),
        (("miner", "entropy"), ("grpo", "entropy", ["entropy"])),
        (("miner", "none"), ("grpo", None, ["grpo"])),
        (("ucas",), ("ucas", None, ["ucas"])),
        (("ucas", "ucas"), ("ucas", None, ["ucas"])),
        (("ucas", "miner"), ("ucas", "miner", ["ucas", "miner"])),
        (("ucas", "none"), ("ucas", "grpo", ["ucas"])),
        (("f_grpo", "miner"), ("f_grpo", "miner", ["f_grpo", "miner"])),
        ((f"{OWN}.SURPRISE",), ("grpo", f"{OWN}.SURPRISE", [f"{OWN}.SURPRISE"])),
        (("grpo", f"{OWN}.by_length"), ("grpo", f"{OWN}.by_length", [f"{OWN}.by_length"])),
    ],
)
def test_settings_name_the_methods(settings, expected):
    assert names(*settings) == expected


@pytest.mark.parametrize("mixed", ["grpo", "ucas", "entropy_adv", "reinforce_pp", "f_grpo"])
@pytest.mark.parametrize("right", ["none", "ucas", "reinforce_pp"])
@settings(max_examples=10, deadline=None)
@given(batches())
def test_each_kind_of_prompt_is_paid_by_its_own_method(mixed, right, batch):
    found = batch.estimate(advantage_estimator=mixed, all_right=right).advantages_BT
    is_ph_N = batch.part().kinds.is_ph_N
    base = batch.estimate(advantage_estimator=mixed).advantages_BT
    own = batch.estimate(advantage_estimator="grpo" if right == "none" else right).advantages_BT
    assert torch.equal(found, torch.where(is_ph_N[:, None], own, base))


def test_the_cap_is_measured_by_the_tokens_of_the_other_method():
    """Tokens of both signs in one completion: their sizes count, not their sum."""
    batch, named = all_kinds(), dict(advantage_estimator=f"{OWN}.of_both_signs")
    sizes = batch.estimate(**named).advantages_BT.abs()
    found = batch.estimate(**named, all_right="miner").advantages_BT
    kinds = batch.part().kinds
    share = found[kinds.is_ph_N].sum() / sizes[kinds.is_he_N].sum()
    assert share.item() == pytest.approx(1.5e-3, rel=1e-5)


def test_where_nothing_speaks_of_single_tokens_trl_keeps_its_form():
    batch = all_kinds()
    assert not batch.estimate(advantage_estimator="reinforce_pp").is_token_level
    assert batch.estimate(advantage_estimator="miner").is_token_level
    without_right = batch[torch.arange(4, 12)].estimate(advantage_estimator="miner")
    assert not without_right.is_token_level
    assert batch.estimate(advantage_estimator="entropy_adv").is_token_level


def test_knobs_go_to_the_methods_that_have_them():
    knobs = find_composition(
        "f_grpo",
        "miner",
        kwargs='{"gamma": "5e-1"}',  # YAML reads 5e-1 as a text
        settings={"miner_gamma": 3.0, "miner_lambda_max": None, "learning_rate": 1.0},
    ).knobs
    assert knobs == {"f_grpo": {"gamma": 0.5}, "miner": {"gamma": 3.0, "lambda_max": None}}
    assert find_policy_loss("clip")[0].function is None
    assert find_policy_loss("kl_cov", {"coef": 2})[1] == {"coef": 2}


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (dict(advantage_estimator="minor"), "advantage_estimator is named 'minor'. .* 'miner'"),
        (dict(advantage_estimator="kl_cov"), "There are: miner, grpo"),
        (dict(advantage_estimator="none"), "No advantage_estimator is named 'none'"),
        (dict(advantage_estimator="grpo", all_right="nome"), "Did you mean 'none'"),
        (dict(advantage_estimator=f"{OWN}.by_lenght"), "no 'by_lenght'. .* 'by_length'"),
        (dict(advantage_estimator="own_estimator.x"), "'own_estimator.x' cannot be imported"),
        (dict(advantage_estimator=f"{OWN}.NUMBER"), r"is a int. Define a function NUMBER\("),
        (
            dict(advantage_estimator="ucas", kwargs={"beta": 1}),
            "No knob of advantage_estimator_kwargs is named 'beta'. .* 'beta_pos'",
        ),
        (dict(advantage_estimator="grpo", kwargs={"gamma": 1}), "There are: none"),
        (dict(advantage_estimator="miner", kwargs={"gamma": 1}), "is named 'gamma'"),
        (dict(advantage_estimator="ucas", kwargs="{beta"), "kwargs is '{beta'"),
    ],
)
def test_a_bad_setting_is_named_with_what_would_do(named, words):
    with pytest.raises(ValueError, match=words):
        find_composition(**named)


def test_a_bad_policy_loss_is_named():
    with pytest.raises(ValueError, match="No policy_loss is named 'kl-cov'. Did you mean 'kl_cov'"):
        find_policy_loss("kl-cov")
    with pytest.raises(
        ValueError, match="No knob of policy_loss_kwargs is named 'rate'. .* 'ratio'"
    ):
        find_policy_loss("clip_cov", {"rate": 1})


def test_a_function_of_ones_own_may_speak_of_tokens_of_completions_or_of_metrics():
    batch = all_kinds()
    grpo = batch.estimate(advantage_estimator="grpo")
    shorter = (3.75 - batch.mask.sum(dim=1)).sign()  # than the mean
    found = batch.estimate(advantage_estimator=f"{OWN}.by_length", kwargs={"bonus": 0.5})
    assert torch.equal(
        found.advantages_BT, (grpo.advantages_N + 0.5 * shorter)[:, None] * batch.mask
    )
    found = batch.estimate(advantage_estimator=f"{OWN}.by_rollout")
    assert torch.equal(found.advantages_N, grpo.advantages_N + 1) and not found.is_token_level
    found = batch.estimate(advantage_estimator=f"{OWN}.with_metric", kwargs={"weight": 2.0})
    assert found.metrics == {"own/weight": 2.0} and found.is_token_level
    assert torch.allclose(found.advantages_N, 2 * grpo.advantages_N * (batch.mask.sum(dim=1) > 0))


def test_a_record_of_ones_own_says_on_which_prompts_it_acts():
    batch = all_kinds()
    found = batch.estimate(advantage_estimator=f"{OWN}.SURPRISE").advantages_BT
    is_ph_N = batch.part().kinds.is_ph_N
    grpo = batch.estimate(advantage_estimator="grpo").advantages_BT
    surprise = -batch.scores["old_logps"] * batch.mask
    assert torch.equal(found, torch.where(is_ph_N[:, None], surprise, grpo))
    assert own_estimators.SURPRISE.name == "surprise"  # the user's record stays as it is


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("of_one_token", r"returned torch.Size\(\[3\]\).*Size\(\[24\]\).*Size\(\[24, 7\]\)"),
        ("with_nan", "with_nan returned NaN or infinity for completion 19 of the batch. Return 0"),
    ],
)
def test_a_bad_result_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        all_kinds().estimate(advantage_estimator=f"{OWN}.{name}")
