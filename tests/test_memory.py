"""What `trl-miner doctor` says of memory, against real training steps and the parameters of real
models."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from harness import in_a_fork
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trl_miner.doctor import memory
from trl_miner.doctor.memory import GIB

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from common import tensors_mib

# what dominates: vocabulary, hidden, layers, MLP, heads, KV heads, head size, tokens, checkpointed,
# LoRA
CASES = {
    "logits": (16_000, 64, 1, 128, 2, 2, 32, 256, True, False),
    "activations": (500, 128, 16, 512, 4, 2, 32, 256, False, False),
    "checkpointed": (64, 128, 4, 8192, 4, 2, 32, 256, True, False),
    "weights": (2_000, 256, 4, 1024, 4, 4, 64, 32, False, False),
    "LoRA": (500, 256, 4, 1024, 4, 4, 64, 256, False, True),
    "LoRA, checkpointed": (500, 256, 4, 1024, 4, 4, 64, 256, True, True),
}


def settings(is_lora):
    lora = dict(lora_r=16, lora_target_modules=["all-linear"], lora_task_type="CAUSAL_LM")
    return argparse.Namespace(use_peft=is_lora, trust_remote_code=False, **lora)


def configuration(case):
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
    )
    names += ("num_key_value_heads", "head_dim")
    return Qwen3Config(**dict(zip(names, case[:7], strict=True)), tie_word_embeddings=False)


def train(case):
    """Two optimizer steps of two micro-batches, with TRL's fused head."""
    tokens, checkpointed, is_lora = case[7:]
    model = Qwen3ForCausalLM(configuration(case))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if is_lora:
        model = get_peft_model(
            model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True
    )
    for _ in range(2):
        for _ in range(2):
            ids = torch.randint(0, case[0], (1, tokens))
            mask = torch.ones_like(ids)
            mask[0, :5] = 0  # padding, so that there is an attention mask
            model(
                input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True
            ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def count_all(path):
    path.write_text(
        json.dumps(
            {name: tensors_mib(lambda case=case: train(case)) for name, case in CASES.items()}
        )
    )


@pytest.mark.slow
def test_the_estimate_is_never_below_what_the_tensors_hold(tmp_path):
    """In a process of its own: else what was there before would count when it is freed."""
    code, said = in_a_fork(count_all, tmp_path / "counted.json")
    assert code == 0, said
    counted = json.loads((tmp_path / "counted.json").read_text())
    for name, case in CASES.items():
        tokens, checkpointed, is_lora = case[7:]
        shape = memory.measure(configuration(case), settings(is_lora))
        run = memory.Run(tokens=tokens, is_checkpointed=checkpointed)
        assert counted[name] <= together(shape, run) / 2**20 <= 1.6 * counted[name], name


def together(shape, run):
    return sum(memory.estimate_training(shape, run).values())


def known_shape(name):
    return memory.measure(memory.hub_config(name), settings(False))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", ["Qwen3", "Llama", "Qwen2"])
def test_parameters_are_those_of_a_real_model_and_a_real_adapter(kind, is_tied):
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=is_tied,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    # each tensor once: a tied head is the embedding
    real = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    full, lora = (memory.measure(config, settings(is_lora)) for is_lora in (False, True))
    assert (full.parameters, full.trainable, lora.parameters, full.adapter) == (real, real, real, 0)
    adapted = get_peft_model(
        model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    assert (
        lora.trainable
        == lora.adapter
        == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    )
    # by hand, for two layers: r * (in + out) of q 32->32, k and v 32->16, o 32->32, gate and up
    # 32->48, down 48->32
    assert lora.trainable == 2 * 16 * (64 + 48 + 48 + 64 + 80 + 80 + 80)


def test_zero_3_shares_everything_and_zero_2_all_but_weights_and_reference():
    shape = known_shape("Qwen/Qwen3-8B-Base")
    billions = shape.parameters
    # weights 2, gradients 2, float32 weights and two moments 12, reference 2 bytes each
    for stage, shares in (
        ("zero3", (4, 4, 4, 4)),
        ("zero2", (1, 4, 4, 1)),
        ("zero1", (1, 1, 4, 1)),
    ):
        run = memory.Run(
            sharding=stage, processes=4, has_reference=True, is_mixed=True, is_gpu=True
        )
        found = list(memory.estimate_training(shape, run).values())[:4]
        assert found == [
            bytes_each * billions // share
            for bytes_each, share in zip((2, 2, 12, 2), shares, strict=True)
        ]


def test_an_offloaded_optimizer_is_not_on_the_gpu():
    run = memory.Run(sharding="zero3", processes=4, offloads_optimizer=True)
    assert "optimizer" not in memory.estimate_training(known_shape("Qwen/Qwen3-14B-Base"), run)


def test_the_states_of_an_optimizer_of_8_bits_have_8_bits_whatever_the_weights_have():
    shape = known_shape("Qwen/Qwen3-4B-Base")
    for weight_bytes in (2, 4):
        held = memory.estimate_training(
            shape, memory.Run(weight_bytes=weight_bytes, optimizer_bytes=2)
        )
        assert held["optimizer"] == 2 * shape.parameters


def test_the_cache_of_what_transformers_samples_is_counted():
    """256 rollouts of 1,536 tokens: a key and a value of 28 layers and 8 heads of 128 numbers, in
    float32."""
    run = memory.Run(tokens=1536, sampled=256, is_mixed=True, is_gpu=True)
    held = memory.estimate_training(known_shape("Qwen/Qwen3-0.6B-Base"), run)
    assert held["KV cache of transformers"] == 256 * 1536 * 2 * 28 * 8 * 128 * 4 == 84 * GIB
    assert "gradients" not in held and "activations (a bound)" not in held


def test_ddp_holds_weights_gradients_adam_and_buckets_in_float32():
    shape = known_shape("Qwen/Qwen3-4B-Base")
    held = memory.estimate_training(shape, memory.Run(sharding="ddp", processes=2))
    sizes = [
        held[name] for name in ("weights", "gradients", "optimizer", "buckets and gathered weights")
    ]
    assert sizes == [
        4 * shape.parameters,
        4 * shape.parameters,
        8 * shape.parameters,
        4 * shape.parameters,
    ]


def test_a_sleeping_vllm_is_counted_while_it_generates_or_while_the_training_computes():
    """Awake 40 GiB, with weights and optimizer, 12 bytes a parameter; asleep 1 GiB, with gradients
    and activations."""
    shape = known_shape("Qwen/Qwen3-0.6B-Base")
    run = memory.Run(is_gpu=True, colocated=40 * GIB, is_sleeping=True)
    assert together(shape, run) == 12 * shape.parameters + 42 * GIB  # CUDA has 2
    run = memory.Run(is_gpu=True, colocated=GIB, is_sleeping=True)
    assert together(shape, run) > 16 * shape.parameters + 3 * GIB


def test_a_server_s_cache_is_what_its_weights_leave():
    shape = known_shape("Qwen/Qwen3-4B-Base")
    found = memory.estimate_server(shape, 80 * GIB, tensor_parallel=2, utilization=0.9, length=1000)
    weights, cache, sequences = found
    assert weights == shape.parameters  # 2 bytes, on two GPUs
    assert cache == int(72 * GIB) - shape.parameters - 4 * GIB
    # a token: key and value, 2 bytes, 36 layers, 4 of 8 heads on each GPU, 128 numbers -> 73,728
    # bytes
    assert sequences == pytest.approx(cache / 73_728_000)
