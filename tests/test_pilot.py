"""The pilot: a part of a training with GRPO and with a method, judged on the target problems."""

import json
import re

import pytest
import yaml
from datasets import Dataset
from harness import write_recipe

from trl_miner import cli, pilot
from trl_miner.pilot import judge, pilot_text
from trl_miner.recipe.training_data import _warn_of_trained
from trl_miner.runs.held_out import HeldOut, Moment

TRAINED = (0, 0, 2, 2, 2, 2)  # levels: the first two problems are of a trained one


def scored(*counts, levels=TRAINED, trained=(0,)):
    """What a run scored after its training, of 8 samples of each problem."""
    return HeldOut({"after": Moment(50, 8, counts)}, levels, trained)


def test_a_pilot_judges_problem_by_problem_beyond_the_trained_levels():
    # Beyond: 1, 2, 2, 3 of 8 more right: mean .25, deviation .102, half width 3.18 * .102 / 2
    method, grpo = scored(0, 0, 5, 6, 6, 7), scored(8, 8, 4, 4, 4, 4)
    found = judge([method], [grpo], is_named=False)
    assert found.word == "for" and not found.is_like_training
    assert found.means == (0.75, 0.5) and found.effect.difference == 0.25
    assert found.effect.low == pytest.approx(0.25 - 3.182 * 0.10206 / 2, abs=1e-3)
    assert judge([grpo], [method], is_named=False).word == "against"
    assert judge([grpo], [grpo], is_named=False).word == "cannot tell"


def test_seeds_that_disagree_cannot_tell():
    higher, lower, grpo = (scored(0, 0, *[count] * 4) for count in (6, 2, 4))
    assert judge([higher, lower], [grpo, grpo], is_named=True).word == "cannot tell"


@pytest.mark.parametrize(
    ("levels", "trained", "is_named", "word"),
    [
        (TRAINED, (0, 2), True, "cannot tell"),  # levels that are trained, whatever their name
        (None, None, False, "cannot tell"),  # split off from the training's own data set
        (None, None, True, "for"),
        (TRAINED, (1,), False, "for"),
    ],
)
def test_a_target_like_the_training_cannot_tell(levels, trained, is_named, word):
    method, grpo = (scored(*[c] * 6, levels=levels, trained=trained) for c in (7, 4))
    found = judge([method], [grpo], is_named)
    assert found.word == word
    assert ("name other target problems" in pilot_text({"miner": found})) == (word != "for")


def test_a_log_says_whether_the_target_is_trained(tmp_path):
    log, rows = tmp_path / "log.txt", Dataset.from_dict({"prompt": ["1", "2", "3", "4"]})
    for trained, is_trained in (
        (rows, True),
        (rows.select([0, 1]), True),
        (rows.select([3]), False),
    ):
        with pytest.warns(UserWarning) as warned:
            _warn_of_trained(rows, trained)
        log.write_text(f"UserWarning: {warned[0].message}\n")
        assert pilot._is_trained(log) == is_trained
    log.write_text("")
    assert not pilot._is_trained(log)


def planned(monkeypatch, *words):
    """The settings of each arm, and the options of every training."""
    seen = {}

    def compare(paths, *, seeds, options, **more):
        seen.update({path.stem: yaml.safe_load(path.read_text()) for path in paths})
        seen["options"], seen["seeds"] = options, seeds
        return 1

    monkeypatch.setattr(pilot, "compare", compare)
    assert cli.main(["compare", *words]) == 1
    return seen


def test_both_arms_differ_in_the_method_alone(tmp_path, monkeypatch):
    recipe = write_recipe(
        tmp_path / "own.yaml", max_steps=50, dose_share=0.01, held_out=4, early_stop=2
    )
    more = ["--output", str(tmp_path / "out"), "--learning_rate", "1e-4"]
    seen = planned(monkeypatch, recipe, "--pilot", "0.2", *more)
    assert seen["options"] == ["--learning_rate", "1e-4"] and seen["seeds"] == 1
    grpo, miner = seen["grpo"], seen["miner"]
    assert grpo["max_steps"] == 10 and "early_stop" not in grpo
    assert {*miner.items()} - {*grpo.items()} == {
        ("advantage_estimator", "miner"), ("dose_share", 0.05)
    }  # fmt: skip
    assert {*grpo.items()} - {*miner.items()} == {("advantage_estimator", "grpo")}


def test_the_recipes_own_method_is_taken_where_none_is_named(tmp_path, monkeypatch):
    own = {"advantage_estimator": "grpo", "all_right": "entropy", "num_train_epochs": 2}
    recipe = write_recipe(tmp_path / "own.yaml", max_steps=-1, held_out=4, **own)
    words = ["--pilot", "0.25", "--dose_share", "0.1", "--output", str(tmp_path / "out")]
    seen = planned(monkeypatch, recipe, *words)
    assert seen["entropy"]["all_right"] == "entropy" and seen["entropy"]["dose_share"] == 0.1
    assert seen["entropy"]["num_train_epochs"] == 0.5 and "all_right" not in seen["grpo"]
    seen = planned(
        monkeypatch, recipe, *words, "--methods", "grpo", "entropy_adv", "--seeds", "2-3"
    )
    assert "dose_share" not in seen["entropy_adv"] and [*seen["seeds"]] == [
        2,
        3,
    ]  # of mixed prompts


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pilot", "0"], "--pilot must be above 0 and at most 1: got 0"),
        (["--pilot", "0.2", "--held_out", "0"], "A pilot needs problems that matter"),
        (["--pilot", "0.2", "--methods", "minor"], "No method named .minor. .*Did you mean .miner"),
        (["--pilot", "0.2", "--recipes", "a.yaml", "b.yaml"], "A pilot takes one recipe: got"),
        ([], "--seeds is missing. Write --seeds 5"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(tmp_path, capsys, words, says):
    recipe = write_recipe(tmp_path / "own.yaml", held_out=4)
    out = tmp_path / "out"
    assert cli.main(["compare", recipe, *words, "--output", str(out)]) == 2
    error = capsys.readouterr().err
    assert re.search(says, error), error
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "verdict"), [("trl_miner/forks", "for"), ("trl_miner/forks_mirror", "against")]
)
def test_a_pilot_finds_the_sign_of_both_worlds(world, verdict, tmp_path, capsys):
    """Ten seeds of whole trainings found it: RESULTS.md."""
    words = ["compare", "forks/miner", "--methods", "grpo", "miner", "--pilot", "0.2"]
    words += ["--model_name_or_path", world, "--dataset_name", world, "--learning_rate", "2e-4"]
    words += ["--score_final_samples", "8", "--output", str(tmp_path)]
    assert cli.main(words) == 0
    assert json.loads((tmp_path / "pilot.json").read_text())["miner"]["verdict"] == verdict
    assert f"speak {verdict} it" in capsys.readouterr().out
