"""Which runs belong to one method, and how the methods relate: baseline, ablation, sweep."""

import os.path
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..runs.dose import NONE, methods_by_kind
from ..runs.history import RunHistory
from ..runs.settings import DEFAULTS
from .material import EvalResult

# Neither where a run is written nor what is logged of it makes it another method.
_NOT_METHOD_SETTINGS = re.compile(
    r"seed|data_seed|output_dir|run_name|report_to|config|resume_.*|overwrite_output_dir|trackio_.*|"
    r"(logging|save|score|hub|log|eval|dataloader|ddp|vllm_server|vllm_group)_.*|"
    r"push_to_hub|watchdog_seconds|num_completions_to_print|disable_tqdm"
)
# Of the paper's ablations, intrinsic reward, credit and whether limited: w/o IR, w/o FW, w/o AC
_ABLATIONS = (("constant", "uniform", False), ("nll", "uniform", True), ("nll", "focal", False))
_SAMPLING = ("temperature", "top_p", "max_tokens", "style")


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
    labels = list(short)
    for at, label in enumerate(short):
        if short.count(label) > 1:
            labels[at] = _longer(label, found[at], [found[i] for i, other in enumerate(short) if other == label])
    for at, label in enumerate(labels):  # still the same: nothing recorded tells them apart
        if labels.index(label) != at:
            labels[at] = f"{label} ({found[at][0].name})"
    return [Method(label, group, place) for place, (label, group) in enumerate(zip(labels, found, strict=True))]


def methods_with(methods: Sequence[Method], folders: Container[str]) -> list[Method]:
    """Return the methods with those of their runs whose folders are named, if any."""
    kept = [replace(m, runs=[run for run in m.runs if str(run.folder) in folders]) for m in methods]
    return [method for method in kept if method.runs]


def group_results(
    results: Sequence[EvalResult], methods: Sequence[Method] = ()
) -> list[tuple[Method, list[EvalResult]]]:
    """Return for each line its name and place, and its results: those of a method's runs that were sampled alike.

    The results of the runs of `methods` get their labels, colors and dashes.
    """
    runs = {str(one.run.folder): one.run for one in results if one.run is not None}
    methods = methods or group_methods(list(runs.values()))
    method_of = {str(run.folder): method for method in methods for run in method.runs}
    groups: dict[tuple[str, ...], list[EvalResult]] = {}
    place_of: dict[tuple[str, ...], int] = {}
    for result in results:
        method = method_of.get(str(result.run.folder)) if result.run is not None else None
        if method is None or result.run is None or result.name != result.run.name:
            key: tuple[str, ...] = (result.name, str(result.folder))
        else:
            key = (method.label, *(repr(result.settings.get(name)) for name in _SAMPLING))
            if method.style_index not in place_of.values():
                place_of[key] = method.style_index
        groups.setdefault(key, []).append(result)
    labels = [key[0] for key in groups]
    series, free = [], len(methods)
    for key, several in groups.items():
        label = key[0] if labels.count(key[0]) == 1 else f"{key[0]} ({several[0].folder.name})"
        series.append((Method(label, [], place_of.get(key, free)), several))
        free += key not in place_of
    return series


def is_grpo(run: RunHistory) -> bool:
    """Return whether it is plain GRPO, the baseline of the table of methods."""
    wanted = {"policy_loss": "clip", "dynamic_sampling": "False", "prompt_selection": "none"}
    is_plain = all(run.setting(name) == value for name, value in wanted.items())
    return is_plain and run.settings.get("gate_on_correctness") != "True" and _methods(run) == ("grpo", NONE, NONE)


def _methods(run: RunHistory) -> tuple[str, ...] | None:
    """Return the methods of mixed, all-right and all-wrong prompts; None: no settings were recorded."""
    is_recorded = run.settings or run.method is not None
    return tuple(methods_by_kind(run.settings).values()) if is_recorded else None


def baseline_of(methods: Sequence[Method]) -> Method | None:
    """Return what others are compared with: plain GRPO, of several the one called grpo; None: there is none."""
    found = [method for method in methods if is_grpo(method.runs[0])]
    return next((method for method in found if method.label == "grpo"), found[0] if found else None)


def highlighted_labels(methods: Sequence[Method]) -> list[str]:
    """Return the labels of the baseline and of MINER; none unless both are there."""
    baseline = baseline_of(methods)
    found = [method.label for method in methods if is_whole_miner(method.runs[0])]
    return [] if baseline is None or not found else [baseline.label, *found]


def is_miner(run: RunHistory) -> bool:
    """Return whether it was trained with MINER, alone or on top of another method."""
    return "miner" in (_methods(run) or ())


def is_whole_miner(run: RunHistory) -> bool:
    """Return whether it is the paper's method on top of GRPO, with its cap or another dose in the cap's place."""
    *parts, has_cap = _parts(run)
    return parts == ["nll", "focal"] and (has_cap or run.setting("dose_share") != "None")


def is_ablation(run: RunHistory) -> bool:
    """Return whether it is one of the paper's ablations of MINER."""
    return run.setting("dose_share") == "None" and _parts(run) in _ABLATIONS


def _parts(run: RunHistory) -> tuple[str | None, str | None, bool]:
    """Return intrinsic reward, credit, and whether there is a cap, of MINER on top of GRPO; of others none of it."""
    if _methods(run) != ("grpo", "miner", NONE):
        return None, None, False
    return run.setting("miner_intrinsic"), run.setting("miner_credit"), run.setting("miner_lambda_max") != "None"


def ablation_base(run: RunHistory) -> dict[str, str]:
    """Return what all runs of one ablation have in common: everything but the method."""
    settings = every_setting(run).items()
    return {name: value for name, value in settings if not name.startswith(("miner_", "advantage_estimator"))}


def _of_method(run: RunHistory) -> dict[str, str]:
    return {name: value for name, value in run.settings.items() if not _NOT_METHOD_SETTINGS.fullmatch(name)}


def every_setting(run: RunHistory) -> dict[str, str]:
    """Return the settings that make a run's method, defaults included."""
    return {**DEFAULTS, **_of_method(run)}


def _label(group: Sequence[RunHistory]) -> str:
    if group[0].method is not None:
        return group[0].method
    if len(group) == 1:
        return group[0].name
    shared = os.path.commonprefix([run.name for run in group]).rstrip("0123456789")
    shared = re.sub(r"[\W_]+(seed|s)?[\W_]*$|seed$", "", shared)  # runs/miner_s1 and runs/miner_s2 are miner
    return shared if len(shared) > 2 else f"{group[0].name} and {len(group) - 1} more"


def _longer(label: str, group: Sequence[RunHistory], clashing: Sequence[Sequence[RunHistory]]) -> str:
    """Return the label with the settings in which it differs from others of its name."""
    own, every = every_setting(group[0]), [every_setting(other[0]) for other in clashing]
    names = sorted({name for other in every for name in other.keys() | own.keys() if other.get(name) != own.get(name)})
    told = ", ".join(f"{name} {own.get(name, 'default')}" for name in names[:2])
    return f"{label}, {told}" if told else label
