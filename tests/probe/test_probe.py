"""The probe: its gradients, its interval, and what it says of methods and targets."""

import json
import math
import random
from pathlib import Path

import harness
import numpy as np
import pytest
import torch

from trl_miner import probe as module
from trl_miner.data.arithmetic import load_dataset
from trl_miner.evaluation.in_training import EvaluationCallback
from trl_miner.methods.compose import find_composition
from trl_miner.probe import (
    GRPO_ITSELF,
    Samples,
    forwards,
    gradients,
    make_rollouts,
    measure,
    push,
    success_advantages,
)
from trl_miner.recipe.reading import read

G = 4


def by_hash(seed):
    """Return a reward of coins that a prompt and a completion decide."""

    def reward(prompts, completions, **kwargs):
        pairs = zip(prompts, completions, strict=True)
        return [float(harness.crc(f"{seed} {pair}") % 2) for pair in pairs]

    return reward


@pytest.fixture(scope="module")
def trainer(policy, tmp_path_factory):
    return harness.build_trainer(policy, tmp_path_factory.mktemp("probed"))


def draw(trainer, rows, first_seed, reward=harness.mixed_reward):
    """Sample rows and return the samples and whether each is correct."""
    rows = [row for row in rows for _ in range(G)]
    ids, completions = EvaluationCallback(trainer, [], G).sample(rows, first_seed)
    texts = trainer.processing_class.batch_decode(completions, skip_special_tokens=True)
    correct_N = torch.tensor(reward([row["prompt"] for row in rows], texts))
    return Samples(ids[::G], completions, (correct_N == 1).view(-1, G)), correct_N


def measured(trainer, seed=0, target=None):
    """Return the pushes of MINER and GRPO on fresh problems, by coins of a seed."""
    rows = [*harness.problems(48)]
    trained, correct_N = draw(trainer, rows[:24], 10_000 * seed, by_hash(seed))
    aim, _ = draw(trainer, rows[24:], 10_000 * seed + 5000, by_hash(seed))
    aim = aim if target is None else target(aim)
    rollouts = make_rollouts(trainer, trained, correct_N, correct_N)
    miner = find_composition("miner", settings={"miner_lambda_max": None})
    return measure(trainer, rollouts, trained, aim, {"miner": miner})


def test_success_advantages_are_those_against_the_others_of_a_prompt():
    """Of four, one is right: its others have mean 0, (1 - 0)/4; those of a wrong one have mean 1/3,
    (0 - 1/3)/4."""
    found = success_advantages(torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]).bool())
    assert found.flatten().tolist() == pytest.approx([1 / 4, *[-1 / 12] * 3, 0, 0, 0, 0])


def test_the_gradient_is_the_slope_of_the_weighted_log_probs(trainer):
    """Moved by 1e-3 both ways along a direction, sum(advantage * log p) changes by its product with
    the gradient, which the prompts' products add up to."""
    # none of these has sampled the padding, whose embedding gets no gradient
    samples, _ = draw(trainer, [*harness.problems(6)], 1)
    generator = torch.Generator().manual_seed(0)
    advantages_NT = torch.randn(samples.mask_NT.shape, generator=generator) * samples.mask_NT
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    direction = torch.randn(sum(w.numel() for w in weights), generator=generator)
    direction /= direction.norm()
    totals, products = gradients(trainer, samples, {"a": advantages_NT}, {"d": direction})

    def value(step):
        with torch.no_grad():
            place = 0
            for weight in weights:
                weight += step * direction[place : place + weight.numel()].view_as(weight)
                place += weight.numel()
            return sum(
                (advantages_NT[rows, : scores["old_logps"].shape[1]] * scores["old_logps"]).sum()
                for _, rows, scores in forwards(trainer, samples)
            ).item()

    up, down = value(1e-3), value(-2e-3)
    value(1e-3)
    assert (up - down) / 2e-3 == pytest.approx((totals["a"] @ direction).item(), rel=0.02)
    assert products["a", "d"].sum() == pytest.approx((totals["a"] @ direction).item(), rel=1e-4)
    assert len(products["a", "d"]) == 6


def test_the_push_of_the_opposite_success_is_the_opposite(trainer):
    plain = measured(trainer)
    turned = measured(
        trainer, target=lambda aim: Samples(aim.prompts, aim.completions, ~aim.is_right_PG)
    )
    assert plain.keys() == turned.keys() == {"miner", GRPO_ITSELF}
    for name, one in plain.items():
        assert turned[name].effect == pytest.approx(-one.effect, rel=1e-4)
        assert turned[name].high == pytest.approx(-one.low, rel=1e-4)


@pytest.mark.slow
def test_coins_push_nowhere(trainer):
    """20 seeds and two directions: 2 of 40 intervals at 95 % are expected to leave out 0, and more
    than 6 have a probability of 0.3 %."""
    verdicts = [one.verdict for seed in range(20) for one in measured(trainer, seed).values()]
    assert len(verdicts) >= 30 and sum(verdict != "cannot tell" for verdict in verdicts) <= 6


def test_the_interval_is_wide_enough_for_both_sides():
    """500 double sums of 20 prompts and 20 problems around 0: at least 93 of 100 hold it."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(500):
        d_P, s_Q = rng.normal(size=(20, 6)), rng.normal(size=(20, 6))
        found = push(s_Q @ d_P.sum(0) / 20, d_P @ s_Q.mean(0), 1.0)
        held += found.low <= 0 <= found.high
    assert held >= 465


def test_few_prompts_say_nothing():
    found = push(np.ones(9), np.array([1.0, 2, 3, 4, 0, 0]), 2.0)
    assert (found.effect, found.low, found.high) == (4.5, -math.inf, math.inf)
    assert found.verdict == "cannot tell"
    # five of each, all alike: 5 * 2 / 2
    found = push(np.full(5, 2.0), np.full(5, 2.0), 2.0)
    assert (found.effect, found.low, found.verdict) == (5, 5, "up")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return what makes a recipe of the embedded world with a reward function of one's own: it pays
    what a completion begins with."""
    monkeypatch.chdir(tmp_path)
    Path("rewards_of_mine.py").write_text(
        "def begins(completions, begins, **kwargs):\n"
        "    return [float(text.startswith(b)) for text, b in zip(completions, begins)]\n"
    )
    rows = [row | {"begins": "so"} for row in load_dataset("train", 60)]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [row | {"begins": "then"} for row in load_dataset("test", 40)]
    Path("target.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def make(*words):
        path = harness.write_recipe(
            tmp_path / "recipe.yaml", dataset_name="train.jsonl", prompt_style="verbatim",
            max_completion_length=64, model_name_or_path="trl_miner/arithmetic",
            reward_funcs=["rewards_of_mine.begins"],
        )  # fmt: skip
        return read([path, *words])

    return make


def test_a_target_like_the_recipe_is_graded_by_its_reward(recipe):
    """All wordings begin with one of five openers: "then" opens 11 of 40 (of those that open),
    where the answers are right in two thirds. `begins` is a column that math_reward does not
    know."""
    text = module.probe(recipe(), target="target.jsonl", prompts=12, problems=24, samples=8)
    share = float(text.split("Target problems: ")[1].split("Pass@1 ")[1].split()[0])
    assert 0.1 < share < 0.45
    share = float(text.split("Training prompts: ")[1].split("Pass@1 ")[1].split()[0])
    assert 0.3 < share < 0.7  # "so" opens 19 of 40


def test_it_says_first_to_train_on_the_target_and_last_what_it_sees(recipe):
    """A benchmark is graded by the recipe's reward, too."""
    path = recipe("--reward_funcs", "trl_miner.rewards.math_reward")
    text = module.probe(path, target="arithmetic", prompts=6, problems=8, samples=4)
    first, *_, last = text.splitlines()
    assert first.startswith("With reference answers to target problems, train on them")
    assert "choices that are frequent now" in last and "load_best_model_at_end: true" in last
    share = float(text.split("Target problems: ")[1].split("Pass@1 ")[1].split()[0])
    assert share > 0.4  # of the world's problems two thirds are right


def test_a_probe_needs_problems_that_are_not_trained(recipe):
    with pytest.raises(ValueError, match="--target"):
        module.probe(recipe())
    with pytest.raises(ValueError, match="not trained"):
        module.probe(recipe(), target="train.jsonl")


def test_a_probe_leaves_weights_and_folder_alone(recipe, tmp_path):
    random.seed(0)
    before = {path.name for path in tmp_path.iterdir()}
    module.probe(recipe(), target="target.jsonl", prompts=6, problems=8, samples=4)
    assert {path.name for path in tmp_path.iterdir()} - before <= {"recipe.yaml", "__pycache__"}
