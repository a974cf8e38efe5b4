"""`accelerate launch` for several processes, which ends with the exit code of the first that fails
and without accelerate's own page of traceback: `python -m trl_miner.launching.start`, with
accelerate's options."""

import logging
import sys


def main() -> int:
    """Start what the command line says, and return 0, the exit code of the first process that
    fails, or 128 + N where signal N ended it."""
    from accelerate.commands import launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        launch.launch_command(launch.launch_command_parser().parse_args())
    except ChildFailedError as error:
        code: int = error.get_first_failure()[1].exitcode
        return 128 - code if code < 0 else code
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main())
