"""Problems of reasoning-gym: every family, what a recipe may say of them, and their scorers in the
workers."""

import ast
import inspect
import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("reasoning_gym", reason="needs trl_miner[tasks]")

from harness import write_recipe
from reasoning_gym.factory import DATASETS

from trl_miner import cli
from trl_miner.data.benchmarks import find_benchmark, load
from trl_miner.data.problems import accepts_gold, read_problems
from trl_miner.data.reasoning_gym import (
    Part,
    benchmark_name,
    benchmark_parts,
    draw_rows,
    make_rows,
    read_parts,
)
from trl_miner.grading import configure, grade
from trl_miner.grading.tasks import _FORMULAS, _LISTS, find_answer, score
from trl_miner.recipe.parsing import MinerScriptArguments
from trl_miner.rewards import task_reward
from trl_miner.train import main

SUM = Part("chain_sum", {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1})
MIXTURE = [SUM, Part("spell_backward", weight=3)]
WITHOUT_ANSWER = {"boxnet", "rush_hour"}
# where the answer is False, it takes every text but True for that
TAKES_ANYTHING = {"game_of_life_halting"}


@pytest.fixture
def in_this_process(monkeypatch):
    """Make problems without a process of their own, which takes seconds to start."""
    monkeypatch.setattr(
        "trl_miner.data.reasoning_gym.make_rows",
        lambda *args, **named: [*draw_rows(*args, **named)],
    )


@pytest.fixture(scope="module")
def one_worker():
    """For all scores: it imports reasoning-gym once."""
    configure(workers=1, seconds=0.5)
    yield
    configure()


def rows_of(name, config=(), split="train", size=1):
    """Rows made in this process, without a process of their own."""
    return list(draw_rows([Part(name, dict(config))], split, size, 0))


def problems_of(rows):
    return read_problems(find_benchmark("reasoning_gym/chain_sum"), rows)


# The families


@pytest.mark.slow
def test_every_family_accepts_its_own_answer_and_no_other():
    """In the worker processes, which make each problem again from the text that a data set
    holds."""
    families = sorted(DATASETS.keys() - WITHOUT_ANSWER - {"composite"})
    code = "import json, sys; from trl_miner.data.reasoning_gym import Part, draw_rows;" + (
        f"print(json.dumps([row for f in {families} for row in draw_rows([Part(f)], 'train', 1, 0)])"
        ", file=sys.__stdout__)"
    )
    made = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.stdout = sys.stderr; {code}"],
        env={**os.environ, "PYTHONHASHSEED": "0"},  # as `make_rows` sets it
        stdout=subprocess.PIPE,
        check=True,
    )
    rows = json.loads(made.stdout)
    assert len(rows) > 100
    rejected = [
        row["id"]
        for row, ok in zip(rows, accepts_gold("task", problems_of(rows)), strict=True)
        if not ok
    ]
    assert not rejected
    rewards = task_reward(["<answer>no answer</answer>"] * len(rows), [row["task"] for row in rows])
    paid = {
        row["id"].partition("-")[0]
        for row, reward in zip(rows, rewards, strict=True)
        if reward >= 1.0
    }
    assert paid <= TAKES_ANYTHING


@pytest.mark.parametrize("name", sorted(WITHOUT_ANSWER))
def test_a_family_without_an_answer_is_refused(name):
    with pytest.raises(ValueError, match=f"reasoning_gym/{name} gives none. Choose another family"):
        rows_of(name)


# Making problems


def test_no_problem_is_twice_in_a_split_or_in_both():
    """Of 4 + 7 and 4 + 7 + 2 with digits from 1 to 9 there are 810 problems: one in four is a test
    problem."""
    train, test = (
        [row["question"] for row in rows_of("chain_sum", SUM.config, split, size)]
        for split, size in (("train", 400), ("test", 100))
    )
    assert len({*train, *test}) == 500
    more = rows_of("chain_sum", SUM.config, "test", 101)
    assert [row["question"] for row in more[:100]] == test  # a larger size only appends


@pytest.mark.slow
def test_problems_do_not_depend_on_the_process(monkeypatch):
    """Families such as these iterate over sets, whose order is another one in each process."""
    made = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        made.append(make_rows([Part("ransom_note"), Part("isomorphic_strings")], "train", 6, 0))
    assert made[0] == made[1]
    with pytest.raises(ValueError, match="Did you mean 'chain_sum'"):
        make_rows([Part("chain_sm")], "train", 1, 0)


def test_a_mixture_keeps_its_weights_and_names_the_family_in_the_level():
    rows = list(draw_rows(MIXTURE, "train", 80, 0))
    families = [row["id"].partition("-")[0] for row in rows]
    # 3/4 of 80 are 60, with a standard deviation of 4
    assert 50 < families.count("spell_backward") < 70
    levels = {row["level"] for row in rows if row["id"].startswith("chain")}
    assert levels == {"chain_sum num terms 2", "chain_sum num terms 3"}


@pytest.mark.parametrize(
    ("part", "size", "message"),
    [
        (Part("chain_sm"), 1, "reasoning-gym has no family 'chain_sm'. Did you mean 'chain_sum'"),
        (
            Part("chain_sum", {"max_term": 3}),
            1,
            "unexpected keyword argument 'max_term'.*Change task_config",
        ),
        (Part("chain_sum", {"max_terms": 1}), 1, "max_terms must be >= min_terms"),
        (
            Part("chain_sum", {"max_terms": "many"}),
            1,
            "with the settings {'max_terms': 'many'} cannot be made",
        ),
        (
            Part("basic_arithmetic", {"operators": ["+exit()"]}),
            1,
            "a word, an operator or a number",
        ),
        (Part("spell_backward", {"data_file": "/etc/passwd"}), 1, "got '/etc/passwd'"),
        (Part("chain_sum", {"max_terms": 10**15}), 1, "up to 1e[+]12: got 1000000000000000"),
        (
            Part("chain_sum", {**SUM.config, "max_terms": 2}),
            200,
            "no new one after [0-9]+ .*Ask for fewer",
        ),
    ],
)
def test_what_a_family_does_not_take_is_named(part, size, message):
    with pytest.raises(ValueError, match=message):
        list(draw_rows([part], "train", size, 0))


# Recipes and benchmarks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset_name": "reasoning_gym"}, "which needs tasks.*got reasoning_gym with"),
        (
            {"dataset_name": "reasoning_gym/chain_sum", "tasks": [{"name": "gcd"}]},
            "FAMILY, .* which takes task_config; .*got reasoning_gym/chain_sum",
        ),
        ({"dataset_name": "reasoning_gym", "tasks": [{"nam": "gcd"}]}, "tasks: 0.nam"),
        (
            {"dataset_name": "data", "tasks": [{"name": "gcd"}]},
            "tasks, task_config and task_size are for",
        ),
        (
            {"dataset_name": "data", "task_size": 5},
            "for problems that are made: got dataset_name data",
        ),
        (
            {"dataset_name": "trl_miner/forks", "task_size": 0},
            "task_size is 0. It must be at least 1",
        ),
        ({"prompt_style": "prose"}, "prompt_style is 'prose'. It must be one of auto, plain, chat"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        MinerScriptArguments(**settings)


def test_a_benchmarks_name_holds_its_settings_and_its_problems_have_levels(
    in_this_process, one_worker
):
    part = Part("chain_sum", {"max_terms": 3, "allow_negation": True})
    assert benchmark_name(part) == "reasoning_gym/chain_sum:max_terms=3,allow_negation=true"
    assert benchmark_parts(benchmark_name(part)) == [part]
    assert read_parts("reasoning_gym/chain_sum", "{max_terms: 3, allow_negation: true}", None) == [
        part
    ]
    problems, record = load(find_benchmark(benchmark_name(SUM)))
    assert len(problems) == 200 and {problem.level for problem in problems} == {
        "num terms 2",
        "num terms 3",
    }
    assert record["split"] == "test" and record["reasoning_gym"]


@pytest.mark.slow
def test_a_recipe_trains_and_is_evaluated(policy, tmp_path, in_this_process, one_worker):
    """With a mixture, and held-out problems with levels."""
    out, tasks = tmp_path / "out", [{"name": "chain_sum", "weight": 3}, {"name": "gcd"}]
    settings = dict(
        dataset_name="reasoning_gym",
        tasks=tasks,
        task_size=8,
        held_out=8,
        score_samples=1,
        max_steps=1,
    )
    main(
        [
            "--config",
            write_recipe(
                tmp_path / "r.yaml", model_name_or_path=policy, output_dir=out, **settings
            ),
        ]
    )
    about = json.loads((out / "held_out.json").read_text())["problems"]
    assert {level.split()[0] for level in about["level"]} == {"chain_sum", "gcd"}
    options = ["--samples", "1", "--max-tokens", "4", "--backend", "transformers"]
    name = "reasoning_gym/chain_sum:max_terms=3:2"
    options += ["--output", str(tmp_path / "eval")]
    assert cli.main(["eval", "--model", policy, "--benchmarks", name, *options]) == 0
    (folder,) = (path for path in (tmp_path / "eval").iterdir() if path.is_dir())
    assert folder.name == "reasoning_gym-chain_sum-max_terms=3"
    assert (
        json.loads((tmp_path / "eval" / "scores.json").read_text())["benchmarks"][folder.name][
            "samples"
        ]
        == 1
    )


# Scoring


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2\n</answer>", ("2", True)),
        (r"<answer>1</answer> \boxed{3}", ("1", True)),
        (r"so \boxed{3} it is", ("3", True)),
        ("first 4,\nthen 5\n\n", ("then 5", False)),
        ("  ", (None, False)),
        ("<answer></answer>", (None, True)),
        ("<answer>" + 10_001 * "1" + "</answer>", (None, True)),
    ],
)
def test_where_an_answer_is_found(text, answer):
    assert find_answer(text) == answer


def test_part_of_the_reward_is_paid_for_marked_answers_only(one_worker):
    """reasoning-gym pays the share of the answer's characters that are right: "17" in "it is 17" is
    2 of 8."""
    row = next(row for row in rows_of("chain_sum", size=20) if len(row["solution"]) == 3)
    task, right = row["task"], row["solution"]
    texts = [f"<answer>{right}</answer>", right, f"<answer>its {right}</answer>", f"its {right}"]
    texts += ["18", ""]
    # "its 123" holds the right 3 of 7 characters
    assert task_reward(texts, [task] * 6) == [1.0, 1.0, pytest.approx(3 / 7), 0.0, 0.0, 0.0]
    verdicts = grade("task", texts, [task] * 6, votes=True)
    assert [verdict.is_correct for verdict in verdicts] == [True, True, False, False, False, False]
    answers = [verdict.answer for verdict in verdicts]
    assert answers == [right, right, f"its {right}", f"its {right}", "18", None]


def test_a_problem_that_its_family_does_not_make_scores_none(one_worker, caplog):
    """No task, no family, another question, another seed, an answer that the text would have."""
    (row,) = rows_of("chain_sum")
    task = json.loads(row["task"])
    tasks = ["no task", json.dumps({**task, "family": "none"})]
    tasks += [json.dumps({**task, **change}) for change in ({"question": "1 + 1"}, {"seed": 1})]
    tasks += [json.dumps({**task, "index": index}) for index in (-1, 10**9)]
    assert task_reward(["<answer>1</answer>"] * 6, tasks) == [None] * 6
    assert "6 whose problem the installed reasoning-gym does not make" in caplog.text
    forged = json.dumps({**task, "answer": "1", "metadata": {}})
    texts = ["<answer>x</answer>", f"<answer>{row['solution']}</answer>"]
    assert task_reward(texts, [forged] * 2) == [0.0, 1.0]


def test_only_the_scorers_that_are_known_evaluate_something():
    """A family of another version of reasoning-gym that does would have to be looked at."""
    names = {"eval", "exec", "parse_expr", "sympify", "__import__"}
    evaluating = {}
    for family, (kind, _) in DATASETS.items():
        tree = ast.parse(inspect.getsource(inspect.getmodule(kind)))
        calls = {
            ast.unparse(node.func).rpartition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        if calls & names:
            evaluating[family] = calls & names
    # what the generators evaluate is their own: their settings are words, operators and numbers
    assert evaluating.pop("basic_arithmetic") == {"eval"}
    assert evaluating.pop("bitwise_arithmetic") == {"eval"}
    assert evaluating.pop("codeio") == {"exec"}  # the package's own file of programs
    assert evaluating.pop("propositional_logic") == {"parse_expr"}  # a function of that family
    assert evaluating == dict.fromkeys(_LISTS, {"eval"}) | dict.fromkeys(_FORMULAS, {"parse_expr"})


@pytest.mark.parametrize("family", [*_FORMULAS, *_LISTS])
def test_no_scorer_runs_what_an_answer_says(family, tmp_path):
    """sympy knows `open`; a class in brackets calls a function without any parentheses."""
    (row,) = rows_of(family)
    witness = tmp_path / "made"
    name = "+".join(f"chr({ord(character)})" for character in str(witness))
    of_class = f"{DATASETS[family][1].__name__}.__class_getitem__"
    code = f"open('{witness}', 'w')"
    hidden = code.replace("(", "\\x28")
    for answer in (
        f"open({name},chr(119))",
        code,
        f"[[{DATASETS[family][1].__name__}[{hidden!r}]] for {of_class} in [exec]]",
        f"[[{DATASETS[family][1].__name__}['{hidden}']] for {of_class} in [exec]]",
    ):
        assert score(row["task"], answer)[0] <= 0.1
    assert not witness.exists()


def test_a_list_still_earns_its_part():
    (row,) = rows_of("spiral_matrix")
    numbers = str([int(number) for number in row["solution"].split()])
    assert score(row["task"], numbers) == (0.1, row["solution"])


def test_a_long_formula_that_is_none_is_refused_at_once():
    start = time.process_time()
    assert score(rows_of("countdown")[0]["task"], "1 + " * 13 + "x!")[0] == 0.0
    assert time.process_time() - start < 1


@pytest.mark.slow
def test_an_answer_that_takes_forever_scores_none(one_worker):
    (row,) = rows_of("countdown")
    assert task_reward(["<answer>9**9**9**9</answer>"], [row["task"]]) == [None]
