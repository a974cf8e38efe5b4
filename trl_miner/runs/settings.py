"""The settings of a run as texts. `training.json` has them, for reports and cards; a run that goes
on has the same.

They hold whatever decides on the training: the fields of the trainer's configuration and of a
recipe but for those of `_HARMLESS`, and what the trainer was given beside them. A run goes on with
the same ones but for those of `_FREE` and `_TOLD`.
"""

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sized
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from ..common.redaction import redact
from .prompt_ledger import digest_of
from .training_record import read_run_record

logger = logging.getLogger(__name__)

# Settings that may differ where a run goes on, and are not recorded: its length, what is logged,
# shown, saved, pushed and evaluated, and where processes, servers and workers are.
_HARMLESS = re.compile(
    r"max_steps|num_train_epochs|accelerate_config|log_.*|logging_.*|num_completions_to_print|include_num_input_tokens_seen|"
    r"skip_memory_metrics|disable_tqdm|quiet|report_to|run_name|project|trackio_.*|output_dir|overwrite_output_dir|"
    r"save_.*|enable_jit_checkpoint|resume_.*|push_to_hub|hub_.*|do_(train|eval|predict)|eval_.*|.*_eval|"
    r"per_device_eval_batch_size|prediction_loss_only|include_for_metrics|batch_eval_metrics|"
    r"score_(steps|final_samples|batch_size)|vllm_server_(base_url|host|port|timeout)|vllm_group_port|"
    r"vllm_gpu_memory_utilization|local_rank|ddp_timeout|max_inflight_tasks|queue_maxsize|request_timeout|"
    r"weight_sync_timeout|heartbeat_stale_after_s|watchdog_seconds|judge_workers|"
    r"dataloader_(num_workers|pin_memory|persistent_workers|prefetch_factor)|torch_empty_cache_steps"
)
# Those that may differ, too: numbers move by rounding alone, or another checkpoint becomes the model.
_FREE = re.compile(
    r"(gradient|activation)_checkpointing(_kwargs)?|max_tokens_per_micro_batch|compute_less|"
    r"auto_find_batch_size|use_cpu|torch_compile.*|ddp_.*|debug|full_determinism|use_cache|"
    r"cache_implementation|ds3_gather_for_generation|vllm_(enable_sleep_mode|tensor_parallel_size)|"
    r"dataloader_(in_order|multiprocessing_context)|load_best_model_at_end|metric_for_best_model|"
    r"greater_is_better|restore_callback_states_from_checkpoint"
)
# Those that may differ with a word, and a line in `training.json`: how far a step goes, and what
# computes it. All others are of the prompts, the rewards, the objective or the model.
_TOLD = re.compile(
    r"learning_rate|max_grad_norm|attn_implementation|bf16|tf32|cast_lm_head_to_fp32|"
    r"use_liger_kernel|liger_kernel_config|use_vllm|vllm_(mode|model_impl|max_model_length)|"
    r"vllm_importance_sampling_correction|(use_)?transformers_(paged|continuous_batching.*)"
)
# What these make of the number of processes is compared, and named by them.
_STEP = (
    "rollouts per optimizer step (optimizer_batch_size, per_device_train_batch_size,"
    " gradient_accumulation_steps)"
)
_BATCH = "rollouts per generation batch (generation_batch_size, steps_per_generation)"
_PER_PROCESS = {*re.findall(r"\w+_\w+", _STEP + _BATCH)}
_NOT_OF_ADAPTER = {"base_model_name_or_path", "inference_mode", "revision", "peft_version"}
_PIECES = 4  # of a file that are compared
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/=,'\"]+/)*([^\s/=,'\"]+)/?")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, another one in each process


def settings_of(config: Any, others: Iterable[Any] = ()) -> dict[str, str]:
    """Return what a trainer's configuration and other dataclasses, a recipe's, say of the
    training."""
    found: dict[str, Any] = {}
    for one in (*others, config):
        found |= {field.name: getattr(one, field.name) for field in fields(one) if field.init}
    of_model = found.get("model_init_kwargs")
    if isinstance(of_model, Mapping):  # the model tells its attention: see `trainer_settings`
        kept = {name: value for name, value in of_model.items() if name != "attn_implementation"}
        found["model_init_kwargs"] = kept or None
    size = config.per_device_train_batch_size * config.world_size
    found |= {
        _STEP: size * config.gradient_accumulation_steps,
        _BATCH: size * config.steps_per_generation,
    }
    kept = {
        name: value
        for name, value in found.items()
        if name not in _PER_PROCESS and not _HARMLESS.fullmatch(name)
    }
    texts = redact(
        {name: value for name, value in kept.items() if not isinstance(value, int | float)}
    )
    return as_texts(kept | texts)  # a number is no secret


def trainer_settings(trainer: Any, others: Iterable[Any] = ()) -> dict[str, str]:
    """Return `settings_of` a `RunTrainer`, and what it was given: model, data, functions and
    adapter."""
    rows = trainer.train_dataset if isinstance(trainer.train_dataset, Sized) else None
    given = {
        "model": trainer.model.config._name_or_path or type(trainer.model).__name__,
        "train_dataset": "a stream" if rows is None else f"{len(rows)} rows, {digest_of(rows)}",
        "reward functions": ", ".join(trainer.reward_func_names),
        "tool functions": ", ".join(tool.__name__ for tool in trainer.tools or ()) or "none",
        "environments": (
            ", ".join(map(_name_of, getattr(trainer, "environment_factories", None) or ()))
            or "none"
        ),
        "rollout function": _name_of(trainer.rollout_func) if trainer.rollout_func else "none",
        "adapter": "none",
        "attn_implementation": getattr(trainer.model.config, "_attn_implementation", None),
        "shards": (
            "deepspeed"
            if trainer.is_deepspeed_enabled
            else "fsdp"
            if trainer.is_fsdp_enabled
            else "none"
        ),
        "asynchronous": hasattr(trainer.args, "max_staleness"),
    }
    for adapter in (getattr(trainer.model, "peft_config", None) or {}).values():
        given["adapter"] = _of_adapter(adapter)
    return settings_of(trainer.args, others) | as_texts(given)


def _of_adapter(adapter: Any) -> dict[str, Any]:
    """Return what is said of an adapter and not the default: another version of PEFT knows other
    fields."""
    known = adapter.to_dict()
    return {
        field.name: value
        for field in fields(adapter)
        if (value := known.get(field.name)) not in (field.default, None, {}, [])
        and field.name not in _NOT_OF_ADAPTER
    }


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the settings that differ, of those that both sides know, with both values; those that
    move numbers by rounding alone are left out."""
    return {
        name: (before[name], now[name])
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name] and not _FREE.fullmatch(name)
    }


def refused(differing: Mapping[str, tuple[str, str]]) -> str:
    """Return those of `differences` with which a run cannot go on, as a text."""
    return _said({name: both for name, both in differing.items() if not _TOLD.fullmatch(name)})


def _said(differing: Mapping[str, tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {old:.80} -> {new:.80}" for name, (old, new) in differing.items())


def changes_at(checkpoint: Path, step: int, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what `training.json` is to say of changed settings where a run goes on from a
    checkpoint: those before it, and with a warning those that are made now.

    Raises:
        ValueError: A setting differs that must not.
    """
    record = read_run_record(checkpoint.parent)
    way = f"start a run from its model in another output_dir: model_name_or_path: {checkpoint}"
    if record.get("settings") is None:
        of_another = (
            f"{checkpoint.parent} does not say with which settings {checkpoint.name} was made"
        )
        raise ValueError(f"{of_another}. If another trainer has made it, {way}.")
    before, changes = dict(record["settings"]), list(record.get("changes") or ())
    while changes and changes[-1]["step"] >= step:  # made since then
        before |= {name: old for name, (old, _) in changes.pop()["settings"].items()}
    differing = differences(before, settings)
    if found := refused(differing):
        raise ValueError(
            f"A run must go on with the settings of its checkpoint: those of {checkpoint} differ:"
            f" {found}. Give the same, or {way}."
        )
    if differing:
        logger.warning(
            f"From step {step} on, the run has other settings: {_said(differing)}. training.json"
            " says so."
        )
        changes.append({"step": step, "settings": differing})
    return changes


def as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts, the same at every start, wherever a local file or folder lies: paths
    are last names."""
    return {name: _PATH.sub(r"\1", _text(name, value)) for name, value in settings.items()}


def _text(name: str, value: Any) -> str:
    """Return a value in one spelling: 2 and 2.0 are one."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, str):
        # another word may be a folder's by chance
        is_path = os.sep in value or "." in value or name.startswith("model")
        return _local(Path(value)) if is_path and os.path.exists(value) else value
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return str(float(value))
    return json.dumps(value, sort_keys=True, default=_in_json)


def _in_json(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return _name_of(value) if callable(value) else _ADDRESS.sub("", str(value))


def _local(path: Path) -> str:
    """Return the name of a file or folder, and a checksum of pieces of it: training moves every
    weight of a model."""
    checksum = 0
    for one in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with open(one, "rb") as file:
            for piece in range(_PIECES):
                file.seek(one.stat().st_size * piece // _PIECES)
                checksum = zlib.crc32(file.read(2**20), checksum)
    return f"{path.resolve().name} [{checksum:08x}]"


def _name_of(function: Any) -> str:
    return str(
        getattr(function, "__qualname__", None)
        or getattr(function, "__name__", type(function).__name__)
    )
