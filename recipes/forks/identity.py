"""Is MINER's update that of an entropy bonus on solved prompts, and of which weight? At the model
of a recipe's start.

python recipes/forks/identity.py recipes/SmolLM2-135M-Instruct/miner.yaml --batches 12

# P prompts of a batch, G rollouts of each, N = P*G; T padded completion tokens
"""

import argparse
from collections.abc import Iterator
from statistics import fmean

import torch
from gates import policy_gradient, score
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner import miner_advantages
from trl_miner.data.base_model import find_model
from trl_miner.evaluation.generate import sample_seed
from trl_miner.evaluation.seeded_sampling import sample_all
from trl_miner.methods.entropy import entropy_bonus_advantages
from trl_miner.recipe.files import with_recipe_file
from trl_miner.recipe.parsing import load_reward_funcs, make_parser
from trl_miner.recipe.training_data import load_data


def compare(recipe: str, num_batches: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the gradients of MINER, with its cap, and of an entropy bonus of weight 1, on all-right
    prompts alone.

    One pair for each of the recipe's first batches that has such a prompt. Rollouts and advantages
    are those of a training with one batch per optimizer step, computed in 32 bits.
    """
    parsed = make_parser().parse_args_and_config(with_recipe_file(["--config", recipe]))
    args, config, model_args, mixture = parsed
    folder = find_model(model_args.model_name_or_path)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    reward_func, data = (
        load_reward_funcs(args, config)[0],
        load_data(args, mixture, model_args)["train"],
    )
    group = config.num_generations
    size = config.per_device_train_batch_size // group
    for start in range(0, num_batches * size, size):
        rows = [data[place] for place in range(start, start + size) for _ in range(group)]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        seeds = [
            sample_seed(start, str(place), number)
            for place in range(size)
            for number in range(group)
        ]
        ids = [tokenizer(text)["input_ids"] for text in columns["prompt"]]
        tokens = sample_all(
            model, tokenizer, ids, seeds, max_new_tokens=config.max_completion_length
        )
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        rewards_N = torch.tensor(
            reward_func(**columns, prompts=columns["prompt"], completions=texts)
        )
        is_ph_N = rewards_N.view(-1, group).amin(dim=1).eq(1).repeat_interleave(group)
        if not is_ph_N.any():
            continue
        with torch.no_grad():
            logps_NT, _, mask_NT = score(model, tokenizer.pad_token_id, ids, tokens)
        mined_NT = miner_advantages(
            rewards_N, logps_NT, mask_NT, num_generations=group
        ).advantages_NT
        solved = is_ph_N.nonzero().squeeze(1).tolist()  # these alone need a graph
        rows_of = [ids[i] for i in solved], [tokens[i] for i in solved]
        logps_NT, entropies_NT, mask_NT = score(model, tokenizer.pad_token_id, *rows_of)
        mined_NT = mined_NT[solved, : logps_NT.shape[1]]
        bonus_NT = entropy_bonus_advantages(logps_NT.detach(), entropies_NT, mask_NT, weight=1.0)
        yield tuple(
            policy_gradient(model, logps_NT, each * mask_NT) for each in (mined_NT, bonus_NT)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="a recipe of MINER")
    parser.add_argument(
        "--batches", type=int, default=12, help="how many of its batches (default: 12)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| Cosine | Norm, MINER | Norm, entropy bonus of weight 1 |\n| ---: | ---: | ---: |")
    norms, sums = [], []
    for pair in compare(args.recipe, args.batches):
        norms.append([each.norm().item() for each in pair])
        print(f"| {cosine(*pair):.3f} | {norms[-1][0]:.3g} | {norms[-1][1]:.4g} |", flush=True)
        sums = [one + other for one, other in zip(sums, pair, strict=True)] if sums else pair
    mined, bonus = (fmean(values) for values in zip(*norms, strict=True))
    print(f"\nOf the sums over all batches the cosine is {cosine(*sums):.3f}.")
    print(
        f"A bonus of weight {mined / bonus:.2g} has a gradient as long as MINER's, in the mean over"
        " batches."
    )


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.cosine_similarity(one, other, dim=0).item()


if __name__ == "__main__":
    main()
