"""`gradient_checkpointing_mode: auto`: how many layers of a micro-batch need no checkpointing to stay below its peak.

A forward of n tokens keeps n * (base + m) for its backward where the last m of the layers are not checkpointed, in
units of what one layer keeps of a token besides its input. Where all are checkpointed, N tokens come to
N * (base + 1), because the backward recomputes one layer at a time. What the last m keep is gone before it recomputes
the others.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers.modeling_layers import GradientCheckpointingLayer

from ..config_checks import CHECKPOINTING_AUTO
from ..distributed import current_world

logger = logging.getLogger(__name__)

_SIZES = (32, 64, 128)  # tokens of the forwards that are measured


class LayerMemory(NamedTuple):
    """What a model's layers keep for their backward."""

    num_layers: int  # those that are checkpointed
    base: float  # what all keep with checkpointing, in units of what one keeps besides without; at least 0

    def plain_layers(self, num_tokens: int, most: int) -> int:
        """Return how many layers need no checkpointing, given that `most` tokens with checkpointing fit."""
        return min(self.num_layers, max(0, int(most * (self.base + 1) / num_tokens - self.base)))

    def plain_tokens(self, most: int) -> int:
        """Return how many tokens fit without any checkpointing."""
        return int(most * (self.base + 1) / (self.base + self.num_layers))


@contextmanager
def checkpointing_less(model: Any, num_plain: int) -> Iterator[None]:
    """Build graphs meanwhile in which the last `num_plain` layers keep everything for their backward."""
    layers = _checkpointed_layers(model)[-num_plain:] if num_plain else []
    for layer in layers:
        layer.gradient_checkpointing = False
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = True


def measure_layers(trainer: Any) -> LayerMemory | None:
    """Return what the layers of the trainer's model keep, the same on every process, by forwards of a few tokens.

    None: checkpointing is off, is to be everywhere, or cannot be measured. Every process must call it.
    """
    args = trainer.args
    if args.gradient_checkpointing_mode != CHECKPOINTING_AUTO or not args.gradient_checkpointing:
        return None
    num_layers, base, reason = (
        len(_checkpointed_layers(trainer.model)),
        0.0,
        "this model's layers cannot be told apart",
    )
    if num_layers:
        try:
            with trainer.undoing_draws():
                base = _measure_base(trainer, num_layers)
        except Exception as error:  # a model that takes no text alone
            num_layers, reason = 0, f"its memory could not be measured ({type(error).__name__}: {error})"
    if not num_layers:
        logger.warning(f"gradient_checkpointing_mode=auto: every layer stays checkpointed, because {reason}.")
    own = torch.tensor([[num_layers, base]], device=trainer.accelerator.device)
    least = current_world().gather(own).amin(dim=0).tolist()
    return LayerMemory(int(least[0]), least[1]) if least[0] else None


def _measure_base(trainer: Any, num_layers: int) -> float:
    plain = [_kept_bytes(trainer, size, num_layers) for size in _SIZES]
    checkpointed = [_kept_bytes(trainer, size, 0) for size in _SIZES]
    # Differences leave out what does not grow with the tokens, such as weights in 16 bits.
    grown, grown_more = plain[1] - plain[0], plain[2] - plain[1]
    if grown_more > 2.02 * grown:  # attention that keeps a number for each pair of tokens
        return 0.0
    base = checkpointed[1] - checkpointed[0]
    return num_layers * base / (grown - base)


def _kept_bytes(trainer: Any, num_tokens: int, num_plain: int) -> int:
    """Return the bytes that a forward keeps for its backward."""
    sizes: dict[int, int] = {}  # by storage, which may be kept more than once

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def keep_input(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor has one
    ids = torch.full((1, num_tokens), tokenizer.eos_token_id, device=trainer.accelerator.device)
    batch = {"prompt_ids": ids[:, :2], "completion_ids": ids[:, 2:]}
    batch |= {"prompt_mask": torch.ones_like(ids[:, :2]), "completion_mask": torch.ones_like(ids[:, 2:])}
    # Checkpointing keeps the inputs of a layer where no hook of autograd sees them.
    layers = _checkpointed_layers(trainer.model)
    hooks = [layer.register_forward_pre_hook(keep_input, with_kwargs=True) for layer in layers]
    try:
        with checkpointing_less(trainer.model, num_plain), saved_tensors_hooks(keep, lambda tensor: tensor):
            graph = trainer.forwards.policy(batch, compute_entropy=True)
    finally:
        for hook in hooks:
            hook.remove()
    del graph  # until here, so that no storage took the place of another
    return sum(sizes.values())


def _checkpointed_layers(model: Any) -> list[Any]:
    """Return the layers that are checkpointed, in the order in which they run."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return [layer for layer in layers if layer.gradient_checkpointing]
