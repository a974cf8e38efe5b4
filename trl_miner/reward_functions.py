"""The reward functions of a run: which of them decide what is correct, and what they need and may return.

# N rollouts of the global batch, F reward functions, D of them that decide
"""

import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .importing import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

OWN_REWARDS = ("math_reward", "choice_reward", "task_reward", "random_reward")
TRL_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")
# Ours and TRL's: 1 is right.
KNOWN_VERIFIERS = ("math_reward", "choice_reward", "task_reward", "accuracy_reward", "reasoning_accuracy_reward")
NEED_SOLUTION = {"math_reward", "choice_reward", "accuracy_reward", "reasoning_accuracy_reward"}
# What TRL hands to every reward function besides the columns of the data set.
REWARD_KWARGS = {
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
}
_NOT_FORWARDED = {"prompt", "completion", "completion_ids"}  # columns that TRL keeps to itself
# TRL squares rewards in float32: far below its largest number, 3e38, advantages would be 0 without a word.
LARGEST_REWARD = 1e18


@dataclass(frozen=True)
class Verifier:
    """The reward functions that decide what is correct.

    A rollout is correct where the smallest of their rewards reaches `correct_threshold`.

    Attributes:
        columns: Their places among the reward functions.
        names: Their names.
        reason: A sentence that says which they are, and why they.
        is_guess: Whether nothing says that they verify. A rollout that one of them leaves unscored is then unscorable:
            the others may only judge its form. Of known or named ones, those that scored a rollout decide, so that
            each task can have its own.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    reason: str
    is_guess: bool = False

    def rewards(self, rewards_NF: "Tensor") -> "Tensor":
        """Return (N,) the rewards that decide, from those of all reward functions; NaN: unscorable."""
        return self.smallest(rewards_NF[:, list(self.columns)])

    def smallest(self, rewards_ND: "Tensor") -> "Tensor":
        """Return (N,) the rewards that decide, from those of the functions that decide; NaN: unscorable."""
        is_missing_ND = rewards_ND.isnan()
        smallest_N = rewards_ND.masked_fill(is_missing_ND, math.inf).amin(dim=1)
        is_unscorable_N = is_missing_ND.any(dim=1) if self.is_guess else is_missing_ND.all(dim=1)
        return smallest_N.masked_fill(is_unscorable_N, math.nan)


# What may help where not one answer is right.
WHERE_NONE_IS_RIGHT = "take easier problems or a stronger model", "teach it the form of the answer with trl-miner sft"


def show_ends(answers: Iterable[str]) -> str:
    """Return how some answers end, each once, for a sentence about them.

    Args:
        answers: Their texts.
    """
    return " ".join(f"{text[-150:]!r}" for text in dict.fromkeys(answers)) or "nothing"


def find_verifier(names: Sequence[str], chosen: str | None = None, weights: Sequence[float] | None = None) -> Verifier:
    """Return the reward functions that decide what is correct.

    They are the chosen ones; else the only one; else the known verifiers, those with a weight before those with a
    weight of 0; else all that have one, as a guess.

    Args:
        names: Of all reward functions, as TRL logs them.
        chosen: The setting `correct_reward_func`: a name, or several joined by "+".
        weights: Of all reward functions; default: none is 0.

    Raises:
        ValueError: A chosen one is none of them.
    """
    listed, every = ", ".join(names), range(len(names))
    weighted = [i for i in every if weights is None or weights[i]] or [*every]
    if chosen is not None:
        wanted = [chosen] if chosen in names else [name.strip() for name in str(chosen).split("+")]
        if not set(wanted) <= set(names):
            raise ValueError(
                f"correct_reward_func must name one of the reward functions, or several joined by '+': got "
                f"{chosen!r}, there are {listed}."
            )
        return _verifier([i for i in every if names[i] in wanted], names, "correct_reward_func")
    if len(names) == 1:
        return _verifier([*every], names, "the only reward function")
    known = [i for i in every if names[i] in KNOWN_VERIFIERS]
    if known := [i for i in known if i in weighted] or known:
        kind = f"the known verifier{'s' * (len(known) > 1)} among {listed}; set correct_reward_func for another"
        return _verifier(known, names, kind)
    that_counts = "" if len(weighted) == len(names) else " that has a weight"
    reason = (
        f"None of the reward functions {listed} is a known verifier ({', '.join(KNOWN_VERIFIERS)}), so a rollout "
        f"counts as correct only if each{that_counts} scores it at or above correct_threshold. Set "
        f"correct_reward_func to the one that verifies, or to several joined by '+'."
    )
    return Verifier(tuple(weighted), tuple(names[i] for i in weighted), reason, is_guess=True)


def _verifier(columns: Sequence[int], names: Sequence[str], why: str) -> Verifier:
    own = tuple(names[i] for i in columns)
    who = f"{' and '.join(own)} decide{'s' * (len(own) == 1)} what is correct ({why})."
    who += " Of several, those that score a rollout must agree." if len(own) > 1 else ""
    return Verifier(tuple(columns), own, who)


def check_rewards(names: Sequence[str], rewards_NF: "Tensor", rewards_N: "Tensor | None" = None) -> None:
    """Refuse rewards that are infinite, or so large that TRL's statistics would be: advantages would silently be 0.

    Args:
        names: Of the reward functions.
        rewards_NF: (N, F) their rewards; NaN: none.
        rewards_N: (N,) the weighted sums, if they are to be checked too.

    Raises:
        ValueError: There is one; the message names its function and rollout. It is the same on every process if the
            arguments are.
    """
    columns = [(f"A reward of '{name}'", rewards_NF[:, i]) for i, name in enumerate(names)]
    if rewards_N is not None:
        columns.append(("The sum of the rewards, by reward_weights,", rewards_N))
    for name, values_N in columns:
        if rows := (values_N.abs() > LARGEST_REWARD).nonzero().flatten().tolist():  # False for NaN
            raise ValueError(
                f"{name} must be a number of at most {LARGEST_REWARD:g} in size, or None where a rollout cannot be "
                f"scored: got {values_N[rows[0]].item()} for rollout {rows[0]} of {len(values_N)} ({len(rows)} such "
                f"rollouts). Clip it, or return None."
            )


def checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that refuses what is no list of rewards, called as TRL does, with `completions` by
    name; a reward model stays as it is."""
    if hasattr(function, "named_parameters"):
        return function
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func

    def check(returned: Any, completions: Any = None, **_: Any) -> Any:
        return returned if completions is None else reward_list(name, returned, len(completions))

    @functools.wraps(function)  # a trainer with a loop of its own may look at it, and call it otherwise
    def call(*args: Any, **kwargs: Any) -> Any:
        return check(function(*args, **kwargs), **kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return check(await function(*args, **kwargs), **kwargs)

    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(inner.__call__)
    return call_async if is_async else call


def reward_list(name: str, returned: Any, count: int) -> list[float | None]:
    """Return what a reward function returned as a list of numbers and None.

    Args:
        name: Of the reward function.
        returned: A list, or what can be taken for one: a tuple, an array or a tensor (count,), a generator.
        count: Number of completions.

    Raises:
        ValueError: It is something else, has another length, or holds what is no number.
    """
    wanted = f"The reward function '{name}' must return a list of {count} numbers, one for each completion, or None "
    wanted += "for one that it cannot score: got "
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if isinstance(returned, str | bytes | Mapping | Set) or not isinstance(returned, Iterable):
        raise ValueError(f"{wanted}{_shown(returned)}. Return a list.")
    rewards = list(returned)
    if len(rewards) != count:
        raise ValueError(f"{wanted}{len(rewards)} values, {_shown(rewards)}. Return one for each completion.")
    for place, reward in enumerate(rewards):
        if isinstance(reward, str | bytes):  # float() takes "1.0"
            raise ValueError(f"{wanted}{_shown(reward)} for completion {place}. Return a number.")
        try:
            rewards[place] = None if reward is None else float(reward)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{wanted}{_shown(reward)} for completion {place}. Return a number.") from error
    return rewards


def _shown(value: Any) -> str:
    kind = "" if value is None else f" ({type(value).__name__})"
    return f"{reprlib.repr(value)}{kind}"


def check_reward_name(name: str) -> None:
    """Raise ValueError for a name of `reward_funcs` that is neither known nor an import path."""
    known = OWN_REWARDS + TRL_REWARDS
    if name not in known and "." not in str(name):
        raise ValueError(
            f"reward_funcs must name known rewards or import paths: got '{name}'.{did_you_mean(str(name), known)} "
            f"Known: {', '.join(known)}; a path has a dot, such as my_lib.rewards.{name}."
        )


def check_reward_columns(
    names: Sequence[str], functions: Sequence[Any], columns: Collection[str], *, needs_prompt: bool = True
) -> None:
    """Refuse a missing column now: it would show as a TypeError after the first generation, an hour into a job."""
    if needs_prompt and "prompt" not in columns:
        raise ValueError(
            f"The training set must have a column prompt: got {', '.join(columns)}. Rename the column that holds the "
            f"prompts, or make the data set with `trl-miner data`."
        )
    for name, function in zip(names, functions, strict=True):
        missing = [column for column in required_columns(function) if column not in set(columns) - _NOT_FORWARDED]
        if missing:
            raise ValueError(
                f"The reward function '{name}' needs the column(s) {', '.join(missing)}, which the "
                f"training set does not have: its columns are {', '.join(columns)}. Rename or add a column."
            )


def required_columns(function: Any) -> list[str]:
    """Return the columns that a reward function cannot do without; a reward model needs none."""
    required = parameters_of(function, required=True)
    return [] if hasattr(function, "named_parameters") else sorted(required - REWARD_KWARGS)


def parameters_of(function: Callable[..., Any], *, required: bool = False) -> set[str]:
    """Return the parameters that a function takes by name, or only those without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return set()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in by_name and not (required and p.default is not p.empty)}
