"""The same global batch on 1, 2 and 4 real gloo processes, and a real trainer on 1 and 2."""

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from distributed.train_worker import CASES, train_all
from distributed.unlike_worker import train_unlike
from harness import call_on_ranks

from trl_miner import miner_advantages
from trl_miner.methods.covariance import clip_cov, kl_cov
from trl_miner.methods.distributed import current_world
from trl_miner.runs.prompt_ledger import FILE, parse_ledger
from trl_miner.trainer.generation_batch import GeneratedRound
from trl_miner.trainer.round_sampling import join_rounds

NUM_GENERATIONS = 4
# P: all right, H: mixed, N: all wrong; 24 rows, so that 2 and 4 processes cut groups in two (12 and
# 6 rows each)
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
    assert world.size == size
    rewards, logps, mask = global_batch()
    local = world.local_slice(len(rewards) // size)
    # TRL pads each process to its own longest completion: cut the columns that this one does not
    # use
    width = int(mask[local].sum(dim=1).max())
    results = {}
    given = dict(num_generations=NUM_GENERATIONS, world=world)
    found = miner_advantages(rewards, logps[local, :width], mask[local, :width], **given)
    padded = torch.zeros(found.advantages_NT.shape[0], 9)
    padded[:, :width] = found.advantages_NT
    results["miner"] = (
        world.gather(padded),
        found.advantages_N,
        found.scale,
        found.tau_ref,
        found.tau_pos,
    )
    results |= run_token_losses(world, rewards, logps, mask, local, width)
    results["sum"] = world.sum(torch.tensor(float(world.rank + 1)))
    broken = logps.clone()
    broken[21, 0], mask[21, 0] = float("nan"), 1  # the last process's row
    try:
        miner_advantages(rewards, broken[local], mask[local], **given)
        results["error"] = None
    except ValueError as error:
        results["error"] = str(error)
    torch.save(results, folder / f"{world.rank}.pt")
    dist.destroy_process_group()


def run_token_losses(world, rewards, logps, mask, local, width):
    """As the losses see them: (all rows, advantages that every token gets, metrics)."""
    old = logps - torch.linspace(-1, 1, logps.numel()).view_as(logps)
    rows = [
        x[local, :width] for x in (logps, old, rewards.unsqueeze(1).expand_as(logps) - 0.5, mask)
    ]
    results = {}
    for name, method in {
        "clip_cov": partial(
            clip_cov, ratio=0.1, low=0.0, generator=torch.Generator().manual_seed(5)
        ),
        "kl_cov": partial(kl_cov, ratio=0.1),
    }.items():
        found = method(*rows, world=world)
        padded = torch.zeros(len(rows[0]), 9)
        padded[:, :width] = found.advantages_BT * rows[3]
        results[name] = (world.gather(padded), torch.tensor([*found.metrics.values()]))
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By number of processes, each one's results."""
    found = {}
    for size in (1, 4):
        folder = tmp_path_factory.mktemp(f"world{size}")
        call_on_ranks(size, worker, size, folder)
        found[size] = [torch.load(folder / f"{rank}.pt") for rank in range(size)]
    return found


def test_advantages_do_not_depend_on_the_number_of_processes(results):
    alone, alone_means, *alone_scalars = results[1][0]["miner"]
    assert alone.abs().sum() > 0
    for rank in range(4):
        shared, means, *scalars = results[4][rank]["miner"]
        assert torch.allclose(shared, alone, rtol=1e-6, atol=1e-9)
        assert torch.allclose(means, alone_means, rtol=1e-6, atol=1e-9)
        assert scalars == pytest.approx(alone_scalars, rel=1e-6)


@pytest.mark.parametrize("case", ["clip_cov", "kl_cov"])
def test_token_losses_do_not_depend_on_the_number_of_processes(results, case):
    """Clip-Cov's random choice included."""
    alone, alone_numbers = results[1][0][case]
    rewards, _, mask = global_batch()
    # a tenth of 108 tokens, less the padding
    assert 0 < (alone != (rewards.unsqueeze(1) - 0.5) * mask).sum() < 12
    for rank in range(4):
        shared, numbers = results[4][rank][case]
        assert torch.allclose(shared, alone, rtol=1e-5, atol=1e-6)
        assert torch.allclose(numbers, alone_numbers, rtol=1e-6)


def test_a_bad_row_of_one_process_stops_them_all(results):
    # a process that went on alone would wait in the next collective until its timeout
    assert all("row 21 of the global batch" in result["error"] for result in results[4])
    assert all(result["sum"] == 1 + 2 + 3 + 4 for result in results[4])


MOVED = []  # what this process has sent


class Row(str):
    def __reduce__(self):
        MOVED.append(str(self))
        return Row, (str(self),)


def joining():
    """Two rounds of two rows on each process; one has no masks."""
    PartialState._reset_state()  # the warm process had one of its own
    PartialState(cpu=True)
    rank, rounds = dist.get_rank(), []
    for r in range(2):
        names = [Row(f"{r}{rank}{i}") for i in range(2)]
        masks = None if r else [[1], [0]]
        rewards_NF = torch.arange(4.0).unsqueeze(1) + 10 * r
        rounds.append(GeneratedRound(names, (names, masks, None, {}, []), rewards_NF))
    found = join_rounds(rounds, [0, 7, 4, 3])
    names = [["000", "111"], ["100", "011"]][rank]
    assert found.rows == found.generated[0] == names
    assert MOVED == [["100"], ["111"]][rank]  # the others are where they are wanted
    assert found.generated[1:] == ([[[1], None], [None, [0]]][rank], None, {}, [])
    assert found.rewards_NF.flatten().tolist() == [0, 13, 10, 3]
    assert join_rounds(rounds, [4, 5, 6, 7]).generated[1] is None
    dist.destroy_process_group()


def test_rounds_are_joined_in_the_order_of_the_batch():
    call_on_ranks(2, joining)


def exchanging():
    """Process 2 has nothing for process 0, and all have something for 1."""
    dist.init_process_group("gloo")
    world = current_world()
    items = [[(world.rank, 0)] * (2 - world.rank), [{"from": world.rank}], []]
    found = world.exchange(items, torch.device("cpu"))
    expected = [[(0, 0), (0, 0), (1, 0)], [{"from": rank} for rank in range(3)], []]
    assert found == expected[world.rank]
    assert world.exchange([[], [], []], torch.device("cpu")) == []
    dist.destroy_process_group()


def test_processes_get_what_the_others_have_for_them_in_order():
    call_on_ranks(3, exchanging)


def train_on(num_processes: int, policy: str, folder: Path, *names: list[str]) -> dict:
    call_on_ranks(num_processes, train_all, policy, folder, *names)
    return json.loads((folder / "result.json").read_text()) | {"folder": folder}


@pytest.fixture(scope="module")
def trained(policy, tmp_path_factory):
    """By number of processes, what each method came to."""
    folder = tmp_path_factory.mktemp("trained")
    return {n: train_on(n, policy, folder / f"out{n}") for n in (1, 2)}


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_on_two_processes_learns_what_it_learns_on_one(trained, name):
    """12 rollouts in groups of 4: two processes hold 6 each, so that the middle group lies on
    both."""
    one, two = trained[1][name], trained[2][name]
    assert (one["num_processes"], two["num_processes"]) == (1, 2)
    for step, same_step in zip(one["steps"], two["steps"], strict=True):
        assert same_step == pytest.approx(step, rel=1e-5, abs=1e-7)
    assert two["weights"] == pytest.approx(one["weights"], rel=1e-5)
    # RL-ZVP's are differences of two entropies of 5 nats
    small = 1e-6 if name.startswith("dosed") else 1e-7
    assert two["logged_advantages"] == pytest.approx(one["logged_advantages"], rel=1e-4, abs=small)
    assert two["logged_completions"] == one["logged_completions"]
    ledgers = [(trained[n]["folder"] / name / FILE).read_bytes() for n in (1, 2)]
    assert ledgers[0] == ledgers[1] and len(parse_ledger(ledgers[0]).batches) >= 1


@pytest.mark.slow
def test_four_processes_deal_their_rows_and_learn_what_one_learns(trained, policy, tmp_path):
    """3 rows each; those of the middle prompts lie on two processes, those that teach on any."""
    names = ["forward", "scored", "measured", "dosed", "bapo"]
    four = train_on(4, policy, tmp_path / "four", names)
    for name in names:
        one = trained[1][name]
        for step, same_step in zip(one["steps"], four[name]["steps"], strict=True):
            assert same_step == pytest.approx(step, rel=1e-5, abs=1e-7)
        assert four[name]["weights"] == pytest.approx(one["weights"], rel=1e-5)


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
    assert all(
        any(step["rollouts/recovered"] > 0 for step in steps[name])
        for name in ("forward", "sampler")
    )
    assert any(0 < step.get("miner/ph_gradient_share", 0) < 1 for step in steps["measured"])
    assert any(0 < step.get("dose/share", 0) < 1 for step in steps["dosed"])
    assert any(0 < step["groups/unscorable"] < 1 for step in steps["unscored"])
    assert any(
        0 < step["groups/gated"] < 1 and step["rollouts/recovered"] > 0 for step in steps["gated"]
    )
    for name in ("clip_cov", "bapo"):
        plain = [step["loss"] for step in steps["grpo"]]
        assert any(key.startswith(f"{name}/") for step in steps[name] for key in step), name
        assert [step["loss"] for step in steps[name]] != plain, name
        assert all(step["grad_norm"] > 0 for step in steps[name]), name
    assert any(step["dynamic_sampling/rounds"] > 1 for step in steps["dynamic_sampling"])
    assert any(step["dynamic_sampling/full"] < 1 for step in steps["dynamic_sampling"])


def test_two_processes_record_what_one_does(trained):
    """Two prompts of three, one of them on both processes, which forward other rows for it."""
    one, two = (trained[n]["folder"] / "recorded" / "credit" for n in (1, 2))
    names = [path.name for path in sorted(one.iterdir())]
    assert names == [path.name for path in sorted(two.iterdir())] and len(names) == 2
    for name in names:
        expected, found = (pq.read_table(folder / name).to_pylist() for folder in (one, two))
        assert len(found) == len(expected) == 8
        for row, same in zip(expected, found, strict=True):
            for column, value in row.items():
                close = isinstance(value, float) or (
                    isinstance(value, list) and isinstance(value[0], float)
                )
                assert same[column] == (
                    pytest.approx(value, rel=1e-4, abs=1e-8) if close else value
                ), column


@pytest.mark.slow
def test_every_process_makes_the_same_collectives_whatever_its_data(policy, tmp_path):
    call_on_ranks(2, train_unlike, policy, tmp_path, range(16), seconds=400)


def test_every_process_does_as_many_forwards(trained):
    """ZeRO-3 and FSDP hang when one process does a forward that another does not: as many on each,
    whatever its rows, though one of them has more all-right rows than the other."""
    shared = trained[2]["forward"]
    here, there = shared["ph_rows"]
    # micro-batches of 2 rows
    assert any(-(-a // 2) != -(-b // 2) for a, b in zip(here, there, strict=True))
    first, second = shared["forwards"]
    assert first == second and len(first) == len(here)
