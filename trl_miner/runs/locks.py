"""`.lock` and `.training.lock`: the one process that writes into a folder. Whoever only reads needs no lock.

{"host": "node7", "boot": "0c3e...", "pid": 4711, "since": "2026-11-22T09:30:00+00:00"}

The holder keeps the file locked (flock). The kernel ends that with the process, so that a killed one blocks nobody.
Some network file systems lock on each machine alone, or not at all. There the file's time decides, which the holder
sets every BEAT_SECONDS: a holder on another machine whose file stays as it is for PATIENCE_SECONDS is dead. Of two
that start at once, the one that makes `.lock.claim` judges the holder and takes the lock; the other is refused.
"""

import contextlib
import fcntl
import json
import logging
import math
import os
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from .files import parse
from .places import no_link

logger = logging.getLogger(__name__)

LOCK = ".lock"  # of a comparison and of an evaluation
TRAINING_LOCK = ".training.lock"  # of a run: an evaluation may be written into its folder
BEAT_SECONDS, PATIENCE_SECONDS = 10.0, 60.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class FolderLock:
    """The lock of a folder, held by this process from `acquire` to `release`."""

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        """Make the folder and the file. Raise OSError if they cannot be written."""
        self.folder, self.path, self._claimed = folder, folder / name, folder / f"{name}.claim"
        self._open()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._me = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "since": since}
        self._ended = threading.Event()

    def acquire(self, message: str) -> None:
        """Take the lock, from a dead process too. If one is alive, raise ValueError; its message names {holder}."""
        try:
            is_locked = self._lock()
            with self._claim(is_locked):
                holder = _read(self.path)
                if holder is not None and self._is_alive(holder, is_locked):
                    raise BlockingIOError
                self._write()
        except BlockingIOError:
            self.file.close()
            if _read(self.path) is None:  # perhaps it is about to write
                time.sleep(0.5)
            holder = _read(self.path) or _read(self._claimed)
            raise ValueError(message.format(folder=self.folder, holder=_describe(holder))) from None
        if holder is not None:
            logger.warning(f"{self.folder} was left by {_describe(holder)}, which has ended. It is taken over.")
        threading.Thread(target=self._beat, name="trl_miner.runs.locks", daemon=True).start()

    def check(self) -> None:
        """Make the folder and its lock again if somebody has deleted them, with a warning.

        Raises:
            RuntimeError: Another process has taken the folder over.
        """
        holder = _read(self.path)
        if holder is None or (holder == self._me and self.file.closed):  # closed: the disk was away
            holder = self._restore()
        if holder != self._me:
            raise RuntimeError(
                f"{self.folder} was taken over by {_describe(holder)}, so this process must not write into it any "
                f"longer. Give each a folder of its own."
            )

    def release(self) -> None:
        """Give the lock back."""
        self._ended.set()
        if _read(self.path) == self._me:
            with contextlib.suppress(OSError, ValueError):  # ValueError: a forked child has closed the file
                self.file.truncate(0)
        self.file.close()

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # not where a link leads, which a stranger's folder may hold
        self.file = open(self.path, "a+", encoding="utf-8", opener=no_link)  # noqa: SIM115
        _files.add(self.file)
        self._place = _place(self.folder)

    def _lock(self) -> bool:
        """Lock the file, and return whether the file system can do so. Raise BlockingIOError if it is locked."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def _claim(self, is_locked: bool) -> Iterator[None]:
        """Be the only one that judges the holder, also where `_lock` cannot tell. Else raise BlockingIOError.

        To make a file that is not there yet is atomic on every file system. A claim that a killed process has left
        ends after twice the time that a judgement can take.
        """
        claim = self._claimed
        is_dead = is_locked and self._is_here(_read(claim) or {})
        if claim.exists() and (is_dead or self._age(claim) > 2 * PATIENCE_SECONDS):
            claim.unlink(missing_ok=True)
        try:
            file = open(claim, "x", encoding="utf-8", opener=no_link)  # noqa: SIM115
        except FileExistsError:
            raise BlockingIOError from None
        try:
            with contextlib.suppress(OSError), file:  # a full disk: an empty claim does
                file.write(json.dumps(self._me) + "\n")
            yield
        finally:
            claim.unlink(missing_ok=True)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the lock holds nevertheless
            self.file.truncate(0)
            self.file.write(json.dumps(self._me) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())

    def _restore(self) -> dict[str, Any] | None:
        """Make the lock again, and return who holds it then."""
        is_deleted = _place(self.folder) != self._place
        try:
            self.file.close()
            self._open()
            self._lock()
        except BlockingIOError:
            return _read(self.path)
        except OSError:  # a disk that is full or away: whoever writes next says so
            return self._me
        self._write()
        if is_deleted:
            logger.warning(
                f"{self.folder} was deleted or moved while {_describe(self._me)} was writing into it. It is made "
                f"again for what comes now; what it held before is not in it."
            )
        return self._me

    def _is_alive(self, holder: dict[str, Any], is_locked: bool) -> bool:
        """Return whether the holder that the file names still lives. On this machine, the lock has told."""
        if is_locked and self._is_here(holder):
            return False
        seen, end = _time(self.path), time.monotonic() + PATIENCE_SECONDS
        if self._age(self.path) > 10 * PATIENCE_SECONDS:
            return False
        logger.warning(f"{self.folder} was last used by {_describe(holder)}. Waiting for a sign of its life.")
        while time.monotonic() < end:
            time.sleep(min(1.0, PATIENCE_SECONDS / 10))
            if _time(self.path) != seen:
                return _read(self.path) is not None  # None: it has just given the lock back
        return False

    def _is_here(self, holder: dict[str, Any]) -> bool:
        """Return whether a process of this machine, since its last start, wrote this."""
        return all(holder.get(name) == self._me[name] for name in ("host", "boot"))

    def _age(self, path: Path) -> float:
        """Return how many seconds ago a file was written, by the clock of its file system; inf: it is not there."""
        written = _time(path)
        with tempfile.NamedTemporaryFile(dir=self.folder) as now:
            return math.inf if written is None else (os.fstat(now.fileno()).st_mtime_ns - written) / 1e9

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError, ValueError):  # a file system that is away, a file just closed
                os.utime(self.file.fileno())


@contextlib.contextmanager
def lock_folder(folder: Path, message: str) -> Iterator[IO[str]]:
    """Hold a folder's lock until all processes that have inherited its file have ended. `message` is the error's."""
    try:
        lock = FolderLock(folder)
        lock.acquire(message)
    except OSError as error:
        raise ValueError(
            f"--output must be a folder that can be written: {folder} cannot ({error}). Give another one."
        ) from error
    try:
        yield lock.file
    finally:
        lock.release()


_held: dict[Path, FolderLock | None] = {}  # the run folders that this process and its siblings train into


@contextlib.contextmanager
def hold_run(output_dir: str | Path) -> Iterator[None]:
    """Hold a run folder while training; within itself it does nothing. Every process must call it.

    Only the main process locks. A folder that cannot be written is not locked, with a warning.

    Raises:
        ValueError: Another training holds the folder.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    folder = Path(output_dir).absolute()
    if folder in _held:
        yield
        return
    lock, problem = None, [""]
    if PartialState().is_main_process:
        try:
            lock = FolderLock(folder, TRAINING_LOCK)
            lock.acquire(
                "Only one training may write into an output_dir: {folder} is in use by {holder}. Wait for it, end it, "
                "or choose another output_dir."
            )
        except ValueError as error:
            problem = [str(error)]
        except OSError as error:
            logger.warning(f"{folder} cannot be locked ({error}): take care that no other training writes into it.")
    broadcast_object_list(problem)
    if problem[0]:
        raise ValueError(problem[0])
    _held[folder] = lock
    try:
        yield
        check_run(folder)
    finally:
        del _held[folder]
        if lock is not None:
            lock.release()


def check_run(output_dir: str | Path) -> None:
    """Check the lock of the run folder that this process holds: see `FolderLock.check`."""
    lock = _held.get(Path(output_dir).absolute())
    if lock is not None:
        lock.check()


def _read(path: Path) -> dict[str, Any] | None:
    """Return what the lock says of its holder; None: nobody holds it, or it is of a version that says less."""
    try:
        content = parse(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _time(path: Path) -> int | None:
    try:
        with open(path, "rb") as file:  # opened, since network file systems ask the server only then
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _place(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one of the same name; None: it is not there."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _describe(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "an unknown process"
    return f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"


def _boot() -> str | None:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return None


# A forked child would keep the lock for as long as it lives. It must not, be it the worker of a data loader that
# outlives a killed training.
_files: "weakref.WeakSet[IO[str]]" = weakref.WeakSet()


def _close_in_child() -> None:
    for file in list(_files):
        with contextlib.suppress(OSError):
            file.close()


os.register_at_fork(after_in_child=_close_in_child)
