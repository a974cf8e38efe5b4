"""`training.json` of a run's folder: what the run is. It holds no secret and no path of the
machine: of a local folder it keeps the last name."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.redaction import hide_settings, is_secret

if TYPE_CHECKING:
    from ..recipe.reading import Recipe

RECORD = "training.json"
_PACKAGES = ("trl_miner", "trl", "transformers", "torch", "vllm", "math-verify")
# Where a run is, and how it is watched: not what it is.
_NOT_KEPT = {"output_dir", "run_name", "resume_from_checkpoint", "quiet", "env"}


@dataclass(frozen=True)
class Source:
    """A model or a data set."""

    name: str  # a Hub id, or the last part of a path
    on_hub: bool


@dataclass(frozen=True)
class Record:
    """What a run is."""

    base_model: Source
    dataset: Source
    rows: str  # how many there are to train on, and a digest of them
    settings: dict[str, str]  # by name, as text; those that are None are left out
    methods: tuple[str, ...]  # labels, such as "MINER"
    papers: dict[str, str]  # arXiv ids by label
    seed: int
    versions: dict[str, str]  # by package


def make_record(trainer: Any, recipe: Recipe, dataset: str) -> Record:
    """Return what a run is, before its training. `dataset` is its name or path."""
    args, model = trainer.args, recipe.model
    known = vars(recipe.data) | vars(recipe.run) | vars(model) | args.to_dict()
    papers = papers_of(trainer)
    return Record(
        base_model=source(str(recipe.given.get("model_name_or_path", model.model_name_or_path))),
        dataset=source(dataset),
        rows=digest(trainer.train_dataset),
        settings=as_texts(known),
        methods=tuple(papers),
        papers={label: arxiv for label, arxiv in papers.items() if arxiv},
        seed=args.seed,
        versions=versions(),
    )


def papers_of(trainer: Any) -> dict[str, str | None]:
    """Return the arXiv id, or None, of each method that has a part in a training, by its label."""
    args = trainer.args
    loss, _ = args.policy_loss_method
    methods = [*trainer.composition.methods, *([loss] if loss.function else [])]
    papers = {method.label: method.arxiv for method in methods}
    if args.importance_sampling_level == "sequence":
        papers["GSPO"] = "2507.18071"
    if args.dynamic_sampling:
        papers["dynamic sampling"] = "2503.14476"
    return papers


def write_record(folder: Path, record: Record) -> None:
    """Write `training.json`, on one process."""
    text = json.dumps(asdict(record), indent=1, ensure_ascii=False)
    (folder / RECORD).write_text(text, "utf-8")


def read_record(folder: str | Path) -> Record | None:
    """Return what a run is; None: the folder has no `training.json` (a run of plain TRL).

    Raises:
        ValueError: The file is damaged.
    """
    path = Path(folder, RECORD)
    if not path.is_file():
        return None
    try:
        known = json.loads(path.read_text("utf-8"))
        model, dataset = (Source(**known.pop(name)) for name in ("base_model", "dataset"))
        methods = tuple(known.pop("methods"))
        return Record(base_model=model, dataset=dataset, methods=methods, **known)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}).") from None


def check_resume(old: Record | None, new: Record) -> str:
    """Return a warning that names the settings that differ from an interrupted run's; empty: none.

    Raises:
        ValueError: It is another run: another method, data set or model.
    """
    if old is None:
        return ""
    for what, setting in (
        ("base_model", "model_name_or_path"),
        ("dataset", "dataset_name"),
        ("rows", "the training data"),
        ("methods", "advantage_estimator, all_right or policy_loss"),
    ):
        before, now = getattr(old, what), getattr(new, what)
        if before != now:
            raise ValueError(
                f"The run cannot be resumed with other values of {setting}: it was begun with"
                f" {_shown(before)}, not {_shown(now)}. Choose another --output_dir for a new run."
            )
    changes = [
        f"{name} (was {old.settings.get(name)}, is {new.settings.get(name)})"
        for name in sorted({*old.settings} | {*new.settings})
        if old.settings.get(name) != new.settings.get(name)
    ]
    return f"The run goes on with other settings: {', '.join(changes)}." if changes else ""


def _shown(value: Any) -> str:
    if isinstance(value, Source):
        return value.name
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def source(name: str) -> Source:
    """Return a model or a data set by what a user calls it."""
    is_here = Path(name).exists() or name.startswith((".", "/", "~"))
    is_embedded = name.startswith("trl_miner/")
    return Source(Path(name).resolve().name if is_here else name, not (is_here or is_embedded))


def digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return how many rows there are, and 16 digits that change with any of them."""
    digest, number = hashlib.blake2b(digest_size=8), 0
    for row in rows:
        number += 1
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return f"{number} rows, {digest.hexdigest()}"


def as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as text, without secrets, and of a path on this machine its last name."""
    kept = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in _NOT_KEPT and not is_secret(name)
    }
    return {
        name: Path(value).name
        if isinstance(value, str) and value.startswith(("/", "~"))
        else str(value)
        for name, value in hide_settings(kept).items()
    }


def versions() -> dict[str, str]:
    """Return the versions of all that decides on numbers, of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
