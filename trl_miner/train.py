"""Train a recipe in this process: `trl-miner train RECIPE`, or one of several processes with
`accelerate launch -m trl_miner.train --config recipes/...`."""

import os
import shutil
import signal
import sys
import traceback
import warnings
from typing import TYPE_CHECKING

from .cli import begin
from .common.errors import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    is_disk_full,
    tell,
    told_in_one_line,
)
from .common.redaction import hide
from .launching.supervise import die_with_parent

if TYPE_CHECKING:
    from .run.training import Run

_GO_ON = "To go on: the same command with --resume_from_checkpoint latest"


def main(words: list[str] | None = None) -> int:
    """Train what the words of a command line say, and return the exit code: 0, 1 if the training
    failed, 130 after Ctrl-C. A mistake (2) and SIGTERM (143) raise SystemExit."""
    words = begin(words)
    if "LOCAL_RANK" in os.environ:  # one of several: it must not outlive what started it
        die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # an exit ends all children
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # TRL's names
    with told_in_one_line("train"):
        from .recipe.reading import read

        recipe = read(words)
        from .run.training import Run

        run = Run(recipe)
    return _go(run)


def _go(run: "Run") -> int:
    try:
        run.go()
    except KeyboardInterrupt:
        if run.is_main:
            tell("train", f"stopped by Ctrl-C. {_GO_ON}.")
        return INTERRUPTED
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        tell("train", f"sys.exit({error.code!r}) in code of your own ended the training.")
        return FAILED
    except Exception as error:
        # torch does not say why it could not write
        if is_disk_full(error) or shutil.disk_usage(run.folder).free < 2**20:
            cause = " ".join(str(error).split())
            tell("train", f"the disk of {run.folder} is full ({cause}). Free some space. {_GO_ON}.")
        else:
            print(hide(traceback.format_exc()), file=sys.stderr, flush=True)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
