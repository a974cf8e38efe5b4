"""Pure metrics of sampled answers.

# P problems, n samples and c correct ones of each
"""

import torch
from torch import Tensor


def pass_at_k(num_samples: int | Tensor, num_correct: int | Tensor, k: int) -> Tensor:
    """The chance that at least one of k samples is right: 1 - C(n-c, k) / C(n, k), unbiased for any k <= n.

    Args:
        num_samples: n, an int or (P,).
        num_correct: c, 0 <= c <= n, an int or (P,).
        k: At least 1 and at most n.

    Returns:
        float64 in [0, 1], scalar or (P,). Average it over problems.

    Raises:
        ValueError: k or c out of range.

    Source: arXiv 2107.03374, equation 1.
    """
    samples, correct = torch.broadcast_tensors(
        torch.as_tensor(num_samples, dtype=torch.float64), torch.as_tensor(num_correct, dtype=torch.float64)
    )
    if samples.numel() and not 1 <= k <= samples.min():
        raise ValueError(
            f"k must be between 1 and the number of samples: got k={k} for {int(samples.min())} samples. Sample more, "
            f"or ask for a smaller k."
        )
    if ((correct < 0) | (correct > samples)).any():
        raise ValueError(
            "num_correct must be between 0 and num_samples: got a problem outside. Count each sample once."
        )
    wrong = samples - correct
    # log C(n-c, k) - log C(n, k), where the k! cancel; n-c < k leaves no way to draw only wrong ones
    log_ratio = (wrong + 1).lgamma() - (wrong - k + 1).clamp(min=1).lgamma()
    log_ratio = log_ratio - (samples + 1).lgamma() + (samples - k + 1).lgamma()
    return torch.where(wrong < k, 1.0, 1.0 - log_ratio.exp()).clamp(min=0.0)
