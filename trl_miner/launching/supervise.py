"""Start the server and the training, watch both, and end both."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import INTERRUPTED
from ..progress import duration, is_quiet
from .guard import adopt_orphans, descendants, kill_descendants
from .local import STARTER
from .plan import Plan
from .process import GRACE_SECONDS, POLL_SECONDS, GuardedProcess, end_all, print_message
from .server import ANSWER_SECONDS, GONE_SECONDS, ask, check_port
from .signals import collect_signals, shell_code

SERVER_NOT_READY, SERVER_ENDED, SERVER_SILENT = 10, 11, 12  # exit codes besides the training's own


@dataclass(eq=False)
class EndOfRun(Exception):  # noqa: N818
    """Ends the watch. Holds the exit code, the message, the process whose log shows why, and the signal to pass on."""

    code: int
    message: str = ""
    process: GuardedProcess | None = None
    signum: int = signal.SIGTERM


@dataclass
class _Run:
    """The processes of a run, and the server's address if it is watched."""

    server: GuardedProcess | None
    training: GuardedProcess | None
    url: str | None = None
    server_seconds: float = 0.0  # to wait until the server is healthy
    patience: float = 0.0  # seconds without an answer of the server until the run ends; 0: never


def supervise(plan: Plan, logs: Path, *, grace: float = GRACE_SECONDS) -> int:
    """Run a plan to its end, with logs in the folder `logs`.

    Returns the training's exit code, 128 + N for a signal N; or SERVER_NOT_READY, SERVER_ENDED or SERVER_SILENT.
    """
    server = training = None
    if plan.server:
        assert plan.server_listens is not None
        check_port(*plan.server_listens)
        log = logs / "server.log"
        server = GuardedProcess("vLLM server", plan.server, plan.server_env, log, live=not plan.train, grace=grace)
    if plan.train:
        training = GuardedProcess("training", plan.train, plan.train_env, logs / "train.log", grace=grace)
    seconds = plan.settings.watchdog_seconds
    patience = GONE_SECONDS if seconds is None else float(seconds)
    return _run(_Run(server, training, plan.server_url if plan.train else None, plan.server_seconds, patience))


def run_training(arguments: Sequence[str]) -> int:
    """Run a training without a plan and without a log, and return its exit code: `trl-miner train`."""
    return _run(_Run(None, GuardedProcess("training", [*STARTER, *arguments], {})))


def _run(run: _Run) -> int:
    """Start and watch the processes. Whatever happens, none is left running."""
    adopt_orphans()
    spared = descendants()  # started by our caller, so not ours to end
    processes = [process for process in (run.training, run.server) if process is not None]
    with collect_signals() as received:
        signum = int(signal.SIGTERM)
        try:
            if run.server is not None:
                run.server.start()
            if run.url is not None:
                _wait_for_server(run, run.url, received)
            if run.training is not None:
                run.training.start()
            _watch(run, received)
        except EndOfRun as end:
            outcome, signum = end, end.signum
        finally:
            end_all(processes, signum, received)
            kill_descendants(spared)
            for process in processes:
                process.close()
    has_told = run.training is not None and outcome.code == run.training.exit_code == INTERRUPTED
    if outcome.message and not has_told:
        print_message(outcome.message + ".")
    if outcome.process is not None and (tail := outcome.process.tail()):
        print_message(f"the last lines of {outcome.process.log}:\n{tail}")
    return outcome.code


def _wait_for_server(run: _Run, url: str, received: list[int]) -> None:
    """Wait until the server is healthy, whether it was started here or runs elsewhere."""
    if not is_quiet():
        where = "which runs elsewhere" if run.server is None else f"whose log is {run.server.log}"
        print_message(f"waiting at most {duration(run.server_seconds)} for the vLLM server at {url}, {where}")
    start = time.monotonic()
    while ask(url, "health", ANSWER_SECONDS) is None:
        _check(run.server, received)
        if time.monotonic() - start > run.server_seconds:
            message = f"the vLLM server at {url} did not become healthy within {run.server_seconds:g} s"
            raise EndOfRun(SERVER_NOT_READY, f"{message} (vllm_server_timeout)", run.server)
        time.sleep(5 * POLL_SECONDS)
    if not is_quiet():
        print_message(f"the vLLM server is healthy after {time.monotonic() - start:.0f} s")


def _check(server: GuardedProcess | None, received: list[int]) -> None:
    """Raise `EndOfRun` if a signal has arrived or the server has ended."""
    if received:
        raise EndOfRun(128 + received[0], f"ended by {signal.Signals(received[0]).name}", signum=received[0])
    if server is not None and not server.is_running:
        raise EndOfRun(SERVER_ENDED, server.describe_end(), server)


def _watch(run: _Run, received: list[int]) -> None:
    """Watch until something ends, or the server is silent for too long, and raise `EndOfRun`."""
    # not since the last answer: a launch that was itself stopped for an hour has not asked for an hour
    silent_since, next_look = None, time.monotonic()
    while True:
        code = None if run.training is None else run.training.exit_code
        if code == 0 and not received:  # the server may end together with the training, which counts as success
            raise EndOfRun(0)
        _check(run.server, received)
        if run.training is not None and code is not None:
            # without a log its own last lines, which say why, are on the terminal
            message = run.training.describe_end() if run.training.log is not None or code < 0 else ""
            raise EndOfRun(shell_code(code), message, run.training)
        if run.url is not None and run.patience and time.monotonic() >= next_look:
            asked = time.monotonic()
            is_silent = ask(run.url, "health", min(run.patience, ANSWER_SECONDS)) is None
            silent_since = (silent_since or asked) if is_silent else None
            next_look = time.monotonic() + min(2.0, run.patience / 5)
            if silent_since is not None and time.monotonic() - silent_since > run.patience:
                message = f"the vLLM server at {run.url} has not answered for {run.patience:g} s (watchdog_seconds)"
                raise EndOfRun(SERVER_SILENT, message, run.server)
        time.sleep(POLL_SECONDS)
