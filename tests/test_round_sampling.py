"""Sampling in rounds: the exact prompts that dynamic sampling draws, keeps and drops; the exact
rollouts that adaptive sampling makes and chooses."""

import itertools
import json
import random

import pytest
import torch
from harness import GOLDEN, OF_FORKS, Recording, crc, trained
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import RepeatSampler

from trl_miner import MinerGRPOConfig
from trl_miner.methods.groups import differs_in_correctness
from trl_miner.runs.prompt_ledger import read_ledger
from trl_miner.trainer.prompts import PromptStream
from trl_miner.trainer.round_sampling import (
    PromptStatistics,
    Rounds,
    choose_rollouts,
    fill_batch,
    is_balanced,
)

NAN = float("nan")

# Dynamic sampling


def helper_cases(kind):
    cases = json.loads((GOLDEN / "dapo_helpers.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["kind"] == kind]


@pytest.mark.parametrize(
    "case", [c for c in helper_cases("filter") if c.values[0]["num_prompt_in_batch"] in (3, 4)]
)
def test_the_same_groups_are_kept_as_by_the_published_code(case):
    # the last prompt has a single rollout: not ours
    rewards = torch.tensor(case.get("acc", case["rewards"]))[:-1]
    kept = differs_in_correctness(rewards, 4)
    assert [f"p{i}" for i in kept.nonzero().flatten().tolist()] == [
        uid for uid in case["kept_uids"] if uid != "single"
    ]


def shuffled(num_prompts, seed=7):
    return PromptStream(
        RepeatSampler(range(num_prompts), mini_repeat_count=1, shuffle=True, seed=seed), num_prompts
    )


def fill_batches(prompts, is_mixed, count, num_groups, **settings):
    """The batches' prompts, and those of each of their rounds, when `is_mixed` says what the
    rollouts of each are."""
    batches, rounds = [], []
    for _ in range(count):
        rounds.append([])

        def generate(indices):
            rounds[-1].append(indices)
            return [is_mixed(i) for i in indices]

        generated, _, kept = fill_batch(prompts, num_groups, generate, **settings)
        batches.append([generated[place] for place in kept])
    return batches, rounds


def test_no_prompt_is_lost_or_repeated_within_an_epoch():
    batches, rounds = fill_batches(shuffled(23), lambda i: i % 3 == 0, 12, 5)
    settled = []  # trained on or dropped; a mixed prompt too many goes back, to be drawn again
    for batch, each_round in zip(batches, rounds, strict=True):
        drawn = [i for indices in each_round for i in indices]
        assert len(drawn) == len(set(drawn))
        settled += [i for i in drawn if i in batch or i % 3]
    assert len(settled) > 3 * 23
    times = torch.bincount(torch.tensor(settled), minlength=23)
    assert times.max() - times.min() <= 1


def test_after_the_last_round_the_batch_is_filled_with_what_came_first():
    stream = PromptStream(range(100), 100)
    generated, _, kept = fill_batch(
        stream, 4, lambda indices: [i == 5 for i in indices], max_rounds=2
    )
    assert (generated, kept) == ([*range(8)], [0, 1, 2, 5])


def test_every_round_can_be_shared_out_evenly():
    # 3 processes and groups of 4: every round must hold a multiple of 3 prompts
    _, rounds = fill_batches(PromptStream(range(60), 60), lambda i: i % 2 == 0, 3, 6, multiple=3)
    assert all(len(indices) % 3 == 0 for batch in rounds for indices in batch)
    assert any(len(batch) > 1 for batch in rounds)


@pytest.mark.parametrize("after", range(0, 8, 3))
def test_a_resumed_stream_goes_on_where_the_other_stopped(after):
    settings = dict(is_mixed=lambda i: i % 2 == 0, num_groups=3)
    first = shuffled(9)
    fill_batches(first, count=after, **settings)
    resumed = shuffled(9)
    resumed.load_state(json.loads(json.dumps(first.state())))
    assert resumed.epoch == first.epoch
    assert fill_batches(resumed, count=6, **settings) == fill_batches(first, count=6, **settings)


# Adaptive sampling


@given(st.integers(2, 6), st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=6, max_size=30))
def test_a_whole_group_is_chosen_and_no_kind_is_lost(size, correct):
    chosen = choose_rollouts(correct, size)
    kinds = [correct[place] for place in chosen]
    assert len(chosen) == size == len({*chosen}) and chosen == sorted(chosen)
    if 0 in correct and 1 in correct:
        assert 0 in kinds and 1 in kinds
    if is_balanced(correct, size):
        assert kinds.count(1) == size // 2 and kinds.count(0) == size - size // 2
    for kind in (0, 1):  # of each kind the first, and what cannot be scored last
        places = [place for place, value in enumerate(correct) if value == kind]
        assert [place for place in chosen if correct[place] == kind] == places[: kinds.count(kind)]
        assert kinds.count(kind) == len(places) or kinds.count(0) + kinds.count(1) == size


def test_advantages_are_by_all_rollouts_of_a_prompt():
    # of 16 rollouts 12 right: mean .75, sample std .447; of 8 none: 0 and 0
    statistics = PromptStatistics(torch.tensor([0.75, 0.0]), torch.tensor([0.447, 0.0]))
    rewards = torch.tensor([1.0, 0.0, 0.0, NAN])
    assert statistics.advantages(rewards, "none").tolist() == [0.25, -0.75, 0.0, 0.0]
    found = statistics.advantages(rewards, "group", std_eps=0.0)[:2]
    assert found.tolist() == pytest.approx([0.25 / 0.447, -0.75 / 0.447])
    # the batch's rewards that are known, 1, 0, 0: std .5774
    assert statistics.advantages(rewards, "batch", std_eps=0.0)[0].item() == pytest.approx(
        0.25 / 0.57735, rel=1e-4
    )


def by_luck(prompts, completions, **kwargs):
    """By prompt, always right, never, or by the completion: one in four or three in four."""
    shares = [1.0, 0.0, 0.25, 0.75]
    draws = [random.Random(crc(p + c)).random() for p, c in zip(prompts, completions, strict=True)]
    return [float(draw < shares[crc(p) % 4]) for p, draw in zip(prompts, draws, strict=True)]


def test_a_prompt_is_sampled_until_half_of_a_group_can_be_right_and_half_wrong(
    policy, tmp_path, monkeypatch
):
    """Against the rule written down as a loop over what came out."""
    made, generate_round = [], Rounds.generate

    def generate(self, prompts):
        found = generate_round(self, prompts)
        made.append(([row["prompt"] for row in found.rows], found.rewards_NF[:, 0].tolist()))
        return found

    monkeypatch.setattr(Rounds, "generate", generate)
    settings = dict(
        max_steps=6, adaptive_sampling_rounds=3, scale_rewards="none", advantage_estimator="grpo"
    )
    trainer = trained(policy, tmp_path, reward=by_luck, num_problems=12, **settings)
    rounds, num_generated, num_more = iter(made), 0, 0
    for batch in trainer.batches:
        texts = trainer.processing_class.batch_decode(
            batch["prompt_ids"], skip_special_tokens=True
        )[::4]
        pools = {text: [] for text in texts}
        active = [*texts]
        for number in range(3):
            if not active:
                break
            prompts, rewards = next(rounds)
            assert prompts == [text for text in active for _ in range(4)]
            num_generated += len(prompts)
            num_more += number > 0
            for text, reward in zip(prompts, rewards, strict=True):
                pools[text].append(reward)
            active = [
                text for text in active if min(pools[text].count(1), pools[text].count(0)) < 2
            ]
        expected = []
        for pool in pools.values():
            mean = sum(pool) / len(pool)
            expected.append(sorted(pool[place] - mean for place in choose_rollouts(pool, 4)))
        advantages, counts = batch["advantages"], batch["completion_mask"]
        found = ((advantages * counts).sum(dim=1) / counts.sum(dim=1)).view(3, 4)
        assert [sorted(own) for own in found.tolist()] == [
            pytest.approx(own, abs=1e-6) for own in expected
        ]
    assert next(rounds, None) is None and num_more > 3
    log = trainer.state.log_history[-2]
    assert log["rollouts/generated_total"] == num_generated
    assert log["groups/unscorable"] == 0 and 0 < log["adaptive_sampling/mixed"] <= 1


def test_miner_sees_whole_groups_of_prompts_that_stayed_all_right(policy, tmp_path):
    settings = dict(max_steps=4, adaptive_sampling_rounds=2, log_token_credit=1)
    trainer = trained(policy, tmp_path, cls=Recording, reward=by_luck, num_problems=12, **settings)
    logs = [log for log in trainer.state.log_history if "groups/ph" in log]
    assert any(
        log["groups/ph"] > 0 and log["miner/tau_pos"] > 0 for log in logs if "miner/tau_pos" in log
    )
    # The ledger has each sampling of a prompt; what follows the first three is marked as further
    # samples.
    for batch in read_ledger(tmp_path).batches:
        assert len({*batch.prompts[:3]}) == 3 and [*batch.dropped] == [
            *range(3, len(batch.prompts))
        ]
        assert {*batch.prompts[3:]} <= {*batch.prompts[:3]}


def test_a_prompt_that_never_was_mixed_is_judged_by_its_first_group(policy, tmp_path):
    """All are right. The form is worth 0 in the first round of a batch and 1 in the second, which
    is not chosen."""
    forms = itertools.cycle([0.0, 1.0])

    def form(completions, **kwargs):
        return [next(forms)] * len(completions)

    right = lambda completions, **kwargs: [1.0] * len(completions)  # noqa: E731
    right.__name__ = "right"
    settings = dict(
        advantage_estimator="grpo",
        correct_reward_func="right",
        adaptive_sampling_rounds=2,
        max_steps=2,
    )
    trainer = trained(policy, tmp_path, reward=[right, form], cls=Recording, **settings)
    assert all((batch["advantages"] == 0).all() for batch in trainer.batches)
    log = trainer.state.log_history[0]
    assert (log["adaptive_sampling/rounds"], log["rewards/form/mean"], log["groups/ph"]) == (
        2,
        0,
        1,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            dict(dynamic_sampling=True, advantage_estimator="grpo"),
            "got dynamic_sampling=True. Leave one",
        ),
        (
            dict(multi_objective_aggregation="normalize_then_sum"),
            "got multi_objective_aggregation='normalize",
        ),
        (
            dict(advantage_estimator=f"{OF_FORKS}f_grpo"),
            "got advantage_estimator='.*f_grpo', which goes by",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        MinerGRPOConfig(
            str(tmp_path), use_cpu=True, bf16=False, **{"adaptive_sampling_rounds": 2, **settings}
        )
