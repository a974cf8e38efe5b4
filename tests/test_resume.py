"""A run that was stopped, or killed, goes on as if it had not been."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from harness import (
    OF_FORKS,
    At,
    Recording,
    call_on_ranks,
    config,
    in_a_fork,
    leave,
    metrics_of,
    mixed_reward,
    problems,
    stop_training,
)

from trl_miner.evaluation.in_training import EvaluationCallback
from trl_miner.runs import checkpoints, checksums
from trl_miner.runs.checkpoints import find_damage, find_fault
from trl_miner.runs.prompt_ledger import read_ledger
from trl_miner.training import checkpointing


def run(policy, folder, callbacks=(), resume=None):
    args = config(folder, max_steps=6, save_strategy="steps", save_steps=3)
    trainer = Recording(policy, mixed_reward, args, problems(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(policy, tmp_path_factory):
    return run(policy, tmp_path_factory.mktemp("whole"))


def assert_went_on(resumed, uninterrupted):
    """Steps 4 to 6: advantages, metrics, and the weights at the end."""
    for found, expected in zip(resumed.advantages, uninterrupted.advantages[3:], strict=True):
        assert torch.equal(found, expected)
    assert metrics_of(resumed)[:6] == metrics_of(uninterrupted)[:6]
    for found, expected in zip(
        resumed.model.parameters(), uninterrupted.model.parameters(), strict=True
    ):
        assert torch.equal(found, expected)


# Of a checkpoint inside a generation cycle or a pass, whatever the run is made of.

CYCLE = dict(per_device_train_batch_size=3, steps_per_generation=4)
DYNAMIC = CYCLE | dict(dynamic_sampling=True, advantage_estimator="grpo")
RUNS = {
    "a pass": {},
    "accumulation": dict(
        per_device_train_batch_size=3, steps_per_generation=8, gradient_accumulation_steps=2
    ),
    "bapo": CYCLE | dict(num_iterations=2, policy_loss="bapo", loss_type="dapo"),
    "clip_cov": dict(
        CYCLE,
        policy_loss="clip_cov",
        policy_loss_kwargs=dict(ratio=0.1, low=0.01),
        learning_rate=3e-2,
    ),
    "dose": CYCLE | dict(dose_share=0.01),
    "callbacks made anew": DYNAMIC | dict(restore_callback_states_from_checkpoint=True),
    "greso": dict(prompt_selection="greso", **DYNAMIC),
    "boundary gate": CYCLE | dict(advantage_estimator=f"{OF_FORKS}boundary_gate"),
    "rounds and thompson": (
        CYCLE
        | dict(adaptive_sampling_rounds=3, prompt_selection="thompson", advantage_estimator="grpo")
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_from_any_step_as_if_it_had_not_been_stopped(policy, tmp_path, name, caplog):
    """The prompts come in a random order; step 3 of "a pass" lies in the second pass, of the others
    in the first."""
    data = problems(7 if name == "a pass" else 13)

    def train(resume=None):  # with what leaves rollouts alone changed
        changes = dict(log_completions=bool(resume), num_completions_to_print=0)
        saves = dict(max_steps=6, save_strategy="steps", save_steps=3, shuffle_dataset=True)
        trainer = Recording(
            policy, mixed_reward, config(tmp_path, **saves, **changes, **RUNS[name]), data
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer, read_ledger(tmp_path).batches

    whole, ledger = train()
    is_inside = whole.args.steps_per_generation > 1 or whole.args.num_iterations > 1
    assert (tmp_path / "checkpoint-3" / "rollouts_0.pt").is_file() == is_inside
    resumed, same_ledger = train(str(tmp_path / "checkpoint-3"))
    assert metrics_of(resumed)[:6] == metrics_of(whole)[:6] and same_ledger == ledger
    assert len(resumed.advantages) < len(whole.advantages)
    for found, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert "differ" not in caplog.text and "generated again" not in caplog.text


def test_latest_goes_on_from_the_way_that_a_resume_from_an_earlier_checkpoint_took(
    policy, tmp_path
):
    def train(resume, **more):
        args = config(tmp_path, max_steps=6, save_strategy="steps", save_steps=2)
        trainer = Recording(policy, mixed_reward, args, problems(), **more)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step

    assert train(None) == 6
    assert train(str(tmp_path / "checkpoint-2"), callbacks=[At(3, stop_training)]) == 3
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-2"  # not those of steps 4 and 6
    left = [
        path for path in tmp_path.glob("left-1-checkpoint-*") if not checkpoints.find_fault(path)
    ]
    assert sorted(path.name[-1] for path in left) == ["4", "6"]


# A run that has done all its steps.


def stamps(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "length", [dict(max_steps=6), dict(max_steps=-1, num_train_epochs=0.125)], ids=str
)
def test_a_run_that_has_done_its_steps_makes_no_more(
    policy, tmp_path, length, uninterrupted, capsys
):
    """48 problems, 3 in each step: an eighth of an epoch is 2 steps, of a checkpoint within and at
    the end of it."""
    whole = uninterrupted
    if "num_train_epochs" in length:
        args = config(tmp_path, **length, save_strategy="steps", save_steps=2)
        whole = Recording(policy, mixed_reward, args, problems())
        whole.train()
    steps, folder = whole.state.global_step, Path(whole.args.output_dir)
    assert steps == (6 if length["max_steps"] == 6 else 2)
    before = stamps(folder)
    for wanted in ("latest", str(folder / f"checkpoint-{steps}")):
        args = config(folder, **length, save_strategy="steps", save_steps=2)
        again = Recording(policy, mixed_reward, args, problems())
        result = again.train(resume_from_checkpoint=wanted)
        assert result.global_step == again.state.global_step == steps and again.advantages == []
        for found, expected in zip(again.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(found, expected)
    assert (
        f"No step is left: checkpoint-{steps} has done {steps} of {steps}."
        in capsys.readouterr().out
    )
    after = stamps(folder)
    assert {path for path in before | after if before.get(path) != after.get(path)} <= {
        folder / ".training.lock",
        folder / "training.json",
    }


# A checkpoint that is not whole.


class Dies(Recording):
    """SIGKILL in the second checkpoint: when the optimizer is not written, or when all is, and the
    first should go."""

    def _save_optimizer_and_scheduler(self, output_dir):
        if self.state.global_step == 6 and self.is_early:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


def die(policy, folder, limit):
    if limit is not None:
        finish = checkpoints.finish
        checkpoints.finish = lambda one, *read: (
            os.kill(os.getpid(), signal.SIGKILL) if "-6" in one.name else finish(one, *read)
        )
    args = config(folder, max_steps=6, save_strategy="steps", save_steps=3, save_total_limit=limit)
    trainer = Dies(policy, mixed_reward, args, problems())
    trainer.is_early = limit is None
    trainer.train()


@pytest.mark.parametrize("limit", [None, 1])
def test_a_checkpoint_killed_while_it_is_written_is_never_picked(
    policy, tmp_path, uninterrupted, limit
):
    code, said = in_a_fork(die, policy, tmp_path, limit)
    assert code == -signal.SIGKILL, said[-3000:]
    assert (tmp_path / "checkpoint-6" / "model.safetensors").is_file()
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-3"
    (tmp_path / "checkpoint-6" / "left_over").touch()
    assert_went_on(run(policy, tmp_path, resume="latest"), uninterrupted)
    assert not (tmp_path / "checkpoint-6" / "left_over").exists()


@pytest.fixture
def damaged(tmp_path, uninterrupted):
    """Return a copy of the uninterrupted run's folder."""
    shutil.copytree(uninterrupted.args.output_dir, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"]
)
def test_a_checkpoint_with_a_file_cut_off_or_gone_is_not_whole(damaged, name):
    last = damaged / "checkpoint-6"
    (last / "training_args.bin").unlink()  # nothing reads it, and what is pushed does not have it
    assert find_damage(last) == ""
    content = (last / name).read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        (last / name).write_bytes(content[:size])
        assert name in find_fault(last), size
    (last / name).unlink()
    assert (
        f"{name} is missing" in find_fault(last)
        and checkpoints.newest(damaged) == damaged / "checkpoint-3"
    )


def test_latest_passes_over_a_damaged_checkpoint_with_its_reason(
    policy, damaged, uninterrupted, caplog
):
    (damaged / "checkpoint-6" / "optimizer.pt").write_bytes(b"")
    assert_went_on(run(policy, damaged, resume="latest"), uninterrupted)
    assert "checkpoint-6 is passed over: optimizer.pt is missing or cut off" in caplog.text


def test_a_damaged_checkpoint_that_is_named_is_an_error(policy, damaged):
    trainer = Recording(policy, mixed_reward, config(damaged), problems())
    (damaged / "checkpoint-6" / "rng_state.pth").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-6 is not complete: rng_state.pth is missing"):
        trainer.train(resume_from_checkpoint=str(damaged / "checkpoint-6"))
    (damaged / "checkpoint-3" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"needs a .*-3: model.safetensors is missing or cut off"):
        trainer.train(resume_from_checkpoint="latest")


# A checkpoint whose files have their sizes, and other contents.


def flip(path, place):
    """Turn a bit of a file around."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_one_bit_or_a_file_of_zeros_is_named_whatever_file_it_is(damaged, monkeypatch):
    last = damaged / "checkpoint-6"
    monkeypatch.setattr(checksums, "PIECE", 2000)  # the model has several
    checkpoints.finish(last)
    names = list(json.loads((last / "files.json").read_text()))
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} < {*names}
    for name in names:
        content = (last / name).read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            flip(last / name, place)
            assert re.match(rf"{name} (has changed|is missing or damaged)", find_damage(last))
            (last / name).write_bytes(content)
        (last / name).write_bytes(bytes(len(content)))
        assert name in find_damage(last)
        (last / name).write_bytes(content)
    assert find_damage(last) == ""
    (last / "files.json").write_text('{"model.safetensors": 1}')
    assert find_damage(last) == "files.json is damaged"


def test_latest_goes_on_from_the_older_checkpoint_where_a_bit_has_flipped(
    policy, damaged, uninterrupted, caplog
):
    flip(damaged / "checkpoint-6" / "model.safetensors", -1)
    assert_went_on(run(policy, damaged, resume="latest"), uninterrupted)
    (line,) = [text for text in caplog.messages if "passed over" in text]
    assert line == (
        "checkpoint-6 is passed over: model.safetensors has changed since it was written."
    )


def test_a_named_checkpoint_with_a_flipped_bit_is_refused_and_the_whole_one_is_named(
    policy, damaged
):
    flip(damaged / "checkpoint-6" / "scheduler.pt", 99)
    trainer = Recording(policy, mixed_reward, config(damaged), problems())
    whole = "scheduler.pt has changed .* Restore it, or resume from checkpoint-3, which is whole"
    with pytest.raises(ValueError, match=whole):
        trainer.train(resume_from_checkpoint=str(damaged / "checkpoint-6"))


def test_a_checkpoint_may_be_moved_and_linked_but_not_be_named_as_another_step(
    policy, damaged, uninterrupted, tmp_path
):
    shutil.rmtree(damaged / "checkpoint-6")
    (damaged / "checkpoint-3").rename(damaged / "checkpoint-33")  # newer than all that follow
    with pytest.raises(ValueError, match="it is of step 3. Name it checkpoint-3 again"):
        run(policy, damaged, resume="latest")
    (damaged / "checkpoint-33").rename(tmp_path / "moved")
    (damaged / "checkpoint-3").symlink_to(tmp_path / "moved")
    assert_went_on(run(policy, damaged, resume="latest"), uninterrupted)


def test_all_files_are_on_the_disk_before_the_checkpoint_is_marked(policy, tmp_path, monkeypatch):
    marked, before, after = tmp_path / "checkpoint-1" / "files.json", set(), set()

    def fsync(descriptor):
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        (after if marked.exists() else before).add(place)

    monkeypatch.setattr(os, "fsync", fsync)
    args = config(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    Recording(policy, mixed_reward, args, problems()).train()
    names = [*json.loads(marked.read_text()), ".files.json.tmp"]
    assert {str(marked.parent / name) for name in names} < before and str(marked.parent) in after


def save_on_a_rank(policy, folder):
    """Train a step, save, and note which pieces of the files this process has read."""

    def read(checkpoint, pieces):
        Path(folder, f"read_{os.environ['RANK']}").write_text(json.dumps(pieces))
        return digests_of(checkpoint, pieces)

    checksums.PIECE, digests_of, checkpointing.digests_of = 5000, checksums.digests_of, read
    settings = dict(max_steps=1, per_device_train_batch_size=6, num_generations=6)
    args = config(folder, **settings, save_strategy="steps", save_steps=1)
    Recording(policy, mixed_reward, args, problems()).train()
    args.max_steps = 2
    again = Recording(policy, mixed_reward, args, problems())
    again.train(resume_from_checkpoint="latest")
    assert again.state.global_step == 2
    leave()


def test_two_processes_share_the_reading_of_what_they_have_written_and_go_on(
    policy, tmp_path, monkeypatch
):
    call_on_ranks(2, save_on_a_rank, policy, str(tmp_path))
    first, second = (json.loads((tmp_path / f"read_{rank}").read_text()) for rank in (0, 1))
    monkeypatch.setattr(checksums, "PIECE", 5000)
    pieces = checksums.pieces_of(checkpoints.sizes_of(tmp_path / "checkpoint-2"))
    assert sorted(map(tuple, first + second)) == sorted(pieces)
    assert abs(len(first) - len(second)) <= 1 and len(pieces) > 20
    assert find_damage(tmp_path / "checkpoint-1") == find_damage(tmp_path / "checkpoint-2") == ""


def test_a_checkpoint_of_the_model_alone_is_no_start(policy, tmp_path):
    args = config(tmp_path, max_steps=1, save_only_model=True, save_strategy="steps", save_steps=1)
    Recording(policy, mixed_reward, args, problems()).train()
    with pytest.raises(
        ValueError, match="it holds the model alone .* give it as model_name_or_path"
    ):
        Recording(policy, mixed_reward, args, problems()).train(resume_from_checkpoint="latest")


def test_the_best_checkpoint_outlives_the_rotation(policy, tmp_path):
    settings = dict(
        eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, max_steps=4
    )
    settings |= dict(
        metric_for_best_model="reward", load_best_model_at_end=True, per_device_eval_batch_size=12
    )
    args = config(tmp_path, save_total_limit=1, **settings)
    trainer = Recording(policy, mixed_reward, args, problems(), eval_dataset=problems(6))
    trainer.train()  # and load the best at the end
    best = str(tmp_path / f"checkpoint-{trainer.state.best_global_step}")
    assert trainer.state.best_model_checkpoint == best and Path(best, "model.safetensors").is_file()
    saved = json.loads((checkpoints.newest(tmp_path) / "trainer_state.json").read_text())
    assert saved["best_model_checkpoint"] == best


def test_the_last_checkpoint_stays_beside_the_best_where_one_may_be_kept(policy, tmp_path):
    """The smallest reward is that of the first evaluation, or of a later one: the last stays."""
    settings = dict(
        eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, max_steps=3
    )
    settings |= dict(metric_for_best_model="loss", load_best_model_at_end=True, save_total_limit=1)
    args = config(tmp_path, **settings, per_device_eval_batch_size=12)
    trainer = Recording(policy, mixed_reward, args, problems(), eval_dataset=problems(3))
    losses = iter([1.0, 2.0, 3.0])
    evaluate = trainer.evaluate
    trainer.evaluate = lambda *some, **more: evaluate(*some, **more) | {"eval_loss": next(losses)}
    trainer.train()
    assert trainer.state.best_global_step == 1 and trainer.args.save_total_limit == 1
    assert [path.name for path in checkpoints.list_checkpoints(tmp_path)] == [
        "checkpoint-1",
        "checkpoint-3",
    ]


def best_of(policy, folder, metric, score=True):
    settings = dict(
        eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, max_steps=2
    )
    settings |= dict(metric_for_best_model=metric, load_best_model_at_end=True)
    args = config(folder, **settings, per_device_eval_batch_size=12, greater_is_better=True)
    trainer = Recording(policy, mixed_reward, args, problems(), eval_dataset=problems(3))
    if score:
        trainer.add_callback(EvaluationCallback(trainer, problems(6), num_samples=2))
    trainer.train()
    return trainer


@pytest.mark.parametrize("metric", ["eval_pass@1", "pass@2", "rewards/mixed_reward/mean"])
def test_a_held_out_score_can_choose_the_best_model(policy, tmp_path, metric):
    trainer = best_of(policy, tmp_path, metric)
    name = metric.removeprefix("eval_")
    values = [log[f"eval_{name}"] for log in trainer.state.log_history if f"eval_{name}" in log]
    assert trainer.state.best_metric == max(values) and len(values) == 2


@pytest.mark.parametrize(("metric", "score"), [("eval_pass@1", False), ("accuracy", True)])
def test_a_best_metric_that_no_evaluation_has_is_told_before_the_first_step(
    policy, tmp_path, metric, score
):
    known = "Set one of loss, reward, rewards/mixed_reward/mean" + ", pass@1, pass@2" * score
    with pytest.raises(ValueError, match="metric_for_best_model must be a metric") as error:
        best_of(policy, tmp_path, metric, score)
    assert known in str(error.value) and not list(tmp_path.iterdir())


def test_resuming_from_nothing(policy, tmp_path):
    trainer = Recording(policy, mixed_reward, config(tmp_path, max_steps=1), problems())
    with pytest.raises(ValueError, match="there is none"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(
        ValueError, match="No checkpoint at .*checkpoint-9: the folder does not exist"
    ):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))
    trainer.train(resume_from_checkpoint="latest")
    assert trainer.state.global_step == 1
