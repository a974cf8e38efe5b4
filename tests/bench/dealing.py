"""How long a step takes on many processes when each computes its own rows, and when they deal them.

    python tests/bench/dealing.py [--write]

Two tables: tokens counted without a model on up to 64 processes, by the trainer's own plan of
micro-batches; and a small model on four real processes with gloo, in each one's CPU time.
"""

import os
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from common import machine, promise, report, table
from transformers import Qwen3Config, Qwen3ForCausalLM

from trl_miner.methods.distributed import World, current_world
from trl_miner.trainer.dealing import Cost, Limits, deal
from trl_miner.trainer.micro_batches import num_parts, partition, plan_micro_batches

GROUP, LONGEST, PROMPT, SEEDS = 16, 1024, 64, 4
TEXT = f"""Completions of up to {LONGEST} tokens, log-normal (sigma 1) with a mean of a quarter of the longest;
prompts of {PROMPT} tokens; groups of {GROUP}, half of which have no advantage. A step lasts as long as the
slowest process, and with weights in shards processes wait for each other in every micro-batch. Numbers are
tokens on that path, padding included, over the mean of the tokens that teach: 1.00 is the best there is. Means of
{SEEDS} seeds. Attention's cost is not counted."""
# rows of a process, of them in a micro-batch, whether micro-batches are as few as on a GPU
CASES = ((16, 2, False), (16, 2, True), (64, 8, False), (64, 8, True))
# What the tables promise.
MOST_DEALT, LEAST_GAIN, LEAST_GAIN_IN_TIME = 1.45, 1.15, 1.2


def lengths(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, 2) tokens of prompts and completions, and which rows have an advantage."""
    draw = np.random.default_rng(seed)
    drawn = np.exp(draw.standard_normal(num_rows)) * LONGEST / 4 / 1.6487
    completions = np.clip(drawn.astype(int), 2, LONGEST)
    num_groups = num_rows // GROUP
    is_used = np.repeat(draw.permutation(num_groups) < num_groups // 2, GROUP)
    return np.stack([np.full(num_rows, PROMPT), completions], axis=1), is_used


def paths(tokens_of_parts: list[list[float]]) -> tuple[float, float]:
    """Return the tokens of the slowest process, and of the dearest micro-batch of each turn."""
    count = max(map(len, tokens_of_parts))
    filled = np.array([parts + [0.0] * (count - len(parts)) for parts in tokens_of_parts])
    return float(filled.sum(axis=1).max()), float(filled.max(axis=0).sum())


def simulate(world: int, rows: int, micro_batch: int, is_few: bool, seed: int) -> np.ndarray:
    """Return of TRL, of rows that stay, and of dealt rows the paths over the mean that teaches."""
    lengths_N2, is_used = lengths(world * rows, seed)
    longest = int(lengths_N2.sum(axis=1).max())
    limits = Limits(None if is_few else 8 * micro_batch, micro_batch * longest)
    teaching = lengths_N2[is_used].sum() / world

    def padded(taken: np.ndarray, part: list[int]) -> float:
        return float(len(part) * taken[part].max(axis=0).sum()) if part else 0.0

    ranks = [slice(rank * rows, (rank + 1) * rows) for rank in range(world)]
    stay = [lengths_N2[rank][is_used[rank]] for rank in ranks]
    count = max(num_parts(own, limits, min(rows // micro_batch, len(own))) for own in stay)
    own_parts = [[padded(own, part) for part in partition(own, count, *limits)] for own in stay]
    used = lengths_N2[is_used]
    dealt = deal(used, world, 1 if is_few else rows // micro_batch, limits, Cost(0))
    dealt_parts = [[padded(used, part) for part in parts] for parts in dealt]
    found = [rows * longest, *paths(own_parts), *paths(dealt_parts)]
    return np.array(found) / teaching


def simulated() -> list[list[str]]:
    rows = []
    for num_rows, micro_batch, is_few in CASES:
        for world in (4, 8, 16, 64):
            found = [simulate(world, num_rows, micro_batch, is_few, seed) for seed in range(SEEDS)]
            numbers = [f"{value:.2f}" for value in np.mean(found, axis=0)]
            kind = "few, GPU" if is_few else "CPU"
            rows.append([f"{num_rows} in {micro_batch}s, {kind}", str(world), *numbers])
    return rows


# Four processes

RANKS, ROWS, PAIR, ROUNDS = 4, 16, 2, 5
SIZE = dict(
    hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, vocab_size=512, pad_token_id=0, eos_token_id=1,
)  # fmt: skip


def own_batch(rank: int, seed: int) -> dict[str, torch.Tensor]:
    lengths_N2, is_used = lengths(RANKS * ROWS, seed)
    own, used = (values[rank * ROWS : (rank + 1) * ROWS] for values in (lengths_N2, is_used))
    sizes = torch.as_tensor(own[:, 1] // 4 + 1).unsqueeze(1)  # a quarter, for a CPU
    mask = (torch.arange(int(sizes.max())) < sizes).long()
    generator = torch.Generator().manual_seed(seed * RANKS + rank)
    prompt = torch.ones(ROWS, PROMPT // 4, dtype=torch.long)
    return {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.randint(2, 512, mask.shape, generator=generator) * mask,
        "completion_mask": mask,
        "advantages": torch.as_tensor(used).float().unsqueeze(1) * mask,
    }


def step(model: torch.nn.Module, batch: dict[str, torch.Tensor], world: World) -> float:
    """Return this process's CPU seconds for the gradient of a sum over rows, the exchange
    included."""
    start = time.process_time()
    batches = [
        {name: value[row : row + PAIR] for name, value in batch.items()}
        for row in range(0, ROWS, PAIR)
    ]
    plan = plan_micro_batches(
        batches, has_kl=False, max_tokens=None, loss_type="dapo", least=1, world=world
    )
    for number in range(len(plan.parts)):
        inputs, _ = plan.build(number)
        ids, mask = (
            torch.cat([inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]], dim=1)
            for kind in ("ids", "mask")
        )
        size = inputs["completion_ids"].shape[1]
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -size - 1 : -1]
        logps = logits.log_softmax(-1).gather(2, inputs["completion_ids"].unsqueeze(2)).squeeze(2)
        (logps * inputs["advantages"] * inputs["completion_mask"]).sum().backward()
    return time.process_time() - start


def measure(rank: int, port: int, results: object) -> None:
    group = {"RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in group.items()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, world = Qwen3ForCausalLM(Qwen3Config(**SIZE)), current_world()
    for seed in range(-1, ROUNDS):  # the first is a warm-up
        batch, seconds, gradients = own_batch(rank, max(seed, 0)), [], []
        for of in (World(), world):
            model.zero_grad()
            seconds.append(step(model, batch, of))
            own = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
            gradients.append(world.sum(own))
        distance = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
        if seed >= 0:
            results.put((seed, *seconds, distance))  # type: ignore[attr-defined]
    dist.destroy_process_group()


def on_processes() -> list[list[str]]:
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    port = 20_000 + os.getpid() % 20_000
    torch.multiprocessing.start_processes(measure, (port, results), nprocs=RANKS)
    found = [results.get() for _ in range(RANKS * ROUNDS)]
    rows = []
    for seed in range(ROUNDS):
        of_seed = [one for one in found if one[0] == seed]
        stay, dealt = (max(one[place] for one in of_seed) for place in (1, 2))
        mean = statistics.mean(one[1] for one in of_seed)
        distance = max(one[3] for one in of_seed)
        rows.append(
            [
                str(seed),
                f"{stay / mean:.2f}",
                f"{dealt / mean:.2f}",
                f"{stay / dealt:.2f}",
                f"{distance:.0e}",
            ]
        )
    return rows


def main() -> None:
    counted, timed = simulated(), on_processes()
    header = [
        "Rows of a process",
        "Processes",
        "TRL",
        "Own rows",
        "in shards",
        "Dealt rows",
        "in shards",
    ]
    of_time = ["Batch", "Own rows", "Dealt rows", "Gain", "Distance of the gradients"]
    parts = [
        "# Rows dealt over processes",
        f"{machine()}. `python tests/bench/dealing.py --write`",
        f"## Tokens, counted\n\n{TEXT}",
        table(header, counted),
        f"""## Four processes\n
{RANKS} processes with gloo, {ROWS} rows each in micro-batches of {PAIR}, of a quarter of the lengths above; a model of
{SIZE["num_hidden_layers"]} layers. CPU time of the slowest process, over the mean of all where each has its own rows:
forward, backward, and what the dealing takes. The distance is between the two gradients, over the length of one.""",
        table(of_time, timed),
    ]
    report("dealing", "\n\n".join(parts))
    promise(all(float(row[6]) <= MOST_DEALT for row in counted), "dealt rows take as long")
    gains = [float(row[4]) / float(row[6]) for row in counted]
    promise(min(gains) >= LEAST_GAIN, f"dealing saves a factor of {LEAST_GAIN}")
    in_time = statistics.median(float(row[3]) for row in timed)
    promise(in_time >= LEAST_GAIN_IN_TIME, f"it saves {LEAST_GAIN_IN_TIME} in time")
    promise(all(float(row[4]) < 1e-5 for row in timed), "the gradient stays")


if __name__ == "__main__":
    main()
