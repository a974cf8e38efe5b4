"""What is put in the place of a part of TRL's, each with its reason: here, and for the link to vLLM
in quantized_sync.py."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from .quantized_sync import FullWeights
from .trl_names import grpo_trainer


def sending_full_weights() -> AbstractContextManager[Any]:
    """Have the trainer that is made inside the block link to vLLM by `FullWeights`: TRL names the
    class of its link in its constructor, and takes no other.

    It can go once TRL sends the weights of a quantized model in full
    (https://github.com/huggingface/trl/issues/4973).
    """
    return patch.object(grpo_trainer, "VLLMGeneration", FullWeights)


def on_plain_cpu(args: Any) -> AbstractContextManager[Any]:
    """Have a training on the CPU call its device "cpu": before 5.18 transformers loads a checkpoint
    onto accelerate's "cpu:0", which `torch.load` does not know."""
    device = torch.device("cpu") if args.device.type == "cpu" else args.device
    return patch.object(type(args), "device", device)


class LocalGather:
    """accelerate's `gather` for the loss of a micro-batch, whose rows other processes may have more
    of, or fewer: inside `of_this_process` it returns the rows of this process.

    TRL's loss gathers a number for each row to log it, and would wait forever for as many.
    `TokenMeans` gathers what is logged.
    """

    def __init__(self, accelerator: Any) -> None:
        self._gather, self._is_local = accelerator.gather, False
        accelerator.gather = self

    def __call__(self, rows: Tensor) -> Any:
        return rows if self._is_local else self._gather(rows)

    @contextmanager
    def of_this_process(self) -> Iterator[None]:
        """Return rows as they are inside the block."""
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False


@contextmanager
def holding(target: Any, **values: Any) -> Iterator[None]:
    """Give attributes that TRL's loss reads other values inside the block."""
    before = {name: getattr(target, name) for name in values}
    try:
        vars(target).update(values)
        yield
    finally:
        vars(target).update(before)
