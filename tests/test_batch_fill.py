"""Dynamic sampling: the exact prompts drawn, kept and dropped."""

import json

import pytest
import torch
from harness import GOLDEN
from trl.trainer.utils import RepeatSampler

from trl_miner.methods.groups import differs_in_correctness
from trl_miner.trainer.dynamic_sampling import fill_batch
from trl_miner.trainer.prompts import PromptStream

NAN = float("nan")


def helper_cases(kind):
    cases = json.loads((GOLDEN / "dapo_helpers.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["kind"] == kind]


@pytest.mark.parametrize("case", [c for c in helper_cases("filter") if c.values[0]["num_prompt_in_batch"] in (3, 4)])
def test_the_same_groups_are_kept_as_by_the_published_code(case):
    rewards = torch.tensor(case.get("acc", case["rewards"]))[:-1]  # the last prompt has a single rollout: not ours
    kept = differs_in_correctness(rewards, 4)
    assert [f"p{i}" for i in kept.nonzero().flatten().tolist()] == [
        uid for uid in case["kept_uids"] if uid != "single"
    ]


def stream(num_prompts, order=None):
    return PromptStream(order or range(num_prompts), num_prompts)


def fill(prompts, num_groups, is_mixed, **settings):
    """A filled batch, and the prompts of each round, when `is_mixed` says what the rollouts of each will be."""
    rounds = []

    def generate(indices):
        rounds.append(indices)
        return [is_mixed(i) for i in indices]

    return fill_batch(prompts, num_groups, generate, **settings), rounds


def fill_batches(prompts, is_mixed, count, num_groups, **settings):
    """The batches' prompts, and all prompts of all rounds."""
    found = [fill(prompts, num_groups, is_mixed, **settings) for _ in range(count)]
    return [[group.prompt for group in filled.groups] for filled, _ in found], [rounds for _, rounds in found]


def test_no_prompt_is_lost_or_repeated_within_an_epoch():
    sampler = RepeatSampler(range(23), mini_repeat_count=1, batch_size=1, repeat_count=1, shuffle=True, seed=7)
    prompts = PromptStream(sampler, 23)
    batches, rounds = fill_batches(prompts, lambda i: i % 3 == 0, 12, 5)
    settled = []  # trained on or dropped; a mixed prompt too many goes back, to be drawn again
    for batch, each_round in zip(batches, rounds, strict=True):
        drawn = [i for indices in each_round for i in indices]
        assert len(drawn) == len(set(drawn))
        settled += [i for i in drawn if i in batch or i % 3]
    assert len(settled) > 3 * 23
    times = torch.bincount(torch.tensor(settled), minlength=23)
    assert times.max() - times.min() <= 1


def test_after_the_last_round_the_batch_is_filled_with_what_came_first():
    filled, _ = fill(stream(100), 4, lambda i: i == 5, max_rounds=2)
    assert [(group.round, group.place) for group in filled.groups] == [(0, 0), (0, 1), (0, 2), (1, 1)]
    assert (filled.num_mixed, len(filled.generated), filled.dropped, filled.num_rounds) == (1, 8, [3, 4, 6, 7], 2)


def test_every_round_can_be_shared_out_evenly():
    # 3 processes and groups of 4: every round must hold a multiple of 3 prompts
    _, rounds = fill_batches(stream(60), lambda i: i % 2 == 0, 3, 6, multiple=3)
    assert all(len(indices) % 3 == 0 for batch in rounds for indices in batch)
    assert any(len(batch) > 1 for batch in rounds)


@pytest.mark.parametrize("after", range(8))
def test_a_resumed_stream_goes_on_where_the_other_stopped(after):
    def shuffled():
        return PromptStream(RepeatSampler(range(9), mini_repeat_count=1, batch_size=1, shuffle=True, seed=1), 9)

    settings = dict(is_mixed=lambda i: i % 2 == 0, num_groups=3)
    first = shuffled()
    fill_batches(first, count=after, **settings)
    state = json.loads(json.dumps(first.state()))
    resumed = shuffled()
    resumed.load_state(state)
    assert resumed.epoch == first.epoch
    assert fill_batches(resumed, count=6, **settings) == fill_batches(first, count=6, **settings)
