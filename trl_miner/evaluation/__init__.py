"""Scores of sampled answers: pure metrics, and the sampling behind them."""

from typing import TYPE_CHECKING, Any

from .metrics import bootstrap_interval, paired_difference, pass_at_k

if TYPE_CHECKING:
    from .majority import maj_at_k

__all__ = ["bootstrap_interval", "maj_at_k", "paired_difference", "pass_at_k"]


def __getattr__(name: str) -> Any:
    if name == "maj_at_k":  # the one that needs torch, which reports do without
        from .majority import maj_at_k

        return maj_at_k
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
