"""Start the server and the training, watch both, and end both."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import INTERRUPTED
from ..progress import Progress, duration, is_quiet
from .guard import adopt_orphans, descendants, kill_descendants
from .local import STARTER
from .plan import Plan
from .process import GRACE_SECONDS, POLL_SECONDS, GuardedProcess, end_all, print_message
from .server import ask, check_port
from .signals import collect_signals, shell_code, signal_name
from .watchdog import DEFAULT_SECONDS

ANSWER_SECONDS = 5.0  # to wait for one answer of the server: a busy one may be slow
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

    Returns the training's exit code, 128 + N for a signal N; or     SERVER_NOT_READY, SERVER_ENDED or SERVER_SILENT.
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
        signum = int(signal.SIGTERM)
        try:
            if server is not None:
                server.start()
            if plan is not None and plan.server_url and training is not None:
                _wait_for_server(server, plan.server_url, plan.server_seconds, received)
            if training is not None:
                training.start()
            _watch(server, training, received, plan)
        except EndOfRun as end:
            outcome, signum = end, end.signum
        finally:
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


def _wait_for_server(server: GuardedProcess | None, url: str, seconds: float, received: list[int]) -> None:
    """Wait until the server is healthy, whether it was started here or runs elsewhere."""
    if not is_quiet():
        where = "which runs elsewhere" if server is None else f"whose log is {server.log}"
        print_message(f"waiting for the vLLM server at {url}, {where}")
    start = time.monotonic()
    with Progress("waiting for the vLLM server", unit="", leave=False) as progress:
        progress.note = f"at most {duration(seconds)}"
        while ask(url, "health", ANSWER_SECONDS) is None:
            _check(server, received)
            if time.monotonic() - start > seconds:
                message = f"the vLLM server at {url} did not become healthy within {seconds:g} s (vllm_server_timeout)"
                raise EndOfRun(SERVER_NOT_READY, message, server)
            time.sleep(5 * POLL_SECONDS)
    if not is_quiet():
        print_message(f"the vLLM server is healthy after {time.monotonic() - start:.0f} s")


def _check(server: GuardedProcess | None, received: list[int]) -> None:
    """Raise `EndOfRun` if a signal has arrived or the server has ended."""
    if received:
        raise EndOfRun(128 + received[0], f"ended by {signal_name(received[0])}", signum=received[0])
    if server is not None and not server.is_running:
        raise EndOfRun(SERVER_ENDED, server.describe_end(), server)


def _watch(
    server: GuardedProcess | None, training: GuardedProcess | None, received: list[int], plan: Plan | None
) -> None:
    """Watch until something ends, or the server is silent for too long, and raise `EndOfRun`."""
    seconds = 0.0 if plan is None or training is None else plan.settings.watchdog_seconds
    patience = DEFAULT_SECONDS if seconds is None else float(seconds)
    url = plan.server_url if plan is not None and patience else None
    # not since the last answer: a launch that was itself stopped for an hour has not asked for an hour
    silent_since, next_look = None, time.monotonic()
    while True:
        code = None if training is None else training.exit_code
        if code == 0 and not received:  # the server may end together with the training, which counts as success
            raise EndOfRun(0)
        _check(server, received)
        if training is not None and code is not None:
            # without a log its own last lines, which say why, are on the terminal
            message = training.describe_end() if training.log is not None or code < 0 else ""
            raise EndOfRun(shell_code(code), message, training)
        if url is not None and time.monotonic() >= next_look:
            asked = time.monotonic()
            is_silent = ask(url, "health", min(patience, ANSWER_SECONDS)) is None
            silent_since = (silent_since or asked) if is_silent else None
            next_look = time.monotonic() + min(2.0, patience / 5)
            if silent_since is not None and time.monotonic() - silent_since > patience:
                message = f"the vLLM server at {url} has not answered for {patience:g} s (watchdog_seconds)"
                raise EndOfRun(SERVER_SILENT, message, server)
        time.sleep(POLL_SECONDS)
