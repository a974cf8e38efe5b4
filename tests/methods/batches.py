"""What the tests of the methods share: batches of every kind of prompt, and a table of methods.

# N = P*G completions, those of one prompt adjacent; T padded tokens
"""

import torch
from hypothesis import strategies as st

from trl_miner.methods.compose import estimate, find_composition
from trl_miner.methods.groups import correctness, group_kinds
from trl_miner.methods.grpo import group_relative_advantages
from trl_miner.methods.processes import World
from trl_miner.methods.rollouts import Rollouts

NAN = float("nan")
SCORES = {"old_logps": -3.0, "entropies": 4.0, "token_logits": 20.0, "self_certainty": 9.0}

# A method, or that of mixed and that of all-right prompts
METHODS = ["grpo", "miner", "certainty", "constant", "entropy", "f_grpo", "maxrl", "entropy_adv"]
METHODS += ["ucas", "reinforce_pp", "reinforce_pp_baseline", "ucas+miner", "entropy_adv+miner"]
METHODS += ["reinforce_pp+entropy", "maxrl+miner", "methods.own_estimators.by_length"]


def settings_of(name):
    """The settings that name a method of the table."""
    if name in ("certainty", "constant"):
        return dict(advantage_estimator="miner", settings={"miner_intrinsic": name})
    mixed, _, right = name.partition("+")
    return dict(advantage_estimator=mixed, all_right=right or None)


class Batch:
    """Rewards (N,), mask (N, T) and scores (N, T) of each name."""

    def __init__(self, rewards, mask, scores, num_generations):
        self.rewards, self.mask, self.scores, self.G = rewards, mask, scores, num_generations

    def part(self, rows=slice(None), world=None, asked=None):
        """The rollouts of some rows, as a process sees them, which writes into `asked` which scores
        of which rows a method asks for."""

        def score(name, is_row_N):
            (asked if asked is not None else {})[name] = is_row_N
            return self.scores[name][rows]

        advantages = group_relative_advantages(self.rewards, self.G)
        return Rollouts(
            self.rewards,
            advantages,
            correctness(self.rewards),
            self.mask[rows],
            group_kinds(self.rewards, self.G, advantages_N=advantages),
            self.G,
            score,
            world or World(),
        )

    def estimate(self, asked=None, **named):
        """What the methods named make of it."""
        return estimate(find_composition(**named), self.part(asked=asked))

    def __getitem__(self, rows):
        scores = {name: values[rows] for name, values in self.scores.items()}
        return Batch(self.rewards[rows], self.mask[rows], scores, self.G)


def make_batch(rewards, lengths, num_generations, num_tokens=7, seed=0):
    """A batch of these rewards and lengths, with random scores."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(rewards), num_tokens
    scores = {name: top * torch.rand(shape, generator=generator) for name, top in SCORES.items()}
    mask = (torch.arange(num_tokens) < torch.tensor(lengths)[:, None]).int()
    return Batch(torch.tensor(rewards), mask, scores, num_generations)


def all_kinds():
    """Six prompts of four: all right, mixed, all wrong, all right, mixed with an unscorable
    completion, mixed. One completion has no tokens."""
    rewards = [1.0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, NAN, 1, 0, 0, 0]
    lengths = [3, 1, 7, 2, 5, 0, 4, 6, 1, 2, 3, 4, 7, 7, 2, 5, 3, 3, 6, 1, 2, 4, 5, 7]
    return make_batch(rewards, lengths, 4)


@st.composite
def batches(draw):
    """Every kind of prompt, part marks, unscorable completions, ragged and empty rows."""
    num_generations, num_groups = draw(st.integers(2, 5)), draw(st.integers(1, 5))
    num_tokens = draw(st.integers(1, 6))
    one = st.sampled_from([0.0, 0.5, 1.0, NAN])
    group = st.one_of(
        st.sampled_from([0.0, 0.5, 1.0]).map(lambda reward: [reward] * num_generations),
        st.lists(one, min_size=num_generations, max_size=num_generations),
    )
    rewards = sum((draw(group) for _ in range(num_groups)), [])
    lengths = st.lists(st.integers(0, num_tokens), min_size=len(rewards), max_size=len(rewards))
    seed = draw(st.integers(0, 2**31))
    return make_batch(rewards, draw(lengths), num_generations, num_tokens, seed)
