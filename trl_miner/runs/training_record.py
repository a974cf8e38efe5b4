"""`training.json` of a run folder: what the model card says of the run, and with which settings it began.

It holds neither paths of the machine nor secrets: of a local folder it keeps the last name, and of the settings those
that decide on the training. Some of its fields are written at other times:

"compared"    by `trl-miner compare`, before the run begins: method, recipe, options, seed; paths, too
"finished"    once all is written: {"steps": 150, "epochs": null}; a run that is started again then stays as it is
"""

import contextlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .files import read_object, read_optional, write_json
from .records import Training

RECORD = "training.json"
TRAINING = TypeAdapter(Training)
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PACKAGES = ("trl", "transformers", "torch", "vllm")
_SHOWN = ("advantage_estimator", "policy_loss", "correct_threshold", "correct_reward_func", "dynamic_sampling")
_SHOWN_IF_SET = (
    *("gate_on_correctness", "dose_share", "all_right", "all_wrong", "prompt_selection"),
    *("advantage_estimator_kwargs", "policy_loss_kwargs"),
)
_SHOWN_LAST = (
    *("loss_type", "num_generations", "temperature", "learning_rate", "beta", "epsilon", "epsilon_high", "delta"),
    *("importance_sampling_level", "steps_per_generation", "num_iterations", "max_completion_length"),
)


def write_run_record(
    trainer: Any,
    *,
    segments: Sequence[Mapping[str, Any]] = (),
    dataset: str | None = None,
    held_out: str | None = None,
) -> None:
    """Write `training.json` of a `MinerGRPOTrainer` into the run folder, before its training, on one process.

    `segments` are those of the run, the one that begins included. `dataset` is a Hub id or a folder; `held_out` is a
    Hub id, the name of a benchmark or NAME=PATH, by default the data set.
    """
    from ..methods import METHODS

    record = run_record(
        trainer.args, base_model=trainer.model.config._name_or_path, dataset=dataset, held_out=held_out
    )
    record["segments"] = list(segments)
    names = [name for segment in segments for name in segment["methods"]]
    record["methods"] = [*dict.fromkeys([*names, *record["methods"]])]
    record["papers"] |= {name: [METHODS[name].label, METHODS[name].arxiv] for name in names if name in METHODS}
    record["is_chat"] = prompts_are_chats(trainer)
    if trainer.tools:
        record["settings"]["tools"] = ", ".join(tool.__name__ for tool in trainer.tools)
    path = Path(trainer.args.output_dir) / RECORD
    known = read_optional(path, [])
    record |= {"compared": known["compared"]} if "compared" in known else {}
    if known != record:  # a run without a step left changes nothing
        write_json(path, record)


def run_record(args: Any, *, base_model: str | None, dataset: str | None, held_out: str | None) -> dict[str, Any]:
    """Return the content of `training.json`."""
    return {
        "base_model": _named(base_model),
        "dataset": _named(dataset),
        "held_out": _named(held_out),
        "methods": [method.name for method in args.methods],
        "papers": {method.name: [method.label, method.arxiv] for method in args.methods},
        "settings": _settings(args),
        "seed": args.seed,
        "optimizer_steps_per_step": args.optimizer_steps_per_generation,
        "versions": _versions(),
        "git": git_revision(),
    }


def _named(name: str | None) -> dict[str, Any] | None:
    """Return a Hub id or the name of a made data set as it is, and of a folder only its last name."""
    if not name:
        return None
    if name.startswith(("trl_miner/", "reasoning_gym/")) or name == "reasoning_gym":  # they look like Hub ids
        return {"name": name, "hub": False}
    is_hub = HUB_ID.fullmatch(name) is not None and not Path(name).exists()
    return {"name": name if is_hub else Path(name).resolve().name, "hub": is_hub}


def _settings(args: Any) -> dict[str, str]:
    """Return the settings that took part in the training."""
    shown = {name: getattr(args, name) for name in _SHOWN}
    optional = {name: getattr(args, name) for name in _SHOWN_IF_SET}
    shown |= {name: value for name, value in optional.items() if value not in (None, False, "none")}
    if hasattr(args, "max_staleness"):
        shown |= {"asynchronous": True, "max_staleness": args.max_staleness, "token_budget": args.token_budget}
    for method in args.methods:
        shown |= args.method_settings(method)
    shown = dict(sorted(shown.items())) | {name: getattr(args, name) for name in _SHOWN_LAST}
    return {name: str(value) for name, value in shown.items()}


def _versions() -> dict[str, str]:
    from .. import __version__

    versions = {"trl_miner": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def git_revision() -> str | None:
    """Return the commit of this package's checkout, with a mark if files differ; None: it is no checkout."""
    folder = Path(__file__).resolve().parent
    describe = ("describe", "--always", "--abbrev=12", "--dirty= + changes", "--exclude=*")
    found = None
    try:  # installed, it may lie in an environment that happens to lie in a checkout: then git does not know its file
        for arguments in (("ls-files", "--error-unmatch", __file__), describe):
            command = ["git", *arguments]
            found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # no git, or a file system that hangs: the card can do without
        return None
    return (found or "").strip() or None


def prompts_are_chats(trainer: Any) -> bool:
    """Return whether a trainer's prompts are conversations; of a stream that has not begun, whether its tokenizer has
    a chat template."""
    if trainer.prompt_form is not None:
        return trainer.prompt_form.style == "chat"
    return getattr(trainer.processing_class, "chat_template", None) is not None


def read_run_record(run: Path) -> dict[str, Any] | None:
    """Read `training.json` of a run folder; None: there is none."""
    path = run / RECORD
    return read_object(path, "Delete it to go without.", TRAINING) if path.is_file() else None


def read_tools(run: Path) -> str | None:
    """Return the names of the tools that a run was trained with; None: without, or `training.json` does not say so."""
    return (read_optional(run / RECORD, [], TRAINING).get("settings") or {}).get("tools")


def papers_of(record: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return label and arXiv id of each method of a record; the name itself and None for an unknown one."""
    papers = record.get("papers") or {}
    return [tuple(papers.get(name, (name, None))) for name in dict.fromkeys(record.get("methods") or ())]


def write_compared(run: Path, facts: Mapping[str, Any]) -> None:
    """Note what a comparison has decided of a run that is about to begin."""
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / RECORD, {**read_optional(run / RECORD, []), "compared": facts})


def read_compared(run: Path) -> dict[str, Any]:
    """Return what a comparison has decided of a run; empty: none has started it."""
    compared: dict[str, Any] = (read_run_record(run) or {}).get("compared") or {}
    return compared


def note(run: Path, **fields: Any) -> None:
    """Set fields of a record, such as `finished` with steps and epochs, once all is written, on one process.

    A folder that was deleted meanwhile has no record: then the next start writes all anew.
    """
    if (run / RECORD).is_file():
        write_json(run / RECORD, read_object(run / RECORD) | fields)


def run_folder(output: Path, method: str, seed: int) -> Path:
    """Return the folder of a run in the output of `trl-miner compare`."""
    return output / method / f"seed{seed}"


def run_folders(output: Path) -> list[Path]:
    """Return the run folders that comparisons have begun: methods by name, seeds by number."""
    folders = (path.parent for path in output.glob(f"*/seed*/{RECORD}"))
    return sorted(folders, key=lambda folder: (folder.parent.name, len(folder.name), folder.name))
