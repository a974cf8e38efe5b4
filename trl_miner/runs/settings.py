"""The settings of a run: in one spelling for reports, and by parts of the run for those that resume it.

{"step": 40, "methods": ["grpo"], "settings": {"learning_rate": "0.001", "train_dataset": "48 rows, 9f0c...", ...}}

A segment is a part of a run, from one start to the next with other settings; checkpoints and `training.json` keep
them. Its `settings` hold whatever decides on the training, as text: the fields of the trainer's configuration and of a
recipe but for those of `HARMLESS`, and what the trainer was given beside them. Where a run goes on, those that both
sides know are compared.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from ..redaction import redact, without_paths
from .prompt_ledger import header_of
from .trainer_state import run_state

Segment = dict[str, Any]
Changes = dict[str, tuple[str, str]]  # by setting, what it was and what it is

# The defaults of MinerGRPOConfig, which this module must not import: it needs torch and TRL.
DEFAULTS = {
    "advantage_estimator": "miner",
    "policy_loss": "clip",
    "dynamic_sampling": "False",
    "adaptive_sampling_rounds": "1",
    "prompt_selection": "none",
    "importance_sampling_level": "token",
    "miner_gamma": "2.0",
    "miner_lambda_max": "0.0015",
    "miner_credit": "focal",
    "miner_intrinsic": "nll",
    "dose_share": "None",
}
# Settings that may differ where a run goes on, by the reason: regular expressions. All others are told.
HARMLESS = {
    "how long the run is": "max_steps|num_train_epochs",
    "what is logged and shown": "log_.*|logging_.*|num_completions_to_print|include_num_input_tokens_seen|"
    "skip_memory_metrics|disable_tqdm|quiet",
    "which trackers get it": "report_to|run_name|project|trackio_.*",
    "when and where it is saved": "output_dir|overwrite_output_dir|save_.*|enable_jit_checkpoint",
    "how it is resumed": "resume_.*",
    "what is pushed": "push_to_hub|hub_.*",
    "when and how it is evaluated": "do_(train|eval|predict)|eval_.*|.*_eval|per_device_eval_batch_size|"
    "prediction_loss_only|include_for_metrics|batch_eval_metrics|score_(steps|final_samples|batch_size)",
    "where servers and workers are, and how long they are waited for": "vllm_server_(base_url|host|port|timeout)|"
    "vllm_group_port|vllm_gpu_memory_utilization|local_rank|ddp_timeout|max_inflight_tasks|queue_maxsize|"
    "request_timeout|weight_sync_timeout|heartbeat_stale_after_s|watchdog_seconds|judge_workers|"
    "dataloader_(num_workers|pin_memory|persistent_workers|prefetch_factor)|torch_empty_cache_steps",
}
_HARMLESS = re.compile("|".join(HARMLESS.values()))
# What these make of the number of processes is compared, and named by them.
_STEP = "rollouts per optimizer step (optimizer_batch_size, per_device_train_batch_size, gradient_accumulation_steps)"
_BATCH = "rollouts per generation batch (generation_batch_size, steps_per_generation)"
_PER_PROCESS = {*re.findall(r"\w+_\w+", _STEP + _BATCH)}
_NOT_OF_ADAPTER = {"base_model_name_or_path", "inference_mode", "revision", "peft_version"}
_PIECES = 4  # of a file that are compared
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, another one in each process


def clean_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as text, with one spelling for 2, "2.0" and 2.0, for a cap of null, "None" and .inf, and for
    MINER on all-right prompts."""
    shown = {str(name): _spell(value) for name, value in settings.items()}
    if shown.get("miner_lambda_max") == "inf":
        shown["miner_lambda_max"] = "None"
    mixed = shown.get("advantage_estimator", DEFAULTS["advantage_estimator"])
    if shown.get("all_right") == "miner" and mixed in ("grpo", "miner"):  # the short form: miner
        del shown["all_right"]
        shown["advantage_estimator"] = "miner"
    return shown


def _spell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    if text.lower() in ("none", "null"):
        return "None"
    if text.lower() in ("true", "false"):
        return text.capitalize()
    try:
        return str(float("inf" if text == ".inf" else text))
    except (ValueError, OverflowError):
        return text


def read_options(options: Iterable[Any]) -> dict[str, Any]:
    """Return the options of a command line by name; a bare `--name` is "True"."""
    values: dict[str, Any] = {}
    name = None
    for option in map(str, options):
        if option.startswith("--"):
            name, has_value, value = option[2:].partition("=")
            name = name.replace("-", "_")
            values[name] = value if has_value else "True"
            name = None if has_value else name
        elif name is not None:
            values[name] = option if values[name] == "True" else f"{values[name]} {option}"
    return values


def settings_of(config: Any, others: Iterable[Any] = ()) -> dict[str, str]:
    """Return what a trainer's configuration and other dataclasses, a recipe's, say of the training."""
    found: dict[str, Any] = {}
    for one in (*others, config):
        found |= {field.name: getattr(one, field.name) for field in fields(one) if field.init}
    size = config.per_device_train_batch_size * config.world_size
    found |= {_STEP: size * config.gradient_accumulation_steps, _BATCH: size * config.steps_per_generation}
    kept = {name: value for name, value in found.items() if name not in _PER_PROCESS and not _HARMLESS.fullmatch(name)}
    texts = redact({name: value for name, value in kept.items() if not isinstance(value, int | float)})
    return _as_texts(kept | texts)  # a number is no secret


def trainer_settings(trainer: Any, others: Iterable[Any] = ()) -> dict[str, str]:
    """Return `settings_of` a `MinerGRPOTrainer`, and what it was given: model, data, functions and adapter."""
    rows = trainer.train_dataset if isinstance(trainer.train_dataset, Sized) else None
    header = header_of(rows, trainer.args.correct_threshold)
    given = {
        "model": trainer.model.config._name_or_path or type(trainer.model).__name__,
        "train_dataset": "a stream" if rows is None else f"{header['rows']} rows, {header['digest']}",
        "reward functions": ", ".join(trainer.reward_func_names),
        "tool functions": ", ".join(_name_of(tool) for tool in trainer.tools or ()) or "none",
        "environments": ", ".join(map(_name_of, getattr(trainer, "environment_factories", None) or ())) or "none",
        "rollout function": _name_of(trainer.rollout_func) if trainer.rollout_func else "none",
        "adapter": "none",
    }
    for adapter in (getattr(trainer.model, "peft_config", None) or {}).values():
        given["adapter"] = _of_adapter(adapter)
    return settings_of(trainer.args, others) | _as_texts(given)


def _of_adapter(adapter: Any) -> dict[str, Any]:
    """Return what is said of an adapter and not the default: another version of PEFT knows other fields."""
    known = adapter.to_dict()
    return {
        field.name: value
        for field in fields(adapter)
        if (value := known.get(field.name)) not in (field.default, None, {}, []) and field.name not in _NOT_OF_ADAPTER
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Changes:
    """Return the settings that differ, of those that both sides know."""
    names = sorted(before.keys() & now.keys())
    return {name: (before[name], now[name]) for name in names if before[name] != now[name]}


def table(found: Changes) -> str:
    """Return a line for each setting that differs; where lines are joined, they can still be told apart."""
    return ";".join(f"\n  {name}: {_short(was)} -> {_short(now)}" for name, (was, now) in found.items())


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def continued(
    checkpoint: Path, settings: Mapping[str, str], methods: Sequence[str], step: int, *, is_confirmed: bool
) -> tuple[list[Segment], str]:
    """Return the segments of a run that goes on from a checkpoint of `step`, and what to warn of.

    Raises:
        ValueError: Settings differ, and nobody has confirmed it.
    """
    known: list[Segment] = [*run_state(checkpoint).get("segments", [])]
    if not known:
        raise ValueError(
            f"A checkpoint must say with which settings it was made: {checkpoint} does not, as it is another "
            f"trainer's. Start a run from its model: give it as model_name_or_path."
        )
    if not (found := changes(known[-1]["settings"], settings)):
        return known, ""
    if not is_confirmed:
        raise ValueError(
            f"A run must go on with the settings of its checkpoint: those of {checkpoint} differ:{table(found)}\n"
            f"Give the same, start anew in another output_dir, or set resume_with_changes: true to go on with these."
        )
    return [*known, {"step": step, "methods": [*methods], "settings": dict(settings)}], (
        f"{checkpoint.name} goes on with other settings, as resume_with_changes says. They differ:{table(found)}"
    )


def sentences(segments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on each change of settings within a run."""
    told = []
    for before, now in zip(segments, segments[1:], strict=False):
        shown = " ".join(table(changes(before["settings"], now["settings"])).split())
        told.append(f"After step {now['step']} the run went on with other settings: {shown}.")
    return told


def _as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts, the same at every start, wherever a local file or folder lies."""
    return without_paths({name: _text(name, plain(value)) for name, value in settings.items()})


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, sort_keys=True)
    is_path = os.sep in value or "." in value or name.startswith("model")  # another word may be a folder's by chance
    return _local(Path(value)) if is_path and os.path.exists(value) else value


def _local(path: Path) -> str:
    """Return the name of a file or folder, and a checksum of pieces of it: training moves every weight of a model."""
    checksum = 0
    for one in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with open(one, "rb") as file:
            for piece in range(_PIECES):
                file.seek(one.stat().st_size * piece // _PIECES)
                checksum = zlib.crc32(file.read(2**20), checksum)
    return f"{path.resolve().name} [{checksum:08x}]"


def plain(value: Any) -> Any:
    """Return a value of a setting in terms of JSON, and in one spelling: 1 and 1.0 are one, and so are {} and None."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()} or None
    if isinstance(value, list | tuple | set | frozenset):
        inner = map(plain, value)
        return (sorted(inner, key=str) if isinstance(value, set | frozenset) else [*inner]) or None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return _name_of(value) if callable(value) else _ADDRESS.sub("", str(value))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__))
