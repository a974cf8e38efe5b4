"""A run that hangs ends, names the phase and the step, and one that is only slow does not end."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest
from harness import answering, config, in_a_fork, mixed_reward, problems, start_on_ranks
from torch.distributed import TCPStore

import trl_miner
from trl_miner import MinerGRPOTrainer, heartbeat
from trl_miner.launching import peers
from trl_miner.launching.peers import Peers
from trl_miner.launching.server import ask
from trl_miner.launching.training_watchdog import TrainingWatchdog
from trl_miner.launching.watchdog import EXIT_CODE, SignsOfLife, Watchdog
from trl_miner.runs import checkpoints

LIMIT = 2.5  # a loaded machine may keep a process waiting for a second


def watched(action, phase, url=None):
    """Watch a process that does something in a phase; return its exit code and what it said."""

    def run():
        dog = Watchdog(LIMIT, server_url=url, where=lambda: "step 7")
        dog.start()
        with heartbeat.phase(phase, 6):
            action()
        dog.stop()

    return in_a_fork(run, seconds=60)


def read_for_ever():
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def get_on(seconds=60):
    for _ in range(10 * seconds):
        time.sleep(0.1)
        trl_miner.beat()


@contextlib.contextmanager
def vllm(*, grows=False, alive_for=60):
    """A server that answers as vLLM does: /health, and /metrics with a number of tokens."""
    start = time.monotonic()

    def answer(path, *_):
        tokens = time.monotonic() if grows else 7
        text = f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n' if "metrics" in path else ""
        return 200 if time.monotonic() < start + alive_for else 503, text

    with answering(answer) as url:
        yield url


def test_a_main_thread_that_waits_for_ever_ends_the_process_and_shows_where_it_was():
    code, said = watched(read_for_ever, "rewards")
    assert code == EXIT_CODE == 75
    assert "No process makes progress: process 0 is in phase 'rewards', step 7." in said
    assert "(watchdog_seconds)" in said and "--resume_from_checkpoint latest" in said and "in read_for_ever" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "action", "grows"),
    [
        ("rewards", lambda: get_on(5), None),
        (heartbeat.CHECKPOINT, lambda: time.sleep(2 * LIMIT), None),
        (heartbeat.GENERATION, lambda: time.sleep(2 * LIMIT), True),
    ],
)
def test_beats_a_checkpoint_and_a_server_that_generates_keep_a_slow_phase_alive(phase, action, grows):
    with vllm(grows=grows) if grows else contextlib.nullcontext() as url:
        assert watched(action, phase, url)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "alive_for", "words"),
    [
        (read_for_ever, 60, "No process makes progress, although the vLLM server at {url} answers: process 0 is in"),
        (get_on, 1, "The vLLM server at {url} does not answer: process 0 is in phase 'generation', step 7, without"),
    ],
)
def test_a_server_that_generates_nothing_or_is_gone_ends_the_process(action, alive_for, words):
    with vllm(alive_for=alive_for) as url:
        code, said = watched(action, heartbeat.GENERATION, url)
        assert code == EXIT_CODE and words.format(url=url) in said


@pytest.mark.parametrize(("status", "seconds"), [(200, 3), (307, 0), (503, 0)])
def test_a_server_that_does_not_answer_properly_does_not_count(status, seconds):
    """It is silent, elsewhere, or dead."""
    asked = []

    def answer(path, *_):
        asked.append(path)
        time.sleep(seconds)
        return status, ""

    with answering(answer) as url:
        start = time.monotonic()
        assert ask(url, "health", 1.0) is None
        assert asked == ["/health"] and time.monotonic() - start < 2.5


def test_a_proxy_for_the_outer_world_is_not_asked_for_the_server(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with vllm() as url:
        assert ask(url, "health", 5.0) == ""


def test_time_that_this_process_was_stopped_itself_does_not_count():
    signs = SignsOfLife()
    assert signs.note(1, "a", 0.0) and not signs.note(1, "a", 10.0)
    assert signs.silence(1, 3600.0) == 3600
    signs.forgive(3600.0 - 10)  # an hour of suspension, ten seconds of which the loop may have taken
    assert signs.silence(1, 3600.0) == 10
    assert signs.note(1, "b", 3601.0) and signs.silence(1, 3601.0) == 0
    assert signs.silence("never looked for", 9e9) == 0


def test_an_error_carries_the_phase_and_the_step_it_came_from():
    with pytest.raises(ValueError) as caught, heartbeat.phase("training step", 6), heartbeat.phase("rewards", 6):
        raise ValueError("the grader is out")
    assert caught.value.__notes__ == ["This happened in phase 'rewards', step 7."]


def slow_in_step_2(prompts, completions, trainer_state, **kwargs):
    if trainer_state.global_step == 1:
        time.sleep(4)
    return mixed_reward(prompts, completions)


def train_slowly(policy, folder, seconds):
    trainer = MinerGRPOTrainer(policy, slow_in_step_2, config(folder, max_steps=3), problems())
    with TrainingWatchdog(trainer, seconds):
        trainer.train()


def test_a_slow_reward_function_ends_a_training_that_asked_for_it_and_no_other(policy, tmp_path, monkeypatch, caplog):
    code, said = in_a_fork(train_slowly, policy, tmp_path / "asked", 1.5)
    assert code == EXIT_CODE and "process 0 is in phase 'rewards', step 2." in said, said[-3000:]
    monkeypatch.setattr("trl_miner.launching.training_watchdog.DEFAULT_SECONDS", 1.5)
    train_slowly(policy, tmp_path / "not asked", None)
    assert len([text for text in caplog.messages if "'rewards', step 2" in text and "the run goes on" in text]) == 1


def test_a_training_that_fails_is_watched_no_longer(policy, tmp_path):
    """Else the watchdog would end a notebook that does nothing afterwards."""

    def broken(completions, **kwargs):
        raise ValueError("no rewards today")

    trainer = MinerGRPOTrainer(policy, broken, config(tmp_path), problems())
    with pytest.raises(ValueError, match="no rewards today"), TrainingWatchdog(trainer, 1.0):
        trainer.train()
    assert not [thread for thread in threading.enumerate() if "watchdog" in thread.name]


@pytest.fixture
def store(monkeypatch):
    """The store of two processes of a run."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    yield
    time.sleep(0.2)  # none may ask a store that is gone


def test_processes_hear_each_other_until_one_falls_silent_and_anew_in_a_second_run(store):
    for run in range(2):
        zero, one = (Peers(rank, 2, 0.02) for rank in range(2))
        zero.mine, one.mine = [run, "zero"], [run, "one"]
        deadline = time.monotonic() + 10
        while (zero.states, one.states) != ({1: [run, "one"]}, {0: [run, "zero"]}):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        one.close()
        time.sleep(0.2)
        one.mine = [run, "never told"]
        time.sleep(0.2)
        assert zero.states == {1: [run, "one"]}
        zero.close()


@pytest.mark.parametrize("port", ["", "9"])
def test_processes_that_cannot_hear_each_other_say_why(store, monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match=f"got 127.0.0.1:{port} .*Set watchdog_seconds: 0"):
        Watchdog(300.0).start(0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "victim"), [(signal.SIGSTOP, 1), (signal.SIGSTOP, 0), (signal.SIGKILL, 1)])
def test_a_process_that_stops_ends_the_run(policy, tmp_path, capfd, how, victim):
    """Two processes; one of them is stopped or killed in step 3, after the checkpoint of step 2."""
    ranks = start_on_ranks(2, run_until_the_fault, policy, tmp_path, victim, how).processes
    try:
        ranks[1 - victim].join(120)
    finally:
        for process in ranks:
            process.kill()
    if how == signal.SIGSTOP:
        message = f"Process {victim} does not answer, because it was stopped or is dead: process "
        said = capfd.readouterr().err
        assert message in said and f"process {victim} was in phase 'rewards', step 3" in said, said[-3000:]
        assert f"process {1 - victim} is in phase 'rewards', step 3, waiting for another process" in said
        assert ranks[1 - victim].exitcode == EXIT_CODE
    else:  # gloo may see the death first
        assert ranks[1 - victim].exitcode > 0
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-2"


def run_until_the_fault(policy, folder, victim, how):
    def falls_in_step_3(prompts, completions, trainer_state, **kwargs):
        time.sleep(1)  # long enough to be heard of
        if trainer_state.global_step == 2 and int(os.environ["RANK"]) == victim:
            os.kill(os.getpid(), how)
        return mixed_reward(prompts, completions)

    args = config(folder, per_device_train_batch_size=6, save_strategy="steps", save_steps=2)
    trainer = MinerGRPOTrainer(policy, falls_in_step_3, args, problems())
    with TrainingWatchdog(trainer, 4.0):
        trainer.train()
