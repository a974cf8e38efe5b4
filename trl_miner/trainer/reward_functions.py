"""The reward functions of a run: which of them decide what is correct, and which columns they need.

# N rollouts of the global batch, F reward functions, D of them that decide
"""

import functools
import inspect
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..common.errors import Explained, cause, place_of

if TYPE_CHECKING:
    from torch import Tensor

OWN_REWARDS = ("math_reward", "choice_reward", "task_reward")
TRL_REWARDS = (
    "accuracy_reward",
    "reasoning_accuracy_reward",
    "think_format_reward",
    "get_soft_overlong_punishment",
)
# Ours and TRL's: 1 is right.
KNOWN_VERIFIERS = """
    math_reward choice_reward task_reward accuracy_reward reasoning_accuracy_reward
    """.split()
NEED_SOLUTION = {"math_reward", "choice_reward", "accuracy_reward", "reasoning_accuracy_reward"}
# What TRL hands to every reward function besides the columns of the data set.
REWARD_KWARGS = {
    *"""
    prompts completions completion_ids trainer_state log_extra log_metric environments
    """.split()
}
_NOT_FORWARDED = {"prompt", "completion", "completion_ids"}  # columns that TRL keeps to itself
# TRL squares rewards in float32: far below its largest number, 3e38, advantages would be 0 without
# a word.
LARGEST_REWARD = 1e18


@dataclass(frozen=True)
class Verifier:
    """The reward functions that decide what is correct.

    A rollout is correct where the smallest of their rewards reaches `correct_threshold`.

    Attributes:
        columns: Their places among the reward functions.
        names: Their names.
        reason: A sentence that says which they are, and why they.
        is_guess: Whether nothing says that they verify. A rollout that one of them leaves unscored
            is then unscorable: the others may only judge its form. Of known or named ones, those
            that scored a rollout decide, so that each task can have its own.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    reason: str
    is_guess: bool = False

    def rewards(self, rewards_NF: "Tensor") -> "Tensor":
        """Return (N,) the rewards that decide, from those of all reward functions; NaN:
        unscorable."""
        return self.smallest(rewards_NF[:, list(self.columns)])

    def smallest(self, rewards_ND: "Tensor") -> "Tensor":
        """Return (N,) the rewards that decide, from those of the functions that decide; NaN:
        unscorable."""
        is_missing_ND = rewards_ND.isnan()
        smallest_N = rewards_ND.masked_fill(is_missing_ND, math.inf).amin(dim=1)
        is_unscorable_N = is_missing_ND.any(dim=1) if self.is_guess else is_missing_ND.all(dim=1)
        return smallest_N.masked_fill(is_unscorable_N, math.nan)


def find_verifier(
    names: Sequence[str], chosen: str | None = None, weights: Sequence[float] | None = None
) -> Verifier:
    """Return the reward functions that decide what is correct.

    They are the chosen ones (`correct_reward_func`: a name, or several joined by "+"); else the
    only one; else the known verifiers, those with a weight before those with a weight of 0; else
    all that have one, as a guess.
    """
    listed = ", ".join(names)
    weighted = [name for i, name in enumerate(names) if weights is None or weights[i]] or [*names]
    deciding = [name for name in weighted if name in KNOWN_VERIFIERS] or [
        name for name in names if name in KNOWN_VERIFIERS
    ]
    why = f"of {listed}; set correct_reward_func for another"
    if chosen is not None:
        deciding, why = (
            ([chosen] if chosen in names else [name.strip() for name in chosen.split("+")]),
            "correct_reward_func",
        )
        if not set(deciding) <= set(names):
            raise ValueError(
                f"No reward function named {chosen!r} for correct_reward_func. There are {listed}."
                " Several are joined by '+'."
            )
    elif len(names) == 1:
        deciding, why = [*names], "the only reward function"
    is_guess = not deciding
    deciding = deciding or weighted
    reason = f"{' and '.join(deciding)} decide{'s' * (len(deciding) == 1)} what is correct ({why})."
    reason += " Of several, those that score a completion must agree." if len(deciding) > 1 else ""
    if is_guess:
        reason = (
            f"None of the reward functions {listed} is a known verifier"
            f" ({', '.join(KNOWN_VERIFIERS)}), so a completion counts as correct only if each that has"
            " a weight scores it at or above correct_threshold. Set correct_reward_func to the one"
            " that verifies, or to several joined by '+'."
        )
    columns = tuple(i for i, name in enumerate(names) if name in deciding)
    return Verifier(columns, tuple(names[i] for i in columns), reason, is_guess)


def check_rewards(names: Sequence[str], rewards_NF: "Tensor") -> None:
    """Refuse rewards that are infinite, or so large that TRL's statistics would be: advantages
    would silently be 0."""
    for name, values_N in zip(names, rewards_NF.unbind(dim=1), strict=True):
        if rows := (values_N.abs() > LARGEST_REWARD).nonzero().flatten().tolist():  # False for NaN
            raise RewardError(
                f"A reward of '{name}' must be a number of at most {LARGEST_REWARD:g} in size, or"
                f" None: got {values_N[rows[0]].item()} for rollout {rows[0]} of {len(values_N)}."
                " Clip it."
            )


class RewardError(Explained, ValueError):
    """A reward function has failed, or returned something else than rewards."""


def checked(name: str, function: Any) -> Any:
    """Return a reward function that ends the training with its name if it fails, ends the process,
    or returns anything but a number or None for each completion.

    A reward model stays as it is.
    """
    if hasattr(function, "named_parameters"):
        return function

    async def call_async(**columns: Any) -> list[float]:
        with _naming(name, function):
            returned = await function(**columns)
        return reward_list(name, returned, len(columns["completions"]))

    def call(**columns: Any) -> list[float]:
        with _naming(name, function):
            returned = function(**columns)
            if inspect.isgenerator(returned):  # which runs only now
                returned = [*returned]
        return reward_list(name, returned, len(columns["completions"]))

    is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
    chosen = functools.wraps(function)(call_async if is_async else call)
    chosen.__name__ = name
    return chosen


@contextmanager
def _naming(name: str, function: Any) -> Iterator[None]:
    """Have an error of a reward function say whose it is, and where it arose."""
    try:
        yield
    except Explained:
        raise
    except (Exception, SystemExit) as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = place_of(error, code and code.co_filename)
        raise RewardError(
            f"The reward function '{name}' failed with {cause(error)}. Mend it in {place}, or"
            " return None for a completion that it cannot score."
        ) from error


def reward_list(name: str, returned: Any, count: int) -> list[float]:
    """Return the rewards of `count` completions as numbers; NaN: none.

    Raises:
        RewardError: There are more or fewer, or one is neither a number nor None.
    """
    rewards = []
    try:
        for reward in returned:
            if isinstance(reward, str):  # of which some would pass as numbers
                raise TypeError
            rewards.append(math.nan if reward is None else float(reward))
    except (TypeError, ValueError):
        raise RewardError(
            f"The reward function '{name}' must return a number for each completion, or None for"
            f" one that it cannot score: got {returned!r:.200}."
        ) from None
    if len(rewards) != count:
        raise RewardError(
            f"The reward function '{name}' must return a list of {count} numbers, one for each"
            f" completion: got {len(rewards)}. Return None for one that it cannot score."
        )
    return rewards


def check_reward_columns(
    names: Sequence[str],
    functions: Sequence[Any],
    columns: Collection[str],
    *,
    needs_prompt: bool = True,
) -> None:
    """Refuse a missing column now: it would show as a TypeError after the first generation, an hour
    into a job."""
    if needs_prompt and "prompt" not in columns:
        raise ValueError(
            f"The training set must have a column prompt: got {', '.join(columns)}. Rename the"
            " column that holds the prompts, or make the data set with `trl-miner data`."
        )
    for name, function in zip(names, functions, strict=True):
        missing = [
            column
            for column in required_columns(function)
            if column not in set(columns) - _NOT_FORWARDED
        ]
        if missing:
            raise ValueError(
                f"The reward function '{name}' needs the column(s) {', '.join(missing)}, which the"
                f" training set does not have: its columns are {', '.join(columns)}. Rename or add"
                " a column."
            )
        if not hasattr(function, "named_parameters"):  # a reward model
            _check_takes_all(name, function, columns)


def _check_takes_all(name: str, function: Any, columns: Collection[str]) -> None:
    """Raise ValueError for a reward function that would refuse an argument of TRL's."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return
    given = (REWARD_KWARGS - {"environments"} | {*columns}) - _NOT_FORWARDED | {"completion_ids"}
    missing = given - {parameter.name for parameter in parameters}
    if missing and all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters):
        raise ValueError(
            f"The reward function '{name}' must take what it does not use: it would get"
            f" {', '.join(sorted(missing))}, too. Add **kwargs to its parameters."
        )


def required_columns(function: Any) -> list[str]:
    """Return the columns that a reward function cannot do without; a reward model needs none."""
    if hasattr(function, "named_parameters"):
        return []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return []
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return sorted(
        {p.name for p in parameters if p.kind in by_name and p.default is p.empty} - REWARD_KWARGS
    )


def text_of(completion: Any) -> str:
    """Return the text of the answer in a completion of any of TRL's shapes; empty if there is
    none."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    messages = [
        message for message in completion if message.get("role", "assistant") == "assistant"
    ]
    content = messages[-1].get("content") if messages else None
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")
