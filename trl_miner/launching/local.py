"""Start a training without a vLLM server through accelerate's launcher: the process behind `trl-miner train`.

    python -m trl_miner.launching.local --config RECIPE --num_processes 8

It tells the training's options from accelerate's, and then becomes the training, or starts several processes.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from ..errors import tell
from ..progress import Progress, quietly
from ..redaction import hide_in_tracebacks, learn
from ..runs.files import read_yaml
from ..threads import NOT_ASKED
from .accelerate import launch
from .accelerate_config import CPU_FILE, cpu_threads, find_file, is_single_process
from .signals import end_as

STARTER = (sys.executable, "-P", "-m", "trl_miner.launching.local")


def main(arguments: Sequence[str]) -> int:
    """Train, and return the exit code: the training's own, negative for a signal, or 2 for bad input."""
    # Until the training begins: the imports make half a million objects that stay, through which the collector would
    # go again and again.
    gc.disable()
    hide_in_tracebacks()
    import torch

    learn(arguments)
    try:
        with quietly("--quiet" in arguments), Progress("loading TRL", unit="", leave=False):
            words = launcher_arguments(list(arguments))
            check_needs(words)
            if "--config_file" not in words and torch.accelerator.device_count() < 2:
                from trl import GRPOTrainer  # noqa: F401  (the training runs in this process, and needs it)
    except (ValueError, OSError) as error:
        return tell(error, "train")
    return launch(words)


def check_needs(arguments: Sequence[str]) -> None:
    """Raise ValueError where no model or no data set is named; TRL would complain of the batch size first."""
    named = {word.partition("=")[0] for word in arguments}
    if "--config" in named:
        return
    for needed in ({"--model_name_or_path"}, {"--dataset_name", "--datasets"}):
        if not named & needed:
            raise ValueError(
                f"A training needs a recipe, or a data set and a model: got no {sorted(needed)[0]}. Try "
                f"`trl-miner train arithmetic/miner`; `trl-miner recipes` lists all."
            )


def parse_launch(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments of `trl-miner train` as accelerate's launcher will."""
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args(launcher_arguments(arguments))


def launcher_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments of accelerate's launcher, the training script and its arguments included."""
    import torch

    from ..options import split_words

    settings, for_script, for_launcher = split_words(arguments)
    if "OMP_NUM_THREADS" not in os.environ and not any(word.startswith("--num_cpu_th") for word in for_launcher):
        os.environ[NOT_ASKED] = "1"
    config, is_several_on_cpu = _accelerate_config(settings.accelerate_config, settings.config)
    if not torch.accelerator.is_available() and not is_several_on_cpu:
        for_launcher = _launch_on_cpu(for_launcher)
    return [*config, *for_launcher, "-m", "trl_miner.train", *for_script]


def _accelerate_config(name: str | None, recipe: str | None) -> tuple[list[str], bool]:
    """Return the launcher's option for `accelerate_config`, and whether that starts several processes on a CPU."""
    if not name:
        return [], False
    path = find_file(name, recipe)
    config = read_yaml(path)
    return ["--config_file", str(path)], bool(config.get("use_cpu")) and not is_single_process(config)


def _launch_on_cpu(arguments: list[str]) -> list[str]:
    """Return the launcher's arguments on a machine without a GPU, where accelerate would otherwise guess and warn."""
    if "--num_processes" in arguments and arguments[arguments.index("--num_processes") + 1] != "1":
        raise ValueError(
            f"--num_processes needs a GPU: got none, and accelerate would silently start one process. For two "
            f"processes use `--accelerate_config {CPU_FILE}`, or `torchrun --nproc_per_node 2 -m trl_miner.train "
            "--config RECIPE`."
        )
    defaults = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
    return arguments or [*defaults.split(), "--num_cpu_threads_per_process", cpu_threads()]


if __name__ == "__main__":
    sys.exit(end_as(main(sys.argv[1:])))
