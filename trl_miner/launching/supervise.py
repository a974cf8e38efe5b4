"""Two child processes that end together, whatever ends first: a signal, one of them, or this one.

    trl-miner launch       waits, passes signals on, and ends what its child has left
      its fork             starts and ends both:
        vLLM's server
        the training

If the first is killed, Linux tells the second; if the second is killed, its orphans come to the
first. So whichever is killed, the other ends all.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from .plan import Plan

GRACE_SECONDS = 20  # from SIGTERM to SIGKILL


def supervise(plan: Plan) -> int:
    """Run a plan to its end, and leave no process behind.

    Returns:
        The training's exit code, 128 + N for a signal N, or 1 where the server has ended first.

    Raises:
        OSError: The server's port is in use: a server that is not this run's would answer.
    """
    if plan.listens:
        socket.create_server(plan.listens).close()
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here
    child = os.fork()
    if not child:
        os.setpgid(0, 0)  # a terminal's Ctrl-C comes once, from the parent
        die_with_parent()
        os._exit(_run(plan))
    _on_signals(lambda number: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _end_all([])
    return code


def die_with_parent() -> None:
    """Have Linux end this process by SIGTERM when its parent dies, by SIGKILL too."""
    _prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":  # elsewhere, what a killed launch has started stays
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _on_signals(action: Callable[[int], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, lambda number, frame: action(number))


def _run(plan: Plan) -> int:
    """Start the processes of a plan, the training last. When one ends, or at a signal, end all."""
    received: list[int] = []
    running = []
    _on_signals(received.append)
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here
    try:
        for env, command in plan.commands:
            child = subprocess.Popen(
                command, env=os.environ | env, process_group=0, stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )  # fmt: skip
            running.append(child)
        while not received and all(each.poll() is None for each in running):
            time.sleep(0.1)
        code = -received[0] if received else running[-1].poll()
    finally:
        _end_all(received)
    if code is None:
        print("trl-miner launch: vLLM's server has ended first.", file=sys.stderr, flush=True)
        return 1
    return 128 - code if code < 0 else code


def _end_all(received: Sequence[int]) -> None:
    """End all processes below this one: by the signal that has come, else by SIGTERM, and what is
    left some seconds later by SIGKILL."""
    for number in (*received[:1], signal.SIGTERM)[0], signal.SIGKILL:
        below = psutil.Process().children(recursive=True)
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        psutil.wait_procs(below, timeout=GRACE_SECONDS)
