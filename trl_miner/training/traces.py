"""Token records as traces of trackio, which shows conversations: for `report_to: trackio`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_NUMBERS = "kind reward verifier_reward advantage grpo_advantage nll length".split()
_MOST = 5  # tokens that are named


def log_traces(rows: Sequence[Mapping[str, Any]], step: int) -> None:
    """Log rows of a token record as traces of the run that trackio has open, if it has one."""
    import trackio

    if trackio.context_vars.current_run.get() is not None:
        trackio.log({"rollouts": [_trace(row) for row in rows]}, step=step)


def _trace(row: Mapping[str, Any]) -> Any:
    import trackio

    roles = {"user": "prompt", "assistant": "completion"}
    messages = [{"role": role, "content": row[name]} for role, name in roles.items()]
    return trackio.Trace(
        messages, {name: row[name] for name in _NUMBERS} | {"credit": _credit(row)}
    )


def _credit(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens with the largest advantages, in absolute value."""
    given = np.nan_to_num(np.array(row["advantages"], dtype=float))  # null: not the model's
    places = np.argsort(-np.abs(given), kind="stable")[:_MOST].tolist()
    return {f"{place}: {row['tokens'][place]}": float(given[place]) for place in places}
