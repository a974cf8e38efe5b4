"""The memory estimate of `trl-miner doctor` against real training steps, and parameters against real model_shape."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from memory import QUICK, count_apart, estimate, settings

from trl_miner.doctor import memory, model_shape
from trl_miner.doctor.machine import GIB


@pytest.fixture(scope="module")
def counted():
    return count_apart()


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_estimate_is_never_below_what_the_tensors_hold_nor_a_quarter_above(name, counted):
    """Two optimizer steps of two micro-batches, counted by PyTorch's allocator. What dominates is in the name."""
    assert counted[name] <= estimate(QUICK[name]) <= 1.25 * counted[name]


def known_shape(name):
    from transformers import AutoConfig

    fields = dict(model_shape.KNOWN[name])
    return model_shape.measure(AutoConfig.for_model(fields.pop("model_type"), **fields), settings(False))


@pytest.mark.parametrize(
    "name, billions",  # as their model cards have them
    [
        ("Qwen/Qwen3-0.6B-Base", 0.60),
        ("Qwen/Qwen3-1.7B-Base", 1.72),
        ("Qwen/Qwen3-4B-Base", 4.02),
        ("Qwen/Qwen3-8B-Base", 8.19),
        ("Qwen/Qwen3-14B-Base", 14.77),
        ("OctoThinker/OctoThinker-8B-Hybrid-Base", 8.03),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
    ],
)
def test_the_table_of_known_models_has_their_sizes(name, billions):
    assert round(known_shape(name).parameters / 1e9, 2) == billions


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", ["Qwen3", "Llama", "Qwen2"])
def test_parameters_are_those_of_a_real_model_and_a_real_adapter(kind, is_tied):
    import transformers
    from peft import LoraConfig, get_peft_model

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=is_tied,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    # each tensor once: a tied head is the embedding
    real = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    full, lora = (model_shape.measure(config, settings(is_lora)) for is_lora in (False, True))
    assert (full.parameters, full.trainable, lora.parameters, full.adapter) == (real, real, real, 0)
    adapted = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert lora.trainable == lora.adapter == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    # by hand, for two layers: r * (in + out) of q 32->32, k and v 32->16, o 32->32, gate and up 32->48, down 48->32
    assert lora.trainable == 2 * 16 * (64 + 48 + 48 + 64 + 80 + 80 + 80)


def test_zero_3_shares_everything_and_zero_2_all_but_weights_and_reference():
    shape = known_shape("Qwen/Qwen3-8B-Base")
    billions = shape.parameters
    # weights 2, gradients 2, float32 weights and two moments 12, reference 2 bytes each
    for stage, shares in (("zero3", (4, 4, 4, 4)), ("zero2", (1, 4, 4, 1)), ("zero1", (1, 1, 4, 1))):
        run = memory.Run(sharding=stage, processes=4, has_reference=True, is_mixed=True, is_gpu=True)
        found = list(memory.estimate_training(shape, run).held.values())[:4]
        assert found == [
            bytes_each * billions // share for bytes_each, share in zip((2, 2, 12, 2), shares, strict=True)
        ]


def test_an_offloaded_optimizer_is_in_cpu_memory():
    shape = known_shape("Qwen/Qwen3-14B-Base")
    kept, gone = (
        memory.estimate_training(shape, memory.Run(sharding="zero3", processes=4, offloads_optimizer=offloads)).held
        for offloads in (False, True)
    )
    assert set(kept) - set(gone) == {"optimizer (1/4)"}
    assert memory.optimizer_in_cpu_memory(shape) == 16 * shape.parameters


def test_ddp_holds_weights_gradients_adam_and_buckets_in_float32():
    shape = known_shape("Qwen/Qwen3-4B-Base")
    held = memory.estimate_training(shape, memory.Run(sharding="ddp", processes=2)).held
    sizes = [held[name] for name in ("weights", "gradients", "optimizer", "DDP's buckets")]
    assert sizes == [4 * shape.parameters, 4 * shape.parameters, 8 * shape.parameters, 4 * shape.parameters]


def test_a_server_s_cache_is_what_its_weights_leave():
    shape = known_shape("Qwen/Qwen3-4B-Base")
    found = memory.estimate_server(shape, 80 * GIB, tensor_parallel=2, utilization=0.9, length=1000)
    assert found.weights == shape.parameters  # 2 bytes, on two GPUs
    assert found.cache == int(72 * GIB) - shape.parameters - 4 * GIB
    # a token: key and value, 2 bytes, 36 layers, 4 of 8 heads on each GPU, 128 numbers -> 73,728 bytes
    assert found.sequences == pytest.approx(found.cache / 73_728_000)
