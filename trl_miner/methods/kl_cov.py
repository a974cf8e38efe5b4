"""KL-Cov (arXiv 2505.22617): a penalty on the tokens of highest covariance, instead of clipping.

Statistics are over the micro-batches of all processes.

# B rows of this process's micro-batch, T padded completion tokens
"""

import torch
from torch import Tensor

from ..distributed import World, accumulation_dtype
from .clip_cov import covariances
from .method import PolicyLoss
from .rollouts import Surrogate


def kl_cov(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    ratio: float = 2e-3,
    coef: float = 1.0,
    world: World | None = None,
) -> Surrogate:
    """Penalize the tokens of highest covariance by coef * |lp - old lp|, and clip none.

    The loss of a token without clipping is -rho * A. With A - coef * |lp - old lp| / rho in the place of A, and that
    with its gradient, it is -rho * A + coef * |lp - old lp|: the method's loss, in whatever way the tokens are then
    averaged. Strictly on-policy the penalty and its gradient are 0.

    Args:
        logps_BT, old_logps_BT, advantages_BT, mask_BT: As in `clip_cov`; the log-probs may carry a gradient.
        ratio: Share of the tokens to penalize, in [0, 1]: max(1, int(ratio * tokens)) of them; 0 penalizes none.
        coef: Weight of the penalty, at least 0.
        world: The processes that share the batch; every one must call.

    Returns:
        `Surrogate` with advantages that carry a gradient, clipping bounds 0 and infinity, and the metrics
        kl_cov/penalised (share of all tokens) and kl_cov/penalty (mean |lp - old lp| of those, in nats).

    Source: arXiv 2505.22617; the paper of MINER, appendix on the exploration baselines.
    """
    world = world or World()
    is_token_BT = mask_BT.bool()
    num_tokens = int(world.sum(is_token_BT.sum()))
    num_chosen = min(max(1, int(ratio * num_tokens)) if ratio > 0 else 0, num_tokens)
    if num_chosen == 0:
        return Surrogate(advantages_BT, 0.0, torch.inf)
    covariance_BT = covariances(logps_BT, advantages_BT, mask_BT, world)
    is_chosen_BT = _largest(covariance_BT, num_chosen, world)
    log_ratio_BT = torch.where(is_chosen_BT, logps_BT - old_logps_BT, 0.0)  # 0 elsewhere, and so is its gradient
    penalty_BT = log_ratio_BT.abs()
    advantages_BT = advantages_BT - coef * penalty_BT * torch.exp(-log_ratio_BT)
    mean_penalty = float(world.sum(penalty_BT.detach().sum(dtype=accumulation_dtype(mask_BT.device)))) / num_chosen
    metrics = {"kl_cov/penalised": num_chosen / num_tokens, "kl_cov/penalty": mean_penalty}
    return Surrogate(advantages_BT, 0.0, torch.inf, metrics)


def _largest(values_BT: Tensor, count: int, world: World) -> Tensor:
    """(B, T) bool: the `count` largest values of all processes. Each process sends its own largest, no more."""
    flat = values_BT.flatten()
    found, places = flat.topk(min(count, flat.numel()))
    padded = flat.new_full((count,), -torch.inf)
    padded[: len(found)] = found
    chosen = world.gather(padded).topk(count).indices - world.rank * count
    mine = chosen[(chosen >= 0) & (chosen < len(found))]
    is_largest = torch.zeros_like(flat, dtype=torch.bool)
    is_largest[places[mine]] = True
    return is_largest.view_as(values_BT)


KL_COV = PolicyLoss(
    name="kl_cov",
    label="KL-Cov",
    arxiv="2505.22617",
    function=kl_cov,
    off_policy_only=True,
    # |lp - old lp|: 0 where both are computed alike, else what rounding makes of it, with a gradient of +-1.
    fixed_micro_batches="the penalty of policy_loss=kl_cov has a kink where log-probs are the old ones",
    knobs=("ratio", "coef"),
)
