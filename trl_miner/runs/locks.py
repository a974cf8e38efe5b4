"""`.lock` and `.training.lock`: the one process that writes into a folder. Whoever only reads needs
no lock.

filelock's lease: the file names its holder, which renews it while it lives, and is gone when the
holder gives it back. A holder that was killed is known at once on its own machine; elsewhere, a
lease that nobody renews for LEASE_SECONDS has ended.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import SoftFileLease, Timeout

from ..common.errors import RunEnded

logger = logging.getLogger(__name__)

LOCK = ".lock"  # of a comparison and of an evaluation
TRAINING_LOCK = ".training.lock"  # of a run: an evaluation may be written into its folder
BEAT_SECONDS, LEASE_SECONDS = 5.0, 60.0


class FolderLock:
    """The lock of a folder, held by this process from `acquire` to `release`."""

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self.folder, self.path = folder, folder / name
        self._lease = SoftFileLease(
            self.path,
            lease_duration=LEASE_SECONDS,
            heartbeat_interval=BEAT_SECONDS,
            thread_local=False,
        )

    def acquire(self) -> None:
        """Take the lock, from a dead process too.

        Raises:
            ValueError: Another process is alive, or the folder cannot be written.
        """
        left_by, patience = self.holder(), 0.0
        if left_by and not self._is_seen_here():
            patience = LEASE_SECONDS + 2 * BEAT_SECONDS
            logger.warning(
                f"{self.folder} was last used by {left_by}. Waiting {patience:.0f} s for it to end."
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lease.acquire(timeout=patience, poll_interval=BEAT_SECONDS / 10)
        except Timeout:
            raise ValueError(
                f"Only one process may write into a folder: {self.folder} is in use by"
                f" {self.holder()}. Wait for it, end it, or choose another folder."
            ) from None
        except OSError as error:
            raise ValueError(
                f"{self.folder} cannot be written ({error}). Choose another output folder."
            ) from error
        if left_by:
            logger.warning(
                f"{self.folder} was left by {left_by}, which has ended. It is taken over."
            )

    def check(self) -> None:
        """Raise `RunEnded` if another process has taken the folder over."""
        owner = self._lease.owner
        if owner is not None and self._lease.token not in (owner.token, None):
            raise RunEnded(
                f"{self.folder} was taken over by {self.holder()}, so this process must not write"
                " into it any longer. Give each a folder of its own."
            )

    def release(self) -> None:
        """Give the lock back."""
        self._lease.release(force=True)

    def _is_seen_here(self) -> bool:
        """Return whether the lock's holder was started on this machine, and in this container: only
        then is its end seen. A container that starts anew counts its processes from 1 again."""
        if (owner := self._lease.owner) is None:
            return False
        machine, _, container = owner.hostname.partition("?")
        is_same = not container or container.endswith(f"-{os.stat('/proc/self/ns/pid').st_ino:x}")
        return machine == socket.gethostname() and is_same

    def holder(self) -> str:
        """Return whom the lock names; empty: it is free."""
        if (owner := self._lease.owner) is not None:
            # filelock adds a container's number
            return f"process {owner.pid} on {owner.hostname.partition('?')[0]}"
        return f"an unknown process, by {self.path}" if os.path.lexists(self.path) else ""


@contextmanager
def lock_folder(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the lock of a folder, such as that of a comparison or an evaluation."""
    lock = FolderLock(folder, name)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


# the run folders that this process and its siblings train into
_held: dict[Path, FolderLock | None] = {}


@contextmanager
def hold_run(output_dir: str | Path) -> Iterator[None]:
    """Hold a run folder while training; within itself it does nothing. Every process must call it.

    Only the main process locks.

    Raises:
        ValueError: Another training holds the folder, or it cannot be written.
    """
    from accelerate import PartialState

    from ..methods.distributed import decided_by_one

    folder = Path(output_dir).absolute()
    if folder in _held:
        yield
        return
    lock = FolderLock(folder, TRAINING_LOCK)
    decided_by_one(lock.acquire)
    _held[folder] = lock if PartialState().is_main_process else None
    try:
        yield
        check_run(folder)
    finally:
        del _held[folder]
        lock.release()


def check_run(output_dir: str | Path) -> None:
    """Check the lock of the run folder that this process holds: see `FolderLock.check`."""
    if (lock := _held.get(Path(output_dir).absolute())) is not None:
        lock.check()
