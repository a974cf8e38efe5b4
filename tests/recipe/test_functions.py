"""What a recipe names: reward functions, tools, an environment, a rollout function."""

import sys

import pytest
from harness import write_recipe

from trl_miner.recipe.functions import load_rewards, load_tools
from trl_miner.recipe.reading import read

RIGHT = {"completions": ["so \\boxed{3,5}", "The answer is 3.5."], "solution": ["3.5", "3.5"]}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(
        "three = 3\ndef short(completions, **kwargs): return [1.0] * len(completions)\n"
        "class Shop: ...\n"
    )
    yield lambda **settings: read(
        [write_recipe(tmp_path / "a.yaml", model_name_or_path="M", **settings)]
    )
    sys.modules.pop("mine", None)


def test_the_default_suits_the_rows(recipe):
    for has_options, name in ((True, "choice_reward"), (False, "math_reward")):
        [function] = load_rewards(recipe(), has_options=has_options)
        assert function.__name__ == name


def test_math_reward_obeys_the_data_settings(recipe):
    for settings, rewards in (
        ({}, [0.0, 0.0]),
        ({"decimal_comma": True}, [1.0, 0.0]),
        ({"math_accept_unboxed": True}, [0.0, 1.0]),
    ):
        [function] = load_rewards(recipe(**settings), has_options=False)
        assert function(**RIGHT) == rewards


def test_ours_trls_and_ones_own(recipe):
    names = ["math_reward", "think_format_reward", "mine.short", "get_soft_overlong_punishment"]
    found = load_rewards(
        recipe(reward_funcs=names, max_completion_length=8, soft_overlong_cache=4),
        has_options=False,
    )
    *_, short, overlong = found
    assert short(["a", "b"]) == [1.0, 1.0]
    # of 8 tokens the last 4 cost: 6 tokens are in the middle of them
    ids = [[0] * length for length in (4, 6, 9)]
    assert overlong(completion_ids=ids) == [0.0, -0.5, -1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"reward_funcs": ["math_rewrad"]}, "no 'math_rewrad'. Did you mean 'math_reward'?"),
        ({"reward_funcs": ["mine.long"]}, "mine has no 'long'"),
        ({"reward_funcs": ["mine.three"]}, "mine.three is 3. It must be a function."),
        (
            {"reward_funcs": ["get_soft_overlong_punishment"], "soft_overlong_cache": 8},
            "soft_overlong_cache is 8. It must be below max_completion_length, 8.",
        ),
    ],
)
def test_what_is_no_reward_function(recipe, settings, told):
    with pytest.raises(ValueError) as error:
        load_rewards(recipe(**settings), has_options=False)
    assert told in str(error.value)


def test_tools_are_those_of_trl(recipe):
    assert load_tools(recipe()) == {}
    given = {
        "tools": ["mine.short"],
        "environment_factory": "mine.Shop",
        "rollout_func": "mine.short",
    }
    found = load_tools(recipe(**given))
    import mine

    assert found == {
        "tools": [mine.short],
        "environment_factory": mine.Shop,
        "rollout_func": mine.short,
    }
    with pytest.raises(ValueError, match="rollout_func: mine.three is 3"):
        load_tools(recipe(rollout_func="mine.three"))
