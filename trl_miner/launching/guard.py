"""Run one command, and end everything it has started, even if the process that asked for it is
killed.

`trl-miner launch` starts each process as `python -m trl_miner.launching.guard PARENT GRACE
COMMAND...`. The guard ends as the command does, with its exit code or by its signal. It passes
SIGINT, SIGTERM and SIGHUP on to the command, and sends SIGTERM once PARENT is gone. Whatever is
left GRACE seconds later, at a second signal, or after the command's own end is killed, including
stopped processes and children in sessions of their own (torchrun's).
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE_SECONDS = 2.0  # for what outlives the command, before it is killed


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl. Elsewhere this does nothing, and a grandchild may outlive a parent that
    was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, so that it can still find
    them."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """Return all processes that this one, or one of its children, has started."""
    return psutil.Process().children(recursive=True)


def kill_descendants(spared: Sequence[psutil.Process] = ()) -> None:
    """Kill and reap all descendants but the spared ones, including those started in the
    meantime."""
    deadline = time.monotonic() + 10
    while (
        left := [process for process in descendants() if process not in spared]
    ) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def run(parent: int, grace: float, command: Sequence[str]) -> int:
    """Run the command and return its exit code as subprocess has it: negative for a signal."""
    with collect_signals() as received:
        adopt_orphans()
        # The command ends with a guard that is killed, too: a server would keep its GPU.
        child = subprocess.Popen(
            command, process_group=0, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        )
        deadline = float("inf")
        while child.poll() is None:
            if os.getppid() != parent and not received:
                received.append(signal.SIGTERM)
            if received and deadline == float("inf"):
                os.killpg(child.pid, received[0])
                deadline = time.monotonic() + grace
            if time.monotonic() > deadline or len(received) > 1:
                # before the others, and by its own parent, so that its exit code is known
                child.kill()
                child.wait()
            time.sleep(0.05)
        psutil.wait_procs(descendants(), timeout=min(PATIENCE_SECONDS, grace))
        kill_descendants()
        return child.returncode


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect `HANDLED` signals in a list instead of reacting to them.

    Raising an exception where a signal strikes could lose a child process that is just being
    started. Signals that are ignored, such as SIGHUP under nohup, stay ignored.
    """
    received: list[int] = []
    wanted = [number for number in HANDLED if signal.getsignal(number) != signal.SIG_IGN]
    before = {
        number: signal.signal(number, lambda signum, frame: received.append(signum))
        for number in wanted
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def how_it_ended(code: int) -> str:
    """Return "with exit code 3" or "by SIGTERM" for the exit code of a process, negative for a
    signal."""
    if code >= 0:
        return f"with exit code {code}"
    hint = ", which the system sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"by {signal.Signals(-code).name}{hint}"


def shell_code(code: int) -> int:
    """Return an exit code as a shell reports it: 128 + N for signal N, which subprocess reports as
    -N."""
    return 128 - code if code < 0 else code


def end_as(code: int) -> int:
    """End this process by the signal that ended another one, without a core dump; return an
    ordinary exit code."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(end_as(run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])))
