"""Start the processes of a training through accelerate's launcher: behind `trl-miner train`, and of
`launch`.

    python -m trl_miner.launching.local --config RECIPE --num_processes 8

It tells the training's options from accelerate's. A training of one process runs in this one, which
has loaded torch already; accelerate would start another. accelerate's traceback, which shows the
whole command, including any token in it, and buries the reason for a failure, is left out: this
process ends with the exit code or signal of the training.
"""

import argparse
import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..common.errors import EXIT_CODE, INTERRUPTED, tell
from ..common.importing import did_you_mean
from ..common.progress import Progress, quietly
from ..common.redaction import hide_in_tracebacks, learn
from ..recipe.files import shipped
from ..runs.files import read_yaml
from .guard import end_as, how_it_ended

STARTER = (sys.executable, "-P", "-m", "trl_miner.launching.local")
CPU_FILE = "recipes/accelerate/cpu_2_processes.yaml"


def main(arguments: Sequence[str]) -> int:
    """Train, and return the exit code: the training's own, negative for a signal, or 2 for bad
    input."""
    # Until the training begins: the imports make half a million objects that stay, through which
    # the collector would go again and again.
    gc.disable()
    hide_in_tracebacks()
    import torch

    learn(arguments)
    try:
        with quietly("--quiet" in arguments), Progress("loading TRL", unit="", leave=False):
            words = launcher_arguments(list(arguments))
            check_needs(words)
            if "--config_file" not in words and torch.accelerator.device_count() < 2:
                # The training runs in this process, and needs it.
                from trl import GRPOTrainer  # noqa: F401
    except (ValueError, OSError) as error:
        return tell(error, "train", arguments)
    return launch(words)


def check_needs(arguments: Sequence[str]) -> None:
    """Raise ValueError where no model or no data set is named; TRL would complain of the batch size
    first."""
    named = {word.partition("=")[0] for word in arguments}
    if "--config" in named:
        return
    for needed in ({"--model_name_or_path"}, {"--dataset_name", "--datasets"}):
        if not named & needed:
            raise ValueError(
                f"Nothing to train: there is no {sorted(needed)[0]}. Give a recipe (`trl-miner train"
                " arithmetic/quick`), or your data and a model (`trl-miner train problems.csv --model"
                " Qwen/Qwen3-0.6B`)."
            )


def find_file(name: str, recipe: str | Path | None) -> Path:
    """Return a file of accelerate, relative to the recipe's folder or the current one, or one of
    ours or TRL's."""
    for folder in ([Path(recipe).parent] if recipe else []) + [Path()]:
        if (folder / name).is_file():
            return folder / name
    if (
        own := shipped().get(name.removeprefix("recipes/").removesuffix(".yaml"))
    ) and own.parent.name == "accelerate":
        return own
    files = (Path(str(entry)) for entry in resources.files("trl.accelerate_configs").iterdir())
    of_trl = {file.stem: file for file in files if file.suffix == ".yaml"}
    if name in of_trl:
        return of_trl[name]
    raise ValueError(
        f"No configuration named {name!r} for accelerate_config.{did_you_mean(name, of_trl)} Give a"
        " file, relative to the recipe's folder or the current one, one that `trl-miner recipes"
        f" accelerate` lists, or one of TRL's: {', '.join(sorted(of_trl))}."
    )


def read_config(name: str | None, recipe: str | Path | None) -> dict[str, Any]:
    """Return the contents of `accelerate_config`; empty without one."""
    return read_yaml(find_file(name, recipe)) if name else {}


def starts_several(config: dict[str, Any]) -> bool:
    """Return whether accelerate starts several processes with a configuration, which some kinds
    never do."""
    return str(config.get("distributed_type", "NO")).upper() not in ("NO", "FALSE", "MULTI_CPU")


def launcher_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments of accelerate's launcher, the training script and its arguments
    included."""
    import torch

    from ..recipe.parsing import split_words

    settings, for_script, for_launcher = split_words(arguments)
    name = settings.accelerate_config
    file = ["--config_file", str(find_file(name, settings.config))] if name else []
    config = read_config(name, settings.config)
    is_on_cpu = settings.use_cpu or not torch.accelerator.is_available()
    if is_on_cpu and not (config.get("use_cpu") and starts_several(config)):
        for_launcher = _one_process(for_launcher, on_cpu=True)
    elif not name and torch.accelerator.device_count() == 1:
        for_launcher = _one_process(for_launcher, on_cpu=False)
    if settings.bf16 is False and not settings.fp16 and file:  # the file's would win
        file += ["--mixed_precision", "no"]
    return [*file, *for_launcher, "-m", "trl_miner.train", *for_script]


# What accelerate takes where there is one GPU, or none, with a warning that it was not told.
DEFAULTS = "--num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no".split()


def _one_process(arguments: list[str], *, on_cpu: bool) -> list[str]:
    """Return the launcher's arguments with `DEFAULTS` before them, unless a file of accelerate says
    others."""
    from accelerate.commands.config.config_args import default_config_file
    from accelerate.commands.launch import launch_command_parser

    given = launch_command_parser().parse_args([*arguments, "script"])
    if given.config_file or (not on_cpu and Path(default_config_file).is_file()):
        return arguments
    if on_cpu and given.num_processes not in (None, 1):
        raise ValueError(
            "--num_processes needs a GPU: got none, and accelerate would silently start one"
            f" process. For two processes use `--accelerate_config {CPU_FILE}`, or `torchrun"
            " --nproc_per_node 2 -m trl_miner.train --config RECIPE`."
        )
    if not on_cpu:
        # else accelerate would start one alone
        several = max(given.num_processes or 1, given.num_machines or 1) > 1
        return [*DEFAULTS, *["--multi_gpu"] * several, *arguments]
    # with small models, more than a few threads only wait for each other
    threads = os.environ.get("OMP_NUM_THREADS") or str(min(4, os.cpu_count() or 1))
    return ["--cpu", *DEFAULTS, "--num_cpu_threads_per_process", threads, *arguments]


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
        # Decided when accelerate has read its file, which may name GPUs, too. With `--gpu_ids` it
        # starts a process: here CUDA may have looked already which GPUs there are, and does so
        # once.
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
            print(
                f"Process {rank} was the first to fail: it ended {how_it_ended(code)}.",
                file=sys.stderr,
            )
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
    sys.exit(end_as(main(sys.argv[1:])))
