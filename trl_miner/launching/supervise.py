"""Start the server and the training, watch both, and end both."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import INTERRUPTED
from ..progress import Progress, duration, is_quiet
from .guard import adopt_orphans, descendants, kill_descendants
from .health import HealthMonitor, check_port
from .local import STARTER
from .plan import Plan
from .process import GRACE_SECONDS, POLL_SECONDS, GuardedProcess, end_all, print_message
from .signals import collect_signals, shell_code, signal_name
from .watchdog import DEFAULT_SECONDS

SERVER_NOT_READY, SERVER_ENDED, SERVER_SILENT = 10, 11, 12  # exit codes besides the training's own


@dataclass(eq=False)
class EndOfRun(Exception):  # noqa: N818
    """Ends the watch. Holds the exit code, the message, the process whose log shows why, and the signal to pass on."""

    code: int
    message: str = ""
    process: GuardedProcess | None = None
    signum: int = signal.SIGTERM


def supervise(plan: Plan, logs: Path, *, grace: float = GRACE_SECONDS, suffix: str = "") -> int:
    """Run a plan to its end, with logs in the folder `logs`; several machines that share it differ in their `suffix`.

    Returns the training's exit code, 128 + N for a signal N; or SERVER_NOT_READY, SERVER_ENDED or SERVER_SILENT.
    """
    server = training = None
    if plan.server:
        assert plan.server_listens is not None
        check_port(*plan.server_listens)
        log = logs / f"server{suffix}.log"
        server = GuardedProcess("vLLM server", plan.server, plan.server_env, log, live=not plan.train, grace=grace)
    if plan.train:
        training = GuardedProcess("training", plan.train, plan.train_env, logs / f"train{suffix}.log", grace=grace)
    return _run(server, training, plan)


def run_training(arguments: Sequence[str]) -> int:
    """Run a training without a plan and without a log, and return its exit code: `trl-miner train`."""
    return _run(None, GuardedProcess("training", [*STARTER, *arguments], {}), None)


def _run(server: GuardedProcess | None, training: GuardedProcess | None, plan: Plan | None) -> int:
    """Start and watch the processes. Whatever happens, none is left running."""
    adopt_orphans()
    spared = descendants()  # started by our caller, so not ours to end
    processes = [process for process in (training, server) if process is not None]
    with collect_signals() as received:
        health, signum = None, int(signal.SIGTERM)
        try:
            if plan is not None and plan.server_url and training is not None:
                health = _start_server(server, plan, received)
            elif server is not None:
                server.start()
            if training is not None:
                training.start()
            _watch(server, training, health, received, plan)
        except EndOfRun as end:
            outcome, signum = end, end.signum
        finally:
            if health is not None:
                health.stop()
            end_all(processes, signum, received)
            kill_descendants(spared)
            for process in processes:
                process.close()
    has_told = training is not None and outcome.code == training.exit_code == INTERRUPTED
    if outcome.message and not has_told:
        print_message(outcome.message + ".")
    if outcome.process is not None and (tail := outcome.process.tail()):
        print_message(f"the last lines of {outcome.process.log}:\n{tail}")
    return outcome.code


def _start_server(server: GuardedProcess | None, plan: Plan, received: list[int]) -> HealthMonitor:
    """Start the server unless it runs elsewhere, and wait until it is healthy."""
    assert plan.server_url is not None
    if server is not None:
        server.start()
    if not is_quiet():
        where = "which runs elsewhere" if server is None else f"whose log is {server.log}"
        print_message(f"waiting for the vLLM server at {plan.server_url}, {where}")
    patience = _patience(plan) or float("inf")
    health = HealthMonitor(plan.server_url, interval=min(2.0, patience / 5), patience=patience)
    start = time.monotonic()
    with Progress("waiting for the vLLM server", unit="", leave=False) as progress:
        progress.note = f"at most {duration(plan.server_seconds)}"
        while not health.has_been_healthy:
            _check(server, received)
            if time.monotonic() - start > plan.server_seconds:
                health.stop()
                message = (
                    f"the vLLM server at {plan.server_url} did not become healthy within {plan.server_seconds:g} s"
                )
                raise EndOfRun(SERVER_NOT_READY, f"{message} (vllm_server_timeout)", server)
            time.sleep(POLL_SECONDS)
    if not is_quiet():
        print_message(f"the vLLM server is healthy after {time.monotonic() - start:.0f} s")
    return health


def _patience(plan: Plan) -> float:
    """Return for how many seconds the server may be silent; 0: for ever."""
    seconds = plan.settings.watchdog_seconds
    return DEFAULT_SECONDS if seconds is None else float(seconds)


def _check(server: GuardedProcess | None, received: list[int]) -> None:
    """Raise `EndOfRun` if a signal has arrived or the server has ended."""
    if received:
        raise EndOfRun(128 + received[0], f"ended by {signal_name(received[0])}", signum=received[0])
    if server is not None and not server.is_running:
        raise EndOfRun(SERVER_ENDED, server.describe_end(), server)


def _watch(
    server: GuardedProcess | None,
    training: GuardedProcess | None,
    health: HealthMonitor | None,
    received: list[int],
    plan: Plan | None,
) -> None:
    """Watch until something ends, and raise `EndOfRun`."""
    patience = _patience(plan) if plan is not None else 0.0
    while True:
        code = None if training is None else training.exit_code
        if code == 0 and not received:  # the server may end together with the training, which counts as success
            raise EndOfRun(0)
        _check(server, received)
        if training is not None and code is not None:
            # without a log its own last lines, which say why, are on the terminal
            message = training.describe_end() if training.log is not None or code < 0 else ""
            raise EndOfRun(shell_code(code), message, training)
        if health is not None and patience and health.silence() > patience:
            message = f"the vLLM server at {health.url} has not answered for {patience:g} s (watchdog_seconds)"
            raise EndOfRun(SERVER_SILENT, message, server)
        time.sleep(POLL_SECONDS)
