"""What will be trained, before it is: prompts, references as the grader reads them, rewards."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .own import TrainingData
from .settings import DataArguments


def show_preview(
    data: TrainingData,
    tokenizer: Any,
    reward_funcs: Sequence[Callable[..., Any]],
    args: DataArguments,
    *,
    is_shown: bool = True,
) -> None:
    """Print three prompts, their references as the grader reads them, and what right and wrong
    answers get.

    Raises:
        ValueError: References cannot be read, right answers get no reward, prompts do not say how
            an answer must look, or a reward function does not return a number or None for each
            completion.
    """
    raise NotImplementedError


def rewards_of(
    function: Callable[..., Any], rows: Sequence[Mapping[str, Any]], texts: Sequence[str]
) -> list[float | None]:
    """Return the rewards of one answer to each row, asking the function as TRL does.

    Raises:
        ValueError: It does not return a number or None for each, or all are NaN.
    """
    raise NotImplementedError
