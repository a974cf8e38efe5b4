"""Which completions are correct: which reward function decides, and what such a function may
return.

# N completions of the global batch, F reward functions
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import is_async_callable

logger = logging.getLogger(__name__)

BATCHES = 5  # generation batches without a correct completion before a warning
# TRL squares rewards in float32: far below its largest number, 3e38, advantages would be 0 without
# a word.
LARGEST_REWARD = 1e18


@dataclass
class Verifier:
    """The reward functions that decide what is correct.

    A completion is correct where the smallest of their rewards reaches `correct_threshold`.
    """

    names: tuple[str, ...]  # of those that decide
    columns: tuple[int, ...]  # their places among the reward functions
    # Whether nobody has said that they verify. A completion that one of them leaves unscored is
    # then unscorable: the others may only judge its form. Of named ones, those that scored a
    # completion decide, so that each task can have its own.
    is_guess: bool
    scores: list[float] = field(default_factory=list)  # greatest reward of each batch, of the first

    def rewards(self, rewards_NF: Tensor) -> Tensor:
        """Return (N,) the rewards that decide; NaN: unscorable."""
        rewards_ND = rewards_NF[:, list(self.columns)]
        is_missing_ND = rewards_ND.isnan()
        smallest_N = rewards_ND.masked_fill(is_missing_ND, math.inf).amin(dim=1)
        unscorable_N = is_missing_ND.any(dim=1) if self.is_guess else is_missing_ND.all(dim=1)
        return smallest_N.masked_fill(unscorable_N, math.nan)

    def watch(self, verifier_rewards_N: Tensor, threshold: float) -> None:
        """Warn once where none of the first generation batches has had a correct completion.

        Args:
            verifier_rewards_N: (N,) of a batch.
            threshold: From which on a completion is correct.
        """
        if len(self.scores) < BATCHES:
            self.scores.append(verifier_rewards_N.nan_to_num(nan=-math.inf).amax().item())
            if len(self.scores) == BATCHES and max(self.scores) < threshold:
                highest = max(self.scores)
                gave = f"gave at most {highest:.7g}" if highest > -math.inf else "scored none"
                logger.warning(
                    f"No completion of the first {BATCHES} generation batches was correct:"
                    f" {' and '.join(self.names)} {gave}, and correct_threshold is {threshold:.7g}."
                    " See whether completions are cut off (completions/clipped_ratio), and whether"
                    " correct_threshold and correct_reward_func fit the rewards."
                )


def find_verifier(
    names: Sequence[str], chosen: str | None = None, weights: Sequence[float] | None = None
) -> Verifier:
    """Return the reward functions that decide what is correct: the chosen ones; else the only one;
    else all that have a weight, with a warning.

    Args:
        names: Of all reward functions.
        chosen: The setting `correct_reward_func`: a name, or several joined by "+".
        weights: Of the reward functions; None: all 1.

    Raises:
        ValueError: No function has a chosen name.
    """
    if chosen is not None:
        deciding = [name.strip() for name in chosen.split("+")]
        if unknown := set(deciding) - set(names):
            raise ValueError(
                f"No reward function named {' or '.join(sorted(unknown))} for correct_reward_func:"
                f" got {', '.join(names)}. Several are joined by '+'."
            )
    else:
        has_weight = [weights is None or bool(weights[i]) for i in range(len(names))]
        deciding = [name for name, has in zip(names, has_weight, strict=True) if has] or [*names]
        deciding = [*names] if len(names) == 1 else deciding
    is_guess = chosen is None and len(names) > 1
    if is_guess:
        logger.warning(
            f"A completion counts as correct only if each of {', '.join(deciding)} scores it at or"
            " above correct_threshold, since nothing says which of the reward functions verifies."
            " Set correct_reward_func to that one, or to several joined by '+'."
        )
    columns = tuple(i for i, name in enumerate(names) if name in deciding)
    return Verifier(tuple(deciding), columns, is_guess)


def check_rewards(names: Sequence[str], rewards_NF: Tensor) -> None:
    """Refuse rewards that are infinite, or so large that TRL's statistics would be.

    Raises:
        ValueError: One is. The same on every process, as the rewards are those of all.
    """
    for name, rewards_N in zip(names, rewards_NF.unbind(dim=1), strict=True):
        if rows := (rewards_N.abs() > LARGEST_REWARD).nonzero().flatten().tolist():
            raise ValueError(
                f"A reward of '{name}' must be a number of at most {LARGEST_REWARD:g} in size, or"
                f" None: got {rewards_N[rows[0]].item()} for completion {rows[0]} of"
                f" {len(rewards_N)}. Clip it."
            )


def checked(name: str, function: Any) -> Any:
    """Return a reward function that ends the training, with its name, if it returns anything but a
    list of numbers or None, one for each completion. A reward model stays as it is."""
    if isinstance(function, torch.nn.Module):
        return function
    call: Callable[..., Any]
    if is_async_callable(function):

        async def call(**columns: Any) -> list[float | None]:
            return rewards_of(name, await function(**columns), len(columns["completions"]))

    else:

        def call(**columns: Any) -> list[float | None]:
            return rewards_of(name, function(**columns), len(columns["completions"]))

    return functools.wraps(function)(call)


def rewards_of(name: str, returned: Any, count: int) -> list[float | None]:
    """Return what a reward function has returned as numbers; None: unscorable.

    Args:
        name: Of the function.
        returned: A list, a tuple, an array, a tensor or a generator.
        count: Of completions.

    Raises:
        ValueError: It is something else (in a dict or a set the order says nothing), there are more
            or fewer, one is neither a number nor None, or all are NaN.
    """
    fault = f"The reward function '{name}' must return a list of {count} numbers, one for each"
    fault += " completion, or None for one that it cannot score: got "
    if isinstance(returned, dict | set | frozenset | str) or not hasattr(returned, "__iter__"):
        raise ValueError(f"{fault}{returned!r:.200}.")
    returned = [*returned]
    if len(returned) != count:
        raise ValueError(f"{fault}{len(returned)}.")
    rewards: list[float | None] = []
    for reward in returned:
        try:
            if isinstance(reward, str):  # of which some would pass as numbers
                raise TypeError
            rewards.append(None if reward is None else float(reward))
        except (TypeError, ValueError):
            raise ValueError(f"{fault}{reward!r:.200}.") from None
    if rewards and all(reward is not None and math.isnan(reward) for reward in rewards):
        raise ValueError(f"{fault}NaN for all. Look for a division by zero.")
    return rewards
