"""A process of a run, the server or the training: started under a guard, its output in a log, its
end in words."""

import io
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..common.redaction import HIDDEN, learn, redact
from .guard import how_it_ended

GRACE_SECONDS = 20.0
POLL_SECONDS = 0.1
TAIL_LINES = 20


def format_command(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Return a command as it can be pasted into a shell, its environment in front, without the
    values of secrets."""
    variables = [f"{name}={_quote(value)}" for name, value in redact(env or {}).items()]
    return " ".join([*variables, *map(_quote, redact([*command]))])


def _quote(word: str) -> str:
    return shlex.quote(word.replace(HIDDEN, "HIDDEN")).replace("HIDDEN", HIDDEN)


class GuardedProcess:
    """A command in a process group of its own. Signals from the terminal reach it only through this
    process.

    Its output is appended to `log`, and with `live` also shown, both without secrets; without a log
    it goes where this process's goes. Between a signal and SIGKILL it has `grace` seconds.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: dict[str, str],
        log: Path | None = None,
        live: bool = True,
        grace: float = GRACE_SECONDS,
    ) -> None:
        learn([*command])  # so that the log hides what only the command line knows
        self.name, self.command, self.env = name, command, env
        self.log, self.live, self.grace = log, live, grace
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._copying: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command under a guard, which ends it if this process ends."""
        guard = [
            sys.executable,
            "-P",
            "-m",
            "trl_miner.launching.guard",
            str(os.getpid()),
            str(self.grace),
        ]
        command, env = [*guard, *self.command], os.environ | self.env
        if self.log is None:
            # Nobody can answer a process of another group: the terminal would stop what asks.
            self._process = subprocess.Popen(
                command, env=env, process_group=0, stdin=subprocess.DEVNULL
            )
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.log, "ab", buffering=0)
        file.write(
            f"==== {time.strftime('%Y-%m-%d %H:%M:%S')} {format_command(self.command, self.env)}\n".encode()
        )
        self._process = subprocess.Popen(
            command,
            env=env,
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one pipe, so that the lines keep their order
        )
        self._copying = threading.Thread(
            target=self._copy, args=(self._process.stdout, file), daemon=True
        )
        self._copying.start()

    def _copy(self, source: IO[bytes], file: IO[bytes]) -> None:
        """Copy the output line by line. A full disk or a closed terminal stops nothing."""
        sinks = [file, sys.stdout.buffer] if self.live else [file]
        # with "", a line also ends at a return, behind which stands the next state of a progress
        # bar
        for line in io.TextIOWrapper(source, "utf-8", errors="surrogateescape", newline=""):
            text = redact(line)
            if self._tail and self._tail[-1].endswith("\r"):  # the state before of a progress bar
                self._tail.pop()
            self._tail.append(text)
            for sink in sinks:
                with suppress(OSError):
                    sink.write(text.encode(errors="surrogateescape"))
                    sink.flush()
        file.close()

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, signum: int) -> None:
        """Send a signal to the guard, which passes it on."""
        if self._process is not None:
            self._process.send_signal(signum)

    def close(self) -> None:
        """Wait for the rest of the output, once nothing is left that could write."""
        if self._copying is not None:
            self._copying.join(5)

    def end(self) -> None:
        """Terminate the process, let its guard kill what does not end in time, and return when
        nothing is left."""
        end_all([self], signal.SIGTERM)

    def describe_end(self) -> str:
        """Return how the process ended, as the end of a sentence."""
        return f"the {self.name} ended {how_it_ended(self.exit_code or 0)}"

    def tail(self) -> str:
        """Return the last lines of the output; of a progress bar, its last state."""
        return "\n".join(line.rstrip()[:500] for line in self._tail)


def end_all(processes: Sequence[GuardedProcess], signum: int, received: Sequence[int] = ()) -> None:
    """Pass the signal on, and return when nothing is left. A second signal from the user makes the
    guards kill."""
    for process in processes:
        process.signal(signum)
    num_received = len(received)
    while any(process.is_running for process in processes):
        if len(received) > num_received:
            num_received = len(received)
            for process in processes:
                process.signal(signal.SIGTERM)
        time.sleep(POLL_SECONDS)
    for process in processes:
        process.close()


def print_message(text: str) -> None:
    """Print a line about the processes of a run on stderr, if anybody can still read it."""
    with suppress(OSError):  # a terminal that is gone must not keep the processes from being ended
        print(f"trl-miner: {redact(text)}", file=sys.stderr, flush=True)
