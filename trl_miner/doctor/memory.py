"""What a model's training and a vLLM server need of memory, component by component.

A model's parameters are counted on one without weights that is built from its configuration. States
are exact: the weights, gradients, optimizer, reference model, KV cache. Activations are a bound.
What ZeRO, FSDP, NCCL and CUDA take beside comes from their documentation, or is a rule of thumb.
"""

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.network import MADE_BY_SFT, is_path, not_loaded
from ..data.base_model import find_model
from ..runs.models import base_of_adapter

GIB = 2**30
ADAM = 8  # bytes per parameter: two moments in float32
# trl.kernels.chunked_logprob, trl.trainer.utils: the head's tile
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
# float32 tiles as wide as the vocabulary that its backward holds in plain torch
TILES_WITHOUT_TRITON = 8
CUDA_BYTES = 2 * GIB  # context, cuBLAS, NCCL: a rule of thumb
FRAGMENTS = 1.1  # fragmentation: what each micro-batch allocates, over the sum of its tensors
# elements of DeepSpeed's reduce_bucket_size and allgather_bucket_size; two are in use
BUCKET = 500_000_000
# parameters that ZeRO-3 holds at most (stage3_max_live_parameters); for FSDP a bound
GATHERED = 1_000_000_000
NF4, INT8 = 4.5 / 8, 1.0  # bytes per weight in 4 bits, with a float32 scale for each 64; and in 8
# vLLM without weights and KV cache: CUDA, graphs, activations, logits; a rule of thumb
SERVER_BYTES = 4 * GIB
# what a vLLM in the same process keeps while it sleeps: graphs, buffers; a rule of thumb
ASLEEP_BYTES = 1 * GIB
# The bound of the activations covers these. Others have experts, states or towers.
DENSE = {"qwen3", "qwen2", "llama", "mistral"}


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    config: Any  # of transformers, for the text
    parameters: int  # all of the base model
    adapter: int  # those of a LoRA adapter; 0 without one
    head: int  # those of the output projection
    linear: int  # those of linear layers other than the head, which quantization makes smaller

    @property
    def head_dim(self) -> int:
        """The size of an attention head."""
        return (
            getattr(self.config, "head_dim", None)
            or self.config.hidden_size // self.config.num_attention_heads
        )

    @property
    def trainable(self) -> int:
        """The parameters with a gradient."""
        return self.adapter or self.parameters


# From config.json on the Hub, of the recipes' models: kind, vocabulary, hidden size, layers, MLP,
# heads, whether the head is the embedding.
_HUB_MODELS = {
    "Qwen/Qwen3-0.6B-Base": ("qwen3", 151936, 1024, 28, 3072, 16, True),
    "Qwen/Qwen3-1.7B-Base": ("qwen3", 151936, 2048, 28, 6144, 16, True),
    "Qwen/Qwen3-4B-Base": ("qwen3", 151936, 2560, 36, 9728, 32, True),
    "Qwen/Qwen3-8B-Base": ("qwen3", 151936, 4096, 36, 12288, 32, False),
    "Qwen/Qwen3-14B-Base": ("qwen3", 151936, 5120, 40, 17408, 40, False),
    "OctoThinker/OctoThinker-8B-Hybrid-Base": ("llama", 128256, 4096, 32, 14336, 32, False),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 128256, 4096, 32, 14336, 32, False),
}


def hub_config(name: str) -> Any:
    """Return the configuration of a model of the recipes, which needs no network; None for any
    other."""
    from transformers import AutoConfig

    if name not in _HUB_MODELS:
        return None
    kind, *sizes = _HUB_MODELS[name]
    fields = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
    )
    named = dict(zip((*fields, "tie_word_embeddings"), sizes, strict=True))
    return AutoConfig.for_model(kind, num_key_value_heads=8, head_dim=128, **named)


def find_config(settings: argparse.Namespace) -> Any:
    """Return the model's configuration.

    Raises:
        OSError: It is not here, and the Hub cannot be asked.
        ValueError: It is nowhere: not in the folder that is named, or the Hub does not give it.
    """
    from huggingface_hub import constants
    from transformers import AutoConfig

    name = find_model(str(settings.model_name_or_path))
    name = base_of_adapter(name) or name
    try:
        code = bool(settings.trust_remote_code)
        return AutoConfig.from_pretrained(
            name, revision=settings.model_revision, trust_remote_code=code
        )
    except Exception as error:  # a damaged file may raise anything
        if (known := hub_config(name)) is not None and not is_local(name):
            return known
        is_unknown = constants.HF_HUB_OFFLINE and not is_local(name)
        why = not_loaded("model", name, error, settings.model_revision)
        raise (OSError if is_unknown else ValueError)(f"{why} {MADE_BY_SFT}") from error


def is_local(name: str) -> bool:
    """Return whether a model is named by a path: no Hub id has such a form, or there is something
    of that name."""
    return Path(name).exists() or is_path(name)


def count_parameters(config: Any, *, trusts: bool = False) -> int:
    """Return the number of parameters of a model of a configuration."""
    return sum(parameter.numel() for parameter in _without_weights(config, trusts).parameters())


def _without_weights(config: Any, trusts: bool) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trusts)


def measure(config: Any, settings: argparse.Namespace) -> Shape:
    """Count a model's parameters. Raises OSError for a model that is not dense, ValueError for an
    adapter that does not fit."""
    import torch

    text = config.get_text_config()
    if text.model_type not in DENSE:
        raise OSError(f"the estimate covers {', '.join(sorted(DENSE))}: got a {text.model_type}.")
    model = _without_weights(config, bool(settings.trust_remote_code))
    head = model.get_output_embeddings().weight
    layers = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return Shape(
        config=text,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        head=head.numel(),
        linear=sum(layer.weight.numel() for layer in layers if layer.weight is not head),
        # last: it changes the model
        adapter=_adapter_parameters(model, settings) if settings.use_peft else 0,
    )


def _adapter_parameters(model: Any, settings: argparse.Namespace) -> int:
    """Count LoRA's parameters: rank times (inputs + outputs) of each linear layer, as PEFT chooses
    them."""
    from peft import LoraConfig, get_peft_model

    targets = settings.lora_target_modules
    if targets is not None and not isinstance(targets, str) and len(targets) == 1:
        targets = targets[0]
    lora = LoraConfig(r=settings.lora_r, target_modules=targets, task_type=settings.lora_task_type)
    with warnings.catch_warnings():  # PEFT itself uses a name that transformers has renamed
        warnings.simplefilter("ignore", FutureWarning)
        adapted = get_peft_model(model, lora, low_cpu_mem_usage=True)
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


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
    # of each weight of a frozen linear layer in 4 or 8 bits; None: not quantized
    quantized_bytes: float | None = None
    is_mixed: bool = False  # computes in 16 bits
    is_gpu: bool = False  # uses Triton's kernels, and CUDA takes memory of its own
    optimizer_bytes: int = ADAM  # of state per trained parameter
    offloads_optimizer: bool = False  # ZeRO keeps the optimizer's states in CPU memory
    colocated: int = 0  # bytes that a vLLM in the same process holds while it generates
    is_sleeping: bool = False  # and gives back while the training computes
    sampled: int = 0  # rollouts that transformers samples at once

    @property
    def is_zero(self) -> bool:
        return self.sharding.startswith("zero")


def estimate_training(shape: Shape, run: Run) -> dict[str, int]:
    """Return the bytes of one training process by component, when it needs most: in the backward
    pass, while a vLLM generates that sleeps meanwhile, or while transformers samples."""
    states = _states(shape, run)
    without_gradients = states | {"gradients": 0}
    rest = {
        "CUDA and NCCL (rule of thumb)": CUDA_BYTES if run.is_gpu else 0,
        "vLLM in the same process": ASLEEP_BYTES if run.is_sleeping else run.colocated,
    }
    backward = {
        "buckets and gathered weights": _buffer_bytes(shape, run),
        "activations (a bound)": int(FRAGMENTS * activation_bytes(shape, run)),
    }
    phases = [states | backward | rest, without_gradients | _sampling(shape, run) | rest]
    if run.is_sleeping:
        phases.append(
            without_gradients | rest | {"vLLM in the same process": 0, "vLLM, awake": run.colocated}
        )
    at_most = max(phases, key=lambda sizes: sum(sizes.values()))
    return {name: size for name, size in at_most.items() if size}


def _sampling(shape: Shape, run: Run) -> dict[str, int]:
    """Return what `generate` of transformers holds beside the weights; autocast leaves its keys in
    float32."""
    if not run.sampled:
        return {}
    is_cast = run.is_mixed and run.weight_bytes == 4 and run.sharding in ("none", "ddp")
    whole = shape.parameters if is_cast or run.sharding == "zero3" else 0
    gathered = min(GATHERED, shape.parameters) if run.sharding == "fsdp" else whole
    number = 4 if run.weight_bytes == 4 and run.sharding in ("none", "ddp") else 2
    cache = (
        number * run.sampled * run.tokens * _cached_numbers(shape, shape.config.num_key_value_heads)
    )
    return {"gathered and cast weights": 2 * gathered, "KV cache of transformers": cache}


def _cached_numbers(shape: Shape, heads: float) -> int:
    """Return how many numbers a token adds to a KV cache: a key and a value of each layer."""
    return int(2 * shape.config.num_hidden_layers * heads * shape.head_dim)


def _states(shape: Shape, run: Run) -> dict[str, int]:
    """Return the bytes of the states of one process: exact, in its share of those that ZeRO or FSDP
    divides."""
    stage = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}.get(run.sharding, 0)
    shares = [run.processes if stage >= level else 1 for level in (3, 2, 1)]
    loaded, own = run.weight_bytes, run.weight_bytes
    optimizer = run.optimizer_bytes
    if run.is_zero:  # all in 16 bits, and a float32 copy with the optimizer
        loaded, own, optimizer = 2, 2, 4 + optimizer
    else:
        # accelerate (FSDP) and PEFT cast trained weights to float32; TRL casts the adapter of a
        # quantized model back
        if run.sharding == "fsdp" or (shape.adapter and run.quantized_bytes is None):
            own = 4
        elif shape.adapter:
            own = 2
        if optimizer == ADAM:  # in the weights' type; those of 8 bits stay so
            optimizer = optimizer * own // 4
    frozen = 0
    if shape.adapter:  # embeddings, head and norms are never quantized
        quantized = 0 if run.quantized_bytes is None else shape.linear
        frozen = loaded * (shape.parameters - quantized) + int(
            (run.quantized_bytes or 0) * quantized
        )
    return {
        "weights": (frozen + own * shape.trainable) // shares[0],
        "gradients": own * shape.trainable // shares[1],
        "optimizer": 0 if run.offloads_optimizer else optimizer * shape.trainable // shares[2],
        "reference model": loaded * shape.parameters // shares[0] if run.has_reference else 0,
    }


def _buffer_bytes(shape: Shape, run: Run) -> int:
    """Return what is gathered and sent: DDP's buckets hold every gradient, those of ZeRO and FSDP a
    part."""
    if run.sharding == "ddp":
        return _states(shape, run)["gradients"]
    gathered = min(GATHERED, shape.parameters) if run.sharding in ("zero3", "fsdp") else 0
    return 2 * gathered + (2 * 2 * min(BUCKET, shape.trainable) if run.is_zero else 0)


def activation_bytes(shape: Shape, run: Run) -> int:
    """Return a bound of what forward and backward pass hold: the layers' activations, and those of
    TRL's fused head.

    A layer's norms hold float32, its attention and its MLP what the model computes in, with the
    gradients of each. With checkpointing one layer at a time has them, and the others their input.
    The head holds tiles of logits, hidden states, and its gradient summed in float32.
    """
    tokens, hidden, intermediate = (
        run.rows * run.tokens,
        shape.config.hidden_size,
        shape.config.intermediate_size,
    )
    layers, width = (
        shape.config.num_hidden_layers,
        shape.config.num_attention_heads * shape.head_dim,
    )
    number = 2 if run.is_mixed or run.weight_bytes == 2 else 4  # bytes of an activation
    per_token = 36 * hidden + 44 * width + 7 * number * intermediate
    if shape.adapter:  # LoRA's own copy of each input
        per_token += 4 * (5 * hidden + width + intermediate)
    # of the attention: a number for every pair of tokens
    masks = 2 * number * run.rows * run.tokens**2
    layer = tokens * per_token + masks
    # autocast's copies in 16 bits of float32 weights, which checkpointing frees layer by layer
    copies = (
        2 * shape.parameters
        if run.is_mixed and run.weight_bytes == 4 and not run.is_checkpointed
        else 0
    )
    # the residual stream, which autocast leaves in float32
    is_half = run.is_zero or run.weight_bytes == 2
    inputs = (2 if is_half else 4) * tokens * hidden * layers
    rows = min(tokens, TILE_TOKENS)
    head = number * rows * TILE_VOCABULARY  # a whole tile, however small the vocabulary
    head += 16 * tokens * hidden + (0 if shape.adapter else 6 * shape.head)
    if not run.is_gpu:
        head += 4 * TILES_WITHOUT_TRITON * rows * min(shape.config.vocab_size, TILE_VOCABULARY)
    return copies + inputs + (max(layer, head) if run.is_checkpointed else layers * layer + head)


def estimate_server(
    shape: Shape, gpu: int, *, tensor_parallel: int, utilization: float, length: int
) -> tuple[int, int, float]:
    """Estimate vLLM on one GPU of `gpu` bytes: those of its weights in 16 bits and of its KV cache,
    and how many sequences of `length` tokens the cache holds."""
    weights = 2 * shape.parameters // tensor_parallel
    cache = max(int(gpu * utilization) - weights - SERVER_BYTES, 0)
    heads = max(shape.config.num_key_value_heads / tensor_parallel, 1)
    return weights, cache, cache / (2 * _cached_numbers(shape, heads) * length)
