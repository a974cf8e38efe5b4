"""What MINER would credit in the rollouts of any run: `trl-miner inspect RUN --model CHECKPOINT`.

The log-probs are those of the files, which prime-rl's have, else a model's: it reads prompts and
completions, and samples nothing.

# N = P*G rollouts of a step, rows of one prompt adjacent; T padded completion tokens
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .common.progress import Progress
from .data.prompts import token_ids
from .evaluation.backends import ModelOptions, TransformersBackend
from .evaluation.probe import Policy, Samples
from .methods.groups import GroupKinds, group_kinds
from .methods.grpo import group_relative_advantages
from .methods.miner import miner_advantages
from .methods.rollouts import Rollouts
from .prompt_kinds import PromptKind
from .runs.history import RunHistory
from .runs.models import base_of_adapter
from .runs.token_credit import Credit
from .training.token_records import credit_table
from .viewing.prompt_outcomes import Outcomes, read_outcomes
from .viewing.rollouts import HOW_TO_LOG, rows_of_groups

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_TOKENS = {"cpu": 1_024, "cuda": 16_384}  # of one forward
_KNOBS: dict[str, Any] = dict(gamma=2.0, lambda_max=1.5e-3, intrinsic="nll")  # the paper's


@dataclass
class Scorer:
    """Gives rollouts their tokens and log-probs.

    Args:
        model: Hub id or folder of a checkpoint; where the files have log-probs, its tokenizer alone
            is used.
        temperature: At which the rollouts were sampled.
        quiet: Show no progress.
    """

    model: str
    temperature: float = 1.0
    quiet: bool = False
    scored: int = field(default=0, init=False)  # rollouts that the model has read

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"--temperature must be above 0: got {self.temperature:g}.")

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    @cached_property
    def _policy(self) -> Policy:
        base = base_of_adapter(self.model)
        options = ModelOptions(base or self.model, adapter=self.model if base else None)
        model = TransformersBackend(options, self.tokenizer).model
        tokenizer = self.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        most = _MOST_TOKENS.get(model.device.type, _MOST_TOKENS["cuda"])
        return Policy(model.eval(), pad or 0, temperature=self.temperature, max_tokens=most)

    def tokens(self, row: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the tokens of a rollout as `rollout_lines` has them, those of its text where the
        file has none."""
        if row["tokens"] is not None:
            return row["tokens"]
        asked = row["asked"]
        if not row["prompt"]:
            raise ValueError("No model can score rollouts whose prompts are not in the file.")
        if not isinstance(asked, str):
            asked = [dict(message) for message in asked]
        ids = np.array(
            self.tokenizer(row["completion"], add_special_tokens=False)["input_ids"], int
        )
        return {
            "prompt": np.array(token_ids(asked, self.tokenizer)), "ids": ids,
            "is_sampled": np.ones(len(ids), bool), "logps": np.full(len(ids), np.nan, np.float32),
        }  # fmt: skip

    @torch.no_grad()
    def score(self, groups: Sequence[Sequence[dict[str, np.ndarray]]]) -> None:
        """Write log-probs into the tokens of rollouts, where they lack them."""
        with Progress("scoring", len(groups), unit="prompts", quiet=self.quiet) as progress:
            for group in groups:
                rows = [
                    place for place, row in enumerate(group)
                    if not np.isfinite(row["logps"][row["is_sampled"]]).all()
                ]  # fmt: skip
                rewards_N = torch.zeros(len(group))
                samples = Samples(
                    [group[0]["prompt"].tolist()], [row["ids"].tolist() for row in group],
                    [""] * len(group), rewards_N, rewards_N,
                )  # fmt: skip
                for chunk in self._policy.chunks(samples, 0, rows) if rows else ():
                    logps, _ = self._policy.score(samples, 0, chunk)
                    for place, values in zip(chunk, logps.float().cpu().numpy(), strict=True):
                        group[place]["logps"][:] = values[: len(group[place]["ids"])]
                self.scored += len(rows)
                progress.update()


def score_rollouts(
    run: str | Path,
    scorer: Scorer,
    *,
    steps: Collection[int] | None = None,
    correct: str | None = None,
    threshold: float | None = None,
) -> Credit:
    """Return what MINER would credit in some steps of a run, as a training with `log_token_credit`
    records it.

    Args:
        run: The folder of a run of any trainer, or a file of rollouts.
        scorer: Gives tokens and log-probs.
        steps: Whose prompts all count, as MINER's cap is of a whole batch. None: the last step with
            a prompt that is all right.
        correct, threshold: Which reward says what is right, see `write_report`.

    Raises:
        FileNotFoundError: The run has no rollouts.
        ValueError: A step is not there, or has no prompt that is all right.
    """
    import pyarrow as pa

    folder = Path(run)
    history = RunHistory(folder, folder.name, {})
    outcomes = read_outcomes(history, correct, threshold, quiet=scorer.quiet)
    if outcomes is None or outcomes.rollouts.empty:
        raise FileNotFoundError(f"{folder} holds no rollouts that could be scored. {HOW_TO_LOG}")
    is_right = outcomes.groups["kind"] == PromptKind.ALL_RIGHT
    newest = outcomes.groups["step"][is_right].tail(1).astype(int).tolist()
    groups = outcomes.at_steps(steps or newest)
    if not is_right[groups.index].any() or not newest:
        raise ValueError(
            "No prompt is all right in these steps, so MINER would credit nothing. Choose others"
            " with --steps; trl-miner report shows how prompts came out."
        )
    chosen = groups.set_index("group")["step"]
    rows = rows_of_groups(folder, chosen.index, with_tokens=True, quiet=scorer.quiet)
    notes, tables = [*outcomes.notes], []
    # a group may have arrived over two steps
    for step, rows_of_step in rows.groupby(rows["group"].map(chosen)):
        table, said = _of_step(int(step), rows_of_step, outcomes, scorer)
        tables.append(table)
        notes += said
    notes.append(_about_log_probs(scorer))
    return Credit(folder.resolve().name, ("MINER",), pa.concat_tables(tables), tuple(notes))


def _about_log_probs(scorer: Scorer) -> str:
    if not scorer.scored:
        return "Log-probs are those of the files."
    return (
        f"Log-probs are those of {scorer.model} at temperature {scorer.temperature:g}. Texts became"
        " tokens again, without the one that ends an answer: the checkpoint that sampled them gives"
        " the truest numbers."
    )


def _of_step(
    step: int, rows: "DataFrame", outcomes: Outcomes, scorer: Scorer
) -> tuple[Any, list[str]]:
    """Return the records of a step, and sentences on them."""
    groups = [group for _, group in rows.groupby("group", sort=False)]
    size = int(np.median([len(group) for group in groups]))
    whole = [group for group in groups if len(group) == size and size > 1]
    if not whole:
        raise ValueError(f"Step {step} has no prompt with several rollouts.")
    flat = [row for group in whole for row in group.to_dict("records")]
    tokens = [scorer.tokens(row) for row in flat]
    rewards_N = torch.tensor([row["reward"] for row in flat])
    verifier_N = torch.tensor([min(row[name] for name in outcomes.verifiers) for row in flat])
    advantages_N = group_relative_advantages(rewards_N, size)
    kinds = group_kinds(
        rewards_N, size, correct_threshold=outcomes.threshold, verifier_rewards_N=verifier_N,
        advantages_N=advantages_N,
    )  # fmt: skip
    places = range(0, len(flat), size)
    scorer.score([tokens[place : place + size] for place in places if kinds.is_ph_N[place]])
    mask_NT, logps_NT = (_padded(tokens, name) for name in ("is_sampled", "logps"))
    mined = miner_advantages(
        rewards_N, logps_NT, mask_NT, num_generations=size, advantages_N=advantages_N, kinds=kinds,
        **_KNOBS,
    )  # fmt: skip
    chosen = [
        {"row": place, "token_ids": row["ids"].tolist(), "prompt_ids": row["prompt"].tolist(),
         "counts": row["is_sampled"], "old_logps": row["logps"],
         "advantages": mined.advantages_NT[place, : len(row["ids"])].numpy()}
        for place, row in enumerate(tokens)
    ]  # fmt: skip
    rollouts = Rollouts(rewards_N, advantages_N, mask_NT, kinds, size, score=lambda *_: {})
    table = credit_table(chosen, step, rollouts, verifier_N, _KNOBS, scorer.tokenizer)
    return table, [*_told(step, kinds, size, mined.scale, len(groups) - len(whole))]


def _told(step: int, kinds: GroupKinds, size: int, scale: float, left_out: int) -> Iterator[str]:
    right, mixed = (int(rows_N.sum()) // size for rows_N in (kinds.is_ph_N, kinds.is_he_N))
    yield (
        f"Step {step}: {right} of {len(kinds.is_ph_N) // size} prompts are all right, {mixed} mixed."
        f" MINER's cap would multiply the credit of the former by {scale:.3g}"
        + (", as no mixed prompt gives a measure." if not scale else ".")
    )
    if left_out:
        yield f"Step {step}: {left_out} prompts are left out, which have not {size} rollouts."


def _padded(tokens: Sequence[dict[str, np.ndarray]], name: str) -> Tensor:
    rows = [torch.from_numpy(row[name]).float() for row in tokens]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
