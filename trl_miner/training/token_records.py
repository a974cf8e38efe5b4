"""Token records: which rollouts to record, and the advantage of each of their tokens.
`runs.token_credit` writes them.

# N rollouts of the global batch, B of this process, M recorded ones, T padded completion tokens, G
rollouts per prompt
"""

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..methods import MINER, Rollouts
from ..methods.groups import GroupKinds
from ..methods.miner import focal_weights, miner_advantages
from ..runs.token_credit import KINDS, TokenTexts, schema, write_credit
from ..trainer.observers import ScoredBatch
from .traces import log_traces

MOST_ROLLOUTS = 64  # of a record: whole prompts, of each kind in turn


class TokenRecords:
    """Writes a record of some rollouts of each generation batch that is due: one that is the first
    to be trained in a step of which `log_token_credit` wants records."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def observe(self, batch: ScoredBatch) -> None:
        trainer = self._trainer
        step = due_step(batch.steps, trainer.args.log_token_credit)
        if step is None:
            return
        # With dropout a forward draws numbers, and recording must not change what is trained.
        with trainer.undoing_draws():
            chosen = batch.token_rows(choose_rollouts(batch.rollouts))
        if not trainer.is_world_process_zero():
            return
        args = trainer.args
        knobs = args.knobs(MINER) if MINER in args.estimators else None
        table = credit_table(
            chosen, step, batch.rollouts, batch.verifier_rewards_N, knobs, trainer.processing_class
        )
        write_credit(args.output_dir, table, step, batch.rollouts.num_generations)
        if "trackio" in (args.report_to or ()):
            log_traces(table.to_pylist(), step)


def due_step(steps: range, every: int) -> int | None:
    """Return the first of some steps of which records are wanted; None: there is none."""
    step = math.ceil(steps.start / every) * every if every else 0
    return step if step in steps else None


def choose_rollouts(rollouts: Rollouts) -> Tensor:
    """Return (N,) bool, the rollouts to record: whole prompts, at least one, of each kind in
    turn."""
    size = rollouts.num_generations
    waiting = [
        is_kind_N.view(-1, size)[:, 0].nonzero().flatten().tolist() for is_kind_N in rollouts.kinds
    ]
    in_turn = [group for turn in zip_longest(*waiting) for group in turn if group is not None]
    chosen = torch.zeros_like(rollouts.kinds.is_ph_N)
    chosen.view(-1, size)[in_turn[: max(1, MOST_ROLLOUTS // size)]] = True
    return chosen


def credit_table(
    chosen: Sequence[Mapping[str, Any]],
    step: int,
    rollouts: Rollouts,
    verifier_rewards_N: Tensor,
    knobs: Mapping[str, Any] | None,
    tokenizer: Any,
) -> Any:
    """Return the records as a `pyarrow.Table` with the columns of `runs.token_credit`, rows of a
    prompt adjacent.

    `knobs` are MINER's; None: it has no part in the run.
    """
    import pyarrow as pa

    rows_M = torch.tensor([row["row"] for row in chosen])
    kinds = GroupKinds(*(is_kind_N.cpu()[rows_M] for is_kind_N in rollouts.kinds))
    of_batch = rollouts.rewards_N, verifier_rewards_N, rollouts.advantages_N
    rewards_M, verifier_M, grpo_M = (values_N.float().cpu()[rows_M] for values_N in of_batch)
    counts_MT, logps_MT, after_MT = (
        _padded(chosen, name) for name in ("counts", "old_logps", "advantages")
    )
    weights_MT, before_MT = None, torch.where(counts_MT.bool(), after_MT, 0.0)
    if knobs is not None:  # computed again, without the cap
        is_known_MT = counts_MT.bool() & logps_MT.isfinite()
        weights_MT = focal_weights(logps_MT, is_known_MT, knobs["gamma"])
        context: dict[str, Any] = {
            "kinds": kinds,
            "advantages_N": grpo_M,
            "num_generations": rollouts.num_generations,
        }
        uncapped = miner_advantages(
            rewards_M, logps_MT, is_known_MT, **context, **{**knobs, "lambda_max": None}
        )
        before_MT = torch.where(kinds.is_ph_N.unsqueeze(1), uncapped.advantages_NT, before_MT)
    kinds_M = torch.stack([*kinds]).int().argmax(dim=0).tolist()
    texts, records = TokenTexts(tokenizer), []
    for i, row in enumerate(chosen):
        ids, counts, logps = row["token_ids"], row["counts"], row["old_logps"]
        given = np.where(counts, row["advantages"], np.nan)  # null at what is not the model's
        scored = logps[counts & np.isfinite(logps)]
        group, rollout = divmod(row["row"], rollouts.num_generations)
        record = {
            "step": step,
            "group": group,
            "rollout": rollout,
            "kind": KINDS[kinds_M[i]],
            "prompt": texts.whole(row["prompt_ids"]),
            "completion": texts.whole(ids),
            "reward": rewards_M[i].item(),
            "verifier_reward": verifier_M[i].item(),
            "grpo_advantage": grpo_M[i].item(),
            "advantage": np.nansum(given, dtype=np.float64) / max(1, counts.sum()),
            "nll": -scored.mean(dtype=np.float64) if len(scored) else None,
            "length": int(counts.sum()),
            "token_ids": ids,
            "tokens": texts.pieces(ids),
            "old_logps": logps,
            "weights": None,
            "advantages_before": before_MT[i, : len(ids)].numpy(),
            "advantages": given,
        }
        if weights_MT is not None and kinds.is_ph_N[i]:
            record["weights"] = weights_MT[i, : len(ids)].numpy()
        records.append(record)
    columns = {
        # NaN is null
        field.name: pa.array(
            [record[field.name] for record in records], field.type, from_pandas=True
        )
        for field in schema()
    }
    return pa.table(columns)


def _padded(chosen: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    rows = [torch.from_numpy(row[name]).float() for row in chosen]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
