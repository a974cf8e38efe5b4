"""Which completions are correct: which reward function decides, and what such a function may
return.

# N completions of the global batch, F reward functions
"""

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import is_async_callable

from ..methods.groups import correctness

logger = logging.getLogger(__name__)

# TRL squares rewards in float32: far below its largest number, 3e38, advantages would be 0 without
# a word.
LARGEST_REWARD = 1e18


@dataclass(frozen=True)
class Verifier:
    """The reward functions that decide what is correct.

    A completion is correct where the smallest of their rewards reaches `correct_threshold`.
    """

    columns: tuple[int, ...]  # those that decide, by their places among the reward functions
    # Whether nobody has said that they verify. A completion that one of them leaves unscored is
    # then unscorable: the others may only judge its form. Of named ones, those that scored a
    # completion decide, so that each task can have its own.
    is_guess: bool
    threshold: float

    def rewards(self, rewards_NF: Tensor) -> Tensor:
        """Return (N,) the rewards that decide; NaN: unscorable."""
        rewards_ND = rewards_NF[:, list(self.columns)]
        is_missing_ND = rewards_ND.isnan()
        smallest_N = rewards_ND.masked_fill(is_missing_ND, math.inf).amin(dim=1)
        unscorable_N = is_missing_ND.any(dim=1) if self.is_guess else is_missing_ND.all(dim=1)
        return smallest_N.masked_fill(unscorable_N, math.nan)

    def is_correct(self, rewards_NF: Tensor) -> Tensor:
        """Return (N,) 1: correct, 0: wrong, NaN: unscorable."""
        return correctness(self.rewards(rewards_NF), self.threshold)


def find_verifier(
    names: Sequence[str],
    chosen: str | None = None,
    weights: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> Verifier:
    """Return the reward functions that decide what is correct: the chosen ones; else the only one;
    else all that have a weight, with a warning.

    Args:
        names: Of all reward functions.
        chosen: The setting `correct_reward_func`: a name, or several joined by "+".
        weights: Of the reward functions; None: all 1.
        threshold: The least reward of a correct completion.

    Raises:
        ValueError: No function has a chosen name.
    """
    deciding = [name.strip() for name in chosen.split("+")] if chosen else [*names]
    if unknown := set(deciding) - set(names):
        raise ValueError(
            f"No reward function named {' or '.join(sorted(unknown))} for correct_reward_func:"
            f" got {', '.join(names)}. Several are joined by '+'."
        )
    is_guess = chosen is None and len(names) > 1
    if is_guess:
        has_weight = weights or [1.0] * len(names)
        deciding = [name for name, weight in zip(names, has_weight, strict=True) if weight]
        logger.warning(
            f"A completion counts as correct only if each of {', '.join(deciding)} scores it at or"
            " above correct_threshold, since nothing says which of the reward functions verifies."
            " Set correct_reward_func to that one, or to several joined by '+'."
        )
    return Verifier(
        tuple(i for i, name in enumerate(names) if name in deciding), is_guess, threshold
    )


def check_rewards(names: Sequence[str], rewards_NF: Tensor) -> None:
    """Refuse rewards that are infinite, or so large that TRL's statistics would be.

    Raises:
        ValueError: One is. The same on every process, as the rewards are those of all.
    """
    for name, rewards_N in zip(names, rewards_NF.unbind(dim=1), strict=True):
        too_large = rewards_N[rewards_N.abs() > LARGEST_REWARD].tolist()
        if too_large:
            raise ValueError(
                f"A reward of '{name}' must be a number of at most {LARGEST_REWARD:g} in size, or"
                f" None: got {too_large[0]:g}. Clip it."
            )


def checked(name: str, function: Any) -> Any:
    """Return a reward function that ends the training, with its name, if it returns anything but a
    list of numbers or None, one for each completion. A reward model stays as it is."""
    if isinstance(function, torch.nn.Module):
        return function

    def check(returned: Any, columns: Any) -> list[float | None]:
        return check_returned(name, returned, len(columns["completions"]))

    async def wait(**columns: Any) -> Any:
        return check(await function(**columns), columns)

    def call(**columns: Any) -> Any:
        return check(function(**columns), columns)

    return functools.wraps(function)(wait if is_async_callable(function) else call)


def check_returned(name: str, returned: Any, count: int) -> list[float | None]:
    """Return what a reward function has returned as a list of numbers and None.

    Args:
        name: Of the function.
        returned: A list, a tuple, an array, a tensor or a generator.
        count: Of completions.

    Raises:
        ValueError: It is something else (in a dict or a set the order says nothing), there are more
            or fewer, one is neither a number nor None, or all are NaN.
    """
    got = f"{returned!r:.200}"
    try:
        if isinstance(returned, dict | set | frozenset | str):
            raise TypeError
        rewards = [reward if reward is None else float(reward) for reward in returned]
        is_all_nan = all(reward is not None and math.isnan(reward) for reward in rewards)
        if len(rewards) == count and not is_all_nan:
            return rewards
        got = "NaN for all" if is_all_nan else f"{len(rewards)}"
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"The reward function '{name}' must return a list of {count} numbers, one for each"
        f" completion, or None for one that it cannot score: got {got}."
    )
