"""The scripts beside the recipes: seeds compared, training sets built, tasks rewarded."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

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
    compare = load("compare")
    runs = {
        "grpo": [(0.2, 0.5, "p"), (0.2, 0.7, "p"), (0.2, 0.6, "p")],
        "miner": [(0.2, 0.6, "p"), (0.2, 0.8, "p"), (0.2, 0.7, "p")],  # each .1 above
        "other": [(0.2, 0.4, "p"), (0.2, 0.8, "p"), (0.2, 0.6, "p")],  # -.1, +.1, 0
    }
    found = compare.table(runs).round(6)
    assert found["after"].tolist() == [0.6, 0.7, 0.6]
    assert found.loc["miner", "difference"] == pytest.approx(0.1)
    # Student's t with 2 degrees of freedom: 4.302653 * .1 / sqrt(3) = .248414
    assert found.loc["other", "high"] == pytest.approx(0.248414, abs=1e-5)
    assert found.loc["other", "p (Holm)"] == 1
    assert pd.isna(found.loc["grpo", "difference"])


def test_runs_on_different_problems_are_not_compared():
    with pytest.raises(SystemExit, match="different problems"):
        load("compare").table({"a": [(0.1, 0.2, "p")] * 2, "b": [(0.1, 0.2, "q")] * 2})


def test_a_run_that_has_ended_is_not_trained_again(tmp_path, monkeypatch):
    from trl_miner.evaluation.held_out import Moment, write_held_out

    compare = load("compare")
    moments = {"before": Moment(0, 2, [0, 1], "p"), "after": Moment(5, 2, [2, 1], "p")}
    monkeypatch.setattr(
        compare.subprocess,
        "run",
        lambda words: write_held_out(tmp_path, moments) or SimpleNamespace(returncode=0),
    )
    assert compare.train("arithmetic/grpo", 1, tmp_path, []) == (0.25, 0.75, "p")
    monkeypatch.setattr(compare.subprocess, "run", None)
    assert compare.train("arithmetic/grpo", 1, tmp_path, []) == (0.25, 0.75, "p")


DEEPSCALER = [
    {"problem": "What is 1+1?", "answer": "2"},
    {"problem": "What is 1+1?", "answer": "2"},
    {"problem": "What is nothing?", "answer": ""},
    {"problem": "Long " * 1100, "answer": "3"},
    {"problem": "A half?", "answer": r"\frac{1}{2}"},
]
MEDQA = [
    {"question": "Which?", "options": ["w", "x", "y"], "answer": "B", "meta_info": "step1"},
]
MEDMCQA = [
    {"id": name, "question": f"Of {name}?", "cop": 2, "subject_name": "s"}
    | {"opa": "w", "opb": "x", "opc": "y", "opd": "z"}
    for name in ("easy", "hard")
]


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Return a function that runs training_sets.py on a small Hub and returns the rows."""
    import datasets

    from trl_miner.data.base_model import find_model

    training_sets = load("training_sets")
    sets = {"deepscaler": DEEPSCALER, "medqa": MEDQA, "medmcqa": MEDMCQA}
    hub = {training_sets.SETS[name][0]: rows for name, rows in sets.items()}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: hub[name])
    monkeypatch.chdir(tmp_path)

    def built(name, *words):
        tokenizer = ["--tokenizer", find_model("trl_miner/arithmetic")]
        monkeypatch.setattr(sys, "argv", ["x", *words, *tokenizer])
        training_sets.main()
        return pd.read_parquet(tmp_path / "data" / name / "train.parquet").to_dict("records")

    return built


def test_deepscaler_has_each_question_with_a_reference_answer_once(build):
    rows = build("deepscaler", "deepscaler")
    assert [row["question"] for row in rows] == ["What is 1+1?", "A half?"]
    assert rows[1]["solution"] == r"\frac{1}{2}"


def test_the_medical_set_leaves_out_what_the_filter_answers_correctly(build, monkeypatch, tmp_path):
    rows = build("medmcqa", "medmcqa")
    assert [row["solution"] for row in rows] == ["C", "C"]
    settings = {"num_problems": 2, "grader": "choice", "decimal_comma": False}
    samples = [
        {"problem": row["id"], "sample": 0, "text": f"The answer is {letter}.", "truncated": False}
        | {"solution": row["solution"], "options": [*row["options"]], "level": None}
        for row, letter in zip(rows, "CA", strict=True)
    ]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps(each) + "\n" for each in [settings, *samples]))
    rows = build("medical", "medmcqa", "--answers", str(answers))
    assert [row["question"] for row in rows] == ["Which?", "Of hard?"]
    assert rows[0]["solution"] == "B"


def test_a_task_is_scored_by_its_family_on_the_problem_made_again(monkeypatch):
    family = SimpleNamespace(
        __getitem__=None, score_answer=lambda answer, entry: float(answer == entry["answer"])
    )
    made = []

    class Family(list):
        score_answer = staticmethod(family.score_answer)

    gym = ModuleType("reasoning_gym")
    gym.create_dataset = lambda name, size, seed: (
        made.append((name, seed))
        or Family({"answer": f"{name} {seed} {place}"} for place in range(9))
    )
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    reward = load("reasoning_gym_reward").task_reward
    completions = ["<answer>gcd 7 3</answer>", r"so \boxed{gcd 7 3}", "gcd 7 3"]
    completions += [
        [{"role": "assistant", "content": "<answer>no</answer><answer>gcd 7 3</answer>"}]
    ]
    assert reward(completions, ["gcd:7:3"] * 4) == [1, 1, 0, 1]
    assert made == [("gcd", 7)]
