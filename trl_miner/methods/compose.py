"""Which estimator has which prompts, and their advantages in one.

# N = P*G completions of the global batch; B of this process; T padded completion tokens
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .method import AdvantageEstimator
from .rollouts import Estimate, Rollouts


@dataclass(frozen=True)
class Composition:
    """The method of each kind of prompt, and their knobs."""

    mixed: AdvantageEstimator  # of all prompts, but for those of `all_right`
    all_right: AdvantageEstimator | None  # of all-right prompts; None: `mixed` has these too
    knobs: Mapping[str, Mapping[str, Any]]  # by the name of the method

    @property
    def methods(self) -> tuple[AdvantageEstimator, ...]:
        """Every method that has a part, once, for records and cards: GRPO only where it is alone,
        and never "none"."""
        raise NotImplementedError


def find_composition(
    advantage_estimator: str,
    all_right: str | None = None,
    *,
    kwargs: Mapping[str, Any] | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Composition:
    """Return the methods that two settings name.

    `advantage_estimator` has all prompts on which it acts. One that acts on all-right prompts
    alone, such as "miner", leaves the others to GRPO.

    Args:
        advantage_estimator: The name of a method, or the import path of your own.
        all_right: The same for all-right prompts; "none": nothing; None: `advantage_estimator`.
        kwargs: The setting `advantage_estimator_kwargs`: knobs of the methods, a mapping or JSON.
        settings: The configuration's fields by name, for the knobs that they set (`miner_gamma`);
            those that are missing keep the methods' defaults.

    Raises:
        ValueError: An unknown name, a path that cannot be imported, a combination that makes no
            sense, or a knob that is unknown or out of its range.
    """
    raise NotImplementedError


def estimate(composition: Composition, rollouts: Rollouts) -> Estimate:
    """Return the advantages of a generation batch: each row from the method of its prompt's kind.

    Each method runs once and sees the whole batch; that of all-right prompts also sees, as
    `rollouts.base`, the estimate of the other one. Every process must call.

    Args:
        composition: The methods and their knobs.
        rollouts: The batch.
    """
    raise NotImplementedError


def find_policy_loss(
    policy_loss: str, kwargs: Mapping[str, Any] | str | None = None
) -> "tuple[PolicyLoss, dict[str, Any]]":
    """Return the method that `policy_loss` names, and its knobs."""
    raise NotImplementedError
