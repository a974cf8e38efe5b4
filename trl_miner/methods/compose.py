"""Assign one estimator to each kind of prompt, and merge their advantages."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..common.importing import did_you_mean
from . import ESTIMATORS, METHODS
from .groups import GroupKinds
from .grpo import GRPO
from .method import AdvantageEstimator, Kind
from .own import load_estimator
from .rollouts import Estimate, Rollouts

ALL_RIGHT: Kind = "all_right"
ALL_WRONG: Kind = "all_wrong"


def _give_nothing(rollouts: Rollouts) -> Estimate:
    return Estimate.of_rollouts(rollouts, torch.zeros_like(rollouts.advantages_N))


NONE = AdvantageEstimator(
    name="none", label="Nothing", estimate=_give_nothing, acts_on=frozenset({ALL_RIGHT, ALL_WRONG})
)


@dataclass(frozen=True)
class Composition:
    """The method of each kind of prompt."""

    mixed: AdvantageEstimator  # of all prompts but for those of `homogeneous`
    # of all-right and all-wrong prompts, where it is another one
    homogeneous: Mapping[Kind, AdvantageEstimator]

    @property
    def dosed(self) -> dict[Kind, AdvantageEstimator]:
        """Those methods of homogeneous prompts that a dose can scale: all but "none"."""
        return {kind: method for kind, method in self.homogeneous.items() if method is not NONE}

    @property
    def methods(self) -> tuple[AdvantageEstimator, ...]:
        """Every method that has a part, once; GRPO only where it is alone, as its advantages are
        TRL's own."""
        others = _distinct(self.dosed)
        return tuple(others) if self.mixed is GRPO and others else (self.mixed, *others)


def find_composition(estimator: Any, all_right: Any = None, all_wrong: Any = None) -> Composition:
    """Return the methods that the settings `advantage_estimator`, `all_right` and `all_wrong` name.

    `advantage_estimator` names the method of mixed prompts. One that does not act on those, such as
    "miner", leaves them to GRPO, and is the method of the kinds on which it acts.

    Args:
        estimator: A name or an import path.
        all_right, all_wrong: A name, an import path or "none"; None: what `estimator` itself does
            there.

    Raises:
        ValueError: An unknown name, a path that cannot be imported, or a combination that makes no
            sense.
    """
    method = _find("advantage_estimator", estimator)
    mixed = method if "mixed" in method.acts_on else GRPO
    homogeneous: dict[Kind, AdvantageEstimator] = {}
    if mixed is not method:
        homogeneous = dict.fromkeys(sorted(method.acts_on), method)  # in one order on every process
    settings: dict[Kind, Any] = {ALL_RIGHT: all_right, ALL_WRONG: all_wrong}
    for kind, setting in settings.items():
        if setting is None:
            continue
        method = _find(kind, setting)
        if kind not in method.acts_on:
            raise ValueError(
                f"{kind} must name a method that acts on {kind.replace('_', '-')} prompts: got"
                f" {setting!r}, which gives them nothing. Write {kind}: none, or one of"
                f" {', '.join(estimators_of(kind))}."
            )
        if homogeneous.setdefault(kind, method).name != method.name:
            raise ValueError(
                f"{kind} must not contradict advantage_estimator: got {kind}={setting!r} with"
                f" advantage_estimator={estimator!r}, which gives {kind.replace('_', '-')} prompts"
                f" to {homogeneous[kind].label}. Set `advantage_estimator: {mixed.name}` and"
                f" `{kind}: {setting}`."
            )
    # GRPO gives homogeneous prompts nothing anyway. Its own zeros keep the loss TRL's bit for bit.
    needless = {mixed.name, NONE.name} if mixed is GRPO else {mixed.name}
    return Composition(
        mixed, {kind: method for kind, method in homogeneous.items() if method.name not in needless}
    )


def _distinct(homogeneous: Mapping[Kind, AdvantageEstimator]) -> list[AdvantageEstimator]:
    return [*{method.name: method for method in homogeneous.values()}.values()]


def _find(setting: Literal["advantage_estimator", Kind], value: Any) -> AdvantageEstimator:
    name = str(value).strip()
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if name == NONE.name and setting != "advantage_estimator":
        return NONE
    if "." in name:
        return load_estimator(name, setting)
    names = (
        sorted(ESTIMATORS)
        if setting == "advantage_estimator"
        else [NONE.name, *estimators_of(setting)]
    )
    # such as a policy loss
    other = next(
        (
            method
            for key, method in METHODS.items()
            if name
            and key not in ESTIMATORS
            and name.casefold() in f"{key} {method.label}".casefold()
        ),
        None,
    )
    hint = f" {other.label} is another kind of method." if other else did_you_mean(name, names)
    raise ValueError(
        f"No method named {value!r} for {setting}.{hint} Methods: {', '.join(names)}; or the import"
        " path of your own, such as my_lib.my_advantages. See `trl-miner train --help methods`."
    )


def estimators_of(kind: Kind) -> list[str]:
    """Return the names of those estimators that act on prompts of a kind."""
    return sorted(name for name, method in ESTIMATORS.items() if kind in method.acts_on)


def estimate(
    composition: Composition,
    rollouts: Rollouts,
    knobs: Callable[[AdvantageEstimator], dict[str, Any]],
) -> Estimate:
    """Return the advantages of a generation batch: each row from the method of its prompt's kind.

    Every method runs once and sees the whole batch. Those of homogeneous prompts also see, as
    `rollouts.base`, the estimate of the method of mixed ones.

    Args:
        composition: The method of each kind.
        rollouts: The batch.
        knobs: Returns the settings of a method.
    """
    result = composition.mixed.estimate(rollouts, **knobs(composition.mixed))
    base, homogeneous = None if composition.mixed is GRPO else result, composition.homogeneous
    for method in _distinct(homogeneous):
        is_own_N = rows_of(
            rollouts.kinds, [kind for kind in homogeneous if homogeneous[kind].name == method.name]
        )
        of_method = method.estimate(replace(rollouts, base=base), **knobs(method))
        result = Estimate(
            torch.where(
                rollouts.local(is_own_N).unsqueeze(1), of_method.advantages_BT, result.advantages_BT
            ),
            torch.where(is_own_N, of_method.advantages_N, result.advantages_N),
            {**result.metrics, **of_method.metrics},
        )
    return result


def rows_of(kinds: GroupKinds, names: Iterable[Kind]) -> Tensor:
    """Return (N,) bool: the rows of homogeneous prompts of these kinds."""
    is_kind_N = {ALL_RIGHT: kinds.is_ph_N, ALL_WRONG: kinds.is_nh_N}
    return torch.stack([is_kind_N[name] for name in names]).any(dim=0)
