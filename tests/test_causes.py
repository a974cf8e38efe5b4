"""Why a run does not learn: each cause on rollouts and logs that were made for it."""

import pytest
from harness import build_policy, config, problems
from rollout_files import LOG, SIZE, STEPS, at, by_prompt, nothing, write_run
from trl import GRPOConfig, GRPOTrainer

from trl_miner.viewing.causes import Evidence, find_causes
from trl_miner.viewing.inputs import read_inputs


def causes_of(folder):
    inputs = read_inputs([folder])
    return find_causes(Evidence(inputs.outcomes.get(folder), inputs.runs[0].columns))


GOOD, BAD = "It is \\boxed{7}.", "It is \\boxed{8}."
PROSE = (
    "The sum of the first and the second number is what is asked for, so that one adds them up. "
)


@pytest.mark.parametrize(
    ("expected", "run"),
    [
        ([], dict(right=at(lambda t: 0.2 + 0.6 * t), logs=LOG)),  # healthy
        ([], dict(right=at(0.5), logs=LOG)),  # no progress, and nothing that would say why
        ([], dict(right=by_prompt)),
        (["no_right_answer"], dict(right=nothing)),
        (["no_right_answer"], dict(right=at(lambda t: 0.002), steps=60)),
        (["all_right"], dict(right=at(0.999), logs=LOG)),
        (["equal_rewards"], dict(logs=LOG | {"frac_reward_zero_std": lambda t: 0.95})),
        (["cut"], dict(right=at(0.4), logs=LOG | {"completions/clipped_ratio": lambda t: 0.6})),
        (["cut"], dict(right=at(0.4), cut=lambda rng, verdict: not verdict)),
        ([], dict(right=at(0.4), cut=lambda rng, verdict: verdict)),  # the cut ones are the right ones
        (["cut"], dict(logs=LOG | {"completions/clipped_ratio": lambda t: 0.6})),
        # an answer that is accepted one time and refused the next
        (["rejected"], dict(right=at(0.4), text=lambda rng, step, verdict: GOOD)),
        # a gold that the run's own verifier does not see
        (["rejected"], dict(right=at(0.3), gold="7", text=lambda rng, step, v: BAD if v else GOOD)),
        (["no_right_answer", "rejected"], dict(right=nothing, text=lambda rng, step, v: GOOD)),
        (["another_reward"], dict(right=by_prompt, form=lambda rng, *_, size=SIZE: rng.random(size))),
        ([], dict(right=at(0.5), form=lambda rng, *_, size=SIZE: 0.1 * rng.random(size))),
        (["small_groups"], dict(right=at(0.06), size=4)),
        (["small_groups"], dict(right=at(0.1), size=2)),
        (["learning_rate_high"], dict(logs=LOG | {"reward": lambda t: 0.6 * (t < 0.5)})),
        (["learning_rate_low"], dict(right=at(0.5), logs=LOG | {"entropy": lambda t: 0.5})),
        (["entropy"], dict(right=at(0.4), logs=LOG | {"entropy": lambda t: 0.5 * (1 - t) ** 3})),
        (["same_texts"], dict(right=by_prompt, same=True, text=lambda rng, step, v: f"{PROSE}{v}")),
        (
            ["hacked"],
            dict(
                right=at(0.5),
                form=lambda rng, step, place, size: step / STEPS + 0 * rng.random(size),
                text=lambda rng, step, v: " ".join(map(str, rng.integers(0, 10**6, 30 + 3 * step))),
            ),
        ),
        (
            ["hacked"],
            dict(
                right=at(0.5),
                form=lambda rng, step, place, size: step / STEPS + 0 * rng.random(size),
                text=lambda rng, step, v: PROSE * (3 if step < 20 else 2) + "so " * (step > 20) * 200,
            ),
        ),
    ],
)  # fmt: skip
def test_a_run_shows_its_cause_and_no_other(tmp_path, expected, run):
    causes = causes_of(write_run(tmp_path / "run", **run))
    assert [cause.key for cause in causes] == expected, causes
    for cause in causes:
        assert 0 < cause.weight <= 1 and any(letter.isdigit() for letter in cause.evidence), cause


def test_few_rollouts_show_nothing(tmp_path):
    assert causes_of(write_run(tmp_path / "run", nothing, steps=2)) == []


def test_answers_that_became_too_long_are_not_blamed_on_the_limit_first(tmp_path):
    logs = LOG | {
        "reward": lambda t: 0.6 * (t < 0.5),
        "completions/clipped_ratio": lambda t: min(1.0, 2 * t),
    }
    found = causes_of(write_run(tmp_path / "run", logs=logs))
    assert [cause.key for cause in found] == ["learning_rate_high", "cut"]
    assert "At first it was 5%" in found[1].evidence  # 2 * 1 / 40


def never(completions, **kwargs):
    return [0.0 for _ in completions]


@pytest.mark.parametrize("log_completions", [True, False])
def test_a_run_of_trl_without_a_right_answer(tmp_path, log_completions):
    settings = dict(log_completions=log_completions, max_steps=8, num_completions_to_print=0)
    args = config(tmp_path / "run", cls=GRPOConfig, **settings)
    trainer = GRPOTrainer(build_policy(tmp_path / "policy"), never, args, problems())
    trainer.train()
    trainer.save_state()
    found = [cause.key for cause in causes_of(tmp_path / "run")]
    # an untrained model of 10 tokens also reaches the limit
    assert found == (["cut", "no_right_answer"] if log_completions else ["equal_rewards", "cut"])
