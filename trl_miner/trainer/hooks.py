"""Methods of TRL's trainer that somebody else overrides: in a subclass, a mixin, on an instance, or in TRL's class."""

from collections.abc import Collection
from typing import Any

# Where a micro-batch becomes a gradient. Who overrides one of these sees the micro-batches that TRL would hand to it.
LOSS_HOOKS = ("training_step", "_prepare_inputs", "compute_loss", "_compute_loss")
FORWARD = "_get_per_token_logps_and_entropies"
MICRO_BATCH_HOOKS = (*LOSS_HOOKS, FORWARD)
_PACKAGES = {"trl_miner", "trl", "transformers"}


def overridden(trainer: Any, names: Collection[str]) -> list[str]:
    """Return those of the methods that code outside of TRL, transformers and this package defines."""
    places = [vars(trainer), *map(vars, type(trainer).__mro__)]
    return [name for name in names if any(name in place and _is_foreign(place[name]) for place in places)]


def _is_foreign(method: Any) -> bool:
    function = getattr(method, "__func__", method)
    # Not `__module__`, which a decorator copies from what it wraps.
    module = getattr(function, "__globals__", {}).get("__name__", "")
    if module.startswith("torch.") and hasattr(function, "__wrapped__"):  # torch.no_grad is nobody's override
        return _is_foreign(function.__wrapped__)
    return module.split(".")[0] not in _PACKAGES or module.startswith("trl.experimental.")


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
