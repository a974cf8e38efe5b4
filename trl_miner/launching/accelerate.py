"""`accelerate launch` without its traceback, ending with the exit code or signal of the training.

    python -m trl_miner.launching.accelerate --config_file FILE -m trl_miner.train --config RECIPE

accelerate's traceback shows the whole command, including any token in it, and buries the reason for a failure in the
log. A training of one process runs in this one, which has loaded torch already; accelerate would start another. With
`--gpu_ids` it does: here CUDA may have looked already which GPUs there are, and does so once.
"""

import argparse
import logging
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence

from ..errors import EXIT_CODE, INTERRUPTED, tell
from .signals import end_as, how_it_ended


def launch(words: Sequence[str]) -> int:
    """Run `accelerate launch` with these words, and return its exit code, negative for a signal."""
    from accelerate.commands import launch as launcher
    from torch.distributed.elastic.agent.server import api as agent
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    args = launcher.launch_command_parser().parse_args(words)
    start_another = launcher.simple_launcher
    single: list[argparse.Namespace] = []
    # its report of a failed process is a page; below is a line
    for name in ("torch.distributed.elastic", agent.__name__):  # which has a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if args.module and not args.mpirun_hostfile:
        # decided when accelerate has read its file, which may name GPUs, too
        launcher.simple_launcher = lambda args: (
            single.append(args) if args.gpu_ids in (None, "all") else start_another(args)
        )
    try:
        launcher.launch_command(args)
    except (ValueError, ImportError) as error:  # of options that do not fit together; no DeepSpeed
        return tell(error, "train")
    except subprocess.CalledProcessError as error:  # raised with one process
        return error.returncode
    except ChildFailedError as error:  # raised with several: report the first that failed
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        if code not in (EXIT_CODE, INTERRUPTED):  # of bad input and of Ctrl-C the process has told
            print(f"Process {rank} was the first to fail: it ended {how_it_ended(code)}.", file=sys.stderr)
        return code
    except SignalException as error:
        return INTERRUPTED if error.sigval == signal.SIGINT else -int(error.sigval)
    except KeyboardInterrupt:  # one process, of which this is the parent
        return INTERRUPTED
    finally:
        launcher.simple_launcher = start_another
    if single:
        _run_here(single[0])
    return 0


def _run_here(args: argparse.Namespace) -> None:
    """Run the module that accelerate would start, with the environment that it would have."""
    import torch
    from accelerate.utils import prepare_simple_launcher_cmd_env

    os.environ.update(prepare_simple_launcher_cmd_env(args)[1])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # which torch has read already
    sys.argv = [args.training_script, *args.training_script_args]
    runpy.run_module(args.training_script, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.exit(end_as(launch(sys.argv[1:])))
