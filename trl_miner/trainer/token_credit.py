"""Token records: which rollouts to record, and what each of their tokens was paid. `runs.token_credit` writes them.

# N rollouts of the global batch, B of this process, M recorded ones, T padded completion tokens, G rollouts per prompt
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..methods import ESTIMATORS, AdvantageEstimator, Estimate, Rollouts
from ..methods.groups import GroupKinds
from ..methods.method import CreditExplanation
from ..runs.token_credit import KINDS, write_credit
from .token_texts import TokenTexts


class CreditRecorder:
    """Records some rollouts of a generation batch every `log_token_credit_steps` optimizer steps.

    Args:
        trainer: A `MinerGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def record(
        self, batch: dict[str, Any], rollouts: Rollouts, verifier_rewards_N: Tensor, estimate: Estimate
    ) -> None:
        """Record this generation batch if it is due. Every process must call it.

        Args:
            batch: TRL's, with its own advantages.
            rollouts: The batch as the estimators have seen it.
            verifier_rewards_N: (N,) rewards of the verifier alone.
            estimate: The estimators' advantages.
        """
        step = self._due_step()
        if step is None:
            return
        trainer, args = self._trainer, self._trainer.args
        is_chosen_N = choose_rollouts(rollouts.kinds, trainer.num_generations, args.log_token_credit_rollouts)
        chosen = self._gather(batch, rollouts, estimate, is_chosen_N)
        if not trainer.is_world_process_zero():
            return
        method = next((method for method in args.estimators if method.explain_credit is not None), None)
        knobs = args.knobs(method.name) if method else {}
        table = credit_table(
            chosen,
            step=step,
            rollouts=rollouts,
            verifier_rewards_N=verifier_rewards_N,
            method=method,
            knobs=knobs,
            tokenizer=trainer.processing_class,
        )
        about = {"step": step, "estimator": args.advantage_estimator}
        if method is not None:
            about |= {name: knobs[name] for name in method.recorded_knobs}
        for other in {*ESTIMATORS.values(), *args.estimators}:  # the keys are there, with null, for every method
            prefix = other.metric_prefix
            about |= {name: estimate.metrics.get(f"{prefix}/{name}") for name in other.recorded_metrics}
        about |= {
            "num_generations": trainer.num_generations,
            "rollouts_in_batch": len(is_chosen_N),
            "rollouts_logged": len(chosen),
        }
        write_credit(args.output_dir, table, about)

    def _due_step(self) -> int | None:
        """Return the step to record this generation batch under: one that it trains and that records are wanted of."""
        trainer, args = self._trainer, self._trainer.args
        cycle = args.steps_per_generation * trainer.num_iterations
        if trainer._step % max(cycle, args.gradient_accumulation_steps):  # not the first of several for one step
            return None
        every, done = args.log_token_credit_steps, trainer.state.global_step
        step = (done // every + 1) * every
        last = min(done + max(1, cycle // args.gradient_accumulation_steps), trainer.state.max_steps)
        return step if step <= last else None

    def _gather(
        self, batch: dict[str, Any], rollouts: Rollouts, estimate: Estimate, is_chosen_N: Tensor
    ) -> list[dict[str, Any]]:
        """Return the chosen rollouts of all processes; a forward where their log-probs are not known."""
        device = self._trainer.accelerator.device
        # With dropout a forward draws numbers, and recording must not change what is trained.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            scores = rollouts.score(("old_logps",), is_chosen_N)
        old_logps_BT = scores["old_logps"].masked_fill(~scores["mask"].bool(), torch.nan)
        advantages = batch["advantages"] if estimate.advantages is None else estimate.advantages
        if advantages.dim() == 1:
            advantages = advantages.unsqueeze(1).expand(rollouts.mask_BT.shape)
        rows = rollouts.local(is_chosen_N).nonzero().squeeze(1)
        first_row = rollouts.world.local_slice(len(rollouts.mask_BT)).start
        chosen: list[dict[str, Any]] = gather_object(
            local_rollouts(batch, rollouts.mask_BT, old_logps_BT, advantages, rows, first_row)
        )
        return chosen


def choose_rollouts(kinds: GroupKinds, num_generations: int, limit: int) -> Tensor:
    """Choose the rollouts to record: whole prompts, PH, HE and NH in turn, each kind in the order of the batch.

    Args:
        kinds: (N,) bools, the kind of each rollout's group.
        num_generations: G.
        limit: Rollouts at most; one prompt is recorded in any case.

    Returns:
        (N,) bool.
    """
    waiting = [is_kind_N.view(-1, num_generations)[:, 0].nonzero().flatten().tolist() for is_kind_N in kinds]
    wanted, chosen = max(1, limit // num_generations), torch.zeros_like(kinds.is_ph_N)
    while wanted and any(waiting):
        for groups in waiting:
            if groups and wanted:
                first = groups.pop(0) * num_generations
                chosen[first : first + num_generations] = True
                wanted -= 1
    return chosen


def local_rollouts(
    output: Mapping[str, Tensor],
    mask_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    rows: Tensor,
    first_row: int,
) -> list[dict[str, Any]]:
    """Return the chosen rollouts of this process, without padding, ready to be gathered as objects.

    Args:
        output: TRL's batch.
        mask_BT: (B, T), non-zero where a token counts.
        old_logps_BT: (B, T) log-probs under the old policy, in nats; NaN where they are not known.
        advantages_BT: (B, T) that the loss will be given.
        rows: Indices of the chosen rows among the B.
        first_row: The place of this process's first row in the global batch.

    Returns:
        One dict per chosen row.
    """
    columns = (output["completion_ids"], mask_BT, old_logps_BT, advantages_BT)
    chosen = []
    for row in rows.tolist():
        is_generated_T = output["completion_mask"][row].bool()
        token_ids, counts, old_logps, advantages = (column[row][is_generated_T].cpu() for column in columns)
        chosen.append(
            {
                "row": first_row + row,
                "prompt_ids": output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist(),
                "token_ids": token_ids.numpy(),
                "counts": counts.bool().numpy(),
                "old_logps": old_logps.float().numpy(),
                "advantages": advantages.float().numpy(),
            }
        )
    return chosen


def credit_table(
    chosen: Sequence[Mapping[str, Any]],
    *,
    step: int,
    rollouts: Rollouts,
    verifier_rewards_N: Tensor,
    method: AdvantageEstimator | None,
    knobs: Mapping[str, Any],
    tokenizer: Any,
) -> Any:
    """Return the records of a batch as a table of one row per rollout, rows of one prompt adjacent.

    The method explains weights and advantages before calibration anew from the log-probs: the training itself has no
    use for them.

    Args:
        chosen: `local_rollouts` of every process, in the order of their ranks; whole prompts.
        step: The optimizer step, as in the names of TRL's completions.
        rollouts: The whole batch.
        verifier_rewards_N: (N,) rewards of the verifier alone; NaN: unscorable.
        method: The estimator that explains its credit; None: none of the run does.
        knobs: The method's.
        tokenizer: The model's, or its processor.

    Returns:
        A `pyarrow.Table` with the columns of `runs.token_credit`.
    """
    import pyarrow as pa

    num_generations = rollouts.num_generations
    rows_M = torch.tensor([row["row"] for row in chosen])
    kinds = GroupKinds(*(is_kind_N.cpu()[rows_M] for is_kind_N in rollouts.kinds))
    rewards_M, verifier_M, grpo_M = (
        values_N.float().cpu()[rows_M] for values_N in (rollouts.rewards_N, verifier_rewards_N, rollouts.advantages_N)
    )
    counts_MT, logps_MT, after_MT = (_padded(chosen, name) for name in ("counts", "old_logps", "advantages"))
    counts_MT = counts_MT.bool()
    after_MT = torch.where(counts_MT, after_MT, 0.0)
    is_known_MT = counts_MT & logps_MT.isfinite()
    if method is not None and method.explain_credit is not None:
        credit = method.explain_credit(
            rewards_M, logps_MT, is_known_MT, after_MT,
            kinds=kinds, advantages_N=grpo_M, num_generations=num_generations, **knobs,
        )  # fmt: skip
    else:
        credit = CreditExplanation(torch.zeros_like(kinds.is_ph_N), torch.zeros_like(after_MT), after_MT)
    nll_M = -torch.where(is_known_MT, logps_MT, 0.0).sum(dim=1, dtype=torch.float64) / is_known_MT.sum(dim=1)
    lengths_M = counts_MT.sum(dim=1)
    means_M = after_MT.sum(dim=1, dtype=torch.float64) / lengths_M.clamp(min=1)
    token_ids = [row["token_ids"].tolist() for row in chosen]
    texts = TokenTexts(tokenizer)

    def lists(values_MT: Tensor, is_there_M: Tensor | None = None) -> Any:
        values = [values_MT[row, : len(ids)].numpy() for row, ids in enumerate(token_ids)]
        there = [True] * len(values) if is_there_M is None else is_there_M.tolist()
        return pa.array([one if has else None for one, has in zip(values, there, strict=True)], pa.list_(pa.float32()))

    old_logps = [pa.array(row["old_logps"], pa.float32(), from_pandas=True) for row in chosen]  # NaN: not known
    columns = {
        "step": pa.array([step] * len(chosen), pa.int32()),
        "group": pa.array((rows_M // num_generations).numpy(), pa.int32()),
        "rollout": pa.array((rows_M % num_generations).numpy(), pa.int32()),
        "kind": pa.array([KINDS[kind] for kind in torch.stack([*kinds]).int().argmax(dim=0).tolist()]),
        "prompt": pa.array([texts.whole(row["prompt_ids"]) for row in chosen], pa.string()),
        "completion": pa.array([texts.whole(ids) for ids in token_ids], pa.string()),
        "reward": _numbers(rewards_M),
        "verifier_reward": _numbers(verifier_M),
        "grpo_advantage": _numbers(grpo_M),
        "advantage": _numbers(means_M),
        "nll": _numbers(nll_M),
        "length": pa.array(lengths_M.numpy(), pa.int32()),
        "token_ids": pa.array(token_ids, pa.list_(pa.int32())),
        "tokens": pa.array([texts.pieces(ids) for ids in token_ids], pa.list_(pa.string())),
        "old_logps": pa.array(old_logps, pa.list_(pa.float32())),
        "weights": lists(credit.weights_NT, credit.is_ruled_N),
        "advantages_before": lists(credit.before_NT),
        "advantages": lists(after_MT),
    }
    return pa.table(columns)


def _padded(chosen: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    rows = [torch.from_numpy(row[name]).float() for row in chosen]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _numbers(values_M: Tensor) -> Any:
    import pyarrow as pa

    return pa.array(values_M.float().numpy(), pa.float32(), from_pandas=True)  # NaN is null
