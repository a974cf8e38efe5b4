"""Does the world have room for a credit on solved prompts? Print the gates of protocol.md, and
whether they hold.

python recipes/forks/gates.py recipes/forks/results/pilot.jsonl.gz

# N = P*G rollouts, rows of one prompt adjacent; T padded completion tokens
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner import miner_advantages
from trl_miner.data.base_model import find_model
from trl_miner.data.worlds import WORLDS
from trl_miner.evaluation.generate import sample_seed
from trl_miner.evaluation.seeded_sampling import sample_all
from trl_miner.methods.entropy import entropy_bonus_advantages
from trl_miner.rewards import math_reward
from trl_miner.runs.history import RunHistory
from trl_miner.runs.runs_file import read_runs

forks = WORLDS["trl_miner/forks"]
G, MAX_TOKENS = 16, 64  # of the recipes
HARD = (2, 3, 4)  # levels at which the sound way alone works, and which training never sees


def score(
    model: Any, pad: int, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (N, T) log-probs of the tokens with a graph, entropies without one, and the mask of
    the tokens."""
    width, length = max(map(len, prompts)), max(map(len, rows))
    ids = torch.full((len(rows), width + length), pad)
    mask = torch.zeros_like(ids)
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        place = slice(width - len(prompt), width + len(row))
        ids[i, place], mask[i, place] = torch.tensor([*prompt, *row]), 1
    logits = (
        model(input_ids=ids, attention_mask=mask, logits_to_keep=length + 1)
        .logits[:, :-1]
        .log_softmax(dim=2)
    )
    entropies_NT = -(logits.exp() * logits).sum(dim=2).detach()
    return logits.gather(2, ids[:, width:, None]).squeeze(2), entropies_NT, mask[:, width:]


def policy_gradient(model: Any, logps_NT: Tensor, advantages_NT: Tensor) -> Tensor:
    """Return the flat gradient of the sum of advantages times log-probs."""
    loss = (advantages_NT * logps_NT).sum()
    return torch.cat(
        [
            part.flatten()
            for part in torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
        ]
    )


class Batch:
    """Rollouts of a model, and their log-probs with a graph."""

    def __init__(
        self, model: Any, tokenizer: Any, problems: Sequence[forks.Problem], seed: int
    ) -> None:
        seeds = [
            sample_seed(seed, str(place), number)
            for place in range(len(problems))
            for number in range(G)
        ]
        prompts = [tokenizer(each.prompt)["input_ids"] for each in problems for _ in range(G)]
        self.tokens = sample_all(model, tokenizer, prompts, seeds, max_new_tokens=MAX_TOKENS)
        self.texts = tokenizer.batch_decode(self.tokens, skip_special_tokens=True)
        answers = [each.answer for each in problems for _ in range(G)]
        self.rewards_N = torch.tensor(math_reward(self.texts, answers))
        self.logps_NT, self.entropies_NT, self.mask_NT = score(
            model, tokenizer.pad_token_id, prompts, self.tokens
        )

    def centred(self, values_N: Tensor) -> Tensor:
        """Return (N, 1) values less the mean over each prompt's rollouts."""
        return (values_N.view(-1, G) - values_N.view(-1, G).mean(dim=1, keepdim=True)).view(-1, 1)

    @property
    def is_all_right_N(self) -> Tensor:
        return self.rewards_N.view(-1, G).amin(dim=1).eq(1).repeat_interleave(G)

    def gradient(self, model: Any, advantages_NT: Tensor) -> Tensor:
        """Return the flat policy gradient of some advantages."""
        return policy_gradient(model, self.logps_NT, advantages_NT * self.mask_NT)


def gradients(model: Any, tokenizer: Any, num_problems: int, seed: int) -> dict[str, Tensor]:
    """Return policy gradients on fresh problems: of held-out success, mixed prompts, and credits on
    solved ones."""
    rng = random.Random(f"gates {seed}")
    held_out = Batch(
        model, tokenizer, [forks.draw("test", HARD[i % 3], rng) for i in range(num_problems)], seed
    )
    found = {"held-out success": held_out.gradient(model, held_out.centred(held_out.rewards_N))}
    del held_out
    trained = Batch(
        model, tokenizer, [forks.draw("train", i % 2, rng) for i in range(num_problems)], seed
    )
    is_ph_N = trained.is_all_right_N
    ways_N = torch.tensor(forks.is_sound(trained.texts))
    mined = miner_advantages(
        trained.rewards_N,
        trained.logps_NT.detach(),
        trained.mask_NT,
        num_generations=G,
        lambda_max=None,
    )
    entropy_NT = entropy_bonus_advantages(
        trained.logps_NT.detach(), trained.entropies_NT, trained.mask_NT, weight=1.0
    )
    for name, advantages in {
        "mixed prompts": trained.centred(trained.rewards_N) * ~is_ph_N.view(-1, 1),
        "oracle": trained.centred(ways_N) * is_ph_N.view(-1, 1),
        "MINER, no cap": mined.advantages_NT * is_ph_N.view(-1, 1),
        "entropy bonus": entropy_NT * is_ph_N.view(-1, 1),
    }.items():
        found[name] = trained.gradient(model, advantages)
    return found


def cosines_of(halves: Sequence[Mapping[str, Tensor]]) -> dict[str, list[float]]:
    """Return the cosine of each gradient with that of held-out success, in two independent halves
    of the problems."""
    pairs = {"MINER, no cap, with the entropy bonus": ("MINER, no cap", "entropy bonus")}
    pairs |= {
        f"{name} with held-out success": (name, "held-out success") for name in list(halves[0])[1:]
    }
    return {
        title: [torch.cosine_similarity(half[one], half[other], dim=0).item() for half in halves]
        for title, (one, other) in pairs.items()
    }


@torch.no_grad()
def ways(model: Any, tokenizer: Any, num_problems: int) -> list[tuple[str, float, float]]:
    """Return by way how many rollouts of level 1 take it, and how many of these are right."""
    rng = random.Random("ways")
    batch = Batch(
        model, tokenizer, [forks.draw("train", 1, rng) for _ in range(num_problems)], seed=0
    )
    found = []
    for way in forks.STARTS:
        is_way_N = torch.tensor([forks.way_of(text) == way for text in batch.texts])
        found.append((way, is_way_N.float().mean().item(), batch.rewards_N[is_way_N].mean().item()))
    return found


def after(run: RunHistory, hit: bool = False) -> float:
    """Return Pass@1 after training, or with `hit` the share of problems with a right sample."""
    assert run.held_out is not None and run.held_out.after is not None
    moment = run.held_out.after
    return fmean(
        float(right > 0) if hit else right / moment.num_samples for right in moment.num_correct
    )


def middle(run: RunHistory, key: str) -> float:
    """Return the mean of a metric over the middle half of the steps."""
    return fmean(
        value for step, value in run.values(key) if 0.25 * run.steps < step <= 0.75 * run.steps
    )


def gates(
    runs: Sequence[RunHistory], cosines: Mapping[str, Sequence[float]]
) -> list[tuple[str, str, bool]]:
    """Return each gate, what was measured, and whether it holds."""
    # GRPO at the oracle's learning rate: the study's arm `grpo` has twice that
    same_rate = "grpo_2e-4" if any(run.method == "grpo_2e-4" for run in runs) else "grpo"
    by_seed = {
        name: {run.seed: run for run in runs if run.method == method}
        for name, method in (("grpo", same_rate), ("oracle", "oracle"))
    }
    grpo = list(by_seed["grpo"].values())
    gains = [after(run) - after(by_seed["grpo"][seed]) for seed, run in by_seed["oracle"].items()]
    once, often, solved = (
        fmean(map(after, grpo)),
        fmean(after(run, True) for run in grpo),
        [middle(run, "groups/ph") for run in grpo],
    )
    cosine = cosines["oracle with held-out success"]
    return [
        (
            "The oracle gains at least 10 points of Pass@1",
            f"{100 * min(gains):.1f} at least",
            min(gains) >= 0.1,
        ),
        ("GRPO ends at a Pass@1 of 40 to 70 %", f"{100 * once:.1f} %", 0.4 <= once <= 0.7),
        ("GRPO ends at a Pass@64 of 50 to 80 %", f"{100 * often:.1f} %", 0.5 <= often <= 0.8),
        (
            "The oracle's gradient has a positive cosine with that of held-out success",
            ", ".join(f"{value:.3f}" for value in cosine),
            min(cosine) > 0,
        ),
        (
            "30 to 70 % of the prompts are all right in the middle of GRPO's training",
            f"{100 * min(solved):.0f} to {100 * max(solved):.0f} %",
            min(solved) >= 0.3 and max(solved) <= 0.7,
        ),
    ]


def of_world(runs: Sequence[RunHistory], model: str) -> list[RunHistory]:
    """Return the runs in the world of a base model.

    Raises:
        ValueError: There are none: the gates would be those of another world.
    """
    own = [run for run in runs if run.settings.get("dataset_name", forks.NAME) == model]
    if not own:
        worlds = {run.settings.get("dataset_name", forks.NAME) for run in runs}
        raise ValueError(
            f"The runs must be of the world of --model: got {model}, and they are of"
            f" {', '.join(sorted(worlds))}. Give the runs of that world."
        )
    return own


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", help="runs.jsonl with runs of grpo and oracle with the same seeds")
    parser.add_argument(
        "--model",
        default=forks.NAME,
        help="model whose gradients are compared (default: the base model)",
    )
    parser.add_argument(
        "--problems", type=int, default=96, help="problems of each gradient (default: 96)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = of_world(read_runs(args.runs), args.model)
    folder = find_model(args.model)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    halves = [gradients(model, tokenizer, args.problems, seed) for seed in (1, 2)]
    cosines = cosines_of(halves)
    print("| Gate | Measured | Holds |\n| --- | --- | --- |")
    for gate, measured, holds in gates(runs, cosines):
        print(f"| {gate} | {measured} | {'yes' if holds else 'NO'} |")
    print("\n| Cosine of the gradients of | First half | Second half |\n| --- | ---: | ---: |")
    for title, (first, second) in cosines.items():
        print(f"| {title} | {first:.3f} | {second:.3f} |")
    print("\n| Way, at level 1 | Rollouts that take it | Right |\n| --- | ---: | ---: |")
    for way, share, right in ways(model, tokenizer, args.problems):
        print(f"| {way} | {share:.1%} | {right:.1%} |")
    weights = [
        float(half["MINER, no cap"].norm() / half["entropy bonus"].norm()) for half in halves
    ]
    print(
        f"\nAn entropy bonus of weight {weights[0]:.4f} ({weights[1]:.4f}) has a gradient as long"
        " as MINER's."
    )


if __name__ == "__main__":
    main()
