"""`gradient_checkpointing_mode: auto`: how many layers of a micro-batch need no checkpointing to stay below its peak.

A forward of n tokens keeps n * (base + m) for its backward where the last m of the layers are not checkpointed, in
units of what one layer keeps of a token besides its input. Where all are checkpointed, N tokens come to
N * (base + 1), because the backward recomputes one layer at a time. What the last m keep is gone before it recomputes
the others. Beside that, the backward of a layer needs room for gradients, and the head for tiles of logits, but never
both at once.
"""

import logging
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.modeling_layers import GradientCheckpointingLayer

from ..config_checks import CHECKPOINTING_AUTO
from ..distributed import current_world

try:
    from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE as _HEAD_TOKENS  # its head runs on so many in one go
except ImportError:  # before TRL 1.16, on all
    _HEAD_TOKENS = math.inf

logger = logging.getLogger(__name__)

_SIZES = (32, 64, 128)  # tokens of the forwards that are measured

# What the backward of a layer needs for gradients, in units of what the layer keeps: 0.30 to 0.37 in Qwen3 with and
# without LoRA, Llama and GPT-NeoX, by PyTorch's profiler.
_GRADIENTS = 0.25

# What a micro-batch costs whatever is in it, in tokens that all layers could recompute meanwhile: measured on a CPU,
# elsewhere the time that adding one gradient to another takes, by the data sheets of A100 and H100.
_OVERHEAD, _OVERHEAD_ON_CPU = 512, 160


class LayerMemory(NamedTuple):
    """What a model's layers keep for their backward."""

    num_layers: int  # those that are checkpointed
    base: float  # what all keep with checkpointing, in units of what one keeps besides without; at least 0
    head: float = 0.0  # what the head needs of a token for a moment, in the same units
    overhead: int = 0  # tokens that all layers could recompute in the time that a micro-batch costs in itself

    def plain_layers(self, num_tokens: Any, most: int) -> np.ndarray:
        """Return how many layers need no checkpointing, given that `most` tokens with checkpointing fit.

        `num_tokens` is a number or an array; so is the result.
        """
        peak = most * (self.base + 1 + _GRADIENTS)
        beside_gradients = peak / num_tokens - self.base - _GRADIENTS
        # The head's share raises the peak only where it is more than that.
        with_head = np.maximum(peak, most * self.base + self._of_head(most))
        beside_head = (with_head - self._of_head(num_tokens)) / num_tokens - self.base
        return np.clip(np.floor(np.minimum(beside_gradients, beside_head)), 0, self.num_layers).astype(int)

    def costs(self, num_tokens: np.ndarray, most: int) -> np.ndarray:
        """Return what micro-batches of so many padded tokens cost, in forwards of one layer over one token; infinity
        where they have more than `most`."""
        fitting = np.minimum(num_tokens, most)
        forwards = 4 * self.num_layers - self.plain_layers(fitting, most)  # a backward takes as long as two
        return np.where(num_tokens <= most, fitting * forwards + self.overhead * self.num_layers, np.inf)

    def _of_head(self, num_tokens: Any) -> Any:
        return self.head * np.minimum(num_tokens, _HEAD_TOKENS)


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
    num_layers, base, head = len(_checkpointed_layers(trainer.model)), 0.0, 0.0
    reason = "this model's layers cannot be told apart"
    if num_layers:
        try:
            with trainer.undoing_draws():
                base, head = _measure(trainer, num_layers)
        except Exception as error:  # a model that takes no text alone
            num_layers, reason = 0, f"its memory could not be measured ({type(error).__name__}: {error})"
    if not num_layers:
        logger.warning(f"gradient_checkpointing_mode=auto: every layer stays checkpointed, because {reason}.")
    device = trainer.accelerator.device
    own = torch.tensor([[num_layers, base, -head]], device=device)
    num_layers, base, head = current_world().gather(own).amin(dim=0).tolist()
    overhead = _OVERHEAD_ON_CPU if device.type == "cpu" else _OVERHEAD
    return LayerMemory(int(num_layers), base, -head, overhead) if num_layers else None


def _measure(trainer: Any, num_layers: int) -> tuple[float, float]:
    """Return `base` and `head` of `LayerMemory`."""
    plain, head = zip(*(_forward_bytes(trainer, size, num_layers) for size in _SIZES), strict=True)
    checkpointed = [_forward_bytes(trainer, size, 0)[0] for size in _SIZES[:2]]
    # Differences leave out what does not grow with the tokens, such as weights in 16 bits.
    grown, grown_more, base = plain[1] - plain[0], plain[2] - plain[1], checkpointed[1] - checkpointed[0]
    of_layer = (grown - base) / num_layers
    needed = max(0.0, (head[1] - head[0]) / of_layer)
    if grown_more > 2.02 * grown:  # attention that keeps a number for each pair of tokens
        return 0.0, needed
    return base / of_layer, needed


def _forward_bytes(trainer: Any, num_tokens: int, num_plain: int) -> tuple[int, int]:
    """Return the bytes that a forward keeps for its backward, and how many more its head needs meanwhile."""
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
    head = _Allocations()
    hooks = [layer.register_forward_pre_hook(keep_input, with_kwargs=True) for layer in layers]
    hooks.append(layers[-1].register_forward_hook(lambda *_: head.start()))
    try:
        with checkpointing_less(trainer.model, num_plain), saved_tensors_hooks(keep, lambda tensor: tensor), head:
            graph = trainer.forwards.policy(batch, compute_entropy=True)
    finally:
        for hook in hooks:
            hook.remove()
    needed = head.most - head.live
    del graph  # until here, so that no storage took the place of another
    return sum(sizes.values()), needed


class _Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that operations return from `start` on, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0  # now, and at the peak
        self._is_counting = False
        self._storages: set[int] = set()

    def start(self) -> None:
        self._is_counting = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result) if self._is_counting else ():
            if type(tensor) is Tensor:  # not a subclass, such as a sharded weight, which has no storage
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:
            self._storages.add(key)
            self.live += size
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self._forget, key, size).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.live -= size


def _checkpointed_layers(model: Any) -> list[Any]:
    """Return the layers that are checkpointed, in the order in which they run."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return [layer for layer in layers if layer.gradient_checkpointing]
