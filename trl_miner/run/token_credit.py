"""`credit/credit_STEP.parquet` of a run's folder: what each token of some rollouts was paid.

`TokenCredit`, an observer of the trainer, writes a file per recorded step. A row is a rollout; the
rows of a prompt are adjacent.

# N rollouts of the global batch, B of this process, T padded completion tokens, G rollouts a prompt
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .record import read_record

if TYPE_CHECKING:  # reading records needs no torch
    from torch import Tensor

    from ..methods.rollouts import Rollouts
    from ..trainer.trainer import ScoredBatch

FOLDER = "credit"
# Kinds of prompts: all right, mixed, all wrong, unscorable.
KINDS = ("PH", "HE", "NH", "unscorable")
MOST_ROLLOUTS = 64  # of a record: whole prompts, of each kind in turn


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
    reward, is_correct (1, 0, null), grpo_advantage, advantage (mean over tokens), nll (mean, nats);
    length (tokens of the model's); token_ids, tokens (texts), old_logps, advantages: one per token,
    and null where it is not the model's.
    """
    import pyarrow as pa

    numbers = ("reward", "is_correct", "grpo_advantage", "advantage", "nll")
    return pa.schema(
        [
            *((name, pa.int32()) for name in ("step", "group", "rollout")),
            *((name, pa.string()) for name in ("kind", "prompt", "completion")),
            *((name, pa.float32()) for name in numbers),
            ("length", pa.int32()),
            ("token_ids", pa.list_(pa.int32())),
            ("tokens", pa.list_(pa.string())),
            *((name, pa.list_(pa.float32())) for name in ("old_logps", "advantages")),
        ]
    )


def read_credit(run: str | Path) -> Credit:
    """Return all token records of a run.

    Raises:
        FileNotFoundError: There is none.
        ValueError: One is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = Path(run)
    tables = []
    for path in sorted((run / FOLDER).glob("credit_*.parquet")):
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            tables.append(table.select(schema().names).cast(schema()))
        except (KeyError, ValueError, OSError, pa.ArrowException) as error:
            raise ValueError(f"{path} is damaged ({error}). Move it out of {FOLDER}/.") from error
    if not tables:
        raise FileNotFoundError(
            f"No recorded tokens in {run}. Train with --log_token_credit 10, and give the run's"
            " output_dir."
        )
    record = read_record(run)
    keys = [(key, "ascending") for key in ("step", "group", "rollout")]
    table = pa.concat_tables(tables).sort_by(keys)
    return Credit(run.resolve().name, record.methods if record else (), table)


class TokenCredit:
    """Records some rollouts of the first generation batch that is trained on in, or just before,
    every so many optimizer steps.

    Args:
        trainer: A `MinerGRPOTrainer`, whose observer it becomes.
        every: Optimizer steps between two records.
    """

    def __init__(self, trainer: Any, every: int) -> None:
        args = trainer.args
        self.trainer, self.every = trainer, every
        per_batch = args.steps_per_generation * args.num_iterations
        self.steps = max(1, per_batch // args.gradient_accumulation_steps)  # of a batch
        trainer.observers.append(self)

    def __call__(self, batch: "ScoredBatch") -> None:
        """Record the batch, if it is due. Every process must call it."""
        from accelerate.utils import gather_object

        step = -(-batch.step // self.every) * self.every  # the next one that is due
        if step >= batch.step + self.steps:
            return
        is_row_N = choose_rollouts(batch.rollouts)
        rows = gather_object([*self._rows(batch, step, is_row_N)])
        if self.trainer.is_world_process_zero():
            write_credit(Path(self.trainer.args.output_dir), step, rows)

    def _rows(
        self, batch: "ScoredBatch", step: int, is_row_N: "Tensor"
    ) -> Iterator[dict[str, Any]]:
        """Yield what is recorded of this process's rollouts."""
        import torch

        rollouts, output, estimate = batch.rollouts, batch.output, batch.estimate
        tokenizer = self.trainer.processing_class
        logps_BT = rollouts.score("old_logps", is_row_N)
        place = rollouts.world.local_slice(len(rollouts.mask_BT)).start
        kinds_N = torch.stack([*rollouts.kinds]).int().argmax(dim=0)
        for row in rollouts.local(is_row_N).nonzero().flatten().tolist():
            group, rollout = divmod(place + row, rollouts.num_generations)
            length = int(output["completion_mask"][row].sum())
            is_token = rollouts.is_token_BT[row, :length]
            per_token = [
                values_BT[row, :length].float().masked_fill(~is_token, float("nan")).tolist()
                for values_BT in (logps_BT, estimate.advantages_BT)
            ]
            prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
            ids = output["completion_ids"][row, :length].tolist()
            nlls = -logps_BT[row, :length][is_token]
            yield {
                "step": step,
                "group": group,
                "rollout": rollout,
                "kind": KINDS[int(kinds_N[place + row])],
                "prompt": tokenizer.decode(prompt, skip_special_tokens=True),
                "completion": tokenizer.decode(ids, skip_special_tokens=True),
                "reward": rollouts.rewards_N[place + row].item(),
                "is_correct": rollouts.is_correct_N[place + row].item(),
                "grpo_advantage": rollouts.advantages_N[place + row].item(),
                "advantage": estimate.advantages_N[place + row].item(),
                "nll": nlls.double().mean().item(),
                "length": int(is_token.sum()),
                "token_ids": ids,
                "tokens": token_texts(tokenizer, ids),
                "old_logps": per_token[0],
                "advantages": per_token[1],
            }


def choose_rollouts(rollouts: "Rollouts") -> "Tensor":
    """Return (N,) bool, the rollouts to record: whole prompts, at least one, of each kind in
    turn."""
    import torch

    size = rollouts.num_generations
    by_kind = [is_kind_N[::size].nonzero().flatten().tolist() for is_kind_N in rollouts.kinds]
    in_turn = [group for turn in zip_longest(*by_kind) for group in turn if group is not None]
    is_group_P = torch.zeros(len(rollouts.rewards_N) // size, dtype=torch.bool)
    is_group_P[in_turn[: max(1, MOST_ROLLOUTS // size)]] = True
    return is_group_P.repeat_interleave(size).to(rollouts.rewards_N.device)


def write_credit(folder: Path, step: int, rows: Sequence[dict[str, Any]]) -> None:
    """Write `credit/credit_STEP.parquet`: a row per rollout, in the columns of `schema()`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        field.name: pa.array([row[field.name] for row in rows], field.type, from_pandas=True)
        for field in schema()
    }
    path = folder / FOLDER / f"credit_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd", write_page_checksum=True)


def token_texts(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:
    """Return one text per token, which are the completion's together; a character whose bytes
    several tokens share goes to the last of them."""
    from tokenizers.decoders import DecodeStream

    backend, stream = getattr(tokenizer, "backend_tokenizer", None), DecodeStream()
    if backend is None:  # a tokenizer in Python
        return [tokenizer.decode([token_id]) for token_id in token_ids]
    return [stream.step(backend, token_id) or "" for token_id in token_ids]
