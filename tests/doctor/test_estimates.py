"""What doctor says of memory and time: against real tensors where a CPU has them, else by hand."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trl_miner import cli, doctor
from trl_miner.launching.plan import Plan

# of a model of 1,000 M parameters: 2 GB in 16 bits; 1 MB of cache a token
BIG = doctor.Shape(10**9, hidden=1000, layers=10, width=1000, mlp=3000, cached=10**6)
GB = 10**9


def settings(**changes):
    usual = dict(
        model_name_or_path="org/model", model_revision="main", dtype="float32", beta=0.0,
        use_peft=False, load_in_4bit=False, lora_r=8, per_device_train_batch_size=1,
        optimizer_batch_size=100, gradient_accumulation_steps=1, max_completion_length=3000,
        gradient_checkpointing=True, use_vllm=True, vllm_mode="server", max_steps=10,
        vllm_enable_sleep_mode=False, vllm_gpu_memory_utilization=0.5, vllm_tensor_parallel_size=1,
    )  # fmt: skip
    return SimpleNamespace(**usual | changes)


def plan(server_gpus=0, processes=1, **accelerate):
    return Plan([], None, server_gpus, processes, accelerate)


def parts(plan, **changes):
    return doctor.training_bytes(BIG, settings(**changes), plan, 80 * GB)


KINDS = {"ddp": {}, "zero2": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
         "zero3": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
         "offload": {"distributed_type": "DEEPSPEED", "deepspeed_config": {
             "zero_stage": 3, "offload_optimizer_device": "cpu"}},
         "fsdp": {"distributed_type": "FSDP"}}  # fmt: skip


@pytest.mark.parametrize("name", doctor.KNOWN)
def test_the_sizes_of_the_recipes_models(name):
    """Of a model without weights, of its configuration as config.json on the Hub has it."""
    known = doctor.KNOWN[name]
    kind = "qwen3" if "Qwen3" in name else "llama"
    config = AutoConfig.for_model(
        kind, vocab_size=151936 if kind == "qwen3" else 128256, hidden_size=known.hidden,
        num_hidden_layers=known.layers, intermediate_size=known.mlp, head_dim=128,
        num_attention_heads=known.width // 128, num_key_value_heads=8,
        tie_word_embeddings=known.parameters < 5e9,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() == known.parameters
    # a key and a value, in 16 bits, of 8 heads of 128 in each layer
    assert known.cached == 2 * 2 * 8 * 128 * known.layers


def test_the_sizes_of_a_model_in_a_folder(policy):
    found = doctor.shape_of(settings(model_name_or_path=policy))
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert found == doctor.Shape(model.num_parameters(), 32, 2, 2 * 16, 64, 2 * 2 * 2 * 2 * 16)


def test_the_states_of_a_training_are_exact(policy):
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
    optimizer.step()
    tensors = [each for p in model.parameters() for each in (p, p.grad)]
    tensors += [each for state in optimizer.state.values() for each in state.values() if each.dim()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    shape = doctor.shape_of(settings(model_name_or_path=policy))
    found = doctor.training_bytes(shape, settings(), plan(), 80 * GB)
    assert found["weights, gradients, optimizer"] == size == 16 * model.num_parameters()


@pytest.mark.parametrize(
    ("kind", "states", "buckets"),
    [
        ("ddp", 16, 4),  # 4 + 4 + 8 bytes a parameter, and its buckets a copy of the gradients
        ("zero2", 2 + 14 / 4, 4),  # the weights stay whole
        ("zero3", 16 / 4, 4),
        ("fsdp", 16 / 4, 4),
        ("offload", 4 / 4, 4),  # weights and gradients in 16 bits
    ],
)
def test_what_is_divided_by_four_processes(kind, states, buckets):
    found = parts(plan(processes=4, **KINDS[kind]))
    assert found["weights, gradients, optimizer"] == states * GB
    assert found["buckets"] == buckets * GB


def test_other_parts_by_hand():
    found = parts(plan(processes=4, **KINDS["zero3"]), beta=0.1)
    assert found["frozen weights, or a reference model"] == 2 * GB / 4
    # 3000 + 1000 tokens, each with 10 inputs of 1000 in 16 bits, and of one layer
    # 36 x 1000 + 44 x 1000 + 14 x 3000 = 122,000 bytes; a tenth for fragments
    assert found["activations, at most"] == pytest.approx(1.1 * 4000 * (20_000 + 122_000))
    whole = parts(plan(processes=4, **KINDS["zero3"]), gradient_checkpointing=False)
    assert whole["activations, at most"] == pytest.approx(1.1 * 4000 * (20_000 + 1_220_000))
    # 4 bits, and a scale for each 64 weights
    quantized = parts(plan(), use_peft=True, load_in_4bit=True)
    assert quantized["frozen weights, or a reference model"] == pytest.approx(0.56 * GB)


def test_the_seconds_of_a_step_by_hand():
    """200 completions of 1000 tokens, a third of 3000; vLLM on one GPU, the training on two."""
    found = doctor.step_seconds(BIG, settings(optimizer_batch_size=200), 80 * GB, 1, 2)
    # cache: 0.5 x 80 GB - 4 GiB - 2 GB = 33.7 GB, for 33.7 completions of 1000 x 1 MB at once
    at_once = (40 * GB - 4 * 2**30 - 2 * GB) / 1e9
    # a token of all: 2 GB of weights and 33.7 GB of cache at 2.4 TB/s, and 5 ms; 200,000 tokens
    sampling = 200_000 / at_once * ((2 + at_once) * 1e9 / 2.4e12 + 0.005)
    # forward, backward and the forward again: 4 x 2 x 1e9 FLOPs a token, on two GPUs
    training = 8e9 * 200_000 / 2 / 4e14
    assert found == pytest.approx(sampling + training)
    # on 1000 GPUs no sampling is shorter than the longest completion
    alone = 3000 * ((2 + 1) * 1e9 / 2.4e12 + 0.005)
    many = doctor.step_seconds(BIG, settings(), 80 * GB, 1000, 10**9)
    assert many == pytest.approx(alone)


def test_both_ways_of_a_server_are_shown():
    own, (change, colocated) = doctor.ways(BIG, settings(), plan(1, 2), 80 * GB).items()
    assert own == ("", doctor.step_seconds(BIG, settings(), 80 * GB, 1, 2))
    assert colocated == doctor.step_seconds(BIG, settings(), 80 * GB, 3, 3)  # all do both
    assert change == doctor.COLOCATED
    assert [*doctor.ways(BIG, settings(), plan(0, 3), 80 * GB)] == [""]  # there is no server


# The command.


def run(capsys, *words):
    code = cli.main(["doctor", *words])
    return code, capsys.readouterr().out


def test_a_recipe_that_fits(capsys):
    code, said = run(capsys, "Qwen3-4B-Base/miner", "--machine", "8x80GB", "--price", "2")
    assert code == 0 and "It fits." in said and "4.02 B parameters" in said
    lines = [line for line in said.splitlines() if "s a step" in line]
    words = lines[0].replace(",", "").split()
    seconds, hours, price = (float(words[at]) for at in (0, 4, 10))
    # 314 steps; 8 GPUs at 2 an hour
    assert hours == pytest.approx(seconds * 314 / 3600, rel=0.01)
    assert price == pytest.approx(hours * 16, rel=0.01)
    assert "with --vllm_mode colocate" in lines[1] and "Left out: " in said


def test_a_recipe_that_does_not_fit(capsys):
    code, said = run(capsys, "Qwen3-4B-Base/miner", "--machine", "4x24GB")
    assert code == 1 and "does NOT fit" in said
    # awake, vLLM and the model need more than the GPU has
    words = ["--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.9"]
    colocated = ["--machine", "8x80GB", "--vllm_enable_sleep_mode", "true", *words]
    assert run(capsys, "Qwen3-4B-Base/miner", *colocated)[0] == 1
    assert run(capsys, "Qwen3-4B-Base/miner", *colocated[:-1], "0.5")[0] == 0


def test_a_recipe_for_a_cpu(capsys):
    code, said = run(capsys, "arithmetic/quick")
    assert code == 0 and said.startswith("It trains on a CPU. Train with --max_steps 3")
