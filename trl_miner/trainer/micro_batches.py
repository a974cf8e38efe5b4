"""Which rows go through the model together, so that little of what it computes is padding, or without effect.

TRL cuts a generation batch at random into micro-batches and pads all of them to its longest rollout. A gradient that
is a sum over rows does not depend on which of them share a micro-batch. So the rows of one optimizer step may be cut
into *pieces* of like length, and rows that add nothing to the sum may be left out.

# B rows of one of TRL's micro-batches, n rows of an optimizer step that are in its loss
# P padded prompt tokens, T padded completion tokens
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed import World

# How TRL's losses average over a micro-batch, and so what keeps the gradient when its rows are others:
SUMMED = {"cispo", "dapo", "vespo"}  # by tokens of the whole generation batch: nothing to do
ROW_MEAN = {"dr_grpo", "grpo", "luspo", "sapo"}  # by rows: weight a piece by its rows
TOKEN_MEAN = {"bnpo"}  # by tokens: weight a row by the tokens of the micro-batch that it comes from

# Moving rows costs a second pass over TRL's loss arithmetic, for its metrics: not worth it for less than this share.
WORTH_MOVING = 0.95
# A piece of short rows may have more rows than TRL's micro-batches, by this factor; never more tokens.
MOST_ROWS = 8


@dataclass(frozen=True)
class Cut:
    """What of the padding may go without changing what the model says of the other tokens.

    Attributes:
        prompts: On the left of prompts.
        completions: On the right of completions.
        multiple: Lengths stay multiples of this.
    """

    prompts: bool = True
    completions: bool = True
    multiple: int = 1

    def lengths(self, batch: dict[str, Any]) -> np.ndarray:
        """(B, 2): tokens of each row's prompt and completion, with the padding that has to stay.

        At least 1 and 2: TRL takes a tensor with one column for one number per row.
        """
        found = []
        for name, is_cut, least in (("prompt_mask", self.prompts, 1), ("completion_mask", self.completions, 2)):
            mask = batch[name].bool()
            size = mask.shape[1]
            if is_cut and size > 0:
                places = torch.arange(size, 0, -1) if name == "prompt_mask" else torch.arange(1, size + 1)
                lengths = (mask * places.to(mask.device)).amax(dim=1).clamp(min=least)
                lengths = (-(-lengths // self.multiple) * self.multiple).clamp(max=size)
            else:
                lengths = torch.full((len(mask),), size, device=mask.device)
            found.append(lengths)
        return torch.stack(found, dim=1).cpu().numpy()

    def trim(self, batch: dict[str, Any], lengths: np.ndarray | None = None) -> dict[str, Any]:
        """The batch without the padding that none of its rows needs."""
        longest = (self.lengths(batch) if lengths is None else lengths).max(axis=0)
        return _shorten(batch, *longest.tolist())


def _shorten(batch: dict[str, Any], num_prompt: int, num_completion: int) -> dict[str, Any]:
    size = batch["completion_ids"].shape[1]
    short = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            short[name] = value[:, value.shape[1] - num_prompt :]
        elif isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == size:
            short[name] = value[:, :num_completion]
    return short


def fewest_pieces(lengths_n2: np.ndarray, max_tokens: int) -> int:
    """How many pieces of at most `max_tokens` padded tokens the rows need, when rows of like length share one."""
    num_pieces, longest, num_rows = 0, np.zeros(2, dtype=np.int64), 0
    for row in lengths_n2[_by_length(lengths_n2)]:
        together = np.maximum(longest, row)
        if num_pieces == 0 or (num_rows + 1) * together.sum() > max_tokens:
            num_pieces, longest, num_rows = num_pieces + 1, row, 1
        else:
            longest, num_rows = together, num_rows + 1
    return num_pieces


def _by_length(lengths_n2: np.ndarray) -> np.ndarray:
    """Longest first: the processes are then at long pieces together, and what does not fit shows at once."""
    return np.argsort(-lengths_n2.sum(axis=1), kind="stable")


def partition(
    lengths_n2: np.ndarray, num_pieces: int, *, max_rows: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Cut rows into pieces with as few padded tokens as can be, among cuts of the rows in order of length.

    Args:
        lengths_n2: (n, 2) tokens of prompt and completion.
        num_pieces: How many. The last ones are empty when there are fewer rows.
        max_rows: Rows of a piece at most.
        max_tokens: Padded tokens of a piece at most.

    Returns:
        The row numbers of each piece, longest first.

    Raises:
        ValueError: The rows do not fit.
    """
    order = _by_length(lengths_n2)
    num_rows = len(order)
    num_full = min(num_pieces, num_rows)
    ends = [0] if num_full == 0 else _best_ends(lengths_n2[order], num_full, max_rows, max_tokens)
    pieces = [order[start:end].tolist() for start, end in zip(ends, ends[1:], strict=False)]
    return pieces + [[] for _ in range(num_pieces - len(pieces))]


def _best_ends(lengths_n2: np.ndarray, num_pieces: int, max_rows: int | None, max_tokens: int | None) -> list[int]:
    num_rows = len(lengths_n2)
    most = min(max_rows or num_rows, num_rows - num_pieces + 1)
    if max_tokens is not None:
        most = min(most, max(1, max_tokens // int(lengths_n2.sum(axis=1).min())))
    # tokens[i, k]: of a piece of the rows i to i + k
    last = np.arange(num_rows)[:, None] + np.arange(most)
    longest = np.maximum.accumulate(lengths_n2[np.minimum(last, num_rows - 1)], axis=1)
    tokens = longest.sum(axis=2) * np.arange(1, most + 1).astype(float)
    tokens[last >= num_rows] = np.inf
    if max_tokens is not None:
        tokens[tokens > max_tokens] = np.inf
    # Of cuts with as much padding the most even one: this adds less than a token in all.
    tokens += 0.5 * (tokens / (num_rows * lengths_n2.max(axis=0).sum())) ** 2
    after = np.minimum(last + 1, num_rows)
    # fewest[i]: tokens of the rows from i on, in as many pieces as have been considered
    fewest = np.full(num_rows + 1, np.inf)
    fewest[num_rows] = 0.0
    choices = []
    for _ in range(num_pieces):
        totals = tokens + fewest[after]
        choice = totals.argmin(axis=1)
        choices.append(choice)
        fewest = np.append(np.take_along_axis(totals, choice[:, None], axis=1)[:, 0], np.inf)
    if not np.isfinite(fewest[0]):
        raise ValueError(
            f"{num_rows} rows do not fit into {num_pieces} pieces of at most {max_rows or 'any number of'} rows and "
            f"{max_tokens or 'any number of'} tokens. Use more pieces, or larger ones."
        )
    ends = [0]
    for choice in reversed(choices):
        ends.append(ends[-1] + int(choice[ends[-1]]) + 1)
    return ends


@dataclass
class Piece:
    """Rows that go through the model together.

    Attributes:
        rows: (micro-batch, row) of each; none in a piece that only keeps the processes in step.
        inputs: What TRL's loss takes.
        weight: Of its loss.
    """

    rows: list[tuple[int, int]]
    inputs: dict[str, Any]
    weight: float


@dataclass
class Window:
    """The micro-batches of one optimizer step as TRL made them, and how this process goes through their rows.

    Attributes:
        batches: TRL's micro-batches.
        lengths: (B, 2) of each.
        is_used: (B,) of each: the rows that are in the loss.
        cut: What padding may go.
        pieces: (micro-batch, row) of the rows of each piece.
        loss_type: TRL's; decides what keeps the gradient.
        is_worth_it: Whether the pieces save the processes enough, or hold a number of tokens that was asked for.
        trimmed_share: Of the tokens that TRL computes, those left when its micro-batches are trimmed.
    """

    batches: Sequence[dict[str, Any]]
    lengths: Sequence[np.ndarray]
    is_used: Sequence[np.ndarray]
    cut: Cut
    pieces: list[list[tuple[int, int]]]
    loss_type: str
    is_worth_it: bool = True
    trimmed_share: float = 1.0
    num_tokens: int = 0  # that the pieces begun have, with padding
    _found: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.loss_type in TOKEN_MEAN:
            self._counts = [float(loss_mask(batch).sum().clamp(min=1)) for batch in self.batches]

    def of_step(self, step: int) -> list[int]:
        """The pieces that micro-step `step` of the window goes through: the last one always has some."""
        num_pieces, num_steps = len(self.pieces), len(self.batches)
        return list(range(step * num_pieces // num_steps, (step + 1) * num_pieces // num_steps))

    def piece(self, number: int) -> Piece:
        """One piece of the optimizer step as a batch for the loss, with its weight."""
        rows = self.pieces[number]
        inputs = self._join(rows) if rows else self._blank()
        self.num_tokens += len(inputs["prompt_ids"]) * _padded_length(inputs)
        weight = len(rows) / len(self.is_used[0]) if self.loss_type in ROW_MEAN else 1.0
        if rows and self.loss_type in TOKEN_MEAN:
            count = float(loss_mask(inputs).sum().clamp(min=1))
            factors = torch.tensor([count / self._counts[batch] for batch, _ in rows])
            advantages = inputs["advantages"]
            factors = factors.to(advantages.device).view(-1, *[1] * (advantages.dim() - 1))
            inputs["advantages"] = advantages * factors
        return Piece(rows, inputs, weight)

    def _join(self, rows: list[tuple[int, int]]) -> dict[str, Any]:
        longest = np.stack([self.lengths[batch][row] for batch, row in rows]).max(axis=0).tolist()
        short = {batch: _shorten(self.batches[batch], *longest) for batch, _ in rows}
        joined: dict[str, Any] = {}
        for name, value in self.batches[rows[0][0]].items():
            if isinstance(value, Tensor) and value.dim() > 0:
                joined[name] = torch.stack([short[batch][name][row] for batch, row in rows])
            elif isinstance(value, list):
                joined[name] = [short[batch][name][row] for batch, row in rows]
            else:
                joined[name] = value
        return joined

    def _blank(self) -> dict[str, Any]:
        """One row of three tokens that nothing in the loss looks at."""
        first = {
            name: value[:1] if isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0) else value
            for name, value in self.batches[0].items()
        }
        short = _shorten(first, self.cut.multiple, max(2, self.cut.multiple))
        return {
            **short,
            "prompt_mask": torch.ones_like(short["prompt_mask"]),
            "completion_mask": torch.zeros_like(short["completion_mask"]),
            "advantages": torch.zeros_like(short["advantages"]),
        }

    def keep(self, piece: Piece, logps: Tensor, entropies: Tensor) -> None:
        """What the model said of a piece, (rows, its tokens) each, for `replay`."""
        if not self._found:
            for batch in self.batches:
                # A row left out keeps the old policy's: a ratio of 1, as on-policy.
                old = batch.get("old_per_token_logps", batch["completion_ids"])
                known = torch.zeros_like(old, dtype=logps.dtype)
                if "old_per_token_logps" in batch:
                    known.copy_(old)
                self._found.append((known, torch.zeros_like(known, dtype=entropies.dtype)))
        size = logps.shape[1]
        for i, (place, row) in enumerate(piece.rows):
            for kept, value in zip(self._found[place], (logps, entropies), strict=True):
                kept[row, :size] = value[i]

    def replay(self) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """Each of TRL's micro-batches, trimmed to T, with the log-probs and entropies of all its rows, (B, T) each."""
        for batch, lengths, (logps, entropies) in zip(self.batches, self.lengths, self._found, strict=True):
            short = self.cut.trim(batch, lengths)
            size = short["completion_ids"].shape[1]
            yield short, logps[:, :size], entropies[:, :size]

    def planned_tokens(self) -> int:
        """Tokens that go through the model with these pieces, padding included."""
        longest = [[self.lengths[batch][row] for batch, row in rows] for rows in self.pieces if rows]
        return sum(len(rows) * int(np.max(rows, axis=0).sum()) for rows in longest)

    def trimmed_tokens(self) -> int:
        """The same with TRL's micro-batches, each trimmed."""
        return sum(len(lengths) * int(lengths.max(axis=0).sum()) for lengths in self.lengths)

    def padded_tokens(self) -> int:
        """The same as TRL does it."""
        return sum(
            len(lengths) * _padded_length(batch) for batch, lengths in zip(self.batches, self.lengths, strict=True)
        )

    def row_counts(self) -> tuple[int, int]:
        """Rows in the loss, and rows."""
        return sum(int(used.sum()) for used in self.is_used), sum(len(used) for used in self.is_used)

    def token_counts(self) -> Tensor:
        """(micro-batches, 2): the tokens of its loss, and those of them that are of rows not left out."""
        counts = []
        for batch, is_used in zip(self.batches, self.is_used, strict=True):
            counts_B = loss_mask(batch).sum(dim=1)
            counts.append(torch.stack([counts_B.sum(), counts_B[torch.from_numpy(is_used).to(counts_B.device)].sum()]))
        return torch.stack(counts)


def plan(
    batches: Sequence[dict[str, Any]],
    *,
    cut: Cut,
    by_length: bool,
    skips_rows: bool,
    has_kl: bool,
    max_tokens: int | None,
    loss_type: str,
    min_pieces: int,
    world: World,
) -> Window:
    """Cut the rows of an optimizer step into pieces, as many on every process.

    Args:
        batches: TRL's micro-batches, with the keys that it gives them.
        cut: What padding may go.
        by_length: Rows may share a piece with those of other micro-batches.
        skips_rows: Rows without effect are left out. (Not if all are: TRL's metrics should be of something.)
        has_kl: The loss has a term on every token, whatever its advantage.
        max_tokens: Of a piece, at most, padding included; None: no more than TRL's micro-batches have.
        loss_type: TRL's.
        min_pieces: At least 1. Without rows a piece is a forward of three tokens.
        world: The processes; every one must call.
    """
    device, size = batches[0]["advantages"].device, len(batches)
    lengths = [cut.lengths(batch) for batch in batches]
    is_used = [np.ones(len(batch["advantages"]), dtype=bool) for batch in batches]
    if skips_rows:
        with_effect = [rows_with_effect(batch, has_kl=has_kl) for batch in batches]
        if world.sum(torch.tensor(sum(used.sum() for used in with_effect), device=device)) > 0:
            is_used = with_effect
    rows = [(batch, int(row)) for batch, used in enumerate(is_used) for row in used.nonzero()[0]]
    if by_length:
        lengths_n2 = np.array([lengths[batch][row] for batch, row in rows], dtype=np.int64).reshape(-1, 2)
        wanted = min(size, len(rows)) if max_tokens is None else fewest_pieces(lengths_n2, max_tokens)
        num_pieces = max(min_pieces, int(world.gather(torch.tensor([wanted], device=device)).max()))
        limits = limits_of(len(is_used[0]), _padded_length(batches[0]), max_tokens)
        parts = partition(lengths_n2, num_pieces, **limits)
        pieces = [[rows[i] for i in part] for part in parts]
    else:
        pieces = [[(batch, row) for batch, row in rows if batch == number] for number in range(size)]
    window = Window(batches, lengths, is_used, cut, pieces, loss_type)
    sizes = [window.planned_tokens(), window.trimmed_tokens(), window.padded_tokens()]
    planned, trimmed, padded = world.sum(torch.tensor(sizes, device=device)).tolist()
    # TRL's own way, trimmed, is as good where lengths are alike, and needs no second look at its loss.
    window.is_worth_it = max_tokens is not None or planned < WORTH_MOVING * trimmed
    window.trimmed_share = trimmed / padded
    return window


def limits_of(num_rows: int, padded_length: int, max_tokens: int | None) -> dict[str, int | None]:
    """Of a piece: the tokens asked for, else those of a micro-batch of TRL's with `num_rows` rows."""
    if max_tokens is not None:
        return {"max_rows": None, "max_tokens": max_tokens}
    return {"max_rows": MOST_ROWS * num_rows, "max_tokens": num_rows * padded_length}


def _padded_length(batch: dict[str, Any]) -> int:
    return int(batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1])


def loss_mask(batch: dict[str, Any]) -> Tensor:
    """The tokens that count: of the completion, and not a tool's."""
    mask_BT = batch["completion_mask"]
    return mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT


def rows_with_effect(batch: dict[str, Any], *, has_kl: bool) -> np.ndarray:
    """(B,) bool: the rows with a token that moves the policy: by its advantage, or by a penalty on every token."""
    mask_BT = loss_mask(batch).bool()
    if not has_kl:
        advantages = batch["advantages"]
        mask_BT = mask_BT & ((advantages if advantages.dim() == 2 else advantages.unsqueeze(1)) != 0)
    return mask_BT.any(dim=1).cpu().numpy()


def safe_cut(config: Any, multiple: int | None) -> tuple[Cut, str]:
    """What padding can be cut for a model, and why not all of it, in words ("": all of it).

    A model whose positions are relative does not see how much padding stands on the left. Others do, and a few change
    their positions with the length of the whole batch.
    """
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in by_layer}
    if kinds & {"dynamic", "longrope"}:
        return Cut(False, False), f"its {'/'.join(sorted(kinds))} RoPE depends on the padded length"
    if getattr(config, "attention_chunk_size", None):
        return Cut(False, True, multiple or 1), "its attention is in chunks, which start at the padding"
    if not rope and getattr(config, "rope_theta", None) is None:
        return Cut(False, True, multiple or 1), "its positions may be absolute, and then begin at the padding"
    return Cut(True, True, multiple or 1), ""
