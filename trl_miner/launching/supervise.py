"""Starts server and training, watches both, and ends both."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..progress import Progress, duration, is_quiet
from .guard import PASSED_ON, adopt_orphans, descendants, kill_descendants
from .health import Health, check_port
from .parts import GRACE_SECONDS, Part, say, shell_code, signal_name
from .plan import Plan

SERVER_NOT_READY, SERVER_ENDED, SERVER_SILENT = 10, 11, 12  # exit codes besides the training's own
LOOK_SECONDS = 0.1


class Stop(Exception):
    """Ends the watch: the exit code, what to say, and the part whose log shows why."""

    def __init__(self, code: int, message: str = "", part: Part | None = None, signum: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.code, self.message, self.part, self.signum = code, message, part, signum


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Those that arrive, instead of their effect. What is ignored, as SIGHUP is under nohup, stays so."""
    received: list[int] = []
    heeded = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, frame: received.append(n)) for number in heeded}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def supervise(plan: Plan, logs: Path, *, grace: float = GRACE_SECONDS, suffix: str = "") -> int:
    """Run a plan to its end.

    Args:
        plan: What to start.
        logs: Folder for server.log and train.log.
        grace: Seconds between a signal to a part and SIGKILL.
        suffix: In the names of the logs: a shared folder has those of several machines.

    Returns:
        The training's exit code, 128 + N for a signal N; SERVER_NOT_READY, SERVER_ENDED or SERVER_SILENT.

    Raises:
        ValueError: The server's port is taken.
        OSError: A log cannot be written.
    """
    server = training = None
    if plan.server:
        assert plan.server_listens is not None
        check_port(*plan.server_listens)
        alone = not plan.train
        server = Part("vLLM server", plan.server, plan.server_env, logs / f"server{suffix}.log", alone, grace)
    if plan.train:
        training = Part("training", plan.train, plan.train_env, logs / f"train{suffix}.log", True, grace)
    return run_parts(server, training, plan)


def run_alone(part: Part) -> int:
    """A training without a plan and a log: `trl-miner train`."""
    return run_parts(None, part, None)


def run_parts(server: Part | None, training: Part | None, plan: Plan | None) -> int:
    """Start and watch them; whatever happens, none is left running."""
    adopt_orphans()
    others = descendants()  # of whoever calls this, not ours to end
    parts = [part for part in (training, server) if part is not None]
    with _signals() as received:
        health, signum = None, int(signal.SIGTERM)
        try:
            if plan is not None and plan.server_url and training is not None:
                health = _start_server(server, plan, received)
            elif server is not None:
                server.start()
            if training is not None:
                training.start()
            _watch(server, training, health, received, plan)
        except Stop as stop:
            outcome, signum = stop, stop.signum
        finally:
            if health is not None:
                health.stop()
            _end(parts, signum, received)
            kill_descendants(others)
            for part in parts:
                part.close()
    _report(outcome)
    return outcome.code


def _start_server(server: Part | None, plan: Plan, received: list[int]) -> Health:
    """Start it where it is ours, and wait until it answers."""
    assert plan.server_url is not None
    if server is not None:
        server.start()
    if not is_quiet():
        where = "which runs elsewhere" if server is None else f"whose log is {server.log}"
        say(f"waiting for the vLLM server at {plan.server_url}, {where}")
    patience = plan.settings.watchdog_seconds or float("inf")
    health, begin = Health(plan.server_url, interval=min(2.0, patience / 5), patience=patience), time.monotonic()
    with Progress("waiting for the vLLM server", unit="", leave=False) as progress:
        progress.note = f"at most {duration(plan.server_seconds)}"
        while not health.was_good:
            _look(server, received)
            if time.monotonic() - begin > plan.server_seconds:
                health.stop()
                raise Stop(
                    SERVER_NOT_READY,
                    f"the vLLM server at {plan.server_url} gave no sign of health within {plan.server_seconds:g} s "
                    f"(vllm_server_timeout)",
                    server,
                )
            time.sleep(LOOK_SECONDS)
    if not is_quiet():
        say(f"the vLLM server is healthy after {time.monotonic() - begin:.0f} s")
    return health


def _look(server: Part | None, received: list[int]) -> None:
    if received:
        raise Stop(128 + received[0], f"ended by {signal_name(received[0])}", signum=received[0])
    if server is not None and not server.running:
        raise Stop(SERVER_ENDED, server.ending(), server)


def _watch(
    server: Part | None, training: Part | None, health: Health | None, received: list[int], plan: Plan | None
) -> None:
    """Look until something ends; always raises `Stop`."""
    patience = plan.settings.watchdog_seconds if plan is not None else 0.0
    while True:
        if training is not None and training.code() == 0 and not received:
            raise Stop(0)
        _look(server, received)
        code = None if training is None else training.code()
        if training is not None and code is not None:
            raise Stop(shell_code(code), training.ending(), training)
        if health is not None and patience and health.silence() > patience:
            message = f"the vLLM server at {health.url} has not answered for {patience:g} s (watchdog_seconds)"
            raise Stop(SERVER_SILENT, message, server)
        time.sleep(LOOK_SECONDS)


def _end(parts: list[Part], signum: int, received: list[int]) -> None:
    """Pass the signal on and wait. A second signal to launch, passed on, makes the guards kill at once."""
    for part in parts:
        part.signal(signum)
    heard, until = len(received), time.monotonic() + max(part.grace for part in parts) + 20
    while any(part.running for part in parts) and time.monotonic() < until:
        if len(received) > heard:
            heard = len(received)
            for part in parts:
                part.signal(signal.SIGTERM)
        time.sleep(LOOK_SECONDS)
    for part in parts:
        part.kill()


def _report(stop: Stop) -> None:
    if stop.message:
        say(stop.message + ".")
    if stop.part is not None and (tail := stop.part.tail()):
        say(f"the last lines of {stop.part.log}:\n{tail}")
