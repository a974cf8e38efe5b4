"""Scores of sampled answers: pure metrics, and the sampling behind them."""

from .metrics import bootstrap_interval, maj_at_k, paired_difference, pass_at_k

__all__ = ["bootstrap_interval", "maj_at_k", "paired_difference", "pass_at_k"]
