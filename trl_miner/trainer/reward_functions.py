"""The trainer's reward functions: which of them verifies, and whether the training set has the columns they need."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

# What TRL hands to every reward function besides the columns of the data set.
REWARD_KWARGS = {
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
}
_NOT_FORWARDED = {"prompt", "completion", "completion_ids"}  # columns that TRL keeps to itself


def verifier_index(names: Sequence[str], verifier: str | None) -> int:
    """Return which reward function decides whether a rollout is correct: the named one, else the first."""
    if verifier is None:
        return 0
    if verifier not in names:
        raise ValueError(
            f"correct_reward_func must name one of the reward functions: got {verifier!r}, there are "
            f"{', '.join(names)}."
        )
    return names.index(verifier)


def check_reward_columns(names: Sequence[str], functions: Sequence[Any], columns: Collection[str]) -> None:
    """Refuse a missing column now: it would show as a TypeError after the first generation, an hour into a job."""
    for name, function in zip(names, functions, strict=True):
        if isinstance(function, torch.nn.Module):
            continue
        missing = _required_parameters(function) - REWARD_KWARGS - (set(columns) - _NOT_FORWARDED)
        if missing:
            raise ValueError(
                f"The reward function '{name}' needs the column(s) {', '.join(sorted(missing))}, which the "
                f"training set does not have: its columns are {', '.join(columns)}. Rename or add a column."
            )


def _required_parameters(function: Callable[..., Any]) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that has no signature to read
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named and p.default is inspect.Parameter.empty}
