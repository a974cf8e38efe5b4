"""Which rows share a micro_batch, what is cut off them, and that nothing is lost or counted
twice."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from trl_miner.methods.distributed import World
from trl_miner.trainer.dealing import Limits
from trl_miner.trainer.micro_batches import (
    ROW_MEAN,
    SUMMED,
    loss_mask,
    micro_batch_limits,
    num_parts,
    partition,
    plan_micro_batches,
    row_lengths,
    rows_with_effect,
    shorten,
)
from trl_miner.trainer.row_layout import ROW_WISE, _model_problem

LENGTHS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), min_size=1, max_size=9)


def batch_of(lengths, *, num_prompt=None, num_completion=None, advantages=None, first_id=1):
    """As TRL makes it: prompts padded on the left, completions on the right; every token its own
    id."""
    num_prompt = num_prompt or max(p for p, _ in lengths)
    num_completion = num_completion or max(1, *(c for _, c in lengths))
    places_P, places_T = torch.arange(num_prompt), torch.arange(num_completion)
    prompt_mask = torch.stack([(places_P >= num_prompt - p).long() for p, _ in lengths])
    completion_mask = torch.stack([(places_T < c).long() for _, c in lengths])
    ids = first_id + torch.arange(len(lengths) * (num_prompt + num_completion)).view(
        len(lengths), -1
    )
    return {
        "prompt_ids": ids[:, :num_prompt] * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, num_prompt:] * completion_mask,
        "completion_mask": completion_mask,
        "advantages": torch.ones(len(lengths)) if advantages is None else torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(7.0),
        "importance_sampling_ratio": torch.ones(len(lengths), 1),
    }


def plan_of(batches, **settings):
    defaults = dict(has_kl=False, max_tokens=None, loss_type="dapo", least=1)
    return plan_micro_batches(batches, world=World(), **{**defaults, **settings})


def test_trimming_takes_padding_alone():
    batch = batch_of([(2, 5), (4, 0), (1, 3)], num_prompt=6, num_completion=9)
    batch["completion_mask"][0, 1:3] = 0  # a tool's tokens; what counts is the last one
    # at least 2 of a completion: one column has a meaning of its own in TRL
    assert row_lengths(batch).tolist() == [[2, 5], [4, 2], [1, 3]]
    one = torch.ones(1, 1, dtype=torch.long)
    # there is no second
    assert row_lengths({"prompt_mask": one, "completion_mask": one}).tolist() == [[1, 1]]
    short = shorten(batch, 4, 5)
    assert short["prompt_ids"].shape == (3, 4) and short["completion_ids"].shape == (3, 5)
    for name in ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask"):
        assert short[name].sum() == batch[name].sum()
    assert (
        short["importance_sampling_ratio"].shape == (3, 1)
        and short["advantages"] is batch["advantages"]
    )


def padded_tokens(lengths, parts):
    return sum(len(rows) * lengths[rows].max(axis=0).sum() for rows in parts if rows)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4))
def test_no_cut_in_order_of_length_has_less_padding(lengths, count, max_rows):
    lengths = np.array(lengths)
    num_rows = len(lengths)
    if count * max_rows < num_rows:
        with pytest.raises(ValueError, match="do not fit"):
            partition(lengths, count, max_rows=max_rows)
        return
    parts = partition(lengths, count, max_rows=max_rows)
    assert len(parts) == count and sorted(itertools.chain(*parts)) == list(range(num_rows))
    assert all(len(rows) <= max_rows for rows in parts)
    order = sorted(range(num_rows), key=lambda row: -lengths[row].sum())
    cuts = itertools.combinations(range(1, num_rows), min(count, num_rows) - 1)
    every = ([order[a:b] for a, b in itertools.pairwise([0, *cut, num_rows])] for cut in cuts)
    best = min(
        padded_tokens(lengths, cut) for cut in every if all(len(rows) <= max_rows for rows in cut)
    )
    assert padded_tokens(lengths, parts) == best


@given(LENGTHS, st.integers(2, 100))
def test_a_budget_is_kept_with_the_fewest_micro_batches(lengths, budget):
    lengths = np.array(lengths)
    fewest = num_parts(lengths, Limits(None, budget), 0)
    parts = partition(lengths, fewest, max_tokens=budget)
    assert all(parts) and all(
        len(rows) == 1 or padded_tokens(lengths, [rows]) <= budget for rows in parts
    )
    assert sorted(itertools.chain(*parts)) == list(range(len(lengths)))
    if fewest > 1:
        with pytest.raises(ValueError, match="do not fit"):
            partition(lengths, fewest - 1, max_tokens=budget)


def test_on_a_gpu_micro_batches_are_few_and_hold_no_more_tokens_than_trls():
    """One row of 4 + 32 tokens, seven of 2 + 4: TRL has 4 micro-batches of 2 x 36. Two do: 36, and
    7 x 6."""
    lengths = [(4, 32)] + 7 * [(2, 4)]
    batches = [
        batch_of(lengths[n : n + 2], num_prompt=4, num_completion=32) for n in range(0, 8, 2)
    ]
    assert len(plan_of(batches).parts) == 4
    most_rows, budget = micro_batch_limits(2, 36, None, torch.device("cuda"))
    assert most_rows is None and [
        len(rows) for rows in plan_of(batches, max_tokens=budget).parts
    ] == [1, 7]


def test_rows_have_effect_by_their_advantage_at_tokens_of_the_loss():
    batch = batch_of(
        [(1, 2), (1, 2), (1, 2), (1, 0)], num_completion=4, advantages=[0.5, 0.0, -1.0, 1.0]
    )
    assert rows_with_effect(batch, has_kl=False).tolist() == [True, False, True, False]
    # the last has no token
    assert rows_with_effect(batch, has_kl=True).tolist() == [True, True, True, False]
    batch["tool_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]])
    assert rows_with_effect(batch, has_kl=False).tolist() == [True, False, False, False]
    batch["advantages"] = torch.tensor([[0.0, 0, 9, 9], [0, 1, 9, 9], [1, 1, 9, 9], [1, 1, 9, 9]])
    assert rows_with_effect(batch, has_kl=False).tolist() == [False, True, False, False]


@st.composite
def trl_batches(draw):
    num_batches, num_rows = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    lengths = st.tuples(st.integers(1, 5), st.one_of(st.integers(0, 6), st.just(60)))
    advantages = st.sampled_from([0.0, 0.0, 1.0, -0.5])
    shape = dict(num_prompt=5, num_completion=60)
    return [
        batch_of(
            draw(st.lists(lengths, min_size=num_rows, max_size=num_rows)),
            advantages=draw(st.lists(advantages, min_size=num_rows, max_size=num_rows)),
            first_id=1 + 1000 * number,
            **shape,
        )
        for number in range(num_batches)
    ]


def toy_loss(batch, loss_type):
    """Of each kind of average that TRL has, over a number that each token's id decides."""
    mask, advantages = (
        loss_mask(batch),
        batch["advantages"].double().view(len(batch["advantages"]), -1),
    )
    per_token = torch.sin(batch["completion_ids"].double()) * advantages * mask
    if loss_type == "dapo":
        return per_token.sum() / batch["num_items_in_batch"]
    return (per_token.sum(1) / mask.sum(1).clamp(min=1)).mean()


@given(trl_batches(), st.sampled_from(["dapo", "grpo"]), st.booleans(), st.integers(1, 5))
def test_the_loss_is_the_same_sum(batches, loss_type, has_kl, least):
    assert {loss_type} & (SUMMED | ROW_MEAN)
    plan = plan_of(batches, loss_type=loss_type, has_kl=has_kl, least=least)
    expected = sum(toy_loss(batch, loss_type) for batch in batches)
    micro_batches = [plan.build(number) for number in range(len(plan.parts))]
    found = sum(weight * toy_loss(inputs, loss_type) for inputs, weight in micro_batches)
    assert float(found) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@given(trl_batches(), st.one_of(st.none(), st.integers(65, 400)), st.booleans())
def test_no_row_is_lost_or_counted_twice(batches, max_tokens, has_kl):
    plan = plan_of(batches, max_tokens=max_tokens, has_kl=has_kl)
    used = [rows_with_effect(batch, has_kl=has_kl) for batch in batches]
    if not any(rows.any() for rows in used):
        used = [np.ones_like(rows) for rows in used]
    expected = [
        batch["completion_ids"][row]
        for batch, rows in zip(batches, used, strict=True)
        for row in rows.nonzero()[0]
    ]
    expected = sorted(ids[ids > 0].tolist() for ids in expected)
    found = []
    for number in range(len(plan.parts)):
        inputs, _ = plan.build(number)
        tokens = inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
        assert max_tokens is None or tokens <= max_tokens
        if plan.parts[number]:
            found += [ids[ids > 0].tolist() for ids in inputs["completion_ids"]]
    assert sorted(found) == expected
    steps = [plan.of_micro_step(step) for step in range(len(batches))]
    assert list(itertools.chain(*steps)) == list(range(len(plan.parts))) and steps[-1]
    assert (plan.is_used_n.sum(), len(plan.is_used_n)) == (
        len(expected),
        sum(len(rows) for rows in used),
    )


def test_short_rows_share_a_micro_batch_of_more_rows_and_no_more_tokens():
    """TRL's micro-batches have 4 x (2 + 100) = 408 tokens; the parts 102 and 7 x 12 = 84."""
    shape = dict(num_prompt=2, num_completion=100)
    plan = plan_of(
        [batch_of([(2, 10), (2, 100), (2, 10), (2, 10)], **shape), batch_of([(2, 10)] * 4, **shape)]
    )
    assert [len(rows) for rows in plan.parts] == [1, 7]
    long = plan_of(
        [batch_of([(2, 100)] * 4, **shape), batch_of([(2, 100)] * 3 + [(2, 60)], **shape)]
    )
    # 7 and 1 would have 62 + 714 tokens, fewer than 816
    assert [len(rows) for rows in long.parts] == [4, 4]


def test_on_a_cpu_there_are_more_micro_batches_where_they_save_more_padding_than_they_take():
    """40 rows of 10 tokens padded to 110 are 4000 tokens of padding: two micro-batches. Rows of 18 and
    20 tokens, 40 of padding, stay together, and TRL's own number stays."""
    unlike = np.array([(2, 108)] * 4 + [(2, 8)] * 40)
    alike = np.array([(2, 18)] * 20 + [(2, 16)] * 20)
    limits = Limits(100, 10**6)
    assert [num_parts(rows, limits, 1) for rows in (unlike, alike)] == [2, 1]
    assert num_parts(alike, limits, 8) == 8
    assert num_parts(alike, Limits(10, 10**6), 1) == 4  # of 10 rows each


def test_of_two_cuts_without_padding_the_even_one_is_made():
    batches = [batch_of([(2, 7)] * 4, advantages=[1.0, 0.0, 1.0, 1.0]) for _ in range(2)]
    assert [len(rows) for rows in plan_of(batches).parts] == [3, 3]


# What padding and other rows change

SIZE = dict(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
)
SIZE |= dict(
    num_key_value_heads=2, head_dim=8, num_experts=4, num_local_experts=4, num_experts_per_tok=2
)
SIZE |= dict(moe_intermediate_size=16, pad_token_id=0)
OTHERS = ["gpt2", "opt", "recurrent_gemma", "rwkv"]  # absolute positions, recurrent states


def tiny(kind):
    settings = dict(SIZE)
    if kind == "recurrent_gemma":
        settings |= dict(lru_width=16, block_types=["recurrent", "attention"])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    with torch.no_grad():
        for weight in model.parameters():
            # so that context matters
            weight.mul_(4.0 if weight.dim() == 2 and weight.std() < 0.1 else 1.0)
    return model.eval()


@torch.no_grad()
def logps(model, batch):
    ids, mask = (
        torch.cat([batch[f"prompt_{x}"], batch[f"completion_{x}"]], dim=1) for x in ("ids", "mask")
    )
    size = batch["completion_ids"].shape[1]
    found = (
        model(input_ids=ids % 50, attention_mask=mask)
        .logits[:, -size - 1 : -1]
        .float()
        .log_softmax(-1)
    )
    return found.gather(2, (batch["completion_ids"] % 50).unsqueeze(2)).squeeze(2)[
        batch["completion_mask"].bool()
    ]


FAST = {"qwen3", "qwen3_moe", "gemma3_text"}


@pytest.mark.parametrize(
    "kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in sorted(ROW_WISE)]
)
def test_what_may_be_sorted_sees_neither_padding_nor_other_rows(kind):
    model, batch = tiny(kind), batch_of([(2, 9), (3, 4)], num_prompt=40, num_completion=30)
    both = logps(model, batch)
    assert both.std() > 0.01
    assert torch.allclose(logps(model, shorten(batch, 3, 9)), both, atol=1e-4)
    first = {name: value[:1] for name, value in batch.items() if value.dim() > 1}
    assert torch.allclose(logps(model, shorten(first, 2, 9)), both[:9], atol=1e-4)
    assert _model_problem(model.config) is None


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_keep_trls_micro_batches(kind):
    assert "is not known here" in _model_problem(AutoConfig.for_model(kind))


def test_a_rope_that_depends_on_the_padded_length_keeps_them_too():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    assert "dynamic RoPE" in _model_problem(AutoConfig.for_model("qwen3", rope_parameters=rope))
