"""`training.json` of a run folder: what the model card says of the run, and with which settings it began.

It holds neither paths of the machine nor secrets: of a local folder it keeps the last name, and of the settings those
that decide on the training. Some of its fields are written at other times:

"compared"    by `trl-miner compare`, before the run begins: method, recipe, options, seed; paths, too
"finished"    once all is written: {"steps": 150, "epochs": null}; a run that is started again then stays as it is
"""

import contextlib
import dataclasses
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..redaction import redact, without_paths
from .files import read_object, read_optional, write_json
from .records import Training
from .segments import plain

RECORD = "training.json"
TRAINING = TypeAdapter(Training)
_PACKAGES = ("trl", "transformers", "torch", "vllm")
_SHOWN_OF_ALL = (
    *("loss_type", "num_generations", "temperature", "learning_rate", "beta", "epsilon", "epsilon_high", "delta"),
    *("importance_sampling_level", "steps_per_generation", "num_iterations", "max_completion_length"),
)
_SHOWN_IF_SET = ("gate_on_correctness", "dose_share", "all_right", "all_wrong")
# Where a run is written and who may: other places say it, or none should.
_NOT_OF_METHOD = {"output_dir", "logging_dir", "run_name", "hub_token", "resume_from_checkpoint", "deepspeed"}
_NOT_OF_METHOD |= {"overwrite_output_dir", "resume_with_changes"}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def write_run_record(
    trainer: Any,
    *,
    segments: Sequence[Mapping[str, Any]] = (),
    dataset: str | None = None,
    held_out: str | None = None,
    others: Iterable[Any] = (),
) -> None:
    """Write `training.json` of a `MinerGRPOTrainer` into the run folder, before its training, on one process.

    `segments` are those of the run, the one that begins included. `dataset` is a Hub id or a folder; `held_out` is a
    Hub id, the name of a benchmark or NAME=PATH, by default the data set. `others` are further dataclasses of
    settings, such as TRL's `ModelConfig`.
    """
    base_model = trainer.model.config._name_or_path
    record = run_record(trainer.args, base_model=base_model, dataset=dataset, held_out=held_out)
    record["segments"] = list(segments)
    earlier = [name for segment in segments for name in segment["methods"]]
    record["methods"] = [*dict.fromkeys([*earlier, *record["methods"]])]
    record["papers"] |= {name: [*papers_of([name], None)[0]] for name in earlier if name not in record["papers"]}
    record["is_chat"] = prompts_are_chats(trainer)
    record["verifier"] = {"names": list(trainer.verifier.names), "all_must_score": trainer.verifier.is_guess}
    record["other_settings"] = _other_settings(trainer, others, record["settings"])
    if trainer.tools:
        record["settings"]["tools"] = ", ".join(tool.__name__ for tool in trainer.tools)
    if record["base_model"] is not None and record["base_model"]["hub"]:
        record["license"] = license_of(record["base_model"]["name"])
    path = Path(trainer.args.output_dir) / RECORD
    known = read_optional(path, [])
    record |= {"compared": known["compared"]} if "compared" in known else {}
    if known != record:  # a run without a step left changes nothing
        write_json(path, record)


def _other_settings(trainer: Any, others: Iterable[Any], shown: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are not shown, so that runs that differ in any are not taken for one method."""
    rest = {name: value for one in (*others, trainer.args) for name, value in _changed(one).items()}
    rest["reward_funcs"] = ", ".join(trainer.reward_func_names)
    for adapter in (getattr(trainer.model, "peft_config", None) or {}).values():
        kind = getattr(adapter.peft_type, "value", adapter.peft_type)
        rest["adapter"] = f"{kind}, rank {getattr(adapter, 'r', None)}"
    rest = without_paths(redact(rest))
    return {name: rest[name] for name in sorted(rest.keys() - shown.keys())}


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


def read_tools(run: Path) -> str | None:
    """Return the names of the tools that a run was trained with; None: without, or `training.json` does not say so."""
    return (read_optional(run / RECORD, [], TRAINING).get("settings") or {}).get("tools")


def papers_of(methods: Iterable[str], record: Mapping[str, Any] | None) -> list[tuple[str, str | None]]:
    """Return label and arXiv id of each method, without repeats; the name itself and None for an unknown one."""
    papers = (record or {}).get("papers")
    if papers is None:  # no record, or one that was written before there were papers in it
        from ..methods import METHODS

        papers = {name: (method.label, method.arxiv) for name, method in METHODS.items()}
    return [tuple(papers.get(name, (name, None))) for name in dict.fromkeys(map(str, methods))]


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
        "license": None,
        "versions": _versions(),
        "git": git_revision(),
    }


def _named(name: str | None) -> dict[str, Any] | None:
    """Return a Hub id as it is, and of a folder only its last name."""
    if not name:
        return None
    is_hub = not _is_made(name) and HUB_ID.fullmatch(name) is not None and not Path(name).exists()
    return {"name": name if is_hub or _is_made(name) else Path(name).resolve().name, "hub": is_hub}


def _is_made(name: str) -> bool:
    """Return whether a data set is an embedded world or of reasoning-gym: their names look like Hub ids."""
    return name.startswith(("trl_miner/", "reasoning_gym/")) or name == "reasoning_gym"


def _settings(args: Any) -> dict[str, str]:
    """Return the settings that took part in the training."""
    names = ("advantage_estimator", "policy_loss", "correct_threshold", "correct_reward_func", "dynamic_sampling")
    shown = {name: getattr(args, name) for name in names}
    optional = {name: getattr(args, name) for name in _SHOWN_IF_SET}
    shown |= {name: value for name, value in optional.items() if value not in (None, False)}
    shown |= {"prompt_selection": args.prompt_selection} if args.prompt_selection != "none" else {}
    if hasattr(args, "max_staleness"):
        shown |= {"asynchronous": True, "max_staleness": args.max_staleness, "token_budget": args.token_budget}
    for method in args.methods:
        shown |= args.method_settings(method.name)
    shown = dict(sorted(shown.items())) | {name: getattr(args, name) for name in _SHOWN_OF_ALL}
    return {name: str(value) for name, value in shown.items()}


def _changed(settings: Any) -> dict[str, str]:
    """Return the settings of a dataclass that are not at their default, as text."""
    changed = {}
    for field in dataclasses.fields(settings):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(settings, field.name)
        value, default = (getattr(one, "value", one) for one in (value, default))  # of an Enum
        is_plain = value is None or isinstance(value, str | int | float | list | tuple | dict)
        if field.init and is_plain and value != default and field.name not in _NOT_OF_METHOD:
            changed[field.name] = value if isinstance(value, str) else json.dumps(plain(value), sort_keys=True)
    return changed


def _versions() -> dict[str, str]:
    from .. import __version__

    versions = {"trl_miner": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def git_revision() -> str | None:
    """Return the commit of this package's checkout, or else of the current folder's, with a mark if files differ."""
    package = Path(__file__).resolve().parent
    # installed, it may lie in an environment that happens to lie in a checkout
    is_checkout = _git(package, "ls-files", "--error-unmatch", Path(__file__).name)
    found = _git(
        package if is_checkout else Path.cwd(),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty= + changes",
        "--exclude=*",
    )
    return found if is_checkout or not found else f"{found} of the working folder"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):  # no git, or a file system that hangs: the card can do without
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def license_of(base_model: str) -> dict[str, str] | None:
    """Return `license`, `license_name` and `license_link` of a model's card on the Hub; None: it cannot be read."""
    from huggingface_hub import ModelCard

    try:
        data = ModelCard.load(base_model).data
    except Exception:  # offline, gated, no card, or a broken one: the model card then says where to look
        return None
    known = {key: getattr(data, key, None) for key in ("license", "license_name", "license_link")}
    fields = {key: value for key, value in known.items() if value and isinstance(value, str)}
    return fields if "license" in fields else None
