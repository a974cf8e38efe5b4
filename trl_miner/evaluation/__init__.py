"""Scores of sampled answers: pure metrics, and the sampling behind them."""

from .metrics import pass_at_k

__all__ = ["pass_at_k"]
