"""The scripts beside the recipes: seeds compared, training sets built, tasks rewarded."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


def load(name):
    """Import a script of the recipes' folder."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_seeds_are_paired_and_compared_with_the_first_recipe():
    runs = {"grpo": [0.5, 0.7, 0.6], "other": [0.4, 0.8, 0.6]}  # differences -.1, +.1, 0
    table = load("compare").table(
        {name: [(0.2, x, "p") for x in own] for name, own in runs.items()}
    )
    assert table["after"].tolist() == pytest.approx([0.6, 0.6])
    # Student's t with 2 degrees of freedom: 4.302653 * .1 / sqrt(3)
    assert table.loc["other", "high"] == pytest.approx(0.248414, abs=1e-5)


DEEPSCALER = [
    {"problem": "What is 1+1?", "answer": "2"},
    {"problem": "What is 1+1?", "answer": "2"},
    {"problem": "What is nothing?", "answer": ""},
    {"problem": "Long " * 1100, "answer": "3"},
    {"problem": "A half?", "answer": r"\frac{1}{2}"},
]


def test_deepscaler_has_each_question_with_a_reference_answer_once(monkeypatch, tmp_path):
    import datasets

    from trl_miner.data.base_model import find_model

    training_sets = load("training_sets")
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: DEEPSCALER)
    monkeypatch.chdir(tmp_path)
    words = ["deepscaler", "--tokenizer", find_model("trl_miner/arithmetic")]
    monkeypatch.setattr(sys, "argv", ["training_sets.py", *words])
    training_sets.main()
    rows = pd.read_parquet(tmp_path / "data/deepscaler/train.parquet")
    assert rows["question"].tolist() == ["What is 1+1?", "A half?"]
    assert rows["solution"].tolist() == ["2", r"\frac{1}{2}"]


def test_a_task_is_scored_by_its_family_on_the_problem_made_again(monkeypatch):
    class Family(list):
        def score_answer(self, answer, entry):
            return float(answer == entry)

    gym = ModuleType("reasoning_gym")
    gym.create_dataset = lambda name, size, seed: Family(f"{name} {seed} {n}" for n in range(9))
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    reward = load("reasoning_gym_reward").task_reward
    completions = ["<answer>gcd 7 3</answer>", r"so \boxed{gcd 7 3}", "gcd 7 3"]
    assert reward(completions, ["gcd:7:3"] * 3) == [1, 1, 0]
