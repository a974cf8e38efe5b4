"""The probe: which way a method pushes success, before any training."""

import json
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from harness import call_on_ranks

from trl_miner import MinerGRPOConfig
from trl_miner.data.base_model import find_model
from trl_miner.data.worlds import WORLDS
from trl_miner.evaluation import probe as probes
from trl_miner.evaluation.generate import sample_seed
from trl_miner.evaluation.probe import GRPO_ALONE, Policy, Push, Samples, Way, probe
from trl_miner.evaluation.seeded_sampling import sample_all
from trl_miner.methods import MINER, UCAS, Estimate
from trl_miner.methods.compose import Composition, find_composition
from trl_miner.methods.grpo import GRPO
from trl_miner.methods.method import AdvantageEstimator
from trl_miner.probe import Result, _targets, ways
from trl_miner.rewards import math_reward

G = 8
CPU = {"output_dir": "out", "use_cpu": True, "bf16": False}


def load(world):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = find_model(world)
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def sampled(world, split, levels, count, seed, loaded):
    model, tokenizer = loaded
    rng = random.Random(f"{split} {seed}")
    problems = [WORLDS[world].draw(split, levels[i % len(levels)], rng) for i in range(count)]
    prompts = [tokenizer(problem.prompt)["input_ids"] for problem in problems]
    rows = [(i, n) for i in range(count) for n in range(G)]
    completions = sample_all(
        model,
        tokenizer,
        [prompts[i] for i, _ in rows],
        [sample_seed(seed, str(i), n) for i, n in rows],
        max_new_tokens=64,
    )
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    rewards_N = torch.tensor(math_reward(texts, [problems[i].answer for i, _ in rows]))
    return Samples(prompts, completions, texts, rewards_N, rewards_N)


def way(name, **knobs):
    return Way(name, find_composition(name), lambda method: {} if method is GRPO else knobs)


def test_success_advantages_are_unbiased_weights():
    # right 1, 1, 0, 0: the others' means are 1/3, 1/3, 2/3, 2/3; (1 - 1/3)/4 = 1/6
    weights_PG = probes.success_advantages(torch.tensor([[True, True, False, False]]))
    assert weights_PG.tolist() == [pytest.approx([1 / 6, 1 / 6, -1 / 6, -1 / 6])]


@pytest.mark.parametrize(
    "world, verdict, opposite",
    [("trl_miner/forks", "up", "down"), ("trl_miner/forks_mirror", "down", "up")],
)
def test_the_sign_is_that_of_the_trainings_of_both_worlds(world, verdict, opposite):
    """Ten seeds of training each found it: RESULTS.md."""
    loaded = load(world)
    trained = sampled(world, "train", (0, 1), 40, 1, loaded)
    target = sampled(world, "test", (2, 3, 4), 24, 2, loaded)
    ways = [way("miner", lambda_max=1.5e-3), way("entropy"), way("miner", intrinsic="certainty")]
    ways[2] = Way("certainty", ways[2].composition, ways[2].knobs)
    pushes = probe(Policy(loaded[0], 0), trained, {"target": target}, ways)
    verdicts = {label: by_target["target"].verdict for label, by_target in pushes.items()}
    assert verdicts == {
        "miner": verdict,
        "entropy": verdict,
        "certainty": opposite,
        GRPO_ALONE: "cannot tell",
    }


def test_an_adapter_gives_the_same_sign_from_a_tenth_of_the_numbers():
    from peft import LoraConfig, get_peft_model

    model, tokenizer = load("trl_miner/forks")
    trained = sampled("trl_miner/forks", "train", (0, 1), 32, 1, (model, tokenizer))
    target = sampled("trl_miner/forks", "test", (2, 3), 24, 2, (model, tokenizer))
    whole = sum(weight.numel() for weight in model.parameters())
    torch.manual_seed(0)  # an adapter begins with random numbers
    policy = Policy(get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")), 0)
    assert sum(weight.numel() for weight in policy.parameters) < whole / 10
    pushes = probe(policy, trained, {"t": target}, [way("miner", lambda_max=None)])
    assert pushes["miner"]["t"].verdict == "up"


def test_the_effect_is_the_inner_product_of_the_two_gradients():
    """Against gradients of all rows at once, and in parts of a few rows."""
    world = "trl_miner/forks"
    loaded = load(world)
    trained = sampled(world, "train", (1,), 8, 1, loaded)
    target = sampled(world, "test", (2,), 8, 2, loaded)
    pushes = probe(
        Policy(loaded[0], 0, max_tokens=150),
        trained,
        {"target": target},
        [way("miner", lambda_max=None)],
    )
    policy = Policy(loaded[0], 0)

    def gradient(samples, values_NT):
        parts = [
            part
            for place in range(len(samples.prompts))
            for _, part in policy.gradients(
                samples, place, {"": values_NT[place * G : (place + 1) * G]}
            )
        ]
        return torch.cat([sum(own).flatten() for own in zip(*parts, strict=True)])

    scores = probes._score(policy, trained)
    added_NT = probes._added(trained, way("miner", lambda_max=None), scores, 0)
    is_ph_N1 = trained.is_right_PG.all(dim=1).repeat_interleave(G).unsqueeze(1)
    assert added_NT.any() and not (added_NT * ~is_ph_N1).any()
    weights_N1 = probes.success_advantages(target.is_right_PG).flatten().unsqueeze(1)
    direction = gradient(trained, added_NT)
    slope = gradient(target, weights_N1 * target.mask_NT) / len(target.prompts)
    push = pushes["miner"]["target"]
    assert push.effect == pytest.approx(float(direction @ slope / direction.norm()), rel=1e-3)


def test_the_interval_covers_where_prompts_and_problems_both_vary():
    """A product without a mean, of parts that both sides draw: at most one in ten is called."""
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        product_PQ = rng.normal(size=(20, 1)) * rng.normal(size=(1, 30))
        product_PQ += rng.normal(size=(20, 1)) + rng.normal(size=(20, 30))
        push = probes._push(product_PQ.sum(axis=0), product_PQ.mean(axis=1), 1.0, 1.0)
        called += push.verdict != "cannot tell"
    assert 4 <= called <= 40  # 1 to 10 %: neither blind nor too sure


def test_credit_dealt_at_random_cannot_tell():
    """Of 12 such directions at most 3 are called; tests/bench/probe.py draws 100 in each world."""

    def deal(rollouts):
        mined = MINER.estimate(rollouts, gamma=2.0, lambda_max=None, intrinsic="nll")
        generator = torch.Generator().manual_seed(rollouts.seed)
        dealt = [
            row_G[torch.randperm(G, generator=generator)]
            for row_G in mined.advantages_N.view(-1, G)
        ]
        return Estimate.of_rollouts(rollouts, torch.cat(dealt))

    random_credit = AdvantageEstimator(
        name="dealt", label="Dealt", estimate=deal, acts_on=frozenset({"all_right"})
    )
    world = "trl_miner/forks"
    loaded = load(world)
    dealt = Way("dealt", Composition(GRPO, {"all_right": random_credit}), lambda method: {})
    target = sampled(world, "test", (2, 3), 16, 2, loaded)
    trained = sampled(world, "train", (0, 1), 32, 3, loaded)
    verdicts = [
        probe(Policy(loaded[0], 0), trained, {"t": target}, [dealt], seed=seed)
        for seed in range(12)
    ]
    assert sum(found["dealt"]["t"].verdict != "cannot tell" for found in verdicts) <= 3


def test_a_method_that_needs_what_a_probe_has_not_is_refused():
    with pytest.raises(ValueError, match="needs .* of every token, which a probe does not compute"):
        Way("ucas", find_composition(UCAS.name), lambda method: {})
    with pytest.raises(ValueError, match="asks how prompts came out earlier in the training"):
        Way("gate", find_composition("trl_miner.data.forks_methods.boundary_gate"), dict)


def test_gradients_that_do_not_fit_are_refused_before_anything_is_sampled(
    tmp_path, monkeypatch, capfd
):
    """The free memory is made up: 8 gradients of 0.14 million numbers need 4.4 MB."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2e6))
    assert run("--output", str(tmp_path / "out"), "--use_cpu") == 2
    error = capfd.readouterr().err
    assert "A probe needs 8 gradients of 0.00055 GB beside the model, and 0.002 GB are" in error
    assert not (tmp_path / "out").exists()


def test_a_recipes_own_miner_does_not_pass_for_the_papers():
    config = MinerGRPOConfig(miner_intrinsic="constant", miner_lambda_max=None, **CPU)
    asked = ways(config, ["miner", "constant", "certainty"])
    knobs = {each.label: each.knobs(MINER)["intrinsic"] for each in asked}
    assert knobs == {
        "constant (the recipe's)": "constant",
        "miner": "nll",
        "certainty": "certainty",
    }


def advice(**pushes):
    """What a probe says of these effects, with intervals of half a point around them."""
    samples = Samples([[1]] * 8, [[1]] * 16, [""] * 16, torch.ones(16), torch.ones(16))
    by_label = {
        name.replace("own", "miner (the recipe's)"): {
            "target": Push(effect, effect - 0.5, effect + 0.5, 0.1, 8, prompts, (0.5 / effect) ** 2)
        }
        for name, (effect, prompts) in pushes.items()
    }
    return Result(by_label, samples, samples).advice()


def test_the_advice_is_a_setting_or_a_number():
    assert advice(own=(0.8, 8)).startswith("leave miner on, as the recipe has it.")
    assert advice(certainty=(0.8, 8)).startswith(
        "set advantage_estimator: miner, miner_intrinsic: certainty. It pushes"
    )
    down = advice(own=(-0.8, 8), entropy=(0.8, 8))
    assert down.startswith("leave miner off: advantage_estimator: grpo")
    assert down.endswith("entropy pushes it up: advantage_estimator: entropy.")
    # (0.5 / 0.25)^2 = 4 times 8 prompts; (0.5 / 0.05)^2 = 100
    assert "with 4 times as many: --prompts 32 --problems 32" in advice(own=(0.25, 8))
    assert "nothing speaks for it or against it" in advice(own=(0.05, 8))
    assert "Only 3 training prompts have a part in miner" in advice(own=(0.25, 3))


# --- The command


OPTIONS = ["--prompts", "24", "--problems", "24", "--samples", "8"]


def run(*words):
    from trl_miner.cli import main

    return main(["probe", "forks/miner", *OPTIONS, *words])


def test_the_command_says_what_to_do_and_goes_on_where_it_was_stopped(tmp_path, capfd):
    output = tmp_path / "out"
    assert run("--output", str(output)) == 0
    shown = capfd.readouterr().out
    assert (
        "To do: leave miner on, as the recipe has it. It pushes success on the target up." in shown
    )
    record = json.loads((output / "probe.json").read_text())
    assert record["methods"]["miner (the recipe's)"]["target"]["verdict"] == "up"
    # A kill leaves whole lines, and perhaps a part of one: 8 of 24 problems are known.
    samples = output / "target.jsonl"
    lines = samples.read_text().split("\n")
    samples.write_text("\n".join(lines[:9]) + "\n" + lines[9][:40])
    assert run("--output", str(output), "--quiet") == 0
    again = samples.read_text().split("\n")
    assert {*lines} < {*again} and len(again) == len(lines) + 1
    assert json.loads((output / "probe.json").read_text()) == record


def test_samples_of_another_seed_or_of_other_weights_are_not_taken_over(tmp_path):
    """Of one token each, which is soon drawn and refused."""
    model, counts = tmp_path / "model", []
    words = ["--output", str(tmp_path / "out"), "--max_completion_length", "1", "--quiet"]
    words += ["--model_name_or_path", str(model), "--dataset_name", "trl_miner/forks"]
    # The third time a training has gone on in the same folder.
    for weights, seed in (("forks", "1"), ("forks", "2"), ("forks_mirror", "2")):
        shutil.copytree(find_model(f"trl_miner/{weights}"), model, dirs_exist_ok=True)
        assert run(*words, "--seed", seed) == 2
        counts.append((tmp_path / "out" / "training.jsonl").read_text().count("\n"))
    assert counts == [24, 48, 72]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--methods", "minor"], "No method named .minor. .*Did you mean .miner"),
        (["--methods", "ucas"], "which a probe does not compute"),
        (["--samples", "1"], "--samples must be at least 2, to compare"),
        (["--max_completion_length", "1"], "at least 5 that are all right: 0 of 24 are"),
        (["--held_out", "0"], "A probe needs problems that matter"),
        (["--dataset_name", "nowhere.jsonl"], "nowhere.jsonl"),
        (
            ["--reward_funcs", "own_rewards.never_1", "--reward_weights", "1"],
            "largest reward is 0.9",
        ),
    ],
)
def test_mistakes_end_in_one_line(options, message, tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_rewards.py").write_text(
        "from trl_miner.rewards import math_reward\n"
        "async def never_1(completions, solution, **kwargs):\n"
        "    return [0.9 * reward for reward in math_reward(completions, solution)]\n"
    )
    assert run("--output", str(tmp_path / "out"), *options) == 2
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, error), error


def test_transformers_samples_where_vllm_is_not_installed(tmp_path, capfd):
    words = ["--output", str(tmp_path / "out"), "--max_completion_length", "1"]
    with pytest.warns(UserWarning, match="vLLM is not installed, so transformers samples"):
        assert run(*words, "--use_vllm", "true", "--vllm_mode", "server") == 2
    assert "sampling training: 100%" in capfd.readouterr().err


def test_a_target_of_the_trained_levels_alone_is_warned_of():
    trained = Dataset.from_list([{"prompt": "1 plus 1", "level": 1}])
    rows = [{"prompt": f"{n} plus 1", "level": n % 2 + 1} for n in range(20, 40)]
    assert {row["level"] for row in _targets(rows, trained, 20, 0)} == {2}
    easy = [row for row in rows if row["level"] == 1]
    with pytest.warns(UserWarning, match="no problems beyond the trained levels"):
        assert len(_targets(easy, trained, 20, 0)) == 10


def test_trained_problems_are_left_out_of_a_target():
    trained = Dataset.from_list([{"prompt": f"{n} plus 1"} for n in range(30)])
    rows = [{"prompt": f"{n} plus 1"} for n in range(20, 40)]
    with pytest.warns(UserWarning, match="10 of 20 are trained, and left out"):
        left = _targets(rows, trained, 20, 0)
    assert {row["prompt"] for row in left} == {f"{n} plus 1" for n in range(30, 40)}


def _on_a_rank(folder):
    assert run("--output", folder) == 2 and not Path(folder).exists()


def test_several_processes_are_refused(tmp_path, capfd):
    call_on_ranks(2, _on_a_rank, str(tmp_path / "out"))
    assert "A probe runs in one process: got 2. Start it without" in capfd.readouterr().err


def test_a_target_on_which_nothing_is_right_is_refused(tmp_path, capfd):
    rows = [{"question": f"Apply abc to {n}.", "answer": "12345"} for n in range(1000, 1024)]
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("--output", str(tmp_path / "out"), "--target", str(path)) == 2
    error = capfd.readouterr().err
    assert "of 24, 0 came out mixed and 24 all wrong. Name more or easier ones with" in error


def test_problems_that_are_trained_are_no_target(tmp_path, capfd):
    rows = [{"question": f"{i} plus {j}", "answer": str(i + j)} for i in range(6) for j in range(6)]
    for name in ("train", "test"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.jsonl").write_text(text)
    options = ["--dataset_name", str(tmp_path / "data"), "--dataset_prompt_column", "question"]
    options += ["--dataset_solution_column", "answer", "--prompt_template", "{question}\n"]
    options += ["--reward_funcs", "math_reward", "--reward_weights", "1"]
    assert run("--output", str(tmp_path / "out"), *options) == 2
    assert "The target must hold problems that are not trained: 36 of 36" in capfd.readouterr().err
