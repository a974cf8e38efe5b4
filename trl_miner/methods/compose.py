"""Which estimator has which prompts, and their advantages in one.

# N = P*G completions of the global batch; B of this process; T padded completion tokens
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..common.names import import_object
from . import ESTIMATORS, POLICY_LOSSES
from .grpo import GRPO
from .method import AdvantageEstimator, Knobs, PolicyLoss, find_knobs, named
from .rollouts import Estimate, Rollouts, estimate_of, merge

NONE = GRPO  # of "all_right: none", as it gives all-right prompts nothing


@dataclass(frozen=True)
class Composition:
    """The method of each kind of prompt, and their knobs."""

    mixed: AdvantageEstimator  # of all prompts, but for those of `all_right`
    all_right: AdvantageEstimator | None  # of all-right prompts; None: `mixed` has these too
    knobs: Mapping[str, Knobs]  # by the name of the method

    @property
    def methods(self) -> tuple[AdvantageEstimator, ...]:
        """The methods that have a part, for records and cards: GRPO only where it is alone, because
        its advantages are TRL's own."""
        both = (self.mixed, self.all_right)
        return tuple(part for part in both if part not in (None, GRPO)) or (GRPO,)


def find_composition(
    advantage_estimator: str,
    all_right: str | None = None,
    *,
    kwargs: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> Composition:
    """Return the methods that two settings name.

    `advantage_estimator` has all prompts on which it acts; one that acts on all-right prompts
    alone, such as "miner", leaves the others to GRPO. `all_right` has all-right prompts, where it
    is given.

    Args:
        advantage_estimator: The name of a method, or the import path of your own.
        all_right: The same; "none": they get nothing; None: not given.
        kwargs: The setting `advantage_estimator_kwargs`: knobs of the methods, a mapping, JSON of
            one, or None.
        settings: Fields of the configuration by name, for the knobs that they set (`miner_gamma`);
            what is missing keeps the method's default.

    Raises:
        ValueError: An unknown name, a path that cannot be imported, or an unknown knob.
    """
    mixed, right = find_estimator("advantage_estimator", advantage_estimator), None
    if "mixed" not in mixed.acts_on:
        mixed, right = GRPO, mixed
    if all_right is not None:
        right = find_estimator("all_right", all_right)
    right = None if right is mixed else right
    methods = (mixed,) if right is None else (mixed, right)
    knobs = find_knobs("advantage_estimator_kwargs", kwargs, methods, settings or {})
    return Composition(mixed, right, knobs)


def find_policy_loss(policy_loss: str, kwargs: Any = None) -> tuple[PolicyLoss, Knobs]:
    """Return the method that the setting `policy_loss` names, and its knobs.

    Args:
        policy_loss: The name; "clip" is TRL's own.
        kwargs: The setting `policy_loss_kwargs`: a mapping, JSON of one, or None.

    Raises:
        ValueError: An unknown name or knob.
    """
    method = named("policy_loss", policy_loss, POLICY_LOSSES)
    return method, find_knobs("policy_loss_kwargs", kwargs, [method], {})[method.name]


def find_estimator(setting: str, name: str) -> AdvantageEstimator:
    """Return the advantage estimator of a name, or of an import path: a function of the rollouts,
    or an `AdvantageEstimator`, which says besides on which prompts it acts.

    Args:
        setting: `advantage_estimator` or `all_right`.
        name: Its value.

    Raises:
        ValueError: There is none.
    """
    if "." in name:
        found = import_object(setting, name)
        if isinstance(found, AdvantageEstimator):
            return replace(found, name=name)
        if not callable(found):
            raise ValueError(
                f"{setting}: {name!r} is a {type(found).__name__}. Define a function"
                f" {name.rpartition('.')[2]}(rollouts, *, my_knob=1.0)."
            )
        return AdvantageEstimator(name=name, label=name, function=found)
    return named(
        setting, name, ESTIMATORS if setting != "all_right" else ESTIMATORS | {"none": NONE}
    )


def estimate(composition: Composition, rollouts: Rollouts) -> Estimate:
    """Return the advantages of a generation batch: each row from the method of its prompt's kind.

    Each method runs once and sees the whole batch; that of all-right prompts also sees, as
    `rollouts.base`, the estimate of the other one. Every process must call.

    Args:
        composition: The methods and their knobs.
        rollouts: The batch.
    """
    base = _run(composition, composition.mixed, rollouts)
    if composition.all_right is None:
        return base
    own = _run(composition, composition.all_right, replace(rollouts, base=base))
    return merge(base, own, rollouts)


def _run(composition: Composition, method: AdvantageEstimator, rollouts: Rollouts) -> Estimate:
    result = method.function(rollouts, **composition.knobs[method.name])
    return estimate_of(result, rollouts, method.name)
