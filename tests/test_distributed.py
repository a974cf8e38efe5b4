"""The same global batch on 1, 2 and 4 real gloo processes, and a real trainer on 1 and 2."""

import json
import math
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from distributed.train_worker import CASES, train_all
from distributed.unlike_worker import train_unlike
from harness import call_on_ranks

from trl_miner import miner_advantages
from trl_miner.distributed import DistributedWorld, World, current_world
from trl_miner.methods.bapo import bapo
from trl_miner.methods.clip_cov import clip_cov
from trl_miner.methods.kl_cov import kl_cov
from trl_miner.runs.prompt_ledger import FILE, parse_ledger
from trl_miner.trainer.dynamic_sampling import Group, join_rounds
from trl_miner.trainer.generation_batch import GeneratedRound, prompt_keys
from trl_miner.trainer.micro_batches import plan_micro_batches

NUM_GENERATIONS = 4
# P: all right, H: mixed, N: all wrong; 24 rows, so that 2 and 4 processes cut groups in two (12 and 6 rows each)
KINDS = ["P", "H", "N", "P", "H", "P"]


def global_batch():
    generator = torch.Generator().manual_seed(3)
    rewards = {"P": [1.0] * 4, "N": [0.0] * 4, "H": [1.0, 0.0, 0.0, 1.0]}
    rewards = torch.tensor([r for kind in KINDS for r in rewards[kind]])
    logps = -3 * torch.rand(len(rewards), 9, generator=generator)
    lengths = torch.randint(0, 10, (len(rewards),), generator=generator)
    return rewards, logps, (torch.arange(9) < lengths.unsqueeze(1)).int()


def worker(size: int, folder: Path) -> None:
    dist.init_process_group("gloo")
    world = current_world()
    assert world.size == size and isinstance(world, DistributedWorld if size > 1 else World)
    rewards, logps, mask = global_batch()
    local = world.local_slice(len(rewards) // size)
    # TRL pads each process to its own longest completion: cut the columns that this one does not use
    width = int(mask[local].sum(dim=1).max())
    results = {}
    for name, change in {"plain": {}, "uncapped": {"lambda_max": None}, "uniform": {"credit": "uniform"}}.items():
        found = miner_advantages(
            rewards,
            logps[local, :width],
            mask[local, :width],
            num_generations=NUM_GENERATIONS,
            world=world,
            **change,
        )
        padded = torch.zeros(found.advantages_NT.shape[0], 9)
        padded[:, :width] = found.advantages_NT
        results[name] = (world.gather(padded), found.advantages_N, found.scale, found.tau_ref, found.tau_pos)
    results |= run_token_losses(world, rewards, logps, mask, local, width)
    results |= planned(world)
    results["sum"] = world.sum(torch.tensor(float(world.rank + 1)))
    broken = logps.clone()
    broken[21, 0], mask[21, 0] = float("nan"), 1  # the last process's row
    try:
        miner_advantages(rewards, broken[local], mask[local], num_generations=NUM_GENERATIONS, world=world)
        results["error"] = None
    except ValueError as error:
        results["error"] = str(error)
    torch.save(results, folder / f"{world.rank}.pt")
    dist.destroy_process_group()


def run_token_losses(world, rewards, logps, mask, local, width):
    """As the losses see them: (all rows, advantages that every token gets, bounds, metrics)."""
    old = logps - torch.linspace(-1, 1, logps.numel()).view_as(logps)
    rows = [x[local, :width] for x in (logps, old, rewards.unsqueeze(1).expand_as(logps) - 0.5, mask)]
    results = {}
    for name, method in {
        "clip_cov": partial(clip_cov, ratio=0.1, low=0.0, generator=torch.Generator().manual_seed(5)),
        "kl_cov": partial(kl_cov, ratio=0.1),
        "bapo": partial(bapo, target=2.0),
    }.items():
        found = method(*rows, world=world)
        padded = torch.zeros(len(rows[0]), 9)
        padded[:, :width] = found.advantages_BT * rows[3]
        numbers = [found.clip_low or 0, found.clip_high or 0, *found.metrics.values()]
        results[name] = (world.gather(padded), torch.tensor(numbers))
    return results


def planned(world):
    """The first process has four rows of 8 + 2 tokens, of which all teach; the others' are short, or do not teach."""
    length, advantage = (8, 1.0) if world.rank == 0 else (2, float(world.rank == 1))
    ids = torch.ones(2, 8, dtype=torch.long)
    batch = {"prompt_ids": ids[:, :2], "prompt_mask": ids[:, :2], "completion_ids": ids}
    batch |= {
        "completion_mask": (torch.arange(8) < length).long().repeat(2, 1),
        "advantages": torch.full((2,), advantage),
    }
    settings = dict(has_kl=False, loss_type="dapo", least=1)
    plans = {most: plan_micro_batches([batch] * 2, max_tokens=most, world=world, **settings) for most in (None, 10)}
    return {f"micro-batches of {most}": [len(rows) for rows in plan.parts] for most, plan in plans.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By number of processes, each one's results."""
    found = {}
    for size in (1, 2, 4):
        folder = tmp_path_factory.mktemp(f"world{size}")
        call_on_ranks(size, worker, size, folder)
        found[size] = [torch.load(folder / f"{rank}.pt") for rank in range(size)]
    return found


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", ["plain", "uncapped", "uniform"])
def test_advantages_do_not_depend_on_the_number_of_processes(results, size, case):
    alone, alone_means, *alone_scalars = results[1][0][case]
    assert alone.abs().sum() > 0
    for rank in range(size):
        shared, means, *scalars = results[size][rank][case]
        assert torch.allclose(shared, alone, rtol=1e-6, atol=1e-9)
        assert torch.allclose(means, alone_means, rtol=1e-6, atol=1e-9)
        assert scalars == pytest.approx(alone_scalars, rel=1e-6)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", ["clip_cov", "kl_cov", "bapo"])
def test_token_losses_do_not_depend_on_the_number_of_processes(results, size, case):
    """Clip-Cov's random choice included."""
    alone, alone_numbers = results[1][0][case]
    plain = results[1][0]["bapo"][0]
    assert case == "bapo" or 0 < (alone != plain).sum() < 12  # a tenth of 108 tokens, less the padding
    for rank in range(size):
        shared, numbers = results[size][rank][case]
        assert torch.allclose(shared, alone, rtol=1e-5, atol=1e-6)
        assert torch.allclose(numbers, alone_numbers, rtol=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_a_bad_row_of_one_process_stops_them_all(results, size):
    # a process that went on alone would wait in the next collective until its timeout
    assert all("row 21 of the global batch" in result["error"] for result in results[size])


@pytest.mark.parametrize("size", [2, 4])
def test_every_process_goes_through_as_budget_small(results, size):
    """By rows two each, as there are two micro-batches. Of ten tokens at most, the first process needs four, a row in
    each; the second's rows of 2 + 2 tokens would do with two, and the others' with none."""
    parts = {
        name: [result[name] for result in results[size]] for name in ("micro-batches of None", "micro-batches of 10")
    }
    idle = size - 2
    assert parts["micro-batches of None"] == [[2, 2], [2, 2], *[[0, 0]] * idle]
    assert parts["micro-batches of 10"] == [[1, 1, 1, 1], [1, 1, 1, 1], *[[0, 0, 0, 0]] * idle]


@pytest.mark.parametrize("size", [2, 4])
def test_sums_are_global(results, size):
    assert all(result["sum"] == sum(range(1, size + 1)) for result in results[size])  # 1 + 2, 1 + 2 + 3 + 4


def test_a_distributed_world_needs_a_group():
    with pytest.raises(RuntimeError, match="accelerate launch"):
        DistributedWorld()


G = 4  # rollouts of a prompt in the rounds below


class Image:
    """Stands for what only pickling can send; tells who was sent from here."""

    sent = []

    def __init__(self, place):
        self.place = place

    def __eq__(self, other):
        return self.place == other.place

    def __getstate__(self):
        self.sent.append(self.place)
        return self.__dict__


def random_rounds(seed, size):
    """Return the rounds of all processes, by process, and which groups of them are in the batch."""
    random = Random(seed)
    unit = size // math.gcd(size, G)  # prompts
    counts = [unit * random.randint(1, 3) for _ in range(random.randint(2, 4))]  # prompts by round
    by_rank = [[] for _ in range(size)]
    for r, count in enumerate(counts):
        rewards_NF = torch.rand(count * G, 2, generator=torch.Generator().manual_seed(seed + r))
        for rank in range(size):
            rows = [{"prompt": f"{r}/{rank}/{i}", "image": Image((r, rank, i))} for i in range(count * G // size)]
            ids = [[random.randrange(70_000) for _ in range(random.randint(0, 5))] for _ in rows]
            logps = [[random.choice([-random.random(), None]) for _ in one] for one in ids]
            masks = [[random.randint(0, 1) for _ in one] for one in ids] if random.random() < 0.5 else None
            texts = np.array([str(one) for one in ids])  # not a list, but one value for each row
            if random.random() < 0.2:
                ids = [torch.tensor(one) for one in ids]
            extra = {name: [f"{name}{i}" for i in range(len(rows))] for name in "abc" if random.random() < 0.5}
            generated = (ids, ids, masks, texts, logps, {}, None, [])
            by_rank[rank].append(GeneratedRound(rows, generated, rewards_NF, extra))
    places = [(r, place) for r, count in enumerate(counts) for place in range(count)]
    groups = sorted(random.sample(places, len(places) // unit // 2 * unit or unit))
    return by_rank, [Group(r, place, 0, True) for r, place in groups]


def joined_by_hand(by_rank, groups, rank):
    """Return what `join_rounds` must on that process, and the images that it must send."""
    size = len(by_rank)
    rows, values, sent = [], [], []
    wanted = [(r, place * G + i) for r, place, *_ in groups for i in range(G)]
    share = len(wanted) // size
    for place, (r, row) in enumerate(wanted):
        owner, i = divmod(row, len(by_rank[0][r].rows))
        one = by_rank[owner][r]
        if place // share == rank:
            rows.append(one.rows[i])
            columns = {k: one.generated[k][i] for k in range(5) if one.generated[k] is not None}
            values.append({**columns, **{name: column[i] for name, column in one.extra.items()}})
        elif owner == rank:
            sent.append((r, rank, i))
    every = [one for rounds in by_rank for one in rounds]
    names = {k for one in every for k in range(5) if one.generated[k] is not None} | {
        n for one in every for n in one.extra
    }
    found = {name: [value.get(name) for value in values] for name in names}
    generated = (*(found.get(k) for k in range(5)), {}, None, [])
    rewards_NF = torch.stack([by_rank[0][r].rewards_NF[row] for r, row in wanted])
    return rows, generated, {name: found[name] for name in sorted(names - {*range(5)})}, rewards_NF, sent


def assembling(size):
    PartialState._reset_state()  # the warm process had one of its own
    PartialState(cpu=True)
    world = current_world()
    for seed in range(40):
        by_rank, groups = random_rounds(seed, size)
        rows, generated, extra, rewards_NF, sent = joined_by_hand(by_rank, groups, world.rank)
        generated = tuple(
            [one.tolist() if isinstance(one, torch.Tensor) else one for one in part]
            if isinstance(part, list)
            else part
            for part in generated
        )
        rounds, Image.sent = by_rank[world.rank], []
        wanted = [(r, place * G + i) for r, place, *_ in groups for i in range(G)]
        found = join_rounds(rounds, wanted, world)
        assert (found.rows, found.generated, found.extra) == (rows, generated, extra), seed
        assert [*found.extra] == [*extra]  # TRL gathers them in this order
        assert torch.equal(found.rewards_NF, rewards_NF)
        assert sorted(Image.sent) == sorted(sent) and not rounds, seed
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_rounds_are_joined_in_the_order_of_the_batch_and_only_rows_that_move_are_sent(size):
    call_on_ranks(size, assembling, size)


def train_on(num_processes: int, policy: str, folder: Path) -> dict:
    call_on_ranks(num_processes, train_all, policy, folder)
    return json.loads((folder / "result.json").read_text()) | {"folder": folder}


@pytest.fixture(scope="module")
def trained(policy, tmp_path_factory):
    """By number of processes, what each method came to."""
    folder = tmp_path_factory.mktemp("trained")
    return {n: train_on(n, policy, folder / f"out{n}") for n in (1, 2)}


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_on_two_processes_learns_what_it_learns_on_one(trained, name):
    """12 rollouts in groups of 4: two processes hold 6 each, so that the middle group lies on both."""
    one, two = trained[1][name], trained[2][name]
    assert (one["num_processes"], two["num_processes"]) == (1, 2)
    for step, same_step in zip(one["steps"], two["steps"], strict=True):
        assert same_step == pytest.approx(step, rel=1e-5, abs=1e-7)
    assert two["weights"] == pytest.approx(one["weights"], rel=1e-5)
    small = 1e-6 if name.startswith("dosed") else 1e-7  # RL-ZVP's are differences of two entropies of 5 nats
    assert two["logged_advantages"] == pytest.approx(one["logged_advantages"], rel=1e-4, abs=small)
    assert two["logged_completions"] == one["logged_completions"]
    ledgers = [(trained[n]["folder"] / name / FILE).read_bytes() for n in (1, 2)]
    assert ledgers[0] == ledgers[1] and len(parse_ledger(ledgers[0]).batches) >= 1


@pytest.mark.parametrize("name", ["forward", "budget_small", "budget_large"])
def test_however_the_rows_are_cut_two_processes_learn_the_same(trained, name):
    """Each has other lengths and another number of rows that teach."""
    as_trl, found = trained[2]["as_trl"], trained[2][name]
    assert found["weights"] == pytest.approx(as_trl["weights"], rel=1e-6)
    for step, same_step in zip(as_trl["steps"], found["steps"], strict=True):
        assert same_step["loss"] == pytest.approx(step["loss"], rel=1e-5)
        assert same_step["micro_batches/rows"] == pytest.approx(same_step["rollouts/used"] or 1.0)
    assert any(step["loss"] != 0 and step["micro_batches/rows"] < 1 for step in found["steps"])


def test_the_methods_did_something(trained):
    steps = {name: trained[1][name]["steps"] for name in CASES}
    assert trained[1].keys() == {*CASES, "folder"}
    assert all(any(step["rollouts/recovered"] > 0 for step in steps[name]) for name in ("forward", "sampler"))
    assert any(0 < step.get("miner/ph_gradient_share", 0) < 1 for step in steps["measured"])
    assert any(0 < step.get("dose/share", 0) < 1 for step in steps["dosed"])
    assert any(0 < step["groups/unscorable"] < 1 for step in steps["unscored"])
    assert any(0 < step["groups/gated"] < 1 and step["rollouts/recovered"] > 0 for step in steps["gated"])
    for name in ("clip_cov", "kl_cov", "bapo"):
        plain = [step["loss"] for step in steps["grpo"]]
        assert any(key.startswith(f"{name}/") for step in steps[name] for key in step), name
        assert [step["loss"] for step in steps[name]] != plain, name
        assert all(step["grad_norm"] > 0 for step in steps[name]), name
    assert any(step["dynamic_sampling/rounds"] > 1 for step in steps["dynamic_sampling"])
    assert any(step["dynamic_sampling/full"] < 1 for step in steps["dynamic_sampling_not_full"])


def test_two_processes_record_what_one_does(trained):
    """Two prompts of three, one of them on both processes, which forward other rows for it."""
    one, two = (trained[n]["folder"] / "recorded" / "credit" for n in (1, 2))
    names = [path.name for path in sorted(one.iterdir())]
    assert names == [path.name for path in sorted(two.iterdir())] and len(names) == 3
    for name in names:
        expected, found = (pq.read_table(folder / name).to_pylist() for folder in (one, two))
        assert len(found) == len(expected) == 8
        for row, same in zip(expected, found, strict=True):
            for column, value in row.items():
                close = isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))
                assert same[column] == (pytest.approx(value, rel=1e-4, abs=1e-8) if close else value), column


def ask_for_keys_with_images_on_one():
    PartialState(cpu=True)
    batch = {"prompt_ids": torch.ones(2, 3, dtype=torch.long), "prompt_mask": torch.ones(2, 3)}
    images = {"pixel_values": torch.ones(2, 4)} if dist.get_rank() == 0 else {}
    with pytest.raises(ValueError, match="prompts of text alone"):
        prompt_keys(batch | images)
    assert len(prompt_keys(batch)) == 4
    dist.destroy_process_group()


def test_images_of_one_process_are_refused_by_all():
    call_on_ranks(2, ask_for_keys_with_images_on_one, seconds=60)


@pytest.mark.slow
def test_every_process_makes_the_same_collectives_whatever_its_data(policy, tmp_path):
    call_on_ranks(2, train_unlike, policy, tmp_path, range(16), seconds=400)


def test_every_process_does_as_many_forwards(trained):
    """ZeRO-3 and FSDP hang when one process does a forward that another does not: as many on each, whatever its rows,
    though one of them has more all-right rows than the other."""
    shared = trained[2]["forward"]
    here, there = shared["ph_rows"]
    assert any(-(-a // 2) != -(-b // 2) for a, b in zip(here, there, strict=True))  # micro-batches of 2 rows
    first, second = shared["forwards"]
    assert first == second and len(first) == len(here)
