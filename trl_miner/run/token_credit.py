"""`credit/credit_STEP.parquet` of a run's folder: what each token of some rollouts was paid.

An observer of the trainer writes a file per recorded step with `log_token_credit: 10`. A row is a
rollout; the rows of a prompt are adjacent.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "credit"
# Kinds of prompts: all right, mixed, all wrong, unscorable.
KINDS = ("PH", "HE", "NH", "unscorable")


@dataclass(frozen=True)
class Credit:
    """The token records of a run."""

    name: str  # of the run's folder
    methods: tuple[str, ...]  # labels, such as "MINER"; empty: not recorded
    # a pyarrow.Table of `schema()`: a row per rollout, steps in order, rows of a prompt adjacent
    table: Any


def schema() -> Any:
    """Return the columns as a `pyarrow.Schema`.

    step, group (a number of the prompt in its batch), rollout; kind (of KINDS), prompt, completion;
    reward, verifier_reward, grpo_advantage, advantage (mean over tokens), nll (mean, nats);
    length (tokens of the model's); token_ids, tokens (texts); old_logps, weights (MINER's focal
    weights, of all-right prompts), advantages_before (MINER's cap), advantages: a number per token.
    """
    import pyarrow as pa

    numbers = ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll")
    lists = ("old_logps", "weights", "advantages_before", "advantages")
    return pa.schema(
        [
            *((name, pa.int32()) for name in ("step", "group", "rollout")),
            *((name, pa.string()) for name in ("kind", "prompt", "completion")),
            *((name, pa.float32()) for name in numbers),
            ("length", pa.int32()),
            ("token_ids", pa.list_(pa.int32())),
            ("tokens", pa.list_(pa.string())),
            *((name, pa.list_(pa.float32())) for name in lists),
        ]
    )


def read_credit(run: str | Path) -> Credit:
    """Return all token records of a run.

    Raises:
        FileNotFoundError: There is none.
        ValueError: One is damaged.
    """
    raise NotImplementedError
