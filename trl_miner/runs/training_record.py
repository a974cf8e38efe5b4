"""`training.json` of a run folder: what the run is, for its card, for reports, and for those that
resume it; and `compared.json`, what `trl-miner compare` has decided of the run before it began.

The first holds neither paths of the machine nor secrets: of a local folder it keeps the last name.
"""

import contextlib
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .files import read_optional, write_json
from .records import Compared, Training

RECORD, COMPARED = "training.json", "compared.json"
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TRAINING, _COMPARED = TypeAdapter(Training), TypeAdapter(Compared)
_PACKAGES = ("trl", "transformers", "torch", "vllm", "math-verify")


def write_run_record(
    trainer: Any,
    settings: Mapping[str, str],
    *,
    changes: Sequence[Mapping[str, Any]] = (),
    dataset: str | None = None,
) -> None:
    """Write `training.json` of a `RunTrainer` into the run folder, before its training, on
    one process.

    `settings` are those of `trainer_settings`, `changes` those of `settings.changes_at`. `dataset`
    is a Hub id or a folder.
    """
    args = trainer.args
    record = {
        "base_model": named(trainer.model.config._name_or_path),
        "dataset": named(dataset),
        "methods": [method.name for method in args.methods],
        "papers": {method.name: [method.label, method.arxiv] for method in args.methods},
        "settings": dict(settings),
        "changes": list(changes),
        "seed": args.seed,
        "optimizer_steps_per_step": args.optimizer_steps_per_generation,
        "versions": versions(),
        "git": _git_revision(),
    }
    write_json(Path(args.output_dir) / RECORD, record)


def named(name: str | None) -> dict[str, Any] | None:
    """Return a Hub id or the name of a made data set as it is, and of a folder only its last
    name."""
    if not name:
        return None
    # they look like Hub ids
    if name.startswith(("trl_miner/", "reasoning_gym/")) or name == "reasoning_gym":
        return {"name": name, "hub": False}
    is_hub = HUB_ID.fullmatch(name) is not None and not Path(name).exists()
    return {"name": name if is_hub else Path(name).resolve().name, "hub": is_hub}


def versions() -> dict[str, str]:
    """Return the versions of all that decides on numbers, those of packages that are installed."""
    from .. import __version__

    found = {"python": platform.python_version(), "trl_miner": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _git_revision() -> str | None:
    """Return the commit of this package's checkout, with a mark if files differ; None: it is no
    checkout."""
    describe = ("describe", "--always", "--abbrev=12", "--dirty= + changes", "--exclude=*")
    found = None
    # installed, it may lie in an environment that happens to lie in a checkout: then git does not
    # know its file
    try:
        for arguments in (("ls-files", "--error-unmatch", __file__), describe):
            command = ["git", "-C", str(Path(__file__).parent), *arguments]
            found = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=True
            ).stdout
    except (
        OSError,
        subprocess.SubprocessError,
    ):  # no git, or a file system that hangs: the card can do without
        return None
    return (found or "").strip() or None


def read_run_record(run: Path) -> dict[str, Any]:
    """Read `training.json` of a run folder; empty: there is none."""
    return read_optional(run / RECORD, _TRAINING)


def told_settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a record as reports and cards show them: with earlier values of those
    that the run has changed."""
    settings = dict(record.get("settings") or {})
    for change in record.get("changes") or ():
        for name, (before, _) in change["settings"].items():
            settings[name] = f"{settings.get(name)} (until step {change['step']}: {before})"
    return settings


def add_to_record(run: Path, dataset: str | None, tags: Sequence[str]) -> dict[str, Any]:
    """Return `training.json` with a data set and tags for its card, which are kept where there is
    such a file."""
    known = read_run_record(run)
    record = known | {
        "dataset": known.get("dataset") or named(dataset),
        "tags": [*tags] or known.get("tags") or [],
    }
    if known:
        write_json(run / RECORD, record)
    return record


def papers_of(record: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return label and arXiv id of each method of a record; the name itself and None for an unknown
    one."""
    papers = record.get("papers") or {}
    return [
        tuple(papers.get(name, (name, None))) for name in dict.fromkeys(record.get("methods") or ())
    ]


def write_compared(run: Path, facts: Mapping[str, Any]) -> None:
    """Note what a comparison has decided of a run that is about to begin."""
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / COMPARED, facts)


def read_compared(run: Path) -> dict[str, Any]:
    """Return what a comparison has decided of a run; empty: none has started it."""
    return read_optional(run / COMPARED, _COMPARED)


def run_folders(output: Path) -> list[Path]:
    """Return the run folders that comparisons have begun: methods by name, seeds by number."""
    folders = (path.parent for path in output.glob(f"*/seed*/{COMPARED}"))
    return sorted(folders, key=lambda folder: (folder.parent.name, len(folder.name), folder.name))
