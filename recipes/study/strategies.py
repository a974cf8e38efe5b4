"""Count which strategies a model uses in the study's world, and how often each is right.

python recipes/study/strategies.py trl_miner/strategies runs/study/grpo/seed1 runs/study/miner/seed1
"""

import argparse
from collections import Counter

from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_miner.data.base_model import find_model
from trl_miner.data.worlds import WORLDS
from trl_miner.evaluation.generate import sample_seed
from trl_miner.evaluation.seeded_sampling import sample_all
from trl_miner.rewards import math_reward

WORLD = WORLDS["trl_miner/strategies"]
STRATEGIES, TEST_LEVELS, strategy_of = WORLD.STRATEGIES, WORLD.TEST_LEVELS, WORLD.strategy_of
SAMPLES, TEMPERATURE, MAX_TOKENS = 16, 0.7, 80  # G, temperature and length of the study's recipes


def count(name: str, size: int) -> tuple[Counter, Counter]:
    """Count all rollouts and the right ones.

    Args:
        name: The model, or its folder.
        size: Number of test problems, levels taking turns.

    Returns:
        Both counts by (level, strategy).
    """
    folder = find_model(name)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    problems = WORLD.load_dataset("test", size)
    seeds = [
        sample_seed(0, str(place), number) for place in range(size) for number in range(SAMPLES)
    ]
    ids = [tokenizer(prompt)["input_ids"] for prompt in problems["prompt"] for _ in range(SAMPLES)]
    sampled = sample_all(
        model, tokenizer, ids, seeds, max_new_tokens=MAX_TOKENS, temperature=TEMPERATURE
    )
    texts = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    golds, levels = (
        [value for value in problems[key] for _ in range(SAMPLES)] for key in ("solution", "level")
    )
    taken, right = Counter(), Counter()
    for text, level, verdict in zip(texts, levels, math_reward(texts, golds), strict=True):
        taken[level, strategy_of(text)] += 1
        right[level, strategy_of(text)] += verdict == 1.0
    return taken, right


def table(names: list[str], size: int) -> str:
    """Return Markdown: for each model and range of levels, the share of each strategy and how often
    it is right."""
    lines = [
        "| Model | Levels | " + " | ".join(STRATEGIES) + " |",
        "| --- | ---: |" + " ---: |" * len(STRATEGIES),
    ]
    for name in names:
        taken, right = count(name, size)
        for first, last in ((1, 2), (3, 6), (7, 8), (9, 10)):
            levels = [level for level in TEST_LEVELS if first <= level <= last]
            total = sum(taken[level, strategy] for level in levels for strategy in STRATEGIES)
            cells = []
            for strategy in STRATEGIES:
                number, good = (
                    sum(counts[level, strategy] for level in levels) for counts in (taken, right)
                )
                cells.append(
                    f"{number / total:.0%}, right in {good / number:.0%}" if number else "0%"
                )
            lines.append(f"| {name} | {first} to {last} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="+", help="folders, or trl_miner/strategies for the base model"
    )
    parser.add_argument(
        "--problems",
        type=int,
        default=100,
        help="test problems, levels taking turns (default: 100)",
    )
    arguments = parser.parse_args()
    print(table(arguments.models, arguments.problems), end="")
