"""Which runs belong to one method, and which method is the baseline."""

import os.path
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..runs.dose import NONE, methods_by_kind
from ..runs.history import RunHistory
from ..runs.settings import DEFAULTS

# Neither where a run is written nor what is logged of it makes it another method.
_NOT_METHOD_SETTINGS = re.compile(
    r"seed|data_seed|output_dir|run_name|report_to|config|resume_.*|overwrite_output_dir|trackio_.*|"
    r"(logging|save|score|hub|log|eval|dataloader|ddp|vllm_server|vllm_group)_.*|"
    r"push_to_hub|watchdog_seconds|num_completions_to_print|disable_tqdm"
)
_PLAIN = {
    "policy_loss": "clip",
    "dynamic_sampling": "False",
    "adaptive_sampling_rounds": "1",
    "prompt_selection": "none",
    "gate_on_correctness": "False",
}


@dataclass(frozen=True)
class Method:
    """Runs with the same settings but for the seed: one line in a picture, with the style of its index 0, 1, 2, ..."""

    label: str
    runs: Sequence[RunHistory]
    style_index: int = 0


def group_methods(runs: Sequence[RunHistory]) -> list[Method]:
    """Return the methods, in order of their first run, with labels that differ."""
    groups: dict[Any, list[RunHistory]] = {}
    for run in runs:
        own = tuple(sorted(_of_method(run).items()))
        key: Any = (run.method, own) if own or run.method is not None else str(run.folder.resolve())
        while run.seed is not None and any(other.seed == run.seed for other in groups.get(key, ())):
            key = (key, "again")  # no method has a seed twice: what differs was not recorded
        groups.setdefault(key, []).append(run)
    found = list(groups.values())
    short = [_label(group) for group in found]
    labels: list[str] = []
    for label, group in zip(short, found, strict=True):
        alike = [other[0] for name, other in zip(short, found, strict=True) if name == label]
        longer = label + _differences(group[0], alike)
        labels.append(longer if longer not in labels else f"{longer} ({group[0].name})")
    return [Method(label, group, place) for place, (label, group) in enumerate(zip(labels, found, strict=True))]


def methods_with(methods: Sequence[Method], folders: Container[str]) -> list[Method]:
    """Return the methods with those of their runs whose folders are named, if any."""
    kept = [replace(m, runs=[run for run in m.runs if str(run.folder) in folders]) for m in methods]
    return [method for method in kept if method.runs]


def is_grpo(run: RunHistory) -> bool:
    """Return whether it is plain GRPO, the baseline of the tables."""
    if not run.settings and run.method is None:
        return False
    is_plain = all(run.settings.get(name, DEFAULTS.get(name, "False")) == value for name, value in _PLAIN.items())
    return is_plain and tuple(methods_by_kind(run.settings).values()) == ("grpo", NONE, NONE)


def baseline_of(runs: Mapping[str, Sequence[RunHistory]]) -> str | None:
    """Return the method to compare others with: plain GRPO, of several the one called grpo; None: there is none.

    GSPO counts as GRPO too, from which it differs only in its ratio, so the name decides.
    """
    found = [label for label, own in runs.items() if own and is_grpo(own[0])]
    return "grpo" if "grpo" in found else next(iter(found), None)


def every_setting(run: RunHistory) -> dict[str, str]:
    """Return the settings that make a run's method, defaults included."""
    return {**DEFAULTS, **_of_method(run)}


def _of_method(run: RunHistory) -> dict[str, str]:
    return {name: value for name, value in run.settings.items() if not _NOT_METHOD_SETTINGS.fullmatch(name)}


def _label(group: Sequence[RunHistory]) -> str:
    if group[0].method is not None:
        return group[0].method
    if len(group) == 1:
        return group[0].name
    shared = os.path.commonprefix([run.name for run in group]).rstrip("0123456789")
    shared = re.sub(r"[\W_]+(seed|s)?[\W_]*$|seed$", "", shared)  # runs/miner_s1 and runs/miner_s2 are miner
    return shared if len(shared) > 2 else f"{group[0].name} and {len(group) - 1} more"


def _differences(run: RunHistory, others: Sequence[RunHistory]) -> str:
    """Return two of the settings in which a run differs from others, to put behind their common label."""
    own, every = every_setting(run), [every_setting(other) for other in others]
    names = sorted({name for other in every for name in other.keys() | own.keys() if other.get(name) != own.get(name)})
    return "".join(f", {name} {own.get(name, 'default')}" for name in names[:2])
