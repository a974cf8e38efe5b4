"""Does a recipe fit on a machine, and how long does a step take? Arithmetic of bytes and FLOPs.

States of the model and of the optimizer are exact, activations a bound, what CUDA, NCCL and vLLM
take beside a rule of thumb. Times are those of an H100 at 40 % of its peak in training, and at 70 %
of its bandwidth in sampling: they compare two ways to run a recipe better than they foretell one.
"""

from dataclasses import dataclass
from types import SimpleNamespace

from .launching.plan import Plan

GIB = 2**30
CUDA = 2 * GIB  # context, cuBLAS, NCCL
SERVER, ASLEEP = 4 * GIB, GIB  # vLLM beside weights and cache; what stays of one that sleeps
FLOPS, BANDWIDTH = 4e14, 2.4e12  # of a GPU, in a second
# of transformers and of vLLM, for a token of all rows, beside the reading of weights and cache
TOKEN_SECONDS = 0.03, 0.005
ROWS = 1024  # completions that vLLM samples at once, its default on an H100
ANSWER = 1 / 3  # mean completion, as a share of max_completion_length
FRAGMENTS = 1.1  # what the allocator holds, as a share of what is in use
PROMPT = 1000  # tokens of the longest prompt
BUCKETS = 4 * 10**9  # bytes that ZeRO or FSDP gathers and sends
COLOCATED = (
    "--vllm_mode colocate --vllm_enable_sleep_mode true --vllm_tensor_parallel_size 1"
    " --vllm_gpu_memory_utilization 0.5"
)
LEFT_OUT = (
    "Left out: rewards, scoring, loading and sending weights, attention's FLOPs, padding, and that"
    " completions without an advantage cost no training. An A100 takes three times as long to train"
    " and half as long again to sample. Train with --max_steps 3 to measure."
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    parameters: int
    hidden: int
    layers: int
    width: int  # of all attention heads together
    mlp: int
    cached: int  # bytes of a token in a cache of 16 bits


# Of the recipes' models, which need no network: from config.json on the Hub.
KNOWN = {
    "Qwen/Qwen3-0.6B-Base": Shape(596_049_920, 1024, 28, 2048, 3072, 114_688),
    "Qwen/Qwen3-1.7B-Base": Shape(1_720_574_976, 2048, 28, 2048, 6144, 114_688),
    "Qwen/Qwen3-4B-Base": Shape(4_022_468_096, 2560, 36, 4096, 9728, 147_456),
    "Qwen/Qwen3-8B-Base": Shape(8_190_735_360, 4096, 36, 4096, 12288, 147_456),
    "Qwen/Qwen3-14B-Base": Shape(14_768_307_200, 5120, 40, 5120, 17408, 163_840),
    "meta-llama/Llama-3.1-8B-Instruct": Shape(8_030_261_248, 4096, 32, 4096, 14336, 131_072),
    "OctoThinker/OctoThinker-8B-Hybrid-Base": Shape(8_030_261_248, 4096, 32, 4096, 14336, 131_072),
}


def shape_of(given: SimpleNamespace) -> Shape:
    """Return the sizes of a recipe's model: `KNOWN` ones, else by its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    name = given.model_name_or_path
    if name in KNOWN:
        return KNOWN[name]
    try:
        config = AutoConfig.from_pretrained(name)
    except OSError:
        raise OSError(f"The configuration of {name} is neither here nor on the Hub.") from None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    each = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=model.num_parameters(),
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        width=config.num_attention_heads * each,
        mlp=config.intermediate_size,
        cached=4 * config.num_hidden_layers * config.num_key_value_heads * each,
    )


def training_bytes(shape: Shape, given: SimpleNamespace, plan: Plan, gpu: int) -> dict[str, float]:
    """Return what a training GPU of `gpu` bytes holds in the backward pass, by component."""
    config, number = plan.accelerate, plan.processes
    zero = config.get("deepspeed_config", {})
    stage = zero.get("zero_stage", 3 * (config.get("distributed_type") == "FSDP"))
    loaded = 4.0 if given.dtype == "float32" and not stage else 2.0  # bytes of a weight
    trained, frozen = shape.parameters, loaded * shape.parameters * bool(given.beta)
    if given.use_peft:
        frozen = trained * (0.56 if given.load_in_4bit else loaded)
        trained = given.lora_r * shape.layers * (7 * shape.hidden + 3 * shape.width + 3 * shape.mlp)
    # weights, gradients, two moments of Adam; ZeRO and FSDP train in 16 bits, and keep 32 beside,
    # ZeRO with the optimizer, which may be in the CPU's memory
    states = 16 if stage or given.use_peft else 4 * loaded
    states -= 12 * (zero.get("offload_optimizer_device") == "cpu")
    whole = {0: states, 2: 2}.get(stage, 0)  # of these, what is not divided
    tokens = given.per_device_train_batch_size * (given.max_completion_length + PROMPT)
    layer = 36 * shape.hidden + 44 * shape.width + 14 * shape.mlp
    kept = loaded * shape.hidden * shape.layers  # each layer's input
    at_once = 1 if given.gradient_checkpointing else shape.layers
    beside = ASLEEP if given.vllm_enable_sleep_mode else given.vllm_gpu_memory_utilization * gpu
    is_beside = given.use_vllm and given.vllm_mode == "colocate"
    return {
        "weights, gradients, optimizer": trained * (whole + (states - whole) / number),
        "frozen weights, or a reference model": frozen / (number if stage == 3 else 1),
        "activations, at most": FRAGMENTS * tokens * (kept + at_once * layer),
        "buckets": BUCKETS if stage else 4 * trained * (number > 1),
        "CUDA and NCCL, by a rule of thumb": CUDA,
        "vLLM beside it": beside * is_beside,
    }


def cache_bytes(shape: Shape, given: SimpleNamespace, gpu: int) -> float:
    """Return what the GPUs of one copy of vLLM have together for its cache."""
    free = given.vllm_gpu_memory_utilization * gpu - SERVER
    return max(given.vllm_tensor_parallel_size * free - 2 * shape.parameters, 0)


def step_seconds(
    shape: Shape, given: SimpleNamespace, gpu: int, samplers: int, trainers: int
) -> float:
    """Return the seconds of an optimizer step: sampling on some GPUs, then training on some."""
    size, mean = given.vllm_tensor_parallel_size, ANSWER * given.max_completion_length
    weights = 2 * shape.parameters
    rows = given.optimizer_batch_size or (
        given.per_device_train_batch_size * given.gradient_accumulation_steps * trainers
    )
    at_once = rows / max(samplers // size, 1)
    all_tokens = at_once * mean
    if given.use_vllm:
        at_once = max(min(at_once, ROWS, cache_bytes(shape, given, gpu) / shape.cached / mean), 1)
    read = weights + at_once * mean * shape.cached
    # the last to end is the longest
    tokens = max(all_tokens / at_once, given.max_completion_length)
    sampling = tokens * (read / size / BANDWIDTH + TOKEN_SECONDS[given.use_vllm])
    # forward, twice as much backward, once more where it is recomputed; the reference model's
    passes = 3 + given.gradient_checkpointing + bool(given.beta)
    return sampling + weights * passes * rows * mean / trainers / FLOPS


def ways(shape: Shape, given: SimpleNamespace, plan: Plan, gpu: int) -> dict[str, float]:
    """Return the seconds of a step as the recipe is and, where it has a server, with vLLM in the
    training's processes, by the words that make it so."""
    count = plan.server_gpus + plan.processes
    found = {"": step_seconds(shape, given, gpu, plan.server_gpus or count, plan.processes)}
    if plan.server_gpus:
        changed = {"vllm_tensor_parallel_size": 1, "vllm_gpu_memory_utilization": 0.5}
        colocated = SimpleNamespace(**vars(given) | changed)
        found[COLOCATED] = step_seconds(shape, colocated, gpu, count, count)
    return found
