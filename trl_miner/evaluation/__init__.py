"""Scores of sampled completions: `eval`, and held-out problems while a model trains."""

from .metrics import maj_at_k, pass_at_k

__all__ = ["maj_at_k", "pass_at_k"]
