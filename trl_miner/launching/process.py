"""A process of a run, the server or the training: started under a guard, its output in a log, its end in words."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from ..redaction import HIDDEN, learn, redact, split_options
from .signals import how_it_ended

GRACE_SECONDS = 20.0
POLL_SECONDS = 0.1
TAIL_LINES = 20
SCRIPTS = ("trl_miner.train", "trl_miner.launching.local")
SECRET_OPTIONS = "TRL_MINER_SECRET_OPTIONS"  # a variable with a JSON list of words


def format_command(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Return a command as it can be pasted into a shell, its environment in front, without the values of secrets."""
    variables = [f"{name}={_quote(value)}" for name, value in redact(env or {}).items()]
    return " ".join([*variables, *map(_quote, redact([*command]))])


def _quote(word: str) -> str:
    return shlex.quote(word.replace(HIDDEN, "HIDDEN")).replace("HIDDEN", HIDDEN)


def give_options(command: Sequence[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Move a training's options that hold a secret into its environment: every user can read command lines.

    `take_options` takes them out again. Trackers, which record the command line, see none of them either.
    """
    start = next((place + 1 for place, word in enumerate(command) if word in SCRIPTS), len(command))
    public, private = split_options(command[start:])
    return [*command[:start], *public], env | ({SECRET_OPTIONS: json.dumps(private)} if private else {})


def take_options() -> list[str]:
    """Return the options that `give_options` moved, and hide those on the command line of this process."""
    sys.argv[1:] = redact(sys.argv[1:])
    return json.loads(os.environ.pop(SECRET_OPTIONS, "[]"))


class GuardedProcess:
    """A command in a process group of its own. Signals from the terminal reach it only through this process.

    Its output is appended to `log`, and with `live` also shown, both without secrets; without a log it goes where this
    process's goes.
    Between a signal and SIGKILL it has `grace` seconds.
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
        self.command, self.env = give_options(command, env)
        self.name, self.log, self.live, self.grace = name, log, live, grace
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._copying: threading.Thread | None = None
        self._file: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command under a guard, which ends it if this process ends."""
        output: Any = None
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.log, "ab", buffering=0)
            started = f"==== {time.strftime('%Y-%m-%d %H:%M:%S')} {format_command(self.command, self.env)}\n"
            self._file.write(started.encode())
            output = subprocess.PIPE
        guard = [sys.executable, "-P", "-m", "trl_miner.launching.guard", str(os.getpid()), str(self.grace)]
        self._process = subprocess.Popen(
            [*guard, *self.command],
            env=os.environ | self.env,
            process_group=0,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,  # one pipe, so that the lines keep their order
            stdin=None if output is None else subprocess.DEVNULL,
        )
        if output is not None:
            self._copying = threading.Thread(target=self._copy, args=(self._process.stdout, self._file), daemon=True)
            self._copying.start()

    def _copy(self, source: IO[bytes], file: IO[bytes]) -> None:
        """Copy the output line by line. A full disk or a closed terminal stops nothing."""
        sinks: list[IO[bytes]] = [file, *([sys.stdout.buffer] if self.live else [])]
        for line in _lines(source.fileno()):
            text = redact(line.decode(errors="surrogateescape"))
            if self._tail and self._tail[-1].endswith("\r"):  # the state before of a progress bar
                self._tail.pop()
            self._tail.append(text)
            for sink in list(sinks):
                try:
                    sink.write(text.encode(errors="surrogateescape"))
                    sink.flush()
                except OSError as error:
                    sinks.remove(sink)
                    if sink is file:
                        print_message(f"{self.log} can no longer be written: {error}")

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
        if self._file is not None and self._copying is not None and not self._copying.is_alive():
            self._file.close()

    def kill(self) -> None:
        """Kill the whole tree, for when its guard was stopped and cannot."""
        if self._process is not None and self.is_running:
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                process.kill()
            self._process.wait()

    def end(self) -> None:
        """Terminate the process, let its guard kill what does not end in time, and return when nothing is left."""
        end_all([self], signal.SIGTERM)
        self.close()

    def describe_end(self) -> str:
        """Return how the process ended, as the end of a sentence."""
        return f"the {self.name} ended {how_it_ended(self.exit_code or 0)}"

    def tail(self) -> str:
        """Return the last lines of the output; of a progress bar, its last state."""
        return "\n".join(line.rstrip()[:500] for line in self._tail)


def end_all(processes: Sequence[GuardedProcess], signum: int, received: Sequence[int] = ()) -> None:
    """Pass the signal on and wait. A second signal from the user makes the guards kill at once."""
    for process in processes:
        process.signal(signum)
    num_received, deadline = len(received), time.monotonic() + max(process.grace for process in processes) + 20
    while any(process.is_running for process in processes) and time.monotonic() < deadline:
        if len(received) > num_received:
            num_received = len(received)
            for process in processes:
                process.signal(signal.SIGTERM)
        time.sleep(POLL_SECONDS)
    for process in processes:
        process.kill()


def _lines(source: int) -> Iterator[bytes]:
    """Yield whole lines, and states of progress bars, as they come."""
    held = b""
    while chunk := os.read(source, 65536):
        held += chunk
        end = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        yield from held[:end].splitlines(keepends=True)
        held = held[end:]
    yield from [held] * bool(held)


def print_message(text: str) -> None:
    """Print a line about the processes of a run on stderr, if anybody can still read it."""
    with suppress(OSError):  # a terminal that is gone must not keep the processes from being ended
        print(f"trl-miner: {redact(text)}", file=sys.stderr, flush=True)
