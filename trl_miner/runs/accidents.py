"""What a training says when Ctrl-C or a full disk ends it: what is kept, and the command that goes on."""

import errno
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import first_line
from ..redaction import HIDDEN, redact
from .checkpoints import newest

COMMAND = "TRL_MINER_COMMAND"  # the variable by which a training knows the command that started it
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAYS_FULL = re.compile(r"No space left on device|Disk quota exceeded|os error (?:28|122|27)\b")
_MAY_MEAN_FULL = re.compile(r"PytorchStreamWriter|unexpected pos|iostream")  # of torch.save, which hides the reason
_PROBE = 2**20  # bytes


class DiskFull(OSError):
    """Nothing more can be written into the run folder."""


def how_to_go_on(output: str | Path) -> str:
    """Return which checkpoint a run that ended early has, and the command that goes on from it."""
    command = os.environ.get(COMMAND) or _join(_started_by())
    checkpoint = newest(output)
    if checkpoint is None:
        return f"{output} has no checkpoint to go on from. To start again: {command}"
    if not command.startswith("trl-miner compare"):  # which always goes on
        command = re.sub(r" --resume_from_checkpoint[= ]\S+", "", command) + " --resume_from_checkpoint latest"
    return f"The newest checkpoint is {checkpoint}. To go on: {command}"


@contextmanager
def known_command(words: Sequence[str]) -> Iterator[None]:
    """Let the trainings that this process starts know its command line, as long as the command runs."""
    before = os.environ.get(COMMAND)
    os.environ[COMMAND] = _join(["trl-miner", *words])
    try:
        yield
    finally:
        if before is None:
            del os.environ[COMMAND]
        else:
            os.environ[COMMAND] = before


def _join(words: Sequence[str]) -> str:
    return shlex.join(word.replace(HIDDEN, "HIDDEN") for word in redact([*words])).replace("HIDDEN", HIDDEN)


def _started_by() -> list[str]:
    """Return the command line that started this training: accelerate's or torchrun's, or its own."""
    import psutil

    with suppress(psutil.Error):
        program, *words = psutil.Process().parent().cmdline()
        if "trl_miner.train" in words and "python" in Path(program).name:
            return ["python", *words] if words[0].startswith("-") else [Path(words[0]).name, *words[1:]]
    return ["python", "-m", "trl_miner.train", *sys.argv[1:]]


def why_full(error: BaseException, folder: str | Path) -> str | None:
    """Return which disk is full if an error means that one is; None: it means something else.

    `folder` is where the run writes: the libraries that save models hide both the place and the reason.
    """
    errors = [*_chain(error)]
    is_full = any(getattr(one, "errno", None) in _FULL or _SAYS_FULL.search(str(one)) for one in errors)
    if not is_full and not (any(_MAY_MEAN_FULL.search(str(one)) for one in errors) and _takes_nothing(folder)):
        return None
    names = [name for one in errors if isinstance(name := getattr(one, "filename", None), str)]
    place = next((parent for name in names if (parent := Path(name).parent).is_dir()), Path(folder))
    free = shutil.disk_usage(place).free / 2**20
    return f"the disk is full, or a quota is used up: {place} has {free:.1f} MiB free ({first_line(error)})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _takes_nothing(folder: str | Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE))
            file.flush()
    except OSError as error:
        return error.errno in _FULL
    return False
