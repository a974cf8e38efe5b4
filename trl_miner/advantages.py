"""The advantage estimators, by the name that `advantage_estimator` takes."""

from collections.abc import Callable
from typing import Any

from .miner import group_relative_advantages, miner_advantages

ESTIMATORS: dict[str, Callable[..., Any]] = {
    "grpo": group_relative_advantages,
    "miner": miner_advantages,
}
