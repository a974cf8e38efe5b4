"""Checkpoints of DeepSpeed's for another number of processes.

ZeRO writes the optimizer's state in parts, one for each process, and reads it with as many. Its
universal form, to which DeepSpeed converts a checkpoint, can be read with any number.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from ..methods.distributed import decided_by_one

_UNIVERSAL = "universal"  # in a checkpoint, until it is read


def begin(trainer: Any, checkpoint: Path) -> None:
    """Convert a checkpoint of another number of processes, and let DeepSpeed read that. Every
    process must call it, before the trainer makes DeepSpeed's engine."""
    accelerator = trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin if trainer.is_deepspeed_enabled else None
    if plugin is None or not plugin.zero_stage:
        return
    own, beyond = (
        any(checkpoint.glob(f"global_step*/*zero_pp_rank_{rank}_mp_rank_*_optim_states.pt"))
        for rank in (accelerator.process_index, accelerator.num_processes)
    )
    # each looks for its own: the nodes may have folders of their own
    if is_of_others := not all(gather_object([own and not beyond])):
        decided_by_one(lambda: _convert(checkpoint))
    plugin.deepspeed_config.setdefault("checkpoint", {})["load_universal"] = is_of_others


def finish(trainer: Any, checkpoint: Path) -> None:
    """Delete what `begin` has converted, once it is read. Every process must call it."""
    if (checkpoint / _UNIVERSAL).is_dir():
        engine = trainer.deepspeed
        engine.load_universal_checkpoint = lambda: False  # of a best model, later
        # DeepSpeed 0.19 gives all groups of weights one tensor, which each would count up
        for state in engine.optimizer.optimizer.state.values():
            state["step"] = state["step"] + 0
        trainer.accelerator.wait_for_everyone()
        shutil.rmtree(checkpoint / _UNIVERSAL, ignore_errors=True)


def _convert(checkpoint: Path) -> None:
    """Write a checkpoint's universal form into its folder."""
    print(f"DeepSpeed converts {checkpoint.name} for another number of processes.", flush=True)
    states, universal = next(checkpoint.glob("global_step*")), checkpoint / _UNIVERSAL
    # fmt: off
    subprocess.run(
        [sys.executable, "-P", "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state",
         "--input_folder", states, "--output_folder", universal],
        check=True,
    )
    # fmt: on
