"""How often does the probe call a direction that has none? Credit dealt out at random, 100 times.

python tests/bench/probe.py [--write]

In each of two worlds: 48 training prompts x 16 rollouts, 32 target problems x 16, all drawn anew
each time. MINER's credits are dealt out at random within each prompt.
"""

import argparse
import random
from collections import Counter

import torch
from common import machine, report, table
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.common.progress import quietly
from trl_miner.data.base_model import find_model
from trl_miner.data.worlds import WORLDS
from trl_miner.evaluation.generate import sample_seed
from trl_miner.evaluation.probe import Policy, Samples, Way, probe
from trl_miner.evaluation.seeded_sampling import sample_all
from trl_miner.methods import MINER, Estimate
from trl_miner.methods.compose import Composition
from trl_miner.methods.grpo import GRPO
from trl_miner.methods.method import AdvantageEstimator
from trl_miner.rewards import math_reward

G = 16

PROMPTS, PROBLEMS = 48, 32


def deal(rollouts):
    """Deal MINER's credits out at random within each prompt: no direction, of the same size."""
    mined = MINER.estimate(rollouts, gamma=2.0, lambda_max=None, intrinsic="nll")
    generator = torch.Generator().manual_seed(rollouts.seed)
    dealt = [
        row_G[torch.randperm(G, generator=generator)] for row_G in mined.advantages_N.view(-1, G)
    ]
    return Estimate.of_rollouts(rollouts, torch.cat(dealt))


DEALT = AdvantageEstimator(
    name="dealt", label="Dealt", estimate=deal, acts_on=frozenset({"all_right"})
)
WAY = Way("dealt", Composition(GRPO, {"all_right": DEALT}), lambda method: {})


def sample(model, tokenizer, problems, seed):
    prompts = [tokenizer(problem.prompt)["input_ids"] for problem in problems]
    rows = [(place, number) for place in range(len(problems)) for number in range(G)]
    completions = sample_all(
        model,
        tokenizer,
        [prompts[place] for place, _ in rows],
        [sample_seed(seed, str(place), number) for place, number in rows],
        max_new_tokens=64,
    )
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    rewards_N = torch.tensor(math_reward(texts, [problems[place].answer for place, _ in rows]))
    return Samples(prompts, completions, texts, rewards_N, rewards_N)


def verdicts(name, draws):
    world, folder = WORLDS[name], find_model(name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    counts = Counter()
    for seed in range(10, 10 + draws):
        rng = random.Random(f"cover {seed}")
        train = [world.draw("train", place % 2, rng) for place in range(PROMPTS)]
        hard = [world.draw("test", (2, 3, 4)[place % 3], rng) for place in range(PROBLEMS)]
        trained = sample(model, tokenizer, train, seed)
        target = sample(model, tokenizer, hard, seed + 1000)
        policy = Policy(model, tokenizer.pad_token_id)
        with quietly():
            pushes = probe(policy, trained, {"target": target}, [WAY], seed=seed)
        counts[pushes["dealt"]["target"].verdict] += 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draws", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in ("trl_miner/forks", "trl_miner/forks_mirror"):
        counts = verdicts(name, args.draws)
        rows.append([name, *(counts[verdict] for verdict in ("up", "down", "cannot tell"))])
    report(
        "probe",
        "# What `trl-miner probe` says of credit dealt out at random\n\n"
        f"{args.draws} draws of {PROMPTS} training prompts and {PROBLEMS} target problems, {G}"
        " rollouts each. A 95 % interval calls five of a hundred.\n\n"
        f"{machine()}. `python tests/bench/probe.py --write`\n\n"
        + table(["world", "up", "down", "cannot tell"], rows),
    )


if __name__ == "__main__":
    main()
