"""What a report is given: runs, comparisons of runs, scored samples; and which of the runs are one
method."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.eval_folder import SETTINGS, benchmark_folders, read_scores, read_settings
from ..runs.history import STATE, RunHistory, has_state, no_state, read_run
from ..runs.runs_file import is_runs_file, read_runs
from ..runs.training_record import run_folders

if TYPE_CHECKING:
    from .prompt_outcomes import Outcomes

NOT_AVAILABLE = "n/a"
# Neither where a run is written nor what is logged of it makes it another method.
_NOT_METHOD_SETTINGS = re.compile(
    r"seed|data_seed|output_dir|run_name|report_to|config|resume_.*|overwrite_output_dir|trackio_.*|"
    r"(logging|save|score|hub|log|eval|dataloader|ddp|vllm_server|vllm_group)_.*|"
    r"push_to_hub|watchdog_seconds|num_completions_to_print|disable_tqdm"
)
_PLAIN = dict(  # plain GRPO; but for the first, the defaults
    advantage_estimator="grpo", all_right="none", all_wrong="none", policy_loss="clip", dynamic_sampling="False",
    adaptive_sampling_rounds="1.0", prompt_selection="none", gate_on_correctness="False",
)  # fmt: skip


@dataclass(frozen=True)
class EvalResult:
    """A scored result folder of `trl-miner eval`."""

    folder: Path
    name: str  # of its model
    settings: Mapping[str, Any]
    benchmarks: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Inputs:
    """What the folders of a report hold together."""

    runs: Sequence[RunHistory]
    results: Sequence[EvalResult]
    notes: Sequence[str] = ()
    outcomes: Mapping[Path, "Outcomes"] = field(default_factory=dict)  # by the folder of the run


def read_result(folder: str | Path) -> EvalResult:
    """Read a scored result folder of `trl-miner eval`."""
    folder = Path(folder)
    benchmarks, settings = read_scores(folder), read_settings(folder)
    model = settings.get("adapter") or settings.get("model")
    name = "/".join(Path(str(model)).parts[-2:]) if model else folder.resolve().name
    return EvalResult(folder, name, settings, benchmarks)


def read_inputs(
    folders: Sequence[str | Path],
    *,
    correct: str | None = None,
    threshold: float | None = None,
    quiet: bool = True,
) -> Inputs:
    """Read runs, outputs of `trl-miner compare` or their `runs.jsonl`, result folders of `trl-miner
    eval`, and rollouts of other runs.

    The names of the runs differ. What a run did not log of its prompts is taken from its rollouts,
    if it kept them. `correct` and `threshold` say which reward of these is right, see `collect`.

    Raises:
        FileNotFoundError: A folder is none of these, or lacks a file.
        ValueError: A file is damaged.
    """
    # with numpy, which `trl-miner compare` starts without
    from .prompt_outcomes import read_outcomes, with_columns
    from .rollouts import NoRolloutsError, find_rollouts, is_rollout_file

    if not folders:
        raise ValueError(
            "A report needs at least one folder: got none. Give the output_dir of a training run."
        )
    runs: list[RunHistory] = []
    results, notes = [], []
    outcomes: dict[Path, Outcomes] = {}
    for folder in dict.fromkeys(Path(folder) for folder in folders):  # twice the same is once
        is_run = has_state(folder)
        if is_runs_file(folder) and not is_rollout_file(folder):
            runs += read_runs(folder)
        elif not is_run and (compared := run_folders(folder)):
            missing = [path for path in compared if not has_state(path)]
            notes += [f"{path} is left out: it has no {STATE} yet." for path in missing]
            own = [read_run(path) for path in compared if path not in missing]
            if not own:
                raise FileNotFoundError(no_state(folder))
            runs += [replace(run, name="/".join(run.folder.parts[-2:])) for run in own]
        elif not is_run and ((folder / SETTINGS).is_file() or benchmark_folders(folder)):
            results.append(read_result(folder))
        elif is_run or find_rollouts(folder):
            run = read_run(folder) if is_run else RunHistory(folder, folder.name, {})
            try:
                found = read_outcomes(run, correct, threshold, quiet=quiet)
            except NoRolloutsError as error:
                if not run.columns:
                    raise
                found = None  # its log alone makes a report
                notes.append(str(error))
            runs.append(with_columns(run, found))
            outcomes |= {folder: found} if found else {}
        else:
            raise FileNotFoundError(no_state(folder))
    return Inputs(tell_apart(runs), results, notes, outcomes)


def tell_apart(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """Name runs of equal names by their folders."""
    names = [run.name for run in runs]
    return [
        replace(run, name=run.name if names.count(run.name) == 1 else str(run.folder))
        for run in runs
    ]


@dataclass(frozen=True)
class Method:
    """Runs with the same settings but for the seed: one line in a picture, with the style of its
    index 0, 1, 2, ..."""

    label: str
    runs: Sequence[RunHistory]
    style_index: int = 0


def group_methods(runs: Sequence[RunHistory]) -> list[Method]:
    """Return the methods, in order of their first run, with labels that differ if the names of the
    runs do."""
    groups: dict[Any, list[RunHistory]] = {}
    for run in runs:
        own = tuple(sorted(method_settings(run).items()))
        key: Any = (run.method, own) if own or run.method is not None else str(run.folder.resolve())
        while run.seed is not None and any(other.seed == run.seed for other in groups.get(key, ())):
            key = (key, "again")  # no method has a seed twice: what differs was not recorded
        groups.setdefault(key, []).append(run)
    labels = [group[0].method or group[0].name for group in groups.values()]
    return [
        Method(label if labels.count(label) == 1 else f"{label} ({group[0].name})", group, place)
        for place, (label, group) in enumerate(zip(labels, groups.values(), strict=True))
    ]


def runs_of(methods: Sequence[Method]) -> list[tuple[str, RunHistory]]:
    """Return the runs of some methods, each with the label of its method."""
    return [(method.label, run) for method in methods for run in method.runs]


def methods_with(methods: Sequence[Method], folders: Container[str]) -> list[Method]:
    """Return the methods with those of their runs whose folders are named, if any."""
    kept = [replace(m, runs=[run for run in m.runs if str(run.folder) in folders]) for m in methods]
    return [method for method in kept if method.runs]


def is_grpo(run: RunHistory) -> bool:
    """Return whether it is plain GRPO, the baseline of the tables."""
    is_plain = all(
        run.settings.get(name, value) in (value, "None") for name, value in _PLAIN.items()
    )
    return is_plain and "advantage_estimator" in run.settings


def baseline_of(runs: Mapping[str, Sequence[RunHistory]]) -> str | None:
    """Return the method to compare others with: plain GRPO, of several the one called grpo; None:
    there is none.

    GSPO counts as GRPO too, from which it differs only in its ratio, so the name decides.
    """
    found = [label for label, own in runs.items() if own and is_grpo(own[0])]
    return "grpo" if "grpo" in found else next(iter(found), None)


def method_settings(run: RunHistory) -> dict[str, str]:
    """Return the settings that make a run's method."""
    return {
        name: value
        for name, value in run.settings.items()
        if not _NOT_METHOD_SETTINGS.fullmatch(name)
    }
