"""Runs one command and ends all that it has started, also when the process that asked for it is killed.

`trl-miner launch` starts each part through `python -m trl_miner.launching.guard PARENT GRACE COMMAND...`. The guard
ends as the command does, with its exit code or by its signal. SIGINT, SIGTERM and SIGHUP go on to the command; what is
left of it after GRACE seconds, at a second signal, or after the command's own end is killed: children in sessions of
their own (torchrun's) and stopped ones too. So it is when PARENT is no longer there.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_SECONDS = 2.0  # with what outlives the command, before it is asked to end, and then before it is killed
CANNOT_START = 127  # as a shell has it


def prctl(option: int, value: int) -> None:
    """Linux only, and best effort: elsewhere a grandchild may outlive the parent that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, so that they can be found."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """All processes that this one, or one of its children, has started."""
    return psutil.Process().children(recursive=True)


def kill_descendants(others: Sequence[psutil.Process] = (), seconds: float = 10.0) -> None:
    """Kill and reap them, and those that they have started in the meantime; not `others`."""
    until = time.monotonic() + seconds
    while (left := [process for process in descendants() if process not in others]) and time.monotonic() < until:
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(left, timeout=1)


def end_descendants(patience: float) -> None:
    """After the command's end: let them finish, then ask, then kill."""
    for ask in (False, True):
        left = descendants()
        for process in left if ask else []:
            try:
                process.terminate()
            except psutil.NoSuchProcess:
                pass
        if not psutil.wait_procs(left, timeout=patience)[1]:
            break
    kill_descendants()


def run(parent: int, grace: float, command: Sequence[str]) -> int:
    """Returns the command's code as subprocess has it: negative for a signal."""
    received: list[int] = []
    for signum in PASSED_ON:
        signal.signal(signum, lambda number, frame: received.append(number))
    adopt_orphans()
    try:
        child = subprocess.Popen(
            command, process_group=0, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        )  # fmt: skip
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return CANNOT_START
    until, killed = float("inf"), False
    while child.poll() is None:
        if os.getppid() != parent and not received:
            received.append(signal.SIGTERM)
        if received and until == float("inf"):
            os.killpg(child.pid, received[0])
            until = time.monotonic() + grace
        if not killed and (time.monotonic() > until or len(received) > 1):
            killed = True
            child.kill()  # first, and by its parent, which then knows its end
            child.wait()
            kill_descendants()
        time.sleep(0.05)
    end_descendants(min(PATIENCE_SECONDS, grace))
    return child.returncode


def end_as(code: int) -> int:
    """End this process by the signal that ended another; an exit code is returned."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(end_as(run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])))
