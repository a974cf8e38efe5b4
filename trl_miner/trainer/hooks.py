"""Methods of TRL's trainer that somebody else overrides: in a subclass, a mixin, or on an instance."""

from collections.abc import Collection
from typing import Any

# Where a micro-batch becomes a gradient. Who overrides one of these sees the micro-batches that TRL would hand to it.
LOSS_HOOKS = ("training_step", "_prepare_inputs", "compute_loss", "_compute_loss")
FORWARD = "_get_per_token_logps_and_entropies"
_PACKAGES = {"trl_miner", "trl", "transformers"}


def overridden(trainer: Any, names: Collection[str]) -> list[str]:
    """Return those of the methods that a trainer, or one of its classes that is not of these packages, defines."""
    own = [cls for cls in type(trainer).__mro__ if cls.__module__.split(".")[0] not in _PACKAGES]
    return [name for name in names if any(name in vars(place) for place in (trainer, *own))]


def refuse_own_loss(trainer: Any, setting: str) -> None:
    """Refuse what computes TRL's loss by itself, where somebody changes that loss.

    Raises:
        ValueError: It is changed.
    """
    if names := overridden(trainer, LOSS_HOOKS):
        raise ValueError(
            f"{setting} needs the loss that TRL computes from its own micro-batches: got {type(trainer).__name__}, "
            f"which overrides {', '.join(names)}. Leave {setting} or the override out."
        )
