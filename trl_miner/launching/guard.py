"""Run one command, and end everything it has started, even if the process that asked for it is killed.

`trl-miner launch` starts each process as `python -m trl_miner.launching.guard PARENT GRACE COMMAND...`. The guard ends
as the command does, with its exit code or by its signal. It passes SIGINT, SIGTERM and SIGHUP on to the command.
Whatever is left GRACE seconds later, at a second signal, or after the command's own end is killed, including stopped
processes and children in sessions of their own (torchrun's). The guard does the same once PARENT is gone.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from .signals import collect_signals, end_as

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE_SECONDS = 2.0  # for what outlives the command, before it is asked to end, and again before it is killed


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl. Elsewhere this does nothing, and a grandchild may outlive a parent that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, so that it can still find them."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """Return all processes that this one, or one of its children, has started."""
    return psutil.Process().children(recursive=True)


def kill_descendants(spared: Sequence[psutil.Process] = ()) -> None:
    """Kill and reap all descendants but the spared ones, including those started in the meantime."""
    deadline = time.monotonic() + 10
    while (left := [process for process in descendants() if process not in spared]) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def end_descendants(patience: float) -> None:
    """End what the command has left: wait, then terminate, then kill."""
    if psutil.wait_procs(descendants(), timeout=patience)[1]:
        for process in (left := descendants()):
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(left, timeout=patience)
    kill_descendants()


def run(parent: int, grace: float, command: Sequence[str]) -> int:
    """Run the command and return its exit code as subprocess has it: negative for a signal."""
    with collect_signals() as received:
        adopt_orphans()
        try:
            child = subprocess.Popen(
                command, process_group=0, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            )
        except OSError as error:
            print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
            return 127  # as a shell does
        deadline, is_killed = float("inf"), False
        while child.poll() is None:
            if os.getppid() != parent and not received:
                received.append(signal.SIGTERM)
            if received and deadline == float("inf"):
                os.killpg(child.pid, received[0])
                deadline = time.monotonic() + grace
            if not is_killed and (time.monotonic() > deadline or len(received) > 1):
                is_killed = True
                child.kill()  # first, and by its own parent, so that its exit code is known
                child.wait()
                kill_descendants()
            time.sleep(0.05)
        end_descendants(min(PATIENCE_SECONDS, grace))
        return child.returncode


if __name__ == "__main__":
    sys.exit(end_as(run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])))
