"""What a training process and a vLLM server need of memory, component by component.

States are exact: weights, gradients, optimizer, reference model, the KV cache. Activations are a bound. What ZeRO,
NCCL and CUDA take comes from their documentation, or is a rule of thumb.
"""

from dataclasses import dataclass

from .machine import GIB
from .model_shape import Shape

ADAM = 8  # bytes per parameter: two moments in float32
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768  # trl.kernels.chunked_logprob, trl.trainer.utils: the head's tile
TILES_WITHOUT_TRITON = 8  # float32 tiles as wide as the vocabulary that its backward holds in plain torch
CUDA_BYTES = 2 * GIB  # context, cuBLAS, NCCL: a rule of thumb
FRAGMENTS = 1.1  # fragmentation: what each micro-batch allocates, over the sum of its tensors
ZERO_BUCKET = 500_000_000  # DeepSpeed's reduce_bucket_size and allgather_bucket_size, in elements
ZERO3_LIVE = 1_000_000_000  # its stage3_max_live_parameters; also sub_group_size, the parameters stepped at once
NF4, INT8 = 4.5 / 8, 1.0  # bytes per weight in 4 bits, with a float32 scale for each 64; and in 8
SERVER_BYTES = 4 * GIB  # vLLM without weights and KV cache: CUDA, graphs, activations, logits; a rule of thumb
SAMPLING_BYTES = 4 * 4 + 4 * 8  # to draw a token, for each of the vocabulary: logits in float32, noise in 64 bits
ASLEEP_BYTES = 1 * GIB  # what a vLLM in the same process keeps while it sleeps: graphs, buffers; a rule of thumb
STEPPING, GENERATING, SCORING = "in the optimizer step", "while vLLM generates", "while held-out problems are scored"


@dataclass(frozen=True)
class Run:
    """The settings of a recipe that decide about memory."""

    sharding: str = "none"  # none, ddp, zero1, zero2, zero3 or fsdp
    processes: int = 1
    rows: int = 1  # rollouts in a micro-batch
    tokens: int = 1  # of the longest rollout with its prompt
    is_checkpointed: bool = True  # activations are recomputed in the backward pass
    has_reference: bool = False  # a second model for the KL term
    weight_bytes: int = 4  # of each weight as it is loaded
    quantized_bytes: float | None = None  # of each weight of a frozen linear layer in 4 or 8 bits; None: not quantized
    is_mixed: bool = False  # computes in 16 bits
    is_gpu: bool = False  # uses Triton's kernels, and CUDA takes memory of its own
    offloads_optimizer: bool = False  # ZeRO keeps the optimizer's states in CPU memory
    optimizer_bytes: int = ADAM  # of state per trained parameter
    colocated: int = 0  # bytes that a vLLM in the same process holds while it generates
    is_sleeping: bool = False  # and gives back while the training computes
    scored: int = 0  # held-out samples that are drawn at once

    @property
    def is_zero(self) -> bool:
        return self.sharding.startswith("zero")

    @property
    def computes_in(self) -> int:
        """The bytes of an activation."""
        return 2 if self.is_mixed or self.weight_bytes == 2 else 4


@dataclass(frozen=True)
class Estimate:
    """The bytes of one training process: by component in the backward pass (`held`), and the sums at other times."""

    held: dict[str, int]
    phases: dict[str, int]

    @property
    def training(self) -> int:
        """The peak of forward and backward pass."""
        return sum(self.held.values())

    @property
    def total(self) -> int:
        return max([self.training, *self.phases.values()])


def estimate_training(shape: Shape, run: Run) -> Estimate:
    """Estimate the peak of one training process, from the second optimizer step on."""
    states = _zero_states(shape, run) if run.is_zero else _torch_states(shape, run)
    beside = {
        "CUDA and NCCL (rule of thumb)": CUDA_BYTES if run.is_gpu else 0,
        "vLLM asleep (rule of thumb)": ASLEEP_BYTES if run.is_sleeping else 0,
        "vLLM in the same process": 0 if run.is_sleeping else run.colocated,
    }
    held = states | {"activations (a bound)": int(FRAGMENTS * activation_bytes(shape, run))} | beside
    between = sum(states.values()) - states["gradients"]  # of two steps
    phases = {}
    if run.is_zero:  # DeepSpeed copies the gradients to float32
        share = shape.trainable // run.processes
        copied = 4 * (min(share, ZERO3_LIVE) if run.sharding == "zero3" else share)
        phases[STEPPING] = sum(states.values()) + sum(beside.values()) + copied
    if run.is_sleeping:
        phases[GENERATING] = between + CUDA_BYTES + run.colocated
    if run.scored:
        drawn = cache_bytes(shape, shape.kv_heads, run.weight_bytes) * run.tokens + SAMPLING_BYTES * shape.vocabulary
        phases[SCORING] = between + sum(beside.values()) + int(FRAGMENTS * run.scored * drawn)
    return Estimate({name: size for name, size in held.items() if size}, phases)


def cache_bytes(shape: Shape, kv_heads: float, number: int = 2) -> float:
    """Return what the KV cache holds of a token: a key and a value of each layer, in numbers of so many bytes."""
    return 2 * number * shape.layers * kv_heads * shape.head_dim


def _zero_states(shape: Shape, run: Run) -> dict[str, int]:
    """Return the states of one process of DeepSpeed's ZeRO: all in 16 bits, and a float32 copy with the optimizer."""
    trained, stage = shape.trainable, int(run.sharding[-1])
    share = {level: run.processes if stage >= level else 1 for level in (1, 2, 3)}
    gathered = min(ZERO3_LIVE, shape.parameters) if stage == 3 else min(ZERO_BUCKET, trained)
    return {
        "weights": 2 * (shape.parameters + shape.adapter) // share[3],
        "gradients": 2 * trained // share[2],
        "optimizer": 0 if run.offloads_optimizer else (4 + run.optimizer_bytes) * trained // share[1],
        "reference model": 2 * shape.parameters // share[3] if run.has_reference else 0,
        # two buckets: the second is filled while the first is being sent
        "buckets and gathered weights": 2 * 2 * min(ZERO_BUCKET, trained) + 2 * gathered,
    }


def _torch_states(shape: Shape, run: Run) -> dict[str, int]:
    """Return the states of one process with DDP, FSDP, or alone."""
    share = run.processes if run.sharding == "fsdp" else 1
    # accelerate (FSDP) and PEFT cast trained weights to float32; TRL casts the adapter of a quantized model back
    is_wide = run.sharding == "fsdp" or (shape.adapter and run.quantized_bytes is None)
    own = 4 if is_wide else 2 if shape.adapter else run.weight_bytes
    # autocast's copies in 16 bits of float32 weights, which checkpointing frees layer by layer
    copies = 2 * shape.parameters if run.is_mixed and run.weight_bytes == 4 and not run.is_checkpointed else 0
    if run.sharding == "ddp":
        copies += own * shape.trainable
    elif run.sharding == "fsdp":  # two layers, and the head
        layer = (shape.parameters - shape.head) // shape.layers
        copies = (2 if run.is_mixed else 4) * (2 * layer + shape.head)
    return {
        "weights": ((_frozen_bytes(shape, run) if shape.adapter else 0) + own * shape.trainable) // share,
        "gradients": own * shape.trainable // share,
        "optimizer": run.optimizer_bytes * own // 4 * shape.trainable // share,
        "reference model": run.weight_bytes * shape.parameters // share if run.has_reference else 0,
        "buckets and gathered weights": copies,
    }


def _frozen_bytes(shape: Shape, run: Run) -> int:
    """Return the bytes of a base model that only an adapter trains. Embeddings, head and norms are never quantized."""
    if run.quantized_bytes is None:
        return run.weight_bytes * shape.parameters
    return run.weight_bytes * (shape.parameters - shape.linear) + int(run.quantized_bytes * shape.linear)


def activation_bytes(shape: Shape, run: Run) -> int:
    """Return a bound of what forward and backward pass hold: the layers' activations, and those of TRL's fused head.

    A layer's norms hold float32, its attention and its MLP what the model computes in, with the gradients of each.
    With checkpointing one layer at a time has them, and the others their input.
    """
    tokens, width = run.rows * run.tokens, shape.heads * shape.head_dim
    per_token = 36 * shape.hidden + 44 * width + 7 * run.computes_in * shape.intermediate
    if shape.adapter:  # LoRA's own copy of each input
        per_token += 4 * (5 * shape.hidden + width + shape.intermediate)
    masks = 2 * run.computes_in * run.rows * run.tokens**2  # of the attention: a number for every pair of tokens
    layer = tokens * per_token + masks
    is_half = run.is_zero or run.weight_bytes == 2  # the residual stream, which autocast leaves in float32
    inputs = (2 if is_half else 4) * tokens * shape.hidden * shape.layers
    head = _head_bytes(shape, run)
    return inputs + (max(layer, head) if run.is_checkpointed else shape.layers * layer + head)


def _head_bytes(shape: Shape, run: Run) -> int:
    """Return what TRL's fused head holds: tiles of logits, hidden states, and its gradient summed in float32."""
    tokens = run.rows * run.tokens
    rows = min(tokens, TILE_TOKENS)
    tiles = run.computes_in * rows * TILE_VOCABULARY  # whole, however small the vocabulary
    if not run.is_gpu:
        tiles += 4 * TILES_WITHOUT_TRITON * rows * min(shape.vocabulary, TILE_VOCABULARY)
    return tiles + 16 * tokens * shape.hidden + (0 if shape.adapter else 6 * shape.head)


@dataclass(frozen=True)
class ServerEstimate:
    """The bytes on each GPU of a vLLM server, and how many sequences of full length its KV cache holds."""

    weights: int
    cache: int
    sequences: float


def estimate_server(
    shape: Shape, gpu: int, *, tensor_parallel: int, utilization: float, length: int
) -> ServerEstimate:
    """Estimate vLLM on one GPU of `gpu` bytes, with sequences of `length` tokens. Its weights have 16 bits."""
    weights = 2 * shape.parameters // tensor_parallel
    cache = max(int(gpu * utilization) - weights - SERVER_BYTES, 0)
    per_token = cache_bytes(shape, max(shape.kv_heads / tensor_parallel, 1))
    return ServerEstimate(weights, cache, cache / (per_token * length))


def checkpoint_bytes(shape: Shape, run: Run) -> int:
    """Return the size of a checkpoint: weights, and the optimizer's states with its float32 weights, if any."""
    weights = shape.adapter or shape.parameters
    if run.is_zero:
        return 2 * weights + (2 * shape.parameters if shape.adapter else 0) + (4 + ADAM) * shape.trainable
    return 4 * weights + ADAM * shape.trainable
