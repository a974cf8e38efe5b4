"""A run that hangs ends, names the phase and the step, and one that is only slow does not end."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from harness import answering, config, in_a_fork, mixed_reward, problems, start_on_ranks
from torch.distributed import TCPStore

import trl_miner
from trl_miner.common import heartbeat
from trl_miner.common.errors import RunEnded
from trl_miner.launching import server, watchdog
from trl_miner.launching.server import ask
from trl_miner.launching.watchdog import EXIT_CODE, TrainingWatchdog
from trl_miner.runs import checkpoints
from trl_miner.training import RunTrainer

LIMIT = 1.5  # seconds


def watching(seconds=LIMIT, url=None, rank=0, size=1):
    """A watchdog of a trainer after step 6, watching."""
    dog = TrainingWatchdog(
        SimpleNamespace(
            args=SimpleNamespace(
                use_vllm=url is not None, vllm_mode="server", vllm_server_base_url=url
            ),
            accelerator=SimpleNamespace(
                process_index=rank, num_processes=size, is_main_process=rank == 0
            ),
            state=SimpleNamespace(global_step=6),
            add_callback=lambda callback: None,
        ),
        seconds,
    )
    dog.on_train_begin(None, None, None)
    return dog


def watched(action, phase, url=None, seconds=LIMIT):
    """Watch a process that does something in a phase; return its exit code and what it said."""

    def run():
        with watching(seconds, url), heartbeat.phase(phase, 6):
            action()

    return in_a_fork(run, seconds=60)


def read_for_ever():
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def get_on(seconds=60):
    for _ in range(10 * seconds):
        time.sleep(0.1)
        trl_miner.beat()


def test_where_all_answer_and_nothing_makes_progress_one_warning_says_so(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "GONE_SECONDS", 0.4)
    with watching(None), heartbeat.phase("rewards", 6):
        time.sleep(1)
    (warning,) = [
        record.message
        for record in caplog.records
        if "No process has made progress" in record.message
    ]
    assert "in phase 'rewards'" in warning and "watchdog_seconds ends such a run" in warning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "phase", "action", "code"),
    [
        (LIMIT, "rewards", read_for_ever, EXIT_CODE),
        (LIMIT, "rewards", lambda: get_on(3), 0),
        (LIMIT, heartbeat.CHECKPOINT, lambda: time.sleep(2 * LIMIT), 0),
        (None, "rewards", lambda: time.sleep(2 * LIMIT), 0),  # nobody has set a time
    ],
)
def test_a_main_thread_without_a_sign_of_life_ends_the_process_and_shows_where_it_was(
    monkeypatch, seconds, phase, action, code
):
    monkeypatch.setattr(watchdog, "GONE_SECONDS", LIMIT)
    found, said = watched(action, phase, seconds=seconds)
    assert found == code
    if code:
        assert (
            code == 75
            and "No process makes progress: process 0 is in phase 'rewards', after step 6." in said
        )
        assert (
            "(watchdog_seconds)" in said
            and "--resume_from_checkpoint latest" in said
            and "in read_for_ever" in said
        )


def test_a_server_that_is_gone_ends_the_process(monkeypatch):
    monkeypatch.setattr(watchdog, "GONE_SECONDS", LIMIT)
    end = time.monotonic() + 1
    with answering(lambda *_: (200 if time.monotonic() < end else 503, "")) as url:
        code, said = watched(get_on, heartbeat.GENERATION, url, seconds=None)
    assert code == EXIT_CODE
    assert (
        f"The vLLM server at {url} does not answer: process 0 is in phase 'generation', after"
        " step 6." in said
    )


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
    with answering(lambda *_: (200, "well")) as url:
        assert ask(url, "health", 5.0) == "well"


@pytest.mark.slow
def test_time_that_this_process_was_stopped_itself_does_not_count():
    def run():
        with watching(), heartbeat.phase("rewards", 6):
            if (parent := os.getpid()) and not os.fork():
                time.sleep(0.5)
                os.kill(parent, signal.SIGSTOP)
                time.sleep(3 * LIMIT)
                os.kill(parent, signal.SIGCONT)
                os._exit(0)
            time.sleep(3.5 * LIMIT)  # over soon after it goes on

    assert in_a_fork(run, seconds=60)[0] == 0


def test_an_error_carries_the_phase_and_the_step_it_came_from():
    with (
        pytest.raises(ValueError) as caught,
        heartbeat.phase("training step", 6),
        heartbeat.phase("rewards", 6),
    ):
        raise ValueError("the grader is out")
    assert caught.value.__notes__ == ["This happened in phase 'rewards', step 7."]


def test_a_training_is_watched_in_its_steps_and_no_longer_once_it_has_failed(policy, tmp_path):
    """Else the watchdog would end a notebook that does nothing afterwards."""
    watching = []

    def broken(completions, **kwargs):
        watching.extend(thread for thread in threading.enumerate() if "watchdog" in thread.name)
        raise ValueError("no rewards today")

    trainer = RunTrainer(policy, broken, config(tmp_path), problems())
    with pytest.raises(ValueError, match="no rewards today"), TrainingWatchdog(trainer, 60.0):
        trainer.train()
    assert len(watching) == 1 and not watching[0].is_alive()


@pytest.fixture
def store(monkeypatch):
    """The store of two processes of a run."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    yield
    time.sleep(0.2)  # none may ask a store that is gone


@pytest.mark.parametrize("port", ["", "9"])
def test_processes_that_cannot_hear_each_other_say_why(store, monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    monkeypatch.setattr(watchdog, "CONNECT_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match=f"got 127.0.0.1:{port} .*Set watchdog_seconds: 0"):
        watching(300.0, size=2)


@pytest.mark.slow
def test_a_process_that_makes_progress_keeps_another_alive_in_a_second_training_too(store):
    """One waits in a collective for the other's rewards."""

    def get_on_as_rank_0():
        with watching(rank=0, size=2):
            get_on()

    def wait():
        for _ in range(2):
            with watching(rank=1, size=2):
                time.sleep(2 * LIMIT)

    other = multiprocessing.get_context("fork").Process(target=get_on_as_rank_0)
    other.start()
    code, said = in_a_fork(wait)
    other.kill()
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "victim"), [(signal.SIGSTOP, 1), (signal.SIGSTOP, 0), (signal.SIGKILL, 1)]
)
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
        assert message in said and f"process {victim} was in phase 'rewards', step 3" in said, said[
            -3000:
        ]
        assert f"process {1 - victim} is in phase 'rewards', step 3" in said
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
    trainer = RunTrainer(policy, falls_in_step_3, args, problems())
    with TrainingWatchdog(trainer, 4.0):
        trainer.train()


def test_a_server_that_takes_connections_and_never_answers_is_not_waited_for_forever(
    policy, tmp_path, monkeypatch
):
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        served = dict(use_vllm=True, vllm_mode="server", vllm_server_base_url=url)
        args = config(tmp_path, vllm_server_timeout=0.3, **served)
        with pytest.raises(RunEnded, match=f"{url} was not healthy within 0.3 s"):
            RunTrainer(policy, mixed_reward, args, problems())
