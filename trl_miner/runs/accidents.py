"""What a training says when Ctrl-C or a full disk ends it: what is kept, and how to go on."""

import errno
import re
import shutil
from pathlib import Path

from ..errors import first_line
from .checkpoints import newest

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAYS_FULL = re.compile(r"No space left on device|Disk quota exceeded|os error (?:28|122|27)\b")
_MAY_MEAN_FULL = re.compile(r"PytorchStreamWriter|unexpected pos|iostream")  # of torch.save, which hides the reason
_NEARLY_FULL = 2**20  # bytes


class DiskFull(OSError):
    """Nothing more can be written into the run folder."""


def how_to_go_on(output: str | Path) -> str:
    """Return which checkpoint a run that ended early has, and how to go on from it."""
    checkpoint = newest(output)
    if checkpoint is None:
        return f"{output} has no checkpoint to go on from: start again."
    return f"The newest checkpoint is {checkpoint}. To go on: the same command with --resume_from_checkpoint latest"


def why_full(error: BaseException, folder: str | Path) -> str | None:
    """Return that the disk is full if an error means that; None: it means something else.

    `folder` is where the run writes: the libraries that save models hide both the place and the reason.
    """
    errors: list[BaseException] = []
    one: BaseException | None = error
    while one is not None:
        errors.append(one)
        one = one.__cause__ or one.__context__
    free = shutil.disk_usage(folder).free if Path(folder).is_dir() else 0
    is_full = any(getattr(one, "errno", None) in _FULL or _SAYS_FULL.search(str(one)) for one in errors)
    may_be = free < _NEARLY_FULL and any(_MAY_MEAN_FULL.search(str(one)) for one in errors)
    if not is_full and not may_be:
        return None
    free_mib = free / 2**20
    return f"the disk is full, or a quota is used up: {folder} has {free_mib:.1f} MiB free ({first_line(error)})"
