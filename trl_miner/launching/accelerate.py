"""`accelerate launch`, less the traceback that it adds behind the training's own, and with its exit code or signal.

    python -m trl_miner.launching.accelerate --config_file FILE -m trl_miner.train --config RECIPE

That traceback shows the whole command, a token on it included, and hides the reason of the failure in a log's end.
"""

import signal
import subprocess
import sys

from .guard import end_as


def main() -> int:
    """Run `accelerate launch` with the words of the command line, and return its exit code."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(launch_command_parser().parse_args())
    except subprocess.CalledProcessError as error:  # one process
        return error.returncode
    except ChildFailedError as error:  # several: the first that failed
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        what = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        print(f"Process {rank} was the first to fail: it ended {what}.", file=sys.stderr)
        return code
    except SignalException as error:
        return -int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(end_as(main()))
