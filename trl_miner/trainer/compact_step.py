"""The micro-batches of an optimizer step: rows that move nothing left out, like lengths together.

A row is a prompt with one of its completions. TRL cuts an optimizer step into micro-batches of
random rows, each padded to its longest. Here the rows of all processes that can move a weight are
sorted by length, dealt out like cards, and cut anew; TRL's loss then runs on them as it stands, and
the gradient is the same sum.

# K rows of all W processes; n rows of one process; a part is a micro-batch, rows from start to end
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

if TYPE_CHECKING:
    from .config import MinerGRPOConfig
    from .trainer import MinerGRPOTrainer

Batch = dict[str, Any]  # TRL's: tensors with a row for each completion, and numbers

# Losses of TRL that are a mean over the rows of a micro-batch; and those that are a sum over the
# tokens, divided by the tokens of the step.
ROW_MEAN = {"dr_grpo", "grpo", "luspo", "sapo"}
TOKEN_SUM = {"cispo", "dapo", "vespo"}

# Model types of transformers whose log-probs depend on nothing but the tokens of a row: softmax
# attention and rotary positions. In others padding moves positions or runs through a state.
ROW_WISE = set(
    """
    apertus arcee cohere cohere2 deepseek_v2 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3_text
    glm glm4 glm4_moe gpt_neox gpt_oss granite granitemoe helium hunyuan_v1_dense llama ministral
    mistral mixtral nemotron olmo olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe
    seed_oss smollm3 stablelm starcoder2
    """.split()
)


def why_padding_stays(config: Any) -> str:
    """Return why a model's log-probs may depend on padding; "": they do not.

    Args:
        config: The model's configuration.
    """
    if config.model_type not in ROW_WISE:
        return f"model_type={config.model_type} is not known to see nothing but the tokens of a row"
    rope = str(getattr(config, "rope_parameters", None))
    if "'dynamic'" in rope or "'longrope'" in rope:
        return "its dynamic or longrope RoPE depends on the padded length"
    return ""


def why_micro_batches_stay(args: "MinerGRPOConfig", has_router_loss: bool) -> str:
    """Return why a row's loss depends on the other rows of its micro-batch; "": it does not.

    Args:
        args: The trainer's settings.
        has_router_loss: Of a mixture of experts.
    """
    if args.loss_type not in ROW_MEAN | TOKEN_SUM:
        return f"loss_type={args.loss_type} is no sum over completions"
    if args.policy_loss != "clip":
        return f"policy_loss={args.policy_loss} compares its tokens"
    if args.top_entropy_quantile < 1:
        return "top_entropy_quantile picks among its tokens"
    if args.entropy_coef or args.use_adaptive_entropy:
        return "the entropy bonus is a mean over its tokens"
    if has_router_loss:
        return "the router's loss is a mean over its tokens"
    return "pad_to_multiple_of sets its length" if args.pad_to_multiple_of else ""


def can_pack(config: Any) -> bool:
    """Return whether a model's attention takes several sequences in one row, parted by positions
    that begin anew: a kernel with variable lengths, and no layer with a window or a state."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return "flash" in (config._attn_implementation or "") and kinds <= {"full_attention"}


@dataclass(frozen=True)
class Cutting:
    """How rows are cut into parts."""

    max_tokens: int | None = None  # of a part, padding included; a longer row goes alone
    is_packed: bool = False  # whether a part costs its real tokens alone
    saves: int = 0  # tokens that one more part must save

    def cut(
        self, lengths_n2: Tensor, budget: int, most: int, least: int = 1
    ) -> list[tuple[int, int]]:
        """Return `least` to `most` parts of rows sorted by length that cost the fewest tokens.

        A part costs its rows times its longest prompt and completion, or its real tokens. Where the
        budget leaves more than `most` parts, it grows.

        Args:
            lengths_n2: (n, 2) the tokens of each row's prompt and completion.
            budget: Tokens of a part, where `max_tokens` says nothing.
            most, least: Least at most n, and at most `most`.
        """
        saves, budget, lengths_n2 = self.saves, self.max_tokens or budget, lengths_n2.cpu()
        while len(parts := self._cheapest(lengths_n2, budget, saves)) > most:
            # first fewer parts within the budget; of less than 4 tokens a quarter is none
            saves, budget = 2 * saves + 1, budget if saves < budget else budget * 5 // 4 + 1
        while len(parts) < least:  # cut the longest
            start, end = max(parts, key=lambda part: part[1] - part[0])
            middle = (start + end) // 2
            parts = sorted({*parts, (start, middle), (middle, end)} - {(start, end)})
        return parts

    def _cheapest(self, lengths_n2: Tensor, budget: int, saves: int) -> list[tuple[int, int]]:
        n = len(lengths_n2)
        best = torch.zeros(n + 1, dtype=torch.float64)  # the least cost of the rows from here on
        ends = [n] * n  # where their first part ends
        for start in reversed(range(n)):
            rows = lengths_n2[start:]
            costs = rows.sum(1).cumsum(0)
            if not self.is_packed:
                costs = rows.cummax(0).values.sum(1) * torch.arange(1, n - start + 1)
            costs[1:][costs[1:] > budget] = 2**52
            best[start], end = (costs + saves + best[start + 1 :]).min(0)
            ends[start] = start + 1 + int(end)
        starts = [0]
        while starts[-1] < n:
            starts.append(ends[starts[-1]])
        return list(pairwise(starts))


def deal(lengths_K: Tensor, counts_K: Tensor, num_processes: int, least: int) -> Tensor:
    """Deal out the rows that count like cards in a snake, the longest first.

    Each process gets as many, and `least` or more: where they do not come out even, the shortest of
    the others join.

    Args:
        lengths_K: (K,) tokens of each row.
        counts_K: (K,) bool, whether it can move a weight.
        num_processes: W, which divides K.
        least: At most K / W.

    Returns:
        (n, W) the rows of each process.
    """
    wanted_K = torch.where(counts_K, lengths_K + 1, -lengths_K)
    num_rows = max(least, -(-int(counts_K.sum()) // num_processes)) * num_processes
    rows = wanted_K.argsort(descending=True, stable=True)[:num_rows].view(-1, num_processes).clone()
    rows[1::2] = rows[1::2].flip(1)
    return rows


def row_lengths(prompt_mask: Tensor, completion_mask: Tensor) -> Tensor:
    """Return (rows, 2): the columns up to the last that counts, of left-padded prompts and of
    completions; at least 1."""
    places = torch.arange(1, completion_mask.shape[1] + 1, device=completion_mask.device)
    longest = (completion_mask.bool() * places).amax(1)
    return torch.stack([prompt_mask.sum(1), longest], 1).clamp(min=1)


def loss_mask(batch: Batch) -> Tensor:
    """Return (rows, T), non-zero where a token is in TRL's loss."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def gathered(accelerator: Accelerator, batches: Sequence[Batch]) -> Batch:
    """Return batches of TRL's in one, with the rows of all processes, each column padded to one
    width; numbers stay as they are. Every process must call."""
    columns = {}
    for name, value in batches[0].items():
        if value.dim():
            value = torch.cat([batch[name] for batch in batches])
            if value.dim() > 1:
                is_left = name.startswith("prompt_")
                value = accelerator.pad_across_processes(value, dim=1, pad_first=is_left)
            value = accelerator.gather(value)
        columns[name] = value
    return columns


def micro_batches(
    trainer: "MinerGRPOTrainer", batches: Sequence[Batch], share: float
) -> Iterator[Batch]:
    """Yield as many micro-batches as TRL's, of the rows of all processes that count.

    Those that are not needed are empty and come first, so that the last one has the longest rows
    and synchronises the gradients. Beside TRL's columns each has `row_weight`, which makes of TRL's
    mean over its rows the sum that it was, 0 where it is empty; and `shares`, by which TRL's means
    over a micro-batch become means over the step. Every process must call.

    Args:
        trainer: A `MinerGRPOTrainer`.
        batches: TRL's, of this process.
        share: Of the optimizer step, the part that these are.
    """
    accelerator = trainer.accelerator
    columns = gathered(accelerator, batches)
    mask, advantages = loss_mask(columns) != 0, columns["advantages"]
    # a KL penalty moves rows without an advantage, too
    counts = mask & ((advantages.view(len(mask), -1) != 0) | (trainer.beta != 0))
    lengths_K2 = row_lengths(columns["prompt_mask"], columns["completion_mask"])
    # DeepSpeed counts backwards: it overwrites the gradient in the first of a step, so that none
    # may be empty
    is_deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    least = len(batches) if is_deepspeed else 1
    rows = deal(lengths_K2.sum(1), counts.any(1), accelerator.num_processes, least)
    longest = lengths_K2[rows].amax(1)  # of each place over the processes: all cut alike
    per_batch, width = len(batches[0]["advantages"]), columns["prompt_ids"].shape[1] + mask.shape[1]
    parts = trainer.cutting.cut(longest, per_batch * width, len(batches), least)
    for _ in batches[len(parts) :]:
        yield {"row_weight": 0.0}
    for start, end in reversed(parts):
        part, (prompt, completion) = rows[start:end], longest[start:end].amax(0).tolist()
        # TRL's metrics take one column for one value per sequence
        own = part[:, accelerator.process_index]
        batch = shorten(columns, own, prompt, max(2, completion))
        batch["row_weight"] = (end - start) / per_batch if trainer.loss_type in ROW_MEAN else 1.0
        of_rows = part.numel() / len(mask)
        all_tokens, kept_tokens, tokens = (mask[x].sum().item() for x in (..., rows, part))
        by_row = trainer.importance_sampling_level == "sequence" and advantages.dim() == 1
        shares = {
            "micro_batches/rows": of_rows,
            "micro_batches/tokens": of_rows * (prompt + completion) / width,
            # rows that are left out are not clipped
            "clipped": of_rows if by_row else tokens / max(all_tokens, 1),
            "kept": tokens / max(kept_tokens, 1),
        }
        batch["shares"] = {name: value * share for name, value in shares.items()}
        yield batch


def shorten(columns: Batch, rows: Tensor, prompt: int, completion: int) -> Batch:
    """Return those rows of a batch of TRL's, with the last `prompt` columns of prompts and the
    first `completion` ones of completions."""
    made = {}
    for name, value in columns.items():
        if value.dim() > 1:
            of_prompt = name.startswith("prompt_")
            value = value[:, -prompt:] if of_prompt else value[:, :completion]
        made[name] = value[rows] if value.dim() else value
    return made
