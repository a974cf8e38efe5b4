"""One part of a run, the server or the training: started through the guard, its output in a log, its end in words."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import psutil

GRACE_SECONDS = 20.0
TAIL_LINES = 20
SECRET_OPTIONS = ("token", "key", "password", "secret")


def shown(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """A command as it can be pasted into a shell, what is set for it in front; values of options that name a token or
    a key are left out."""
    words = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    hide = False
    for word in command:
        option, equals, _ = word.partition("=")
        names_secret = option.startswith("--") and option.replace("_", "-").split("-")[-1].lower() in SECRET_OPTIONS
        words.append("***" if hide else f"{option}=***" if names_secret and equals else shlex.quote(word))
        hide = names_secret and not equals
    return " ".join(words)


class Part:
    """A command in a process group of its own, which no signal from a terminal reaches but through launch.

    Args:
        name: In messages.
        command: What to run.
        env: Set on top of the environment.
        log: A file that its output is appended to, or None.
        live: Show its output here too.
        grace: Seconds between a signal and SIGKILL.
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
        self.name, self.command, self.env, self.log, self.live, self.grace = name, command, env, log, live, grace
        self._start_of_output = 0
        self._copying: threading.Thread | None = None
        self._file: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, under a guard that ends it with this one."""
        output: Any = None  # as launch's own
        if self.log is not None:
            self._file = self._open_log()
            output = subprocess.PIPE if self.live else self._file
        guard = [sys.executable, "-m", "trl_miner.launching.guard", str(os.getpid()), str(self.grace)]
        self._process = subprocess.Popen(
            [*guard, *self.command], env=os.environ | self.env, process_group=0, stdout=output,
            stderr=None if output is None else subprocess.STDOUT,  # one pipe: the lines keep their order
            stdin=None if output is None else subprocess.DEVNULL,
        )  # fmt: skip
        if output is subprocess.PIPE:
            self._copying = threading.Thread(target=self._copy, args=(self._process.stdout,), daemon=True)
            self._copying.start()

    def _open_log(self) -> IO[bytes]:
        assert self.log is not None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.log, "ab", buffering=0)
        file.write(f"==== {time.strftime('%Y-%m-%d %H:%M:%S')} {shown(self.command, self.env)}\n".encode())
        self._start_of_output = file.tell()
        return file

    def _copy(self, source: IO[bytes]) -> None:
        """As it comes, so that a progress bar moves. A full disk or a closed terminal must not stop the part."""
        assert self._file is not None
        here = sys.stdout.fileno()
        sinks = {self._file.fileno(), here}
        while chunk := os.read(source.fileno(), 65536):
            for sink in list(sinks):
                try:
                    _write_all(sink, chunk)
                except OSError as error:
                    sinks.discard(sink)
                    if sink != here:
                        say(f"{self.log} cannot be written any more: {error}")

    def code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, signum: int) -> None:
        """To the guard, which passes it on."""
        if self.running:
            assert self._process is not None
            self._process.send_signal(signum)

    def close(self) -> None:
        """Wait for the rest of its output, once nothing is left that could write."""
        if self._copying is not None:
            self._copying.join(5)

    def kill(self) -> None:
        """All of it, where its guard could not: it was stopped."""
        if self.running:
            assert self._process is not None
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                process.kill()
            self._process.wait()

    def ending(self) -> str:
        """How it ended, as the end of a sentence."""
        code = self.code()
        if code is None:
            return f"the {self.name} still runs"
        return f"the {self.name} ended " + (f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}")

    def tail(self) -> str:
        """The last lines of its output in this run; of a progress bar, its last state."""
        if self.log is None or not self.log.is_file():
            return ""
        with open(self.log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._start_of_output, end - 100_000))
            text = file.read().decode(errors="replace")
        lines = [line.rstrip("\r").rpartition("\r")[2][:500] for line in text.rstrip().split("\n")]
        return "\n".join(lines[-TAIL_LINES:])


def _write_all(sink: int, chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(sink, chunk) :]


def signal_name(number: int) -> str:
    """ "SIGTERM" for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_code(code: int) -> int:
    """An exit code as a shell has it: 128 and the signal's number for a signal."""
    return 128 - code if code < 0 else code


def say(message: str, command: str = "launch") -> None:
    """A line on stderr, whether or not anybody can read it."""
    try:
        print(f"trl-miner {command}: {message}", file=sys.stderr, flush=True)
    except OSError:  # a terminal that is gone must not keep the parts from being ended
        pass
