"""A reward for tasks of reasoning_gym (pip install reasoning_gym).

    trl-miner train gym.jsonl --model Qwen/Qwen3-0.6B --reward_funcs reasoning_gym_reward.task_reward

from a folder with this file. The problems are made again from the column `solution`, which holds
FAMILY:SEED:PLACE. A file of problems:

    from reasoning_gym_reward import family_of
    for name in ("chain_sum", "gcd"):
        for place in range(500):
            print(json.dumps({"question": family_of(name, 0)[place]["question"],
                              "solution": f"{name}:0:{place}"}))

Some families evaluate an answer as Python, and a model may write anything: read them first.
"""

import re
from functools import cache
from typing import Any

from trl_miner.rewards import text_of


@cache
def family_of(name: str, seed: int) -> Any:
    """Return the problems of a family: equal arguments give equal problems."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=100_000, seed=seed)


def answer_of(text: str) -> str | None:
    r"""Return what stands in the last `<answer>...</answer>`, else in the last `\boxed{}`."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return [None, *re.findall(r"\\boxed\{(.*)\}", text), *found][-1]


def task_reward(completions: list, solution: list, **_: Any) -> list[float]:
    """Return the score of each completion, from 0 to 1, by the scorer of its family."""
    rewards = []
    for completion, task in zip(completions, solution, strict=True):
        name, seed, place = task.split(":")
        family, answer = family_of(name, int(seed)), answer_of(text_of(completion))
        rewards.append(family.score_answer(answer, family[int(place)]))
    return rewards
