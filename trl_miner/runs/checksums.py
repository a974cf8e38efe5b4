"""Checksums of large files, read by several threads, and files brought to the disk.

xxh3_128 finds what a disk or a network damages, at the speed of memory; it is no protection against
a person. A file is cut into pieces, so that several threads share one: its checksum is that of the
checksums of its pieces.
"""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_128

PIECE = 64 * 2**20
_CHUNK = 4 * 2**20  # what a thread reads at once
_THREADS = 8
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # of some network file systems

Piece = tuple[str, int]  # the name of a file in a folder, and the number of its piece


def pieces_of(sizes: Mapping[str, int]) -> list[Piece]:
    """Return the pieces of files by their sizes; an empty file has one."""
    return [
        (name, number)
        for name, size in sizes.items()
        for number in range(max(1, -(-size // PIECE)))
    ]


def digests_of(folder: Path, pieces: Iterable[Piece]) -> dict[Piece, bytes]:
    """Return the checksums of pieces of a folder's files.

    Raises:
        OSError: A file cannot be read.
    """
    pieces = list(pieces)
    with ThreadPoolExecutor(_THREADS) as threads:
        digests = threads.map(lambda piece: _digest(folder / piece[0], piece[1]), pieces)
        return dict(zip(pieces, digests, strict=True))


def _digest(path: Path, number: int) -> bytes:
    checksum, left = xxh3_128(), PIECE
    buffer = memoryview(bytearray(min(_CHUNK, max(1, path.stat().st_size))))
    with open(path, "rb", buffering=0) as file:
        file.seek(number * PIECE)
        while left > 0 and (count := file.readinto(buffer[:left])):
            checksum.update(buffer[:count])
            left -= count
    return checksum.digest()


def joined(digests: dict[Piece, bytes]) -> dict[str, str]:
    """Return the checksum of each file, from those of all its pieces."""
    whole: dict[str, xxh3_128] = {}
    for piece in sorted(digests):
        whole.setdefault(piece[0], xxh3_128()).update(digests[piece])
    return {name: checksum.hexdigest() for name, checksum in whole.items()}


def sync(paths: Sequence[Path]) -> None:
    """Wait until files or folders are on the disk, which a loss of power leaves as it is.

    Raises:
        OSError: The disk is full or fails.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(_sync, paths))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
