"""Start the server and the training, watch both, and end both."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..common.errors import INTERRUPTED
from ..common.progress import duration, is_quiet
from .guard import adopt_orphans, collect_signals, descendants, kill_descendants, shell_code
from .local import STARTER
from .plan import Plan
from .process import GRACE_SECONDS, POLL_SECONDS, GuardedProcess, end_all, print_message
from .server import ANSWER_SECONDS, ask, check_port

SERVER_NOT_READY, SERVER_ENDED = 10, 11  # exit codes besides the training's own


class End(NamedTuple):
    """How a run ended: the exit code, the message, and the process whose log shows why."""

    code: int
    message: str = ""
    process: GuardedProcess | None = None


def supervise(plan: Plan, logs: Path, *, grace: float = GRACE_SECONDS) -> int:
    """Run a plan to its end, with logs in the folder `logs`.

    Returns the training's exit code, 128 + N for a signal N; or SERVER_NOT_READY or SERVER_ENDED.
    """
    server = training = None
    if plan.server:
        assert plan.server_listens is not None
        check_port(*plan.server_listens)
        log = logs / "server.log"
        server = GuardedProcess(
            "vLLM server", plan.server, plan.server_env, log, live=not plan.train, grace=grace
        )
    if plan.train:
        training = GuardedProcess(
            "training", plan.train, plan.train_env, logs / "train.log", grace=grace
        )
    return _run(training, server, plan)


def run_training(arguments: Sequence[str]) -> int:
    """Run a training without a plan and without a log, and return its exit code: `trl-miner
    train`."""
    return _run(GuardedProcess("training", [*STARTER, *arguments], {}))


def _run(
    training: GuardedProcess | None, server: GuardedProcess | None = None, plan: Plan | None = None
) -> int:
    """Start and watch the processes. Whatever happens, none is left running."""
    url = plan.server_url if plan and training else None
    processes = [process for process in (training, server) if process is not None]
    adopt_orphans()  # of a guard that is killed
    spared = descendants()  # started by our caller, so not ours to end
    with collect_signals() as received:
        try:
            if server is not None:
                server.start()
            end = (
                _wait_for_server(server, url, plan.server_seconds, received)
                if plan and url
                else None
            )
            if end is None and training is not None:
                training.start()
            end = end or _watch(training, server, received)
        finally:
            end_all(processes, received[0] if received else signal.SIGTERM, received)
            kill_descendants(spared)
    has_told = training is not None and end.code == training.exit_code == INTERRUPTED
    if end.message and not has_told:
        print_message(end.message + ".")
    if end.process is not None and (tail := end.process.tail()):
        print_message(f"the last lines of {end.process.log}:\n{tail}")
    return end.code


def _wait_for_server(
    server: GuardedProcess | None, url: str, seconds: float, received: list[int]
) -> End | None:
    """Wait until the server is healthy, whether it was started here or runs elsewhere; return why
    it will not be."""
    if not is_quiet():
        where = "which runs elsewhere" if server is None else f"whose log is {server.log}"
        print_message(f"waiting at most {duration(seconds)} for the vLLM server at {url}, {where}")
    start = time.monotonic()
    while ask(url, "health", ANSWER_SECONDS) is None:
        if end := _ended(server, received):
            return end
        if time.monotonic() - start > seconds:
            message = (
                f"the vLLM server at {url} did not become healthy within {seconds:g} s"
                " (vllm_server_timeout)"
            )
            return End(SERVER_NOT_READY, message, server)
        time.sleep(5 * POLL_SECONDS)
    if not is_quiet():
        print_message(f"the vLLM server is healthy after {time.monotonic() - start:.0f} s")
    return None


def _ended(server: GuardedProcess | None, received: list[int]) -> End | None:
    """Return the end of a run to which a signal has come, or whose server has ended."""
    if received:
        return End(128 + received[0], f"ended by {signal.Signals(received[0]).name}")
    if server is not None and not server.is_running:
        return End(SERVER_ENDED, server.describe_end(), server)
    return None


def _watch(
    training: GuardedProcess | None, server: GuardedProcess | None, received: list[int]
) -> End:
    """Watch until something ends. That a server still answers is for the watchdog of the training
    to see."""
    while True:
        code = None if training is None else training.exit_code
        # the server may end together with the training, which counts as success
        if code == 0 and not received:
            return End(0)
        if end := _ended(server, received):
            return end
        if training is not None and code is not None:
            # without a log its own last lines, which say why, are on the terminal
            message = training.describe_end() if training.log is not None or code < 0 else ""
            return End(shell_code(code), message, training)
        time.sleep(POLL_SECONDS)
