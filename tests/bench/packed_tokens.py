"""How many tokens go through the model in a step of each trainer, counted without a model.

    python tests/bench/packed_tokens.py [--write]

The batches are cut by the trainers' own code: `plan_micro_batches` of the synchronous one, TRL's
batchers and trees of the asynchronous one.
"""

from collections import defaultdict

import torch
from common import promise, report_table
from trl.experimental.async_grpo.async_grpo_trainer import FixedCountBatcher, TokenBudgetBatcher

from trl_miner.methods.distributed import World
from trl_miner.trainer.micro_batches import padded_tokens, plan_micro_batches

PROMPTS, ROLLOUTS, LONGEST, PER_DEVICE, BUDGET = 16, 16, 1024, 8, 8192
TEXT = f"""A step of {PROMPTS} prompts x {ROLLOUTS} rollouts on one process, in thousands of tokens. Half of the
prompts are all right; there half of the rollouts have an advantage, as with MINER. TRL: micro-batches of {PER_DEVICE}
rows, padded to the longest rollout of the batch. Synchronous: rows of like length together, without those that have
no advantage. Trees: TRL's, in which the rollouts of a prompt share it, of {PER_DEVICE} samples or {BUDGET} tokens
each, for the asynchronous trainer. Completions of up to {LONGEST} tokens; heavy tail: log-normal (sigma 1), mean a
quarter of the longest. What attention costs beyond tokens, and what a GPU makes of it, is not in here."""


def lengths(profile: str, generator: torch.Generator) -> list[int]:
    """Return the lengths of the completions of a step."""
    number = PROMPTS * ROLLOUTS
    if profile == "heavy tail":
        # exp(1/2), the mean
        drawn = torch.randn(number, generator=generator).exp() * LONGEST / 4 / 1.6487
    elif profile == "uniform":
        drawn = torch.rand(number, generator=generator) * LONGEST
    else:
        drawn = torch.full((number,), float(LONGEST))
    return drawn.long().clamp(2, LONGEST).tolist()


def synchronous(num_prompt: int, sizes: list[int]) -> tuple[int, int]:
    """Return the tokens of TRL's micro-batches, padded, and of ours."""
    rows = torch.arange(len(sizes))
    is_moved = (rows // ROLLOUTS < PROMPTS // 2) | (rows % 2 == 0)
    # as TRL shuffles them
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1)
    batches = []
    for part in order.split(PER_DEVICE):
        prompt = torch.ones(len(part), num_prompt, dtype=torch.long)
        completion = mask[part].long()
        batches.append(
            {
                "prompt_ids": prompt,
                "prompt_mask": prompt,
                "completion_ids": completion,
                "completion_mask": completion,
                "advantages": is_moved[part].float().unsqueeze(1) * completion,
            }
        )
    plan = plan_micro_batches(
        batches, has_kl=False, max_tokens=None, loss_type="dapo", least=1, world=World()
    )
    for number in range(len(plan.parts)):
        plan.build(number)
    return padded_tokens(plan.batch), plan.num_tokens


def asynchronous(
    num_prompt: int, sizes: list[int], generator: torch.Generator
) -> tuple[int, int, int]:
    """Return the tokens of TRL's trees of equally many samples, of those of a token budget, and of
    all samples."""
    samples = []
    for row, size in enumerate(sizes):
        if row % ROLLOUTS == 0:
            prompt = torch.randint(50_000, (num_prompt,), generator=generator)
        ids = torch.cat([prompt, torch.randint(50_000, (size,), generator=generator)])
        is_trained = torch.arange(len(ids)) >= num_prompt
        samples.append(
            {"input_ids": ids, "completion_mask": is_trained.long(), "group_id": row // ROLLOUTS}
        )
    batchers = (
        FixedCountBatcher(samples, 1, PER_DEVICE),
        TokenBudgetBatcher(samples, 1, BUDGET, defaultdict(list)),
    )
    counts = [sum(len(row.tokens) for rows in batcher for row in rows) for batcher in batchers]
    return counts[0], counts[1], sum(len(sample["input_ids"]) for sample in samples)


def main() -> None:
    rows = []
    for profile in ("heavy tail", "uniform", "constant"):
        for num_prompt in (64, 256, 1024):
            generator = torch.Generator().manual_seed(0)
            sizes = lengths(profile, generator)
            padded, ours = synchronous(num_prompt, sizes)
            fixed, budget, raw = asynchronous(num_prompt, sizes, generator)
            share = PROMPTS * ROLLOUTS * num_prompt / raw
            numbers = [f"{number / 1000:.0f}" for number in (padded, ours, raw, fixed, budget)]
            rows.append(
                [
                    profile,
                    f"{num_prompt} ({share:.0%})",
                    *numbers,
                    f"{ours / padded:.2f}",
                    f"{budget / padded:.2f}",
                ]
            )
    header = [
        "Lengths",
        "Prompt (share)",
        "TRL, padded",
        "Synchronous",
        "Without padding",
        "Trees of 8",
        "Trees by budget",
    ]
    report_table(
        "packed_tokens",
        "Tokens of a step",
        TEXT,
        [*header, "Synchronous / TRL", "Trees / TRL"],
        rows,
    )
    shares = [float(row[7]) for row in rows]
    most = [0.25, 0.35, 0.5, 0.42, 0.47, 0.6, 0.77, 0.77, 0.77]
    promise(
        all(a <= b for a, b in zip(shares, most, strict=True)), f"at most {most} of TRL's tokens"
    )


if __name__ == "__main__":
    main()
