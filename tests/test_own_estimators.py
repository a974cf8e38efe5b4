"""Advantage estimators of a user's own, by import path. (On two processes:
tests/test_distributed.py.)"""

import sys
from pathlib import Path

import own_estimators
import pytest
import torch
import yaml
from harness import OF_FORKS, config, mixed_reward, trained
from test_estimators import batch, run

from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.recipe.parsing import make_parser
from trl_miner.runs.training_record import read_run_record

BY_LENGTH = "own_estimators.by_length"


def test_a_function_gets_the_rollouts_and_its_knobs():
    rewards, mask, scores = batch()
    found = run(BY_LENGTH, rewards, mask, scores, advantage_estimator_kwargs={"bonus": 0.5})
    lengths = mask.sum(dim=1).float()
    bonus = -0.5 * (lengths - lengths.mean()).sign()
    expected = (group_relative_advantages(rewards, 4) + bonus).unsqueeze(1) * mask
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("as_list", r".*of shape \(B, T\) = \(24, 7\): got list"),
        (
            "of_all_processes",
            r".*of shape \(B, T\) = \(24, 7\): got \(48, 7\). rollouts.to_tokens",
        ),
        ("with_nan", r"must return finite advantages: got nan at \[1, 0\]"),
    ],
)
def test_a_bad_result_is_refused(name, words):
    with pytest.raises(ValueError, match=f"advantage_estimator=own_estimators.{name} {words}"):
        run(f"own_estimators.{name}", *batch())


@pytest.mark.parametrize(
    ("path", "kwargs", "words"),
    [
        (
            "own_estimator.by_length",
            None,
            "'own_estimator.by_length' could not be imported from .*Check the path",
        ),
        (
            "own_estimators.by_lenght",
            None,
            "has no attribute 'by_lenght'. Did you mean 'by_length'?",
        ),
        ("own_estimators.NUMBER", None, "must name a function or an Adv.*: .* is a int"),
        ("minor", None, r"No method named 'minor' for advantage_estimator. Did you mean 'miner'\?"),
        ("own_estimators.required", None, "must set weight, which has no default"),
        (
            BY_LENGTH,
            {"bonuss": 1},
            "unknown knob 'bonuss'. Did you mean 'bonus'. There are: bonus, cap, side",
        ),
        (
            BY_LENGTH,
            {"bonus": "much"},
            (
                "advantage_estimator_kwargs.bonus is 'much'. It must be a valid number, unable to"
                " parse string as a number"
            ),
        ),
        (BY_LENGTH, {"cap": "x"}, "cap is 'x'. It must be a valid number, .* or None"),
        (BY_LENGTH, "{bonus", "must be JSON: got '{bonus'"),
        (
            "own_estimators.nothing",
            None,
            r"must name a function of the rollouts: .* takes none. Define def nothing\(rollouts",
        ),
        ("builtins.max", None, "must name a function of the rollouts"),
        (
            f"{OF_FORKS}f_grpo",
            {"gamma": -1},
            "kwargs.gamma is -1. It must be greater than or equal to 0",
        ),
        (
            "entropy_adv",
            {"kappa": 0.5},
            "kwargs.kappa is 0.5. It must be greater than or equal to 1",
        ),
        ("ucas", {"beta": 1}, "unknown knob 'beta'.* There are: beta_neg, beta_pos, token_coef"),
        ("grpo", {"gamma": 1}, "unknown knob 'gamma'. There are: none"),
    ],
)
def test_a_bad_setting_is_named_with_what_would_do(tmp_path, path, kwargs, words):
    with pytest.raises(ValueError, match=words):
        config(tmp_path, advantage_estimator=path, advantage_estimator_kwargs=kwargs)


def test_a_type_that_only_a_type_checker_imports_is_no_obstacle(tmp_path):
    path = "own_estimators.typed_for_checkers"
    args = config(tmp_path, advantage_estimator=path, advantage_estimator_kwargs={"bonus": "1e-3"})
    assert args.knobs(*args.estimators) == {"bonus": 1e-3}


def test_knobs_come_from_a_recipe_or_the_command_line(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        f"advantage_estimator: {BY_LENGTH}\nadvantage_estimator_kwargs:\n  bonus: 1e-3\n  side:"
        f" long\noutput_dir: {tmp_path}\nuse_cpu: true\nbf16: false\n"
    )
    args = make_parser().parse_args_and_config(["--config", str(recipe)])[1]
    assert args.knobs(*args.estimators) == {"bonus": 1e-3, "side": "long"}
    given = ["--config", str(recipe), "--advantage_estimator_kwargs", '{"bonus": 2, "cap": 0.5}']
    args = make_parser().parse_args_and_config(given)[1]
    assert args.knobs(*args.estimators) == {"bonus": 2, "cap": 0.5}


def test_the_trainer_trains_with_it_and_logs_record_and_card_name_it(policy, tmp_path):
    settings = dict(
        advantage_estimator="own_estimators.by_token", advantage_estimator_kwargs={"bonus": 0.5}
    )
    trainer = trained(policy, tmp_path, max_steps=1, **settings)
    log = next(log for log in trainer.state.log_history if "reward" in log)
    assert log["by_token/largest"] > 0 and log["by_token/seconds"] >= 0
    texts = list(trainer._logs["completion"])
    assert own_estimators.by_token.texts == texts
    mask = trainer.batches[0]["completion_mask"].cpu()
    grpo = group_relative_advantages(
        torch.tensor(mixed_reward(list(trainer._logs["prompt"]), texts)), 4
    )
    expected = (grpo.unsqueeze(1) + 0.5 * (torch.arange(mask.shape[1]) > 0)) * mask
    assert torch.allclose(next(trainer.token_advantages), expected, atol=1e-6)
    record = read_run_record(tmp_path)
    assert record["methods"] == ["own_estimators.by_token"]
    assert [*record["papers"]["own_estimators.by_token"]] == ["own_estimators.by_token", None]
    assert record["settings"]["advantage_estimator_kwargs"] == '{"bonus": 0.5}'
    trainer.create_model_card(model_name="m", tags=["mine"], dataset_name="org/problems")
    trainer.create_model_card(model_name="m")  # as at each checkpoint
    card = (tmp_path / "README.md").read_text()
    assert (
        "own_estimators.by_token" in card and "\n- mine\n" in card and "\n- org/problems\n" in card
    )


def test_the_guides_example_works(tmp_path, monkeypatch):
    pages = Path(__file__).parent.parent / "docs" / "source"
    guide = (pages / "howto" / "choose_a_method.md").read_text(encoding="utf-8")
    section = guide.split("## Your own estimator\n")[1].split("\n## ")[0]
    (tmp_path / "my_lib.py").write_text(section.split("```python\n")[1].split("```")[0])
    settings = yaml.safe_load(section.split("```yaml\n")[1].split("```")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_lib", raising=False)
    rewards, mask, scores = batch()
    found = run(settings.pop("advantage_estimator"), rewards, mask, scores, **settings)
    grpo = run("grpo", rewards, mask, scores)
    is_ph = torch.tensor([True] * 4 + [False] * 8 + [True] * 4 + [False] * 8)
    assert torch.equal(found[~is_ph], grpo[~is_ph])
    assert torch.allclose(found[is_ph], grpo[is_ph] + 0.2 * mask[is_ph])


def test_a_record_says_what_it_asks_for_and_where_it_acts(policy, tmp_path):
    """On all-right prompts alone, by old log-probs; GRPO has the rest. Its knobs are settings."""
    path = "own_estimators.BY_LOGPS"
    kwargs = dict(advantage_estimator_kwargs={"weight": 0.5})
    args = config(tmp_path, advantage_estimator=path, **kwargs)
    made = args.composition
    assert made.mixed.name == "grpo" and made.homogeneous["all_right"].name == path
    rewards, mask, scores = batch()
    found = run(path, rewards, mask, scores, **kwargs)
    is_right = (rewards.view(-1, 4) == 1).all(dim=1).repeat_interleave(4)
    expected = (group_relative_advantages(rewards, 4)).unsqueeze(1) * mask
    expected[is_right] = -0.5 * (scores["old_logps"] * mask)[is_right]
    assert is_right.any() and torch.allclose(found, expected)
    trainer = trained(policy, tmp_path, advantage_estimator=path, max_steps=2, **kwargs)
    assert trainer.forwarded  # a forward over the all-right rows
