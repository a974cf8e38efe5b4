"""The time left of a comparison, from what its runs have shown."""

from pathlib import Path

from trl_miner.compare.progress import ComparisonProgress, Forecast
from trl_miner.progress import duration
from trl_miner.runs.steps import forget_steps, read_steps, write_steps

HERE = Path()


def drive(forecast, jobs, lengths, tail=10.0):
    """Run all runs of the forecast in the order of their numbers: 20 s to the first step, `lengths` of (steps, seconds
    of a step), 10 s after the last. Return what was foretold each second, and when it really ended."""
    waiting, ends, begun, foretold, now = list(lengths), {}, {}, [], 0.0
    while waiting or ends:
        while waiting and len(ends) < jobs:
            number = waiting.pop(0)
            forecast.begin(number, "", HERE, now)
            steps, per_step = lengths[number]
            begun[number], ends[number] = now, now + 20 + steps * per_step + tail
        now += 1
        for number in list(ends):
            steps, per_step = lengths[number]
            done = int((now - begun[number] - 20) / per_step + 1e-9)
            if now - begun[number] >= 20:
                forecast.running[number].see(min(steps, done), steps, now)
            if now >= ends[number]:
                forecast.end(number, now)
                del ends[number]
        foretold.append(forecast.seconds_left(now))
    return foretold, now


def test_the_time_left_of_one_run_counts_its_rest_and_all_that_wait():
    forecast = Forecast({0: "grpo", 1: "grpo", 2: "miner"}, jobs=1)
    assert forecast.seconds_left(0) is None
    forecast.begin(0, "", HERE, 0)
    forecast.running[0].see(0, 100, 20)  # 20 s to the first step
    forecast.running[0].see(10, 100, 40)  # 2 s each
    # 90 steps * 2 s + a tail as long as the head, 20 s; two more runs of 20 + 100 * 2 + 20 s
    assert forecast.seconds_left(40) == 200 + 2 * 240
    assert forecast.seconds_left(41) == 199 + 2 * 240
    forecast.running[0].see(100, 100, 220)
    forecast.end(0, 230)  # the tail was 10 s: 20 + 100 * 2 + 10
    assert forecast.seconds_left(230) == 2 * 230


def test_it_falls_steadily_and_is_right_over_runs_of_several_recipes_and_jobs():
    lengths = {number: (50, 2.0) for number in range(7)}
    for jobs in (1, 2, 3):
        foretold, end = drive(Forecast({number: "a" for number in lengths}, jobs), jobs, lengths)
        known = [(now, left) for now, left in enumerate(foretold, 1) if left is not None]
        rises = [later - left for (_, left), (_, later) in zip(known, known[1:], strict=False)]
        assert max(rises) <= 0
        # each run takes 130 s; at first its tail is taken for 20 s, not 10: 10 of 130 too much
        assert all(0 <= now + left - end <= end / 13 + 2 for now, left in known)


def test_runs_of_the_same_recipe_tell_more_than_others():
    forecast = Forecast({0: "slow", 1: "fast", 2: "slow", 3: "fast"}, jobs=1)
    for number, per_step in ((0, 10), (1, 1)):
        forecast.begin(number, "", HERE, 0)
        forecast.running[number].see(0, 10, 0)
        forecast.running[number].see(10, 10, 10 * per_step)
        forecast.end(number, 10 * per_step)
    assert forecast.seconds_left(0) == 100 + 10  # another slow one and another fast one


def test_runs_too_short_to_be_seen_twice_are_reckoned_as_a_whole():
    forecast = Forecast({0: "a", 1: "a", 2: "a"}, jobs=2)
    forecast.begin(0, "", HERE, 0)
    forecast.running[0].see(2, 2, 20)
    forecast.end(0, 25)
    assert forecast.seconds_left(25) == 25  # both at once


def test_a_resumed_run_and_one_that_fails_do_not_mislead():
    forecast = Forecast({0: "a", 1: "a", 2: "a"}, jobs=1)
    forecast.begin(0, "", HERE, 0)
    forecast.end(0, 5)  # failed before its first step
    assert forecast.seconds_left(5) is None
    forecast.begin(1, "", HERE, 10)
    forecast.running[1].see(80, 100, 20)
    forecast.running[1].see(90, 100, 30)  # 1 s each, whatever was done before
    assert forecast.seconds_left(30) == (10 + 10) + (10 + 100 + 10)


def test_the_line_says_which_run_which_step_its_speed_and_the_time_left_of_all(tmp_path):
    progress = ComparisonProgress(3, {1: "grpo", 2: "miner"}, jobs=2)
    assert progress.state() == "1 of 3 runs, 0 s"  # one had finished before
    progress.begin(1, "grpo seed 2", tmp_path)
    assert progress.state() == "run 2 of 3: grpo seed 2, before its first step"
    write_steps(tmp_path, 4, 100)
    progress._look()
    pace = progress._forecast.running[1]
    pace.see(8, 100, pace.last)  # 4 steps in 10 s
    pace.begun, pace.first = pace.last - 20, pace.last - 10
    progress.begin(2, "miner seed 2", tmp_path / "other")
    # 92 * 2.5 s + 10 s beside 10 + 100 * 2.5 + 10 s
    assert progress.state() == (
        f"runs 2, 3 of 3, {duration(270)} left in all: grpo seed 2, step 8 of 100, 2.5 s each; miner seed 2, before "
        f"its first step"
    )
    forget_steps(tmp_path)
    assert read_steps(tmp_path) is None
