"""`accelerate launch` without its traceback, ending with the exit code or signal of the training.

    python -m trl_miner.launching.accelerate --config_file FILE -m trl_miner.train --config RECIPE

accelerate's traceback shows the whole command, including any token in it, and buries the reason for a failure in the
log.
"""

import subprocess
import sys

from .signals import end_as, signal_name


def main() -> int:
    """Run `accelerate launch` with the arguments of the command line, and return its exit code."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(launch_command_parser().parse_args())
    except subprocess.CalledProcessError as error:  # raised with one process
        return error.returncode
    except ChildFailedError as error:  # raised with several: report the first that failed
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        reason = f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"
        print(f"Process {rank} was the first to fail: it ended {reason}.", file=sys.stderr)
        return code
    except SignalException as error:
        return -int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(end_as(main()))
