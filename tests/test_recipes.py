"""Every recipe parses with the TRL that is installed, and says nothing that nothing reads."""

from pathlib import Path

import pytest
import yaml

from trl_miner.train import check_recipe, load_reward_funcs, make_parser

RECIPES = Path(__file__).parent.parent / "recipes"
PATHS = [path for path in sorted(RECIPES.rglob("*.yaml")) if path.parent.name != "accelerate"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_recipe_parses(path):
    parser = make_parser()
    check_recipe(["--config", str(path)], parser)
    args, config, model_args, mixture = parser.parse_args_and_config(["--config", str(path)])
    assert load_reward_funcs(args, config)
    parsed = {**vars(args), **vars(config), **vars(model_args), **vars(mixture)}
    for key, value in yaml.safe_load(path.read_text()).items():
        assert parsed[key] == value or str(parsed[key]) == str(value), key


def test_there_are_recipes():
    assert {"grpo.yaml", "miner.yaml"} <= {path.name for path in PATHS}


def test_the_arithmetic_recipes_differ_in_the_method_alone():
    grpo, miner = (yaml.safe_load((RECIPES / "arithmetic" / f"{name}.yaml").read_text()) for name in ("grpo", "miner"))
    differing = {key for key in grpo | miner if grpo.get(key) != miner.get(key)}
    assert differing == {"advantage_estimator", "output_dir", "run_name"} & differing
    assert "advantage_estimator" in differing
