"""The experiment of `recipes/two-procedures`: its problems, its oracle, and where credit falls."""

import json
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch
from harness import assert_same_run, trained, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.evaluation import seeded_sampling
from trl_miner.evaluation.seeded_sampling import sample_all
from trl_miner.methods.groups import group_kinds
from trl_miner.methods.rollouts import Rollouts
from trl_miner.rewards import math_reward

INTERVAL = r"[+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\)"
FOLDER = Path(__file__).parent.parent / "recipes" / "two-procedures"
names = runpy.run_path(str(FOLDER / "procedures.py"))


@pytest.mark.parametrize(
    ("level", "numbers", "is_worked", "text"),
    [
        ("2", [7, 5], False, " The answer is 12."),
        ("2", [7, 5], True, " 7 + 5 = 12. The answer is 12."),
        ("3", [7, 5, 3], True, " 7 + 5 = 12. 12 + 3 = 15. The answer is 15."),
        ("product", [23, 4], True, " Product: 92."),
    ],
)
def test_solutions_are_right_and_read_by_the_reward_of_the_recipes(level, numbers, is_worked, text):
    assert names["solution"](level, numbers, is_worked) == text
    gold = names["problem"](level, numbers)["answer"]
    assert math_reward([text, text.replace(gold, "7")], [gold] * 2, accept_unboxed=True) == [1, 0]


def test_the_files_are_the_same_every_time_and_hold_out_what_they_say(tmp_path):
    for folder in (tmp_path, tmp_path / "again"):
        names["write"](folder)
    files = {
        path.stem: path.read_text()
        for path in tmp_path.rglob("*.jsonl")
        if "again" not in path.parts
    }
    assert files == {path.stem: path.read_text() for path in (tmp_path / "again").rglob("*.jsonl")}
    start, train, test = (
        [*map(json.loads, files[name].splitlines())] for name in ("start", "train", "test")
    )
    assert not {row["question"] for row in start + train} & {row["question"] for row in test}
    assert Counter(row["level"] for row in train) == {"2": 600, "product": 600}
    assert Counter(row["level"] for row in test) == {"3": 64, "4": 48, "product": 16}
    sums = [row["completion"] for row in start if row["level"] != "product"]
    assert 0.18 < sum(map(names["takes_steps"], sums)) / len(sums) < 0.22
    assert {text.split()[0] for text in sums if not names["takes_steps"](text)} == {"The"}


def test_the_oracle_pays_worked_steps_over_the_mean_of_the_prompt():
    worked, direct = " 7 + 5 = 12. The answer is 12.", " The answer is 12."
    texts, rewards_N = [worked, direct, direct, direct], torch.ones(4)
    kinds, mask_BT = group_kinds(rewards_N, 2), torch.ones(4, 3)
    rollouts = Rollouts(
        rewards_N, 0 * rewards_N, mask_BT, kinds, 2, score=None, texts=lambda: texts
    )
    expected_N = torch.tensor([0.5, -0.5, 0.0, 0.0])
    torch.testing.assert_close(names["oracle"](rollouts), expected_N.unsqueeze(1).expand(-1, 3))
    assert names["is_worked"]([worked, direct, " Product: 92."], ["2", "2", "product"]) == [
        1,
        0,
        None,
    ]


def test_the_share_of_the_choice_is_that_of_first_tokens_on_all_right_sums(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    share = runpy.run_path(str(FOLDER / "measure.py"))["choice_share"]
    own = {"kind": "PH", "prompt": "Question: What is 7 + 5?", "advantages": [0.3, 0.0, -0.1]}
    others = [{**own, "kind": "HE"}, {**own, "prompt": "Question: Multiply 23 by 4."}]
    assert share([own, {**own, "advantages": [0.0]}, *others]) == pytest.approx(0.75)
    assert share(others) is None


@pytest.fixture
def sampling(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return runpy.run_path(str(FOLDER / "sampling.py"))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.8}])
def test_its_samples_are_those_of_the_package(policy, sampling, settings, monkeypatch):
    """Prompts of unlike lengths with 1, 3 and 5 samples each; some samples end early, others
    not. The package's come from transformers' `generate` here."""
    monkeypatch.setattr(seeded_sampling, "can_share", lambda model: False)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(policy),
        AutoTokenizer.from_pretrained(policy),
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    lists = [[5, 6], [7, 8, 9, 5, 4, 6], [6]]
    prompts = [prompt for prompt, count in zip(lists, (1, 3, 5), strict=True) for _ in range(count)]
    seeds, settings = [*range(20, 29)], {"max_new_tokens": 30, **settings}
    expected = sample_all(model, tokenizer, prompts, seeds, **settings)
    assert {len(tokens) == 30 for tokens in expected} == {True, False}
    assert (
        sampling["sample"](model, prompts, seeds, end=tokenizer.eos_token_id, **settings)
        == expected
    )


def test_a_training_takes_its_rollouts_and_computes_equal_ones_once(
    policy, sampling, tmp_path, monkeypatch
):
    inside, computed = sampling["rollout"].__globals__, list[int]()
    once = inside["forward_once"]

    def counted(forward, *args, **kwargs):
        def count(*args, **kwargs):
            computed.append(len(kwargs["input_ids"]) if kwargs.get("fused_lm_head") else 0)
            return forward(*args, **kwargs)

        return once(count, *args, **kwargs)

    def run(forward):
        monkeypatch.setitem(inside, "forward_once", forward)
        settings = dict(
            max_steps=1, max_completion_length=2, num_generations=16, per_device_train_batch_size=48
        )
        settings |= dict(optim="sgd", learning_rate=1.0)  # the weights move by the gradient itself
        return trained(policy, tmp_path, extra={"rollout_func": sampling["rollout"]}, **settings)

    first, again = run(counted), run(counted)
    assert_same_run(again, first)
    assert 0 < max(computed) < 48
    separately, moved = run(lambda forward, *args, **kwargs: forward(*args, **kwargs)), 0.0
    for name, start in AutoModelForCausalLM.from_pretrained(policy).named_parameters():
        torch.testing.assert_close(
            weights(first)[name], weights(separately)[name], rtol=0, atol=1e-6
        )
        moved = max(moved, float((weights(first)[name] - start.detach()).abs().max()))
    assert moved > 1e-3


def test_the_tables_are_those_of_the_raw_results_and_the_page_takes_its_numbers_from_them():
    tables = (FOLDER / "tables.md").read_text()
    made = runpy.run_path(str(FOLDER / "tables.py"))
    arms = [own for prefix in made["ARMS"] for own in made["read"](prefix)]
    assert made["page"](arms) == tables, "run tables.py again"
    page = (FOLDER / "README.md").read_text()
    notes = (FOLDER / "notes.md").read_text()
    for section, text in (("## Arms", page), ("## Mirror", page), ("## Learning rates", notes)):
        first = tables.partition(section)[2].split(":\n\n")[1].partition("\n\n")[0]
        assert first.strip() in text
    for text in (page, notes):
        assert {*re.findall(INTERVAL, text)} <= {*re.findall(INTERVAL, tables)}
