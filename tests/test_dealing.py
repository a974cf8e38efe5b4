"""Rows that several processes deal among them: the same rows in the same loss, in less time."""

import itertools
import logging

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness import call_on_ranks
from hypothesis import given
from hypothesis import strategies as st
from test_micro_batches import batch_of, toy_loss

from trl_miner.methods.distributed import current_world
from trl_miner.trainer.dealing import Cost, Limits, deal, kinds_of_columns
from trl_miner.trainer.micro_batches import plan_micro_batches

LENGTHS = st.lists(st.tuples(st.integers(1, 6), st.integers(2, 60)), min_size=1, max_size=40)


def padded(lengths, rows):
    return len(rows) * lengths[rows].max(axis=0).sum()


@given(LENGTHS, st.integers(1, 5), st.integers(1, 4), st.integers(20, 200), st.booleans())
def test_every_row_is_dealt_once_and_within_the_limits(lengths, size, wanted, budget, on_cpu):
    lengths = np.array(lengths)
    dealt = deal(lengths, size, wanted, Limits(6 if on_cpu else None, budget), Cost(64))
    assert len(dealt) == size
    parts = [part for parts in dealt for part in parts]
    assert sorted(itertools.chain(*parts)) == list(range(len(lengths))) and all(parts)
    assert all(len(part) == 1 or padded(lengths, part) <= budget for part in parts)
    assert not on_cpu or all(len(part) <= 6 for part in parts)
    # no process has two micro-batches more than another
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_processes_get_rows_that_take_as_long():
    """2 rows of 100 tokens, 4 of 50 and 20 of 10 are 600: 3 processes have 200 each, without
    padding."""
    lengths = np.array([(10, 90)] * 2 + [(10, 40)] * 4 + [(5, 5)] * 20)
    dealt = deal(lengths, 3, 1, Limits(None, 1000), Cost(0))
    assert [[padded(lengths, part) for part in parts] for parts in dealt] == [[200]] * 3


def test_attention_makes_a_long_row_dearer_than_its_tokens():
    """By tokens, 4 rows as long as the first, 9600, beside 35 of 300, 10500, are better than 1 beside
    38, 11400. Where h is 100 a row of L tokens costs L (1 + L / 1200): 4 of 2400 cost 28800, and
    38 of 300 only 14250."""
    lengths = np.array([(100, 2300)] + [(100, 200)] * 38)
    for hidden_size, expected in ((0, [4, 35]), (100, [1, 38])):
        dealt = deal(lengths, 2, 1, Limits(None, 10**6), Cost(hidden_size))
        assert sorted(len(parts[0]) for parts in dealt) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.update(num_images=[1, 2]),
        lambda batch: batch.update(pixel_values=torch.zeros(2, 3, 4, 4)),
        # of a batch of one column nobody can tell what a (B, 1) column has a value for
        lambda batch: batch.update(
            completion_ids=torch.ones(2, 1), completion_mask=torch.ones(2, 1)
        ),
    ],
)
def test_what_is_not_a_value_for_each_row_or_token_stays(change):
    batch = batch_of([(2, 5), (4, 7)])
    assert kinds_of_columns(batch) == {
        "prompt_ids": "prompt",
        "prompt_mask": "prompt",
        "completion_ids": "completion",
        "completion_mask": "completion",
        "advantages": "row",
        "importance_sampling_ratio": "row",
    }
    change(batch)
    assert kinds_of_columns(batch) is None


# On real processes

COLUMNS = {
    "advantages": torch.float32,
    "old_per_token_logps": torch.float64,
    "ref_per_token_logps": torch.bfloat16,
    "tool_mask": torch.int32,
    "is_odd": torch.bool,
}


def rows_of(rank, count):
    """Rows of a process; half of them without an advantage, and on the last process longer ones."""
    generator = torch.Generator().manual_seed(rank)
    longest = 8 + 30 * rank
    lengths = [
        (int(p), int(t))
        for p, t in zip(
            torch.randint(1, 6, (count,), generator=generator),
            torch.randint(0, longest, (count,), generator=generator),
            strict=True,
        )
    ]
    batch = batch_of(lengths, first_id=1 + 100_000 * rank)
    shape = batch["completion_ids"].shape
    for name, dtype in COLUMNS.items():
        drawn = torch.randn(shape, generator=generator)
        batch[name] = (
            (drawn > 0).to(dtype) if dtype in (torch.bool, torch.int32) else drawn.to(dtype)
        )
    batch["is_odd"] = torch.arange(count) % 2 == 1
    batch["advantages"][::2] = 0.0
    batch["ids_of_rows"] = 2**40 * rank + torch.arange(count)
    return batch


def seen(batch):
    """Return each row of a batch by its number: what each column has within its mask."""
    prompt, completion = batch["prompt_mask"].bool(), batch["completion_mask"].bool()
    rows = {}
    for row, number in enumerate(batch["ids_of_rows"].tolist()):
        values = {}
        for name, value in batch.items():
            if value.dim() == 0:
                continue
            mask = prompt if name.startswith("prompt") else completion
            own = value[row]
            values[name] = own[mask[row]] if own.dim() and len(own) > 1 else own
        rows[number] = values
    return rows


def deal_on(size, folder, loss_type, is_unlike, count):
    dist.init_process_group("gloo")
    world = current_world()
    batches = [rows_of(world.rank * 2 + number, count) for number in range(2)]
    width = max(batch["completion_ids"].shape[1] for batch in batches)
    if is_unlike and world.rank:
        for batch in batches:
            batch["of_one"] = torch.zeros(count)
    for batch in batches:  # TRL pads a process's rows together
        for name, value in batch.items():
            if name.startswith(("completion", *COLUMNS)) and value.dim() == 2:
                batch[name] = torch.nn.functional.pad(value, (0, width - value.shape[1]))
        batch["prompt_ids"], batch["prompt_mask"] = (
            torch.nn.functional.pad(batch[name], (6 - batch[name].shape[1], 0))
            for name in ("prompt_ids", "prompt_mask")
        )
    plan = plan_micro_batches(
        batches, has_kl=False, max_tokens=None, loss_type=loss_type, least=1, world=world
    )
    micro_batches = [plan.build(number) for number in range(len(plan.parts))]
    loss = sum(weight * toy_loss(inputs, loss_type) for inputs, weight in micro_batches)
    own = sum(toy_loss(batch, loss_type) for batch in batches)
    rows = {}
    for part, (inputs, _) in zip(plan.parts, micro_batches, strict=True):
        rows |= seen(inputs) if part else {}
    torch.save(
        {
            "loss": world.sum(torch.as_tensor(loss)),
            "expected": world.sum(torch.as_tensor(own)),
            "own": {
                number: row
                for batch in batches
                for number, row in seen(batch).items()
                if (row["advantages"] * row["tool_mask"] != 0).any()
            },
            "rows": rows,
            "tokens": plan.num_tokens,
            "parts": len(plan.parts),
        },
        folder / f"{world.rank}.pt",
    )
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("size", "loss_type", "is_unlike", "count"),
    [
        (2, "grpo", False, 6),
        (4, "dapo", False, 6),
        (2, "dapo", True, 6),
        (4, "dapo", False, 2),  # 8 rows: the longest is alone
    ],
)
def test_processes_have_all_rows_once_bit_for_bit_and_the_same_loss(
    tmp_path, size, loss_type, is_unlike, count
):
    call_on_ranks(size, deal_on, size, tmp_path, loss_type, is_unlike, count)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]
    assert len({one["parts"] for one in found}) == 1
    assert all(float(one["loss"]) == pytest.approx(float(one["expected"])) for one in found)
    before = {number: row for one in found for number, row in one["own"].items()}
    after = [(number, row) for one in found for number, row in one["rows"].items()]
    assert sorted(number for number, _ in after) == sorted(before)
    for number, row in after:
        for name, values in before[number].items():
            assert row[name].dtype == values.dtype and torch.equal(row[name], values), name
    if is_unlike:  # every process has kept its own
        assert all(one["rows"].keys() == one["own"].keys() for one in found)
    else:  # the last process had the longest rows
        tokens = [one["tokens"] for one in found]
        assert count == 2 or max(tokens) < 1.3 * min(tokens)
        assert any(one["rows"].keys() - one["own"].keys() for one in found)


def plan_with(column, folder):
    """Make the plan of two steps; the last process has one more column than the others."""
    dist.init_process_group("gloo")
    world, said = current_world(), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trl_miner.trainer.dealing").addHandler(handler)
    batch = batch_of([(2, 5), (4, 7)])
    if world.rank == world.size - 1:
        batch |= column
    for _ in range(2):
        plan = plan_micro_batches(
            [batch], has_kl=False, max_tokens=None, loss_type="dapo", least=1, world=world
        )
    assert plan.rows["completion_ids"] is plan.batch["completion_ids"]  # its own
    (folder / str(world.rank)).write_text("\n".join(said))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("column", "teller", "names"),
    [
        ({"num_images": [1, 2]}, 1, "num_images"),
        ({"boxes": torch.zeros(2, 3, 4)}, 1, "boxes"),
        ({"of_one": torch.zeros(2)}, 0, ", ".join(batch_of([(2, 5)]))),  # the first has all others
    ],
)
def test_one_process_says_once_why_rows_stay(tmp_path, column, teller, names):
    call_on_ranks(2, plan_with, column, tmp_path)
    said = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(2)]
    assert [len(lines) for lines in said] == [int(rank == teller) for rank in range(2)]
    assert f"Rows are not dealt over the processes because of {names}: a column" in said[teller][0]
