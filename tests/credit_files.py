"""Token-credit files in the format that a training writes, made of known numbers."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LISTS = ("token_ids", "tokens", "old_logps", "weights", "advantages_before", "advantages")
SCHEMA = pa.schema(
    [(name, pa.int32()) for name in ("step", "group", "rollout")]
    + [(name, pa.string()) for name in ("kind", "prompt", "completion")]
    + [
        (name, pa.float32())
        for name in ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll")
    ]
    + [
        ("length", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.string())),
    ]
    + [(name, pa.list_(pa.float32())) for name in LISTS[2:]]
)


def rollout(
    kind, tokens, logps, *, step=10, group=0, index=0, mined=0.0, scale=1.0, grpo=0.0, **changes
):
    """Return one row.

    A PH rollout gets MINER's advantages: mined * (1 - p)^2, times `scale` after calibration. Others
    get `grpo`.
    """
    logps = np.asarray(logps, dtype=np.float32)
    weights = (1 - np.exp(logps)) ** 2 if kind == "PH" else np.ones_like(logps)
    before = weights * np.float32(mined) if kind == "PH" else weights * np.float32(grpo)
    after = weights * np.float32(mined * scale) if kind == "PH" else before
    known = logps[np.isfinite(logps)]
    right = kind == "PH" or (kind == "HE" and grpo > 0)
    row = {
        "step": step,
        "group": group,
        "rollout": index,
        "kind": kind,
        "prompt": f"What is {group} + 1?",
        "completion": "".join(tokens),
        "reward": float(right),
        "verifier_reward": float(right),
        "grpo_advantage": grpo,
        "advantage": float(after.mean()) if len(after) else 0.0,
        "nll": -float(known.mean()) if len(known) else None,
        "length": len(tokens),
        "token_ids": [sum(map(ord, token)) % 1000 for token in tokens],
        "tokens": list(tokens),
        "old_logps": logps.tolist(),
        "weights": weights.tolist() if kind == "PH" else None,
        "advantages_before": before.tolist(),
        "advantages": after.tolist(),
    }
    return row | changes


def write_credit(run: Path, rows, *, step=10, num_generations=2) -> Path:
    """Write `RUN/credit/credit_00010.parquet`, a row group per prompt."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    path = Path(run) / "credit" / f"credit_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=num_generations, write_page_checksum=True)
    return path


def small_batch(step=10, scale=0.25):
    """Return the rows of a PH, an HE and an NH prompt of two rollouts each."""
    words = ["Let", " me", " check", ":", " 2", "\n", "So"]
    logps = np.log(np.linspace(0.95, 0.2, 7) - 0.01 * (step % 7))
    at = {"step": step, "scale": scale}
    return [
        rollout("PH", words, logps, group=0, index=0, mined=0.5, **at),
        rollout("PH", words[:4], logps[:4], group=0, index=1, mined=0.0, **at),
        rollout(
            "HE",
            ["The", " answer", " is", " 2"],
            [-0.1, -0.2, -1.5, -0.3],
            group=1,
            index=0,
            grpo=0.7,
            **at,
        ),
        rollout("HE", ["So", " 3"], [-2.0, -0.4], group=1, index=1, grpo=-0.7, **at),
        rollout("NH", ["I", " give", " up"], [-1.0, -0.7, -0.01], group=2, index=0, **at),
        rollout("NH", ["7"], [-0.9], group=2, index=1, **at),
    ]
