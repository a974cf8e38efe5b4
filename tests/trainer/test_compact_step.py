"""How the rows of an optimizer step are dealt out and cut into micro-batches."""

from itertools import combinations

import pytest
import torch
from harness import build_trainer, fixed_rollouts
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig, Qwen3Config

from trl_miner.trainer.compact_step import (
    Cutting,
    can_pack,
    deal,
    micro_batches,
    row_lengths,
    shorten,
    why_padding_stays,
)

ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=6)


def by_length(rows):
    return torch.tensor(sorted(rows, key=sum, reverse=True))


def cost(rows, start, end, is_packed=False):
    part = rows[start:end]
    return int(part.sum()) if is_packed else (end - start) * int(part.amax(0).sum())


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 400), st.booleans())
def test_no_cut_within_the_budget_costs_fewer_tokens(rows, budget, is_packed):
    """By trying all: a cut before each row, or not."""
    rows = by_length(rows)
    saves = 7

    def price(ends):
        parts = [*zip((0, *ends), (*ends, len(rows)), strict=True)]
        costs = [cost(rows, *part, is_packed) for part in parts]
        sizes = [end - start for start, end in parts]
        fits = all(c <= budget or size == 1 for c, size in zip(costs, sizes, strict=True))
        return sum(costs) + saves * len(parts) if fits else None

    places = range(1, len(rows))
    prices = [price(ends) for k in range(len(rows)) for ends in combinations(places, k)]
    parts = Cutting(budget, is_packed, saves).cut(rows, 0, len(rows))
    found = price(tuple(end for _, end in parts[:-1]))
    assert found == min(p for p in prices if p is not None)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 400), st.data())
def test_there_are_as_many_parts_as_asked_for_and_no_row_is_lost(rows, budget, data):
    least = data.draw(st.integers(1, len(rows)))
    most = data.draw(st.integers(least, len(rows)))
    parts = Cutting(budget).cut(by_length(rows), 0, most, least)
    assert least <= len(parts) <= most
    assert [row for start, end in parts for row in range(start, end)] == [*range(len(rows))]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_each_process_gets_as_many_rows_and_each_that_counts_once(size, each, data):
    K = size * each
    counts = torch.tensor(data.draw(st.lists(st.booleans(), min_size=K, max_size=K)))
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, 99), min_size=K, max_size=K)))
    least = data.draw(st.integers(1, each))
    rows = deal(lengths, counts, size, least)
    assert rows.shape == (max(least, -(-int(counts.sum()) // size)), size)
    dealt = rows.flatten().tolist()
    assert len(set(dealt)) == len(dealt)
    assert set(counts.nonzero().flatten().tolist()) <= set(dealt)
    # the snake: two rows in turn favor no process, so that loads differ by one row at most
    loads = (lengths * counts)[rows].sum(0)
    assert loads.amax() - loads.amin() <= lengths.amax()


def test_fillers_are_the_shortest_rows_without_an_advantage():
    """Five of eight count, on two processes: one filler, the row of length 2."""
    lengths = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2])
    counts = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0]).bool()
    assert deal(lengths, counts, 2, 1).tolist() == [[0, 1], [3, 2], [4, 7]]


def test_a_row_is_as_long_as_its_last_token():
    """A tool's answer, or a masked completion, may have zeros inside; nothing at all is 1."""
    prompt = torch.tensor([[0, 1, 1], [1, 1, 1]])
    completion = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]])
    assert row_lengths(prompt, completion).tolist() == [[2, 3], [3, 1]]


def test_prompts_lose_columns_on_the_left_and_completions_on_the_right():
    columns = {
        "prompt_ids": torch.arange(6).view(2, 3),
        "completion_ids": torch.arange(8).view(2, 4),
        "importance_sampling_ratio": torch.ones(2, 1),
        "advantages": torch.tensor([1.0, 2.0]),
        "num_items_in_batch": torch.tensor(7),
    }
    made = shorten(columns, torch.tensor([1]), prompt=2, completion=3)
    assert made["prompt_ids"].tolist() == [[4, 5]]
    assert made["completion_ids"].tolist() == [[4, 5, 6]]
    assert made["importance_sampling_ratio"].shape == (1, 1)
    assert made["advantages"].tolist() == [2.0] and made["num_items_in_batch"] == 7


def step_of(policy, tmp_path, **overrides):
    """Return TRL's micro-batches of a real step, and ours."""
    trainer = build_trainer(
        policy,
        tmp_path,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=4,
        more={"rollout_func": fixed_rollouts},
        max_steps=1,
        **overrides,
    )
    trainer.train()
    batches = trainer._buffered_inputs
    return batches, [*micro_batches(trainer, batches, 1.0)]


def rows_in(batches):
    """Return the rows that have an advantage, as (prompt, completion, advantages) without padding."""
    found = []
    for batch in (batch for batch in batches if batch.get("row_weight") != 0):
        for i, advantages in enumerate(batch["advantages"]):
            is_token = batch["completion_mask"][i].bool()
            advantages = advantages[is_token] if advantages.dim() else advantages
            if (advantages != 0).any():
                ids = (
                    batch[f"{x}_ids"][i, batch[f"{x}_mask"][i].bool()]
                    for x in ("prompt", "completion")
                )
                found.append(str([row.tolist() for row in (*ids, advantages)]))
    return sorted(found)


def test_the_step_has_the_rows_that_count_with_their_advantages_empty_micro_batches_first(
    policy, tmp_path
):
    trls, ours = step_of(policy, tmp_path)
    assert rows_in(ours) == rows_in(trls) and rows_in(trls)
    assert len(ours) == 4
    weights = [batch["row_weight"] for batch in ours]
    assert weights == sorted(weights, key=bool)  # those of weight 0 come first
    widths = [b["prompt_ids"].shape[1] + b["completion_ids"].shape[1] for b in ours if len(b) > 1]
    assert widths == sorted(widths)


def test_a_mean_over_rows_becomes_the_sum_that_it_was(policy, tmp_path):
    """A micro-batch of n rows weighs n of TRL's 3."""
    _, ours = step_of(policy, tmp_path, loss_type="grpo", beta=0.1)
    assert sum(batch["row_weight"] for batch in ours) == pytest.approx(12 / 3)


def test_models_whose_log_probs_depend_on_padding_are_known():
    assert why_padding_stays(Qwen3Config()) == ""
    assert "gpt2" in why_padding_stays(GPT2Config())
    scaled = LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    assert "dynamic" in why_padding_stays(scaled)
    scaled.rope_parameters["rope_type"] = "llama3"
    assert why_padding_stays(scaled) == ""


@pytest.mark.parametrize(
    ("kernel", "layers", "packs"),
    [
        ("flash_attention_2", ["full_attention"] * 2, True),
        ("kernels-community/flash-attn3", ["full_attention"] * 2, True),
        ("flash_attention_2", ["full_attention", "sliding_attention"], False),
        ("sdpa", ["full_attention"] * 2, False),
    ],
)
def test_rows_are_packed_where_the_kernel_has_variable_lengths(kernel, layers, packs):
    config = Qwen3Config(num_hidden_layers=2, layer_types=layers)
    config._attn_implementation = kernel
    assert can_pack(config) == packs
