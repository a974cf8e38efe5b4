"""Gradients, updates and log-prob gains of an optimizer step, all-right (PH) rows apart from the others.

# N rollouts of the global batch, B rows of a micro-batch, T padded completion tokens
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..distributed import accumulation_dtype
from ..methods.groups import GroupKinds

PH, HE, NH = range(3)
GAINS = ("ph_logp_gain", "ph_logp_gain_others", "ph_logp_gain_paid", "he_logp_gain_right", "he_logp_gain_wrong")


def row_kinds(kinds: GroupKinds) -> Tensor:
    """Return (N,) of `PH`, `HE` (or unscorable), `NH`: one number per row, which a batch can carry along."""
    return torch.stack([kinds.is_ph_N, kinds.is_grpo_N, kinds.is_nh_N]).int().argmax(dim=0)


def overlap(first: Tensor, other: Tensor) -> Tensor:
    """Return (3,), the sums |first|^2, |other|^2 and <first, other> over the elements of two tensors of one shape."""
    wide = accumulation_dtype(first.device)
    first, other = first.float(), other.float()
    return torch.stack([(a * b).sum(dtype=wide) for a, b in ((first, first), (other, other), (first, other))])


def compare_parts(overlap_3: Tensor) -> dict[str, float]:
    """Return two vectors' L2 norms, the first's share of the sum, and their cosine, from `overlap`."""
    first_square, other_square, dot = overlap_3.tolist()
    first_norm, other_norm = math.sqrt(first_square), math.sqrt(other_square)
    values = {"first_norm": first_norm, "other_norm": other_norm}
    if first_norm + other_norm > 0:
        values["share"] = first_norm / (first_norm + other_norm)
    if first_norm > 0 and other_norm > 0:
        values["cosine"] = max(-1.0, min(1.0, dot / first_norm / other_norm))
    return values


def adam_denominator(state: dict[str, Any], group: dict[str, Any]) -> Tensor | None:
    """Return sqrt(v_hat) + eps, by which Adam and AdamW divide a parameter's gradient; None for another optimizer.

    Source: arXiv 1412.6980, algorithm 1; with `amsgrad` the largest second moment so far, as torch does it.
    """
    second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
    if second is None or not {"betas", "eps"} <= set(group):
        return None
    correction = 1 - float(group["betas"][1]) ** float(state["step"])
    return (second / correction).sqrt() + group["eps"]


def gain_sums(before_BT: Tensor, after_BT: Tensor, advantages: Tensor, mask_BT: Tensor, kinds_B: Tensor) -> Tensor:
    """Return (5, 2): for each of `GAINS` the weighted sum of the log-probs' gains in nats, and the sum of the weights.

    A weight is 1, and for `ph_logp_gain_paid` the token's advantage.
    """
    wide = accumulation_dtype(before_BT.device)
    is_token_BT = mask_BT.bool()
    gains_BT = torch.where(is_token_BT, after_BT.to(wide) - before_BT, 0.0)
    advantages_BT = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_BT.shape)
    advantages_BT = torch.where(is_token_BT, advantages_BT, 0.0).to(wide)
    signs_B = advantages_BT.sum(dim=1).sign()
    is_ph_B, is_he_B = kinds_B == PH, kinds_B == HE
    rows_4B = [is_ph_B & (signs_B > 0), is_ph_B & (signs_B <= 0), is_he_B & (signs_B > 0), is_he_B & (signs_B < 0)]
    rewarded, others, right, wrong = (is_row_B.unsqueeze(1) * is_token_BT.to(wide) for is_row_B in rows_4B)
    paid = is_ph_B.unsqueeze(1) * advantages_BT.clamp(min=0)
    weights_5BT = torch.stack([rewarded, others, paid, right, wrong])
    return torch.stack([(weights_5BT * gains_BT).sum(dim=(1, 2)), weights_5BT.sum(dim=(1, 2))], dim=1)


def mean_gains(sums_52: Tensor) -> dict[str, float]:
    """Return the means of those `GAINS` that there are tokens for, in nats per token."""
    return {name: total / weight for name, (total, weight) in zip(GAINS, sums_52.tolist(), strict=True) if weight > 0}
