"""`prompt_selection`: which prompts are passed over, by the lines of the ledger, and what a
training makes of it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from harness import (
    OF_FORKS,
    call_on_ranks,
    config,
    metrics_of,
    mixed_reward,
    problems,
    rollouts_by_place,
)
from torch.distributed import destroy_process_group

from trl_miner.runs.prompt_ledger import FILE, Batch, read_ledger
from trl_miner.trainer.prompts import PromptStream
from trl_miner.trainer.selection import Greso, Selection, Thompson
from trl_miner.training import RunTrainer

KEYS = [f"{number:016x}" for number in range(2000)]


def line(correct, *, prompts=None, skipped=(), new=(), scored=4, spread=None, rollouts=4):
    """Return a batch in which prompts 0, 1, ... have so many right rollouts."""
    prompts = prompts or range(len(correct))
    spread = spread or [float(0 < c < rollouts) for c in correct]
    scored = [scored] * len(correct)
    return Batch(1, rollouts, [*prompts], correct, scored, spread, new, (), skipped)


def observe(made, batch):
    """Have a selection observe a batch; with `new`, a mixed prompt that it has never seen is in
    it."""
    keys = [KEYS[number] for number in batch.prompts]
    if batch.new:
        more = dict(correct=[*batch.correct, 2], scored=[*batch.scored, 4])
        batch = replace(batch, **more, spread=[*batch.spread, 1.0])
        keys.append(f"new {len(made.pasts)}")
    made.observe(batch, keys)


def selection(batches=(), **settings):
    """Return what has observed batches, after a pass over all prompts in which each was mixed."""
    made = Greso(3, **settings)
    made.pasts = {key: ("", 0) for key in KEYS[:12]}
    for batch in batches:
        observe(made, batch)
    return made


def skipped(made, count):
    return [made.skips(key) for key in KEYS[:count]]


# GRESO


@pytest.mark.parametrize("correct", [4, 0])
def test_a_prompt_is_passed_over_with_one_less_p_to_the_number_of_visits(correct):
    """p stays 1/2 in batches with a new prompt: 1 - 1/2, 1 - 1/4, and 1 - 1/100 from the seventh
    visit on."""
    batch = line([correct] * 2000, new=[["x", ""]])
    for visits, expected in ((1, 0.5), (2, 0.75), (3, 0.875), (12, 0.99)):
        made = selection(batches=[batch] * visits)
        assert made.p == {"easy": 0.5, "hard": 0.5}
        assert sum(skipped(made, 2000)) / 2000 == pytest.approx(expected, abs=0.03)
        assert skipped(made, 50) == skipped(made, 50)


def test_only_what_taught_nothing_at_its_last_visit_is_passed_over():
    batches = [
        line([4, 0, 4, 4, 0, 3]),
        line([2, 1, 0, 4, 0, 4], spread=[1, 1, 0, 0.5, 0, 0], scored=4),
    ]
    made = selection(batches=batches)
    # mixed, mixed, wrong after right, right with unequal rewards, wrong twice, right
    assert [made.pasts[key][1] for key in KEYS[:6]] == [0, 0, 1, 0, 2, 1]
    gated = selection(batches=batches, by_correctness=True)
    assert [gated.pasts[key][1] for key in KEYS[:6]] == [0, 0, 1, 2, 2, 1]
    # not known to be wrong
    assert {*selection(batches=[line([0, 0], scored=3)]).pasts.values()} == {("", 0)}
    assert not made.skips(KEYS[20])  # never seen


def test_p_is_steered_towards_the_target_behind_the_first_pass():
    """Of 12 prompts a twelfth may be easy and two be hard (0.25 / 3 and 0.5 / 3)."""
    assert selection(batches=[line([4] * 12, new=[["x", ""]])]).p == {"easy": 0.5, "hard": 0.5}
    found = selection(batches=[line([4] * 1 + [0] * 1 + [2] * 10)]).p
    assert found == pytest.approx({"easy": 0.49, "hard": 0.51})
    assert selection(batches=[line([4] * 12)] * 60).p == pytest.approx({"easy": 0.05, "hard": 0.95})


# The stream


class Chosen(Selection):
    """Skips some prompts, and ranks others behind."""

    def __init__(self, over=(), behind=(), candidates=1):
        super().__init__(3)
        self.over, self.behind, self.candidates = {*over}, {*behind}, candidates

    def skips(self, key):
        return int(key) in self.over

    def _rank(self, key):
        return int(key) in self.behind


def test_a_prompt_that_is_passed_over_comes_in_the_next_pass_and_none_is_lost():
    selection = Chosen(over={1, 3})
    stream = PromptStream(range(6), 6, selection)
    assert stream.draw(3, set()) == [0, 2, 4]
    selection.over.clear()
    assert [stream.draw(3, set()), stream.draw(3, set())] == [[5, 0, 1], [2, 3, 4]]


def test_where_too_few_are_left_those_that_came_up_first_come_back():
    stream, taken = PromptStream(range(6), 6, Chosen(over=range(2, 6))), set()
    assert stream.draw(4, taken) == [0, 1, 2, 3] and taken == {0, 1, 2, 3}
    assert stream.draw(4, taken) == [4, 5]  # the rest of the data


# Thompson


def test_a_candidate_is_ranked_by_a_draw_from_its_posterior():
    """30 of 40 right: Beta(31, 11), mean .738; never sampled: Beta(1, 1), on average .25 from one
    half."""
    made = Thompson(3)
    known = [made._rank(key) for key in KEYS]
    assert sum(known) / 2000 == pytest.approx(0.25, abs=0.01) and known == [
        made._rank(key) for key in KEYS
    ]
    for _ in range(10):
        observe(made, line([3] * 2000))
    drawn = [made._rank(key) for key in KEYS]
    assert sum(drawn) / 2000 == pytest.approx(31 / 42 - 0.5, abs=0.01)
    observe(made, line([0] * 2000, scored=0))  # nothing could be scored
    assert sum(made._rank(key) for key in KEYS) == pytest.approx(sum(drawn), rel=0.05)


def test_of_the_candidates_the_best_are_drawn_and_the_others_wait_for_the_next_pass():
    selection = Chosen(behind={0, 2, 4, 6, 8}, candidates=3)
    stream, taken = PromptStream(range(9), 9, selection), set()
    assert stream.draw(2, taken) == [1, 3] and taken == {1, 3}
    assert [*selection.left_out] == ["0", "2", "4", "5"]
    assert stream.draw(2, set()) == [7, 1]  # 6, 7, 8, and the first of the next pass


# In a training

# Two steps to a generation, whose rows TRL deals out to them by the process: weights that stay have
# the same rollouts.
SETTINGS = dict(
    max_steps=8,
    steps_per_generation=2,
    per_device_train_batch_size=6,
    shuffle_dataset=True,
    learning_rate=0.0,
    max_completion_length=7,
)


def train(policy, folder, resume=None, rows=9, **settings):
    args = config(folder, ddp_find_unused_parameters=False, **SETTINGS | settings)
    trainer = RunTrainer(policy, mixed_reward, args, problems(rows), rollout_func=rollouts_by_place)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


CASES = {
    "greso": dict(prompt_selection="greso"),
    "dynamic": dict(prompt_selection="greso", dynamic_sampling=True, advantage_estimator="grpo"),
}
# Others that go by the ledger
READERS = CASES | {
    "gate": dict(advantage_estimator=f"{OF_FORKS}boundary_gate"),
    "rounds thompson": dict(
        adaptive_sampling_rounds=3, prompt_selection="thompson", advantage_estimator="grpo"
    ),
}


ON_RANKS = [name for name in READERS if name != "greso"]


def train_on_a_rank(policy, folder):
    for name in ON_RANKS:
        train(policy, folder / name, **READERS[name] | dict(per_device_train_batch_size=3))
    destroy_process_group()


@pytest.fixture(scope="module")
def runs(policy, tmp_path_factory):
    """By case, the trainer and its ledger."""
    folder = tmp_path_factory.mktemp("runs")
    trainers = {
        name: train(policy, folder / name, save_strategy="steps", save_steps=3, **settings)
        for name, settings in READERS.items()
    }
    return {name: (trainer, read_ledger(folder / name)) for name, trainer in trainers.items()}


@pytest.mark.parametrize("name", CASES)
def test_what_is_passed_over_is_recorded_and_logged(runs, name):
    trainer, ledger = runs[name]
    logs = [log for log in metrics_of(trainer) if "selection/skipped" in log]
    assert [len(batch.skipped) for batch in ledger.batches] == [
        log["selection/skipped"] for log in logs
    ]
    assert any(batch.skipped for batch in ledger.batches)
    assert not any({*batch.skipped} & {*batch.prompts} for batch in ledger.batches)
    seen = {number for batch in ledger.batches for number in batch.prompts}
    assert seen == set(range(9))  # the first pass has all


def test_the_boundary_gate_is_shut_at_prompts_that_were_answered_before(runs):
    trainer, ledger = runs["gate"]
    found = [
        log["boundary_gate/closed"] for log in metrics_of(trainer) if "boundary_gate/closed" in log
    ]
    solved, expected = set(), []
    for batch in ledger.batches:
        expected.append(sum(number in solved for number in batch.prompts) / 3)
        solved |= {
            number for number, correct in zip(batch.prompts, batch.correct, strict=True) if correct
        }
    assert found == pytest.approx(expected) and found[0] == 0 < found[-1]


@pytest.mark.slow
def test_two_processes_choose_as_one(policy, runs, tmp_path):
    call_on_ranks(2, train_on_a_rank, policy, tmp_path)
    for name in ON_RANKS:
        assert list(read_ledger(tmp_path / name).batches) == list(runs[name][1].batches), name


def test_a_resumed_run_needs_its_checkpoint_alone(policy, runs, tmp_path):
    """The ledger is a log: with lines missing, or without it, the run goes on as it would."""
    trainer, _ = runs["greso"]
    checkpoint = f"{trainer.args.output_dir}/checkpoint-3"
    lines = Path(trainer.args.output_dir, FILE).read_bytes().splitlines(keepends=True)
    for place, content in enumerate((lines[:1], None)):
        copy = shutil.copytree(checkpoint, tmp_path / f"{place}" / "checkpoint-3")
        shutil.copy(Path(trainer.args.output_dir, "training.json"), copy.parent)
        if content is not None:
            (copy.parent / FILE).write_bytes(b"".join(content))
        resumed = train(policy, tmp_path / f"resumed{place}", str(copy), **CASES["greso"])
        assert metrics_of(resumed)[:8] == metrics_of(trainer)[:8]


@pytest.mark.parametrize(
    "settings", [dict(prompt_selection="greso"), dict(adaptive_sampling_rounds=2)], ids=str
)
def test_a_stream_and_too_few_prompts_are_refused(policy, tmp_path, settings):
    args = config(tmp_path, **settings)
    with pytest.raises(ValueError, match="draws prompts by their index: got a streaming"):
        RunTrainer(policy, mixed_reward, args, problems(9).to_iterable_dataset())
    with pytest.raises(ValueError, match="at least two batches: got 5 prompts for batches of 3"):
        RunTrainer(policy, mixed_reward, args, problems(5))


def test_the_draws_are_others_in_each_batch_and_for_each_seed():
    batch = line([4] * 64, new=[["x", ""]])
    made = selection(batches=[batch])
    first = skipped(made, 64)
    observe(made, line([2], prompts=[64], new=[["y", ""]]))
    other = Greso(4)
    observe(other, batch)
    assert first != skipped(made, 64) and first != skipped(other, 64)
