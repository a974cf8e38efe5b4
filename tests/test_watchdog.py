"""A run that hangs ends, names the phase and the step, and one that is only slow does not end."""

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from harness import answering, config, mixed_reward, problems, start_on_ranks

import trl_miner
from trl_miner import MinerGRPOTrainer, heartbeat
from trl_miner.launching import server, watchdog
from trl_miner.launching.liveness import SignsOfLife
from trl_miner.launching.training_watchdog import TrainingWatchdog
from trl_miner.launching.watchdog import RunStopped, Watchdog
from trl_miner.runs import checkpoints

HERE = Path(__file__).parent
LIMIT = 2.5  # a loaded machine may keep a process waiting for a second


@pytest.fixture
def watching():
    """Start a watchdog whose message is raised where the main thread hangs."""
    started = []

    def start(**settings):
        dog = Watchdog(LIMIT, where=lambda: "step 7", **settings)
        dog.start()
        started.append(dog)
        return dog

    yield start
    for dog in started:
        dog.stop()


@contextlib.contextmanager
def left_alone(dog):
    """The watchdog ends nothing meanwhile. (Its interrupt would end pytest.)"""
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail(dog.message)


def hang(dog, action):
    """What a trainer makes of the watchdog's interrupt."""
    with pytest.raises(KeyboardInterrupt):
        action()
    return dog.message


def read_for_ever():
    ours, _theirs = socket.socketpair()
    ours.recv(1)


class Server:
    """Answers as vLLM does: /health, and /metrics with a number of tokens."""

    tokens, grows, counts = 0.0, False, True

    def __init__(self, stack):
        self.url = stack.enter_context(answering(self.answer))

    def answer(self, path, *_):
        self.tokens += self.grows
        name = 'vllm:generation_tokens_total{engine="0"}' if self.counts else "vllm:num_requests_running"
        return 200, f"{name} {self.tokens}\n" if "metrics" in path else ""


@pytest.fixture
def vllm():
    """A server, and what ends it."""
    with contextlib.ExitStack() as stack:
        yield Server(stack), stack


def test_a_main_thread_that_waits_for_ever_is_interrupted(watching, capfd):
    dog = watching()

    def stuck():
        with heartbeat.phase("rewards", 6):
            read_for_ever()

    message = hang(dog, stuck)
    assert "No process makes progress: process 0 in phase 'rewards', step 7." in message
    assert "watchdog_seconds" in message and "--resume_from_checkpoint latest" in message
    assert "read_for_ever" in capfd.readouterr().err  # where it was


@pytest.mark.slow
def test_a_beat_keeps_a_slow_phase_alive(watching):
    dog = watching()
    end = time.monotonic() + 2 * LIMIT
    with left_alone(dog), heartbeat.phase("rewards", 6):
        while time.monotonic() < end:
            time.sleep(0.1)
            trl_miner.beat()


@pytest.mark.slow
def test_a_folder_that_grows_keeps_its_phase_alive(watching, tmp_path):
    dog = watching()
    end = time.monotonic() + 2 * LIMIT
    with left_alone(dog), heartbeat.phase("checkpoint", 6, growing=tmp_path), open(tmp_path / "weights", "wb") as file:
        while time.monotonic() < end:
            file.write(b"0" * 10_000)
            file.flush()
            time.sleep(0.1)


@pytest.mark.slow
def test_a_server_that_generates_keeps_a_long_generation_alive_and_one_that_does_not_ends_it(watching, vllm):
    server, _ = vllm
    server.grows = True
    dog = watching(server_url=server.url)
    with heartbeat.phase(heartbeat.GENERATION, 6):
        with left_alone(dog):
            time.sleep(2 * LIMIT)
        server.grows = False
        message = hang(dog, read_for_ever)
    assert f"The vLLM server at {server.url} answers, but generates nothing" in message


@pytest.mark.slow
def test_a_server_that_does_not_count_its_tokens_is_trusted_as_long_as_it_answers(watching, vllm):
    server, _ = vllm
    server.counts = False
    dog = watching(server_url=server.url)
    with left_alone(dog), heartbeat.phase(heartbeat.GENERATION, 6):
        time.sleep(2 * LIMIT)


def test_a_proxy_for_the_outer_world_is_not_asked_for_the_server(vllm, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert watchdog._ask_server(vllm[0].url, 5.0) == (True, 0.0)


@pytest.mark.slow
def test_a_server_that_is_gone_is_named_though_the_main_thread_gets_on(watching, vllm):
    server, ending = vllm
    dog = watching(server_url=server.url)

    def get_on():
        with heartbeat.phase("generation", 6):
            while True:
                time.sleep(0.05)
                dog.beat()

    time.sleep(LIMIT)
    ending.close()
    assert f"The vLLM server at {server.url} does not answer; process 0 was in phase 'generation'" in hang(dog, get_on)


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
        assert server.ask(url, "health", 1.0) is None
        assert asked == ["/health"] and time.monotonic() - start < 2.5


def test_time_that_this_process_was_stopped_itself_does_not_count():
    signs = SignsOfLife(300)
    signs.observe(("process", 0), True, 0.0)
    signs.observe(("process", 1), True, 0.0)
    assert signs.reason_to_end(3600.0, None) is not None
    signs.forgive(3600.0 - 10)  # an hour of suspension, ten seconds of which the loop may have taken
    assert signs.reason_to_end(3600.0, None) is None
    assert signs.reason_to_end(3600.0 + 295, None).startswith("Process 0 does not answer: it was stopped, or is dead.")


def test_an_error_carries_the_phase_and_the_step_it_came_from():
    with pytest.raises(ValueError) as caught, heartbeat.phase("training step", 6), heartbeat.phase("rewards", 6):
        raise ValueError("the grader is out")
    assert caught.value.__notes__ == ["This happened in phase 'rewards', step 7."]


def test_a_hanging_reward_function_ends_training_with_an_error(policy, tmp_path):
    def hangs_in_step_2(prompts, completions, trainer_state, **kwargs):
        if trainer_state.global_step == 1:
            read_for_ever()
        return mixed_reward(prompts, completions)

    trainer = MinerGRPOTrainer(policy, hangs_in_step_2, config(tmp_path), problems())
    with pytest.raises(RunStopped, match=r"process 0 in phase 'rewards', step 2\."), TrainingWatchdog(trainer, 4.0):
        trainer.train()
    assert not [t for t in threading.enumerate() if t.name == "trl_miner.launching.watchdog"]


def slow_in_step_2(prompts, completions, trainer_state, **kwargs):
    if trainer_state.global_step == 1:
        time.sleep(3)
    return mixed_reward(prompts, completions)


def test_a_slow_reward_function_ends_no_training_that_did_not_ask_for_it(policy, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("trl_miner.launching.training_watchdog.DEFAULT_SECONDS", 1.0)
    for name, turn_on in (("plain", contextlib.nullcontext), ("train", TrainingWatchdog)):
        trainer = MinerGRPOTrainer(policy, slow_in_step_2, config(tmp_path / name, max_steps=3), problems())
        with turn_on(trainer):
            trainer.train()
        assert trainer.state.global_step == 3
        said = [r.getMessage() for r in caplog.records if "'rewards', step 2" in r.getMessage()]
        assert len(said) == (name == "train")


def test_a_training_that_fails_is_watched_no_longer(policy, tmp_path):
    """Else the watchdog would end a notebook that does nothing afterwards."""

    def broken(completions, **kwargs):
        raise ValueError("no rewards today")

    trainer = MinerGRPOTrainer(policy, broken, config(tmp_path), problems())
    with pytest.raises(ValueError, match="no rewards today"), TrainingWatchdog(trainer, 1.0):
        trainer.train()
    assert not [t for t in threading.enumerate() if t.name == "trl_miner.launching.watchdog"]


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
    seconds = time.time() - float((tmp_path / "victim").read_text())
    print(f"{how.name} of process {victim}: {seconds:.1f} s to the end of the run")
    if how == signal.SIGSTOP:
        message = f"Process {victim} does not answer: it was stopped, or is dead. It was last seen in phase "
        message += "'rewards', step 3"
        said = capfd.readouterr().err
        assert message in said, said[-3000:]
        assert ranks[1 - victim].exitcode == watchdog.EXIT_CODE
    else:  # gloo may see the death first
        assert ranks[1 - victim].exitcode > 0
    assert checkpoints.newest(tmp_path) == tmp_path / "checkpoint-2"


def run_until_the_fault(policy, folder, victim, how):
    def falls_in_step_3(prompts, completions, trainer_state, **kwargs):
        time.sleep(1)  # long enough to be heard of
        if trainer_state.global_step == 2 and int(os.environ["RANK"]) == victim:
            Path(folder, "victim").write_text(str(time.time()))
            os.kill(os.getpid(), how)
        return mixed_reward(prompts, completions)

    args = config(folder, per_device_train_batch_size=6, save_strategy="steps", save_steps=2)
    trainer = MinerGRPOTrainer(policy, falls_in_step_3, args, problems())
    with TrainingWatchdog(trainer, 4.0):
        trainer.train()
