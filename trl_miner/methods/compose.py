"""Assign one estimator to each kind of prompt, and merge their advantages."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..importing import did_you_mean
from . import ESTIMATORS
from .groups import GroupKinds
from .grpo import GRPO
from .method import AdvantageEstimator, Kind
from .own import load_estimator
from .rollouts import Estimate, Rollouts

ALL_RIGHT: Kind = "all_right"
ALL_WRONG: Kind = "all_wrong"


def _pay_nothing(rollouts: Rollouts) -> Estimate:
    return Estimate.of_rollouts(rollouts, torch.zeros_like(rollouts.advantages_N))


NONE = AdvantageEstimator(
    name="none", label="Nothing", estimate=_pay_nothing, acts_on=frozenset({ALL_RIGHT, ALL_WRONG})
)


@dataclass(frozen=True)
class Composition:
    """The method of each kind of prompt."""

    mixed: AdvantageEstimator  # of prompts that are neither all right nor all wrong
    homogeneous: Mapping[Kind, AdvantageEstimator]  # of all-right and all-wrong prompts, where one is named

    @property
    def methods(self) -> tuple[AdvantageEstimator, ...]:
        """Every method that has a part, once; GRPO only where it is alone, as its advantages are TRL's own."""
        others = [method for method in _distinct(self.homogeneous) if method.name not in (NONE.name, self.mixed.name)]
        return tuple(others) if self.mixed is GRPO and others else (self.mixed, *others)

    @property
    def credited(self) -> dict[Kind, AdvantageEstimator]:
        """The methods of homogeneous prompts that replace the advantages of `mixed`."""
        # GRPO gives homogeneous prompts nothing anyway. Its own zeros keep the loss TRL's bit for bit.
        needless = {self.mixed.name, NONE.name} if self.mixed is GRPO else {self.mixed.name}
        return {kind: method for kind, method in self.homogeneous.items() if method.name not in needless}

    @property
    def dosed(self) -> dict[Kind, AdvantageEstimator]:
        """Those of the `credited` methods that a dose can scale: all but "none"."""
        return {kind: method for kind, method in self.credited.items() if method.name != NONE.name}


def find_composition(estimator: Any, all_right: Any = None, all_wrong: Any = None) -> Composition:
    """Return the methods that the settings `advantage_estimator`, `all_right` and `all_wrong` name.

    `advantage_estimator` names the method of mixed prompts. One that does not act on those, such as "miner", leaves
    them to GRPO, and is the method of the kinds on which it acts.

    Args:
        estimator: A name or an import path.
        all_right, all_wrong: A name, an import path or "none"; None: what `estimator` itself does there.

    Raises:
        ValueError: An unknown name, a path that cannot be imported, or a combination that makes no sense.
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
                f"{kind} must name a method that acts on {kind.replace('_', '-')} prompts: got {setting!r}, which "
                f"gives them nothing. Write {kind}: none, or one of {', '.join(estimators_of(kind))}."
            )
        if homogeneous.setdefault(kind, method).name != method.name:
            raise ValueError(
                f"{kind} must not contradict advantage_estimator: got {kind}={setting!r} with advantage_estimator="
                f"{estimator!r}, which gives {kind.replace('_', '-')} prompts to {homogeneous[kind].label}. Write "
                f"advantage_estimator: {mixed.name} with {kind}: {setting}."
            )
    return Composition(mixed, homogeneous)


def _distinct(homogeneous: Mapping[Kind, AdvantageEstimator]) -> list[AdvantageEstimator]:
    return [*{method.name: method for method in homogeneous.values()}.values()]


def _find(setting: Literal["advantage_estimator", Kind], value: Any) -> AdvantageEstimator:
    name = value.strip() if isinstance(value, str) else ""
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if name == NONE.name and setting != "advantage_estimator":
        return NONE
    if "." in name:
        return load_estimator(name, setting)
    known = sorted(ESTIMATORS) if setting == "advantage_estimator" else [NONE.name, *estimators_of(setting)]
    raise ValueError(
        f"{setting} must be one of {', '.join(known)}, or the import path of your own such as my_lib.my_advantages: "
        f"got {value!r}.{did_you_mean(name, ESTIMATORS)}"
    )


def estimators_of(kind: Kind) -> list[str]:
    """Return the names of those estimators that act on prompts of a kind."""
    return sorted(name for name, method in ESTIMATORS.items() if kind in method.acts_on)


def estimate(composition: Composition, rollouts: Rollouts, knobs: Callable[[str], dict[str, Any]]) -> Estimate:
    """Return the advantages of a generation batch: each row from the method of its prompt's kind.

    Every method runs once and sees the whole batch. Those of homogeneous prompts also see, as `rollouts.base`, the
    estimate of the method of mixed ones.

    Args:
        composition: The method of each kind.
        rollouts: The batch.
        knobs: Returns the settings of a method, given its name.
    """
    result = composition.mixed.estimate(rollouts, **knobs(composition.mixed.name))
    base = None if composition.mixed is GRPO else result
    credited = composition.credited
    for method in _distinct(credited):
        own_kinds = [kind for kind in credited if credited[kind].name == method.name]
        seen = replace(rollouts, base=base, is_own_N=rows_of(rollouts.kinds, own_kinds))
        own = method.estimate(seen, **(knobs(method.name) if method.knobs else {}))
        result = _take_rows(result, own, seen.is_own_N, rollouts)
    return result


def rows_of(kinds: GroupKinds, names: Iterable[Kind]) -> Tensor:
    """Return (N,) bool: the rows of homogeneous prompts of these kinds."""
    is_kind_N = {ALL_RIGHT: kinds.is_ph_N, ALL_WRONG: kinds.is_nh_N}
    return torch.stack([is_kind_N[name] for name in names]).any(dim=0)


def _take_rows(result: Estimate, own: Estimate, is_own_N: Tensor, rollouts: Rollouts) -> Estimate:
    """Return `result` with some rows, and all metrics, of `own`."""
    return Estimate(
        torch.where(rollouts.local(is_own_N).unsqueeze(1), own.advantages_BT, result.advantages_BT),
        torch.where(is_own_N, own.advantages_N, result.advantages_N),
        {**result.metrics, **own.metrics},
    )
