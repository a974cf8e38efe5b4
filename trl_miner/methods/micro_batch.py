"""What the function of a policy loss takes and returns.

# B rows of this process's micro-batch, T padded completion tokens
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .processes import World


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch between TRL's forward and TRL's loss."""

    logps_BT: Tensor  # log-probs under the current policy, in nats; may carry a gradient
    old_logps_BT: Tensor  # the same under the old policy
    advantages_BT: Tensor
    mask_BT: Tensor  # non-zero where a token counts
    epsilon_low: float = 0.2  # TRL's bounds: ratios from 1 - epsilon_low to 1 + epsilon_high
    epsilon_high: float = 0.2
    generator: torch.Generator | None = None  # on the CPU, in one state on all processes
    world: World = field(default_factory=World)  # the processes whose micro-batches go together


@dataclass(frozen=True)
class Surrogate:
    """What TRL's clipped loss sees in place of its advantages and bounds."""

    advantages_BT: Tensor
    epsilon_low: float | None = None  # None: the configuration's
    epsilon_high: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # to log, by full name
