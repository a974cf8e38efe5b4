"""Estimate the memory that a training process and a vLLM server need, component by component.

The estimates were compared with measurements on a CPU only (tests/bench/results/memory.md). What a CPU does not have
(buffers of ZeRO and NCCL, CUDA's own memory) comes from the documentation of each, or is a rule of thumb.
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
DRAW = 4 * 4 + 4 * 8  # bytes to draw a token, for each of the vocabulary: logits in float32, noise in 64 bits
ASLEEP_BYTES = 1 * GIB  # what a vLLM in the same process keeps while it sleeps: graphs, buffers; a rule of thumb
GENERATING, SCORING = "while vLLM generates", "while held-out problems are scored"


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
    """The bytes of one training process by component.

    Of `one_of` only the largest counts: they take turns. `phases` has the sums at other times, when nothing is held
    for a backward pass.
    """

    held: dict[str, int]
    one_of: dict[str, int]
    phases: dict[str, int]

    @property
    def training(self) -> int:
        """The peak of a training step."""
        return sum(self.held.values()) + max(self.one_of.values(), default=0)

    @property
    def total(self) -> int:
        return max([self.training, *self.phases.values()])


def estimate_training(shape: Shape, run: Run) -> Estimate:
    """Estimate the peak of one training process, from the second optimizer step on."""
    states = _states(shape, run)
    beside = {"CUDA and NCCL (rule of thumb)": CUDA_BYTES if run.is_gpu else 0}
    if run.is_sleeping:
        beside["vLLM asleep (rule of thumb)"] = ASLEEP_BYTES
    else:
        beside["vLLM in the same process"] = run.colocated
    held = states | {"activations kept for the backward pass": _kept(shape, run)} | beside
    one_of = {"one layer's backward": _layer_backward(shape, run), "the head's backward": _head_backward(shape, run)}
    if run.is_zero:
        share = shape.trainable // run.processes
        one_of["optimizer step"] = 4 * (min(share, ZERO3_LIVE) if run.sharding == "zero3" else share)
    one_of = {name: int(size * FRAGMENTS) for name, size in one_of.items()}
    phases = {}
    between = sum(states.values()) - states["gradients"]  # of two steps
    if run.is_sleeping:
        phases[GENERATING] = between + CUDA_BYTES + run.colocated
    if run.scored:
        phases[SCORING] = between + sum(beside.values()) + _sampling(shape, run)
    return Estimate({name: size for name, size in held.items() if size}, one_of, phases)


def _sampling(shape: Shape, run: Run) -> int:
    """Return the KV cache and the logits, with their noise, of the held-out samples that are drawn at once."""
    cache = cache_bytes(shape, shape.kv_heads, run.weight_bytes) * run.tokens
    return int(FRAGMENTS * run.scored * (cache + DRAW * shape.vocabulary))


def cache_bytes(shape: Shape, kv_heads: float, number: int = 2) -> float:
    """Return what the KV cache holds of a token: a key and a value of each layer, in numbers of so many bytes."""
    return 2 * number * shape.layers * kv_heads * shape.head_dim


def _states(shape: Shape, run: Run) -> dict[str, int]:
    """Return the weights, gradients and optimizer states of one process."""
    processes, trained = run.processes, shape.trainable
    if run.is_zero:
        stage = int(run.sharding[-1])
        share = {level: processes if stage >= level else 1 for level in (1, 2, 3)}
        weights = 2 * (shape.parameters + shape.adapter) // share[3]
        gradients = 2 * trained // share[2]
        optimizer = 0 if run.offloads_optimizer else (4 + run.optimizer_bytes) * trained // share[1]
        reference = 2 * shape.parameters // share[3]
        buckets = 2 * 2 * min(ZERO_BUCKET, trained)  # the second while the first is being sent
        buckets += 2 * min(ZERO3_LIVE, shape.parameters) if stage == 3 else 2 * min(ZERO_BUCKET, trained)
        name, extra = "ZeRO's buckets and gathered weights", buckets
    else:
        share = {1: processes if run.sharding == "fsdp" else 1}
        # accelerate (FSDP) and PEFT cast trained weights to float32; TRL casts the adapter of a quantized model back
        is_wide = run.sharding == "fsdp" or (shape.adapter and run.quantized_bytes is None)
        own = 4 if is_wide else 2 if shape.adapter else run.weight_bytes
        frozen = frozen_bytes(shape, run) if shape.adapter else 0
        weights = (frozen + own * trained) // share[1]
        gradients = own * trained // share[1]
        optimizer = run.optimizer_bytes * own // 4 * trained // share[1]
        reference = run.weight_bytes * shape.parameters // share[1]
        name, extra = _copies(shape, run, own)
    sharded = f" (1/{processes})" if processes > 1 else ""
    return {
        "weights": weights,
        "gradients": gradients,
        f"optimizer{sharded if run.sharding not in ('none', 'ddp') else ''}": optimizer,
        "reference model": reference if run.has_reference else 0,
        name: extra,
    }


def frozen_bytes(shape: Shape, run: Run) -> int:
    """Return the bytes of a base model that only an adapter trains. Embeddings, head and norms are never quantized."""
    if run.quantized_bytes is None:
        return run.weight_bytes * shape.parameters
    return run.weight_bytes * (shape.parameters - shape.linear) + int(run.quantized_bytes * shape.linear)


def _copies(shape: Shape, run: Run, own: int) -> tuple[str, int]:
    """Return what is held beside float32 weights: DDP's buckets, autocast's copies, or FSDP's gathered layers."""
    copies = 2 * shape.parameters if run.is_mixed and run.weight_bytes == 4 and not run.is_checkpointed else 0
    if run.sharding == "ddp":
        return "DDP's buckets", own * shape.trainable + copies
    if run.sharding == "fsdp":  # two layers, and the head
        layer = (shape.parameters - shape.head) // shape.layers
        return "gathered layers", (2 if run.is_mixed else 4) * (2 * layer + shape.head)
    return "weights in 16 bits", copies


def _layer_bytes(shape: Shape, run: Run) -> int:
    """Return what one layer keeps for its backward pass, per token.

    Each norm keeps its input in float32, what it normalized and its output; the attention its query, keys and values
    (repeated to all heads), its output and a contiguous copy; the MLP gate, activation, up and their product.
    """
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 12 * 2 * shape.hidden + (12 * (width + kv_width) if shape.has_qk_norm else 0)
    return norms + run.computes_in * (5 * width + 4 * shape.intermediate)


def _mask_bytes(run: Run) -> int:
    """Return the causal and padding mask that a layer's attention keeps, one number for every pair of tokens."""
    return run.computes_in * run.rows * run.tokens**2


def _kept(shape: Shape, run: Run) -> int:
    tokens = run.rows * run.tokens
    is_half = run.is_zero or run.weight_bytes == 2  # the residual stream, which autocast leaves in float32
    per_layer = (2 if is_half else 4) * shape.hidden if run.is_checkpointed else _layer_bytes(shape, run)
    adapter = _adapter_bytes(shape, run) if shape.adapter and not run.is_checkpointed else 0
    masks = 0 if run.is_checkpointed else shape.layers * _mask_bytes(run)
    return int(FRAGMENTS * (tokens * (shape.layers * per_layer + adapter) + masks))


def _adapter_bytes(shape: Shape, run: Run) -> int:
    """Return LoRA's own activations per token: a float32 copy of each input, if the model has another type."""
    copies = 0 if run.computes_in == 4 else 4
    width = shape.heads * shape.head_dim
    return shape.layers * copies * (5 * shape.hidden + width + shape.intermediate)


def _layer_backward(shape: Shape, run: Run) -> int:
    """Return the gradients of one layer's activations; with checkpointing, also its recomputed activations."""
    tokens = run.rows * run.tokens
    again = _layer_bytes(shape, run) if run.is_checkpointed else 0
    if run.is_checkpointed and shape.adapter:
        again += _adapter_bytes(shape, run) // shape.layers
    masks = run.rows * run.tokens**2 + (_mask_bytes(run) if run.is_checkpointed else 0)  # the first is boolean
    return masks + tokens * (again + run.computes_in * 3 * shape.intermediate + 12 * shape.hidden)


def _head_backward(shape: Shape, run: Run) -> int:
    """Return what TRL's fused head needs: a tile of logits at a time, gradients summed in float32."""
    tokens = run.rows * run.tokens
    rows = min(tokens, TILE_TOKENS)
    tiles = run.computes_in * rows * TILE_VOCABULARY  # whole, however small the vocabulary
    if not run.is_gpu:
        tiles += 4 * TILES_WITHOUT_TRITON * rows * min(shape.vocabulary, TILE_VOCABULARY)
    hidden = tokens * shape.hidden * (4 + 4 + 2 * run.computes_in)
    head = shape.head * 4 if shape.is_head_trainable else 0
    head += shape.head * 2 if head and run.computes_in == 2 else 0  # cast to the weights' type
    return tiles + hidden + head


def optimizer_in_cpu_memory(shape: Shape) -> int:
    """Return what ZeRO keeps there when it offloads: float32 weights, gradients and Adam's moments of all shares."""
    return (4 + 4 + ADAM) * shape.trainable


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
    cache = int(gpu * utilization) - weights - SERVER_BYTES
    per_token = cache_bytes(shape, max(shape.kv_heads / tensor_parallel, 1))
    return ServerEstimate(weights, max(cache, 0), max(cache, 0) / (per_token * length))


def checkpoint_bytes(shape: Shape, run: Run) -> int:
    """Return the size of a checkpoint: weights, and the optimizer's states with its float32 weights, if any."""
    weights = shape.adapter or shape.parameters
    if run.is_zero:
        return 2 * weights + (2 * shape.parameters if shape.adapter else 0) + (4 + ADAM) * shape.trainable
    return 4 * weights + ADAM * shape.trainable
