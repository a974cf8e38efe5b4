"""MINER's look at single tokens: intrinsic reward, credit weights, and the one pass over all tokens of a process.

# N rollouts (in the pass, those of this process), T padded completion tokens
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..distributed import accumulation_dtype

# Elements looked at in one go: what stays in a processor's cache, or what keeps a GPU busy (tests/bench/advantage.py).
CPU_BLOCK, GPU_BLOCK = 2**17, 2**22


def intrinsic_rewards(old_logps_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Return how unsure the policy was of its own rollouts: r_int_i = -(1/T_i) sum_j log pi_old(o_ij).

    Args:
        old_logps_NT: (N, T) log-probs of the sampled tokens under the old (tempered) policy, in nats.
        mask_NT: (N, T), non-zero where a token counts.

    Returns:
        (N,) mean negative log-likelihood per token, in nats. NaN for a row without tokens: it has no likelihood.

    Source: arXiv 2601.04731, section 3.1. An empty completion crashes the published code.
    """
    is_token_NT = mask_NT.bool()
    logps_NT = old_logps_NT.masked_fill(~is_token_NT, 0.0)
    return -logps_NT.sum(dim=1, dtype=accumulation_dtype(logps_NT.device)) / count_tokens(is_token_NT)  # 0 / 0 is NaN


def count_tokens(is_token_NT: Tensor) -> Tensor:
    """Return (N,) the number of tokens of each row; in 32 bits, which takes half the time of 64."""
    return is_token_NT.sum(dim=1, dtype=torch.int32)


def focal_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """Return w_ij = (1 - p_ij)^gamma with p = exp(old log-prob): the unsure tokens get the credit.

    Args:
        old_logps_NT: (N, T) log-probs, in nats. A positive one (rounding of a sure token) counts as p = 1.
        mask_NT: (N, T), non-zero where a token counts.
        gamma: Focus, at least 0; 0 is uniform.

    Returns:
        (N, T) weights in [0, 1], 0 at padding; constants for the gradient.

    Source: arXiv 2601.04731, equation 7; arXiv 1708.02002.
    """
    # -expm1(x) is 1 - exp(x) without the cancellation that eats a sure token's weight.
    weights_NT = torch.expm1(old_logps_NT).neg_().clamp_(min=0.0).pow_(gamma)
    return weights_NT.masked_fill_(~mask_NT.bool(), 0.0)


def uniform_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """Return w_ij = 1 (the paper's ablation w/o FW), 0 at padding, of the shape (N, T) of the arguments."""
    return mask_NT.bool().to(old_logps_NT.dtype)


def rank_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """Return w_ij = (n_i - rank_ij) / n_i, rank 0 the row's least likely token, n_i its tokens; 0 at padding.

    Arguments and result are (N, T), as in `focal_weights`; gamma is not used.

    Source: the published code's `credit_method=rank`; the paper has no such variant.
    """
    is_token_NT = mask_NT.bool()
    order_NT = old_logps_NT.masked_fill(~is_token_NT, torch.inf).argsort(dim=1, stable=True)
    ranks_NT = torch.arange(order_NT.shape[1], device=order_NT.device).expand_as(order_NT)
    rank_of_NT = torch.empty_like(order_NT).scatter_(1, order_NT, ranks_NT)
    count_N1 = is_token_NT.sum(dim=1, keepdim=True)
    weights_NT = (count_N1 - rank_of_NT) / count_N1.clamp(min=1)
    return weights_NT.to(old_logps_NT.dtype).masked_fill_(~is_token_NT, 0.0)


def inverse_weights(old_logps_NT: Tensor, mask_NT: Tensor, gamma: float = 2.0) -> Tensor:
    """Return w_ij = softmax_j(-gamma * old log-prob) over the row's tokens, so that a row's weights sum to 1.

    Arguments and result are (N, T), as in `focal_weights`; gamma is the sharpness.

    Source: the published code's `credit_method=inverse`; the paper has no such variant.
    """
    scores_NT = (old_logps_NT * -gamma).masked_fill_(~mask_NT.bool(), -torch.inf)
    return torch.softmax(scores_NT, dim=1).nan_to_num_(nan=0.0)  # a row without tokens is all -inf


CREDITS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "focal": focal_weights,
    "uniform": uniform_weights,
    "rank": rank_weights,
    "inverse": inverse_weights,
}


class RowSums(NamedTuple):
    """What the tokens of each rollout amount to: (N,) each, in the widest float of the device.

    Attributes:
        tokens_N: Number of tokens.
        intrinsic_N: Intrinsic reward of mined rollouts; NaN elsewhere, and where it is not known.
        weight_N: Summed credit weight of mined rollouts, 0 elsewhere.
        base_N: Summed abs(advantage) of the others, 0 for mined rollouts.
    """

    tokens_N: Tensor
    intrinsic_N: Tensor
    weight_N: Tensor
    base_N: Tensor


def look_at_tokens(
    advantages_N: Tensor,
    base_NT: Tensor | None,
    old_logps_NT: Tensor | None,
    mask_NT: Tensor,
    is_mined_N: Tensor,
    credit: str,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Look at every token of this process once, in blocks of rows.

    As operations on the whole batch, the same lines keep four tensors of its size alive and take three times as long.

    Returns:
        (N, T): the credit weights in mined rows, the advantage in the others, 0 at padding.
        (N, 4): the columns of `RowSums`.
    """
    (num_rows, num_tokens), device = mask_NT.shape, mask_NT.device
    wide = accumulation_dtype(device)
    row_sums_N4 = torch.zeros(num_rows, 4, dtype=wide, device=device)
    sums = RowSums(*row_sums_N4.unbind(dim=1))
    sums.intrinsic_N.fill_(torch.nan)
    out_NT = torch.empty(num_rows, num_tokens, dtype=torch.float32, device=device)
    block = max(1, (CPU_BLOCK if device.type == "cpu" else GPU_BLOCK) // max(1, num_tokens))
    for rows in (~is_mined_N).nonzero().squeeze(1).split(block):
        is_token = mask_NT[rows].bool()
        sums.tokens_N[rows] = count_tokens(is_token).to(wide)
        if base_NT is None:
            out_NT[rows] = advantages_N[rows].unsqueeze(1) * is_token
            sums.base_N[rows] = advantages_N[rows].abs() * sums.tokens_N[rows]
        else:
            out_NT[rows] = advantages = base_NT[rows].float().masked_fill_(~is_token, 0.0)
            sums.base_N[rows] = advantages.abs().sum(dim=1, dtype=wide)
    for rows in is_mined_N.nonzero().squeeze(1).split(block):
        is_token = mask_NT[rows].bool()
        sums.tokens_N[rows] = count_tokens(is_token).to(wide)
        if old_logps_NT is None:  # a constant reward, spread evenly
            weights = is_token.float()
        else:
            logps = old_logps_NT[rows].float()
            sums.intrinsic_N[rows] = intrinsic_rewards(logps, is_token)
            weights = CREDITS[credit](logps, is_token, gamma)
        sums.weight_N[rows] = weights.sum(dim=1, dtype=wide)
        out_NT[rows] = weights
    return out_NT, row_sums_N4
