"""`.lock` and `.training.lock`: the one process that writes into a folder. Whoever only reads needs no lock.

filelock's lease: the file names its holder, which renews it while it lives, and is gone when the holder gives it back.
That needs no locks of the file system. A holder that was killed is known at once on its own machine; elsewhere, a
lease that nobody renews for LEASE_SECONDS has ended, and a holder that renews it, every BEAT_SECONDS, lives.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import SoftFileLease, Timeout

logger = logging.getLogger(__name__)

LOCK = ".lock"  # of a comparison and of an evaluation
TRAINING_LOCK = ".training.lock"  # of a run: an evaluation may be written into its folder
BEAT_SECONDS, LEASE_SECONDS = 5.0, 60.0
IN_USE = (
    "Only one training may write into an output_dir: {folder} is in use by {holder}. Wait for it, end it, or choose "
    "another output_dir."
)


class FolderLock:
    """The lock of a folder, held by this process from `acquire` to `release`."""

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self.folder, self.path = folder, folder / name
        self._lease = SoftFileLease(
            self.path, lease_duration=LEASE_SECONDS, heartbeat_interval=BEAT_SECONDS, thread_local=False
        )

    def acquire(self, message: str) -> None:
        """Take the lock, from a dead process too. Raise OSError if the folder cannot be written.

        Raises:
            ValueError: Another process is alive; its message names {folder} and {holder}.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        left_by = self._holder()
        try:
            self._take()
        except Timeout:
            raise ValueError(message.format(folder=self.folder, holder=self._holder())) from None
        if left_by:
            logger.warning(f"{self.folder} was left by {left_by}, which has ended. It is taken over.")

    def check(self) -> None:
        """Make the folder and its lock again if somebody has deleted them, with a warning.

        Raises:
            RuntimeError: Another process has taken the folder over.
        """
        if not self.path.exists():
            self._restore()
        owner = self._lease.owner
        if owner is not None and owner.token != self._lease.token:
            raise RuntimeError(
                f"{self.folder} was taken over by {self._holder()}, so this process must not write into it any "
                f"longer. Give each a folder of its own."
            )

    def release(self) -> None:
        """Give the lock back."""
        self._lease.release(force=True)

    def _take(self) -> None:
        """Acquire the lease. Raise Timeout once its holder has shown that it lives."""
        with suppress(Timeout):
            self._lease.acquire(timeout=0)
            return
        logger.warning(f"{self.folder} was last used by {self._holder()}. Waiting for a sign of its life.")
        seen = _time(self.path)
        self._lease.acquire(
            timeout=LEASE_SECONDS + 2 * BEAT_SECONDS,
            poll_interval=BEAT_SECONDS / 10,
            cancel_check=lambda: _time(self.path) not in (seen, None),  # None: it has just been given back
        )

    def _restore(self) -> None:
        logger.warning(
            f"{self.folder}, or its {self.path.name}, was deleted or moved while this process was writing into it. It "
            f"is made again for what comes now; what it held before may not be in it."
        )
        with suppress(OSError, Timeout):  # a disk that is full or away: whoever writes next says so
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lease.release(force=True)
            self._lease.acquire(timeout=0)

    def _holder(self) -> str:
        """Return whom the lock names; empty: it is free."""
        if (owner := self._lease.owner) is not None:
            return f"process {owner.pid} on {owner.hostname.partition('?')[0]}"  # filelock adds a container's number
        return f"an unknown process, by {self.path}" if os.path.lexists(self.path) else ""


def _time(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def lock_folder(folder: Path, message: str, name: str = LOCK) -> Iterator[None]:
    """Hold a folder's lock. `message` is the error's where another process holds it."""
    lock = FolderLock(folder, name)
    try:
        lock.acquire(message)
    except OSError as error:
        raise ValueError(
            f"--output must be a folder that can be written: {folder} cannot ({error}). Give another one."
        ) from error
    try:
        yield
    finally:
        lock.release()


_held: dict[Path, FolderLock | None] = {}  # the run folders that this process and its siblings train into


@contextmanager
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
            lock.acquire(IN_USE)
        except ValueError as error:
            problem = [str(error)]
        except OSError as error:
            lock = None
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
