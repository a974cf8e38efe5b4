"""Token records: what each token of some rollouts was paid, as Parquet beside TRL's completions.

# N rollouts of the global batch, B of this process, M recorded ones, T padded completion tokens, G rollouts per prompt
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..methods.groups import GroupKinds
from ..methods.miner import CREDITS, is_mined, miner_advantages
from ..runs.token_credit import KINDS

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def choose_rollouts(kinds: GroupKinds, num_generations: int, limit: int) -> Tensor:
    """Which rollouts to record: whole prompts, PH, HE and NH in turn, each kind in the order of the batch.

    Args:
        kinds: (N,) bools, the kind of each rollout's group.
        num_generations: G.
        limit: Rollouts at most; one prompt is recorded whatever it says.

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
    """The chosen rollouts of this process, without padding, ready to be gathered as objects.

    Args:
        output: TRL's batch.
        mask_BT: (B, T), non-zero where a token counts.
        old_logps_BT: (B, T) log-probs under the old policy, in nats; NaN where they are not known.
        advantages_BT: (B, T) what the loss will be given.
        rows: Indices of the chosen rows among the B.
        first_row: Where this process's rows begin in the global batch.

    Returns:
        One dict per chosen row.
    """
    columns = (output["completion_ids"], mask_BT, old_logps_BT, advantages_BT)
    found = []
    for row in rows.tolist():
        is_generated_T = output["completion_mask"][row].bool()
        token_ids, counts, old_logps, advantages = (column[row][is_generated_T].cpu() for column in columns)
        found.append(
            {
                "row": first_row + row,
                "prompt_ids": output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist(),
                "token_ids": token_ids.numpy(),
                "counts": counts.bool().numpy(),
                "old_logps": old_logps.float().numpy(),
                "advantages": advantages.float().numpy(),
            }
        )
    return found


def credit_table(
    rollouts: Sequence[Mapping[str, Any]],
    *,
    step: int,
    num_generations: int,
    kinds: GroupKinds,
    rewards_N: Tensor,
    verifier_rewards_N: Tensor,
    grpo_advantages_N: Tensor,
    knobs: Mapping[str, Any] | None,
    tokenizer: Any,
) -> Any:
    """The records of a batch as a table of one row per rollout, rows of one prompt adjacent.

    Weights and advantages before calibration are computed anew from the log-probs by the method's own functions: the
    training has no use for either as such.

    Args:
        rollouts: `local_rollouts` of every process, in the order of their ranks; whole prompts.
        step: Optimizer step, as in the names of TRL's completions.
        num_generations: G.
        kinds: (N,) bools, as are the rewards: of the whole batch.
        rewards_N: (N,) total rewards; NaN: unscorable.
        verifier_rewards_N: (N,) those of the verifier alone.
        grpo_advantages_N: (N,) TRL's advantages.
        knobs: Those of `miner_advantages`; None: the method is another one.
        tokenizer: Of the model, or its processor.

    Returns:
        A `pyarrow.Table` with the columns step, group, rollout, kind, prompt, completion, reward, verifier_reward,
        grpo_advantage, advantage, nll (nats per token), length (tokens that count), and one list a rollout:
        token_ids, tokens, old_logps (nats), weights, advantages_before, advantages.
    """
    import pyarrow as pa

    rows_M = torch.tensor([rollout["row"] for rollout in rollouts])
    kinds = GroupKinds(*(is_kind_N.cpu()[rows_M] for is_kind_N in kinds))
    rewards_M, verifier_M, grpo_M = (
        values_N.float().cpu()[rows_M] for values_N in (rewards_N, verifier_rewards_N, grpo_advantages_N)
    )
    counts_MT, logps_MT, after_MT = (_padded(rollouts, name) for name in ("counts", "old_logps", "advantages"))
    counts_MT = counts_MT.bool()
    after_MT = torch.where(counts_MT, after_MT, 0.0)
    is_known_MT = counts_MT & logps_MT.isfinite()
    is_ruled_M = torch.zeros_like(kinds.is_ph_N)
    weights_MT, before_MT = torch.zeros_like(after_MT), after_MT
    if knobs is not None:
        is_ruled_M = is_mined(kinds, knobs["nh_scale"])
        weights_MT = CREDITS[knobs["credit"]](logps_MT.masked_fill(~is_known_MT, 0.0), is_known_MT, knobs["gamma"])
        uncapped = miner_advantages(
            rewards_M, logps_MT, is_known_MT, num_generations=num_generations, kinds=kinds, advantages_N=grpo_M,
            **{**knobs, "lambda_max": None},
        )  # fmt: skip
        before_MT = torch.where(is_ruled_M.unsqueeze(1), uncapped.advantages_NT, after_MT)
    num_known_M = is_known_MT.sum(dim=1)
    nll_M = -torch.where(is_known_MT, logps_MT, 0.0).sum(dim=1, dtype=torch.float64) / num_known_M
    lengths_M = counts_MT.sum(dim=1)
    means_M = after_MT.sum(dim=1, dtype=torch.float64) / lengths_M.clamp(min=1)
    ends = [len(rollout["token_ids"]) for rollout in rollouts]
    token_ids = [rollout["token_ids"].tolist() for rollout in rollouts]
    texts = _Texts(tokenizer)

    def lists(values_MT: Tensor, is_there_M: Tensor | None = None) -> Any:
        values = [values_MT[row, :end].numpy() for row, end in enumerate(ends)]
        there = [True] * len(values) if is_there_M is None else is_there_M.tolist()
        return pa.array([one if has else None for one, has in zip(values, there, strict=True)], pa.list_(pa.float32()))

    columns = {
        "step": pa.array([step] * len(rollouts), pa.int32()),
        "group": pa.array((rows_M // num_generations).numpy(), pa.int32()),
        "rollout": pa.array((rows_M % num_generations).numpy(), pa.int32()),
        "kind": pa.array([KINDS[kind] for kind in torch.stack([*kinds]).int().argmax(dim=0).tolist()]),
        "prompt": pa.array([texts.whole(rollout["prompt_ids"]) for rollout in rollouts], pa.string()),
        "completion": pa.array([texts.whole(ids) for ids in token_ids], pa.string()),
        "reward": _numbers(rewards_M),
        "verifier_reward": _numbers(verifier_M),
        "grpo_advantage": _numbers(grpo_M),
        "advantage": _numbers(means_M),
        "nll": _numbers(nll_M),
        "length": pa.array(lengths_M.numpy(), pa.int32()),
        "token_ids": pa.array(token_ids, pa.list_(pa.int32())),
        "tokens": pa.array([texts.pieces(ids) for ids in token_ids], pa.list_(pa.string())),
        "old_logps": pa.array(
            [
                pa.array(rollout["old_logps"], pa.float32(), from_pandas=True)  # NaN: not known
                for rollout in rollouts
            ],
            pa.list_(pa.float32()),
        ),
        "weights": lists(weights_MT, is_ruled_M),
        "advantages_before": lists(before_MT),
        "advantages": lists(after_MT),
    }
    return pa.table(columns)


def _padded(rollouts: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    rows = [torch.from_numpy(rollout[name]).float() for rollout in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _numbers(values_M: Tensor) -> Any:
    import pyarrow as pa

    return pa.array(values_M.float().numpy(), pa.float32(), from_pandas=True)  # NaN is null


class _Texts:
    """The text of each token as it stands in a text, so that all of them together are the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
        self._known: dict[int, str] = {}

    def whole(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """One text a token; the bytes of a character that several tokens share go to the last of them."""
        texts = [self._piece(token_id) for token_id in token_ids]
        start = 0
        for place, text in enumerate(texts):
            if _REPLACEMENT not in text:
                start = place + 1
                continue
            together = self._decode(token_ids[start : place + 1])
            if _REPLACEMENT not in together:
                texts[start : place + 1] = [""] * (place - start) + [together]
                start = place + 1
        return texts

    def _piece(self, token_id: int) -> str:
        """Alone, a tokenizer of the SentencePiece kind drops the space before a word: so look at the second of two."""
        if token_id not in self._known:
            alone, twice = self._decode([token_id]), self._decode([token_id, token_id])
            self._known[token_id] = twice[len(alone) :] if twice.startswith(alone) else alone
        return self._known[token_id]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False)
