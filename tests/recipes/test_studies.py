"""The two studies: their numbers, their worlds and their own estimators."""

import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch

RECIPES = Path(__file__).parents[2] / "recipes"


def load(name):
    """Import a script of the recipes' folder."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), RECIPES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


analysis, world, methods = map(load, ("analysis", "forks/world", "forks/methods"))


@pytest.fixture(scope="module")
def made():
    return analysis.tables()


def test_the_tables_of_the_pages_are_those_of_the_counts(made):
    shown = {}
    for page in analysis.PAGES:
        text = (RECIPES / page).read_text("utf-8")
        shown |= dict(re.findall(r"<!-- table: (.*?) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    assert {name: made[name] for name in shown} == shown
    # recomputed by others from the runs' own files
    assert (
        "| forks, second base model | 10 | 32.8 | 27.4 | 36.7 | +9.3 (+6.4 to +12.2) | +0.44"
        in made["MINER"]
    )
    assert len(shown) >= 8


def test_holm_multiplies_the_smallest_by_all_and_never_falls():
    # .01 * 4 = .04; .02 * 3 = .06; .03 * 2 = .06; .5 * 1
    assert analysis.holm([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])


def test_the_problems_of_forks_are_those_that_the_counts_are_of():
    with gzip.open(RECIPES / "forks/counts.jsonl.gz", "rt") as file:
        levels = json.loads(file.readline())["levels"]["forks"]
    train, test = world.rows("train"), world.rows("test")
    assert [str(row["level"]) for row in test] == levels
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}


def rollouts(rewards, scores):
    """Return a batch of prompts with two completions, with a score per token."""
    from trl_miner.methods.groups import group_kinds
    from trl_miner.methods.rollouts import Rollouts

    rewards_N, scores_BT = torch.tensor(rewards), torch.tensor(scores)
    means_N = rewards_N.view(-1, 2).mean(dim=1).repeat_interleave(2)
    return Rollouts(
        rewards_N=rewards_N,
        advantages_N=rewards_N - means_N,
        is_correct_N=rewards_N,
        mask_BT=torch.ones_like(scores_BT),
        kinds=group_kinds(rewards_N, 2, correct_threshold=1.0),
        num_generations=2,
        score=lambda name, is_row_N: scores_BT,
    )


def test_entropy_gives_the_advantage_where_all_agree():
    batch = rollouts([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [[0.5, 2.0]] * 6)
    # right: .1 * H; wrong: -.1 * (2 - H); mixed: GRPO's +-.5
    expected = [[0.05, 0.2]] * 2 + [[-0.15, 0.0]] * 2 + [[0.5, 0.5], [-0.5, -0.5]]
    torch.testing.assert_close(methods.rl_zvp(batch), torch.tensor(expected))


@pytest.mark.slow
def test_a_recipe_of_forks_trains(tmp_path, monkeypatch):
    from trl_miner.recipe.reading import read
    from trl_miner.run.training import Run

    for name in ("models", "methods.py", "world.py", "miner.yaml"):
        (tmp_path / name).symlink_to(RECIPES / "forks" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "methods", raising=False)  # pytest's name of tests/methods
    monkeypatch.setattr(sys, "argv", ["world.py"])
    world.main()
    words = "--max_steps 2 --held_out 64 --score_samples 4 --advantage_estimator methods.rl_zvp"
    Run(read(["miner.yaml", "--model_name_or_path", "models/mirror", *words.split()])).go()
    scores = json.loads((tmp_path / "runs/miner/held_out.json").read_text())
    assert 0.2 < sum(scores["before"]["num_correct"]) / (64 * 4) < 0.8
